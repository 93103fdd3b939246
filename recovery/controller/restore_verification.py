"""Whether all ranks hold what they should after a restore: each its own parameters of that epoch, replicas the same.

Nothing continues with replicas that differ. Averaged gradients would spread what is wrong, a replay could not say who
computes wrongly, and it would go unnoticed. Where they differ the job goes back more, epoch by epoch, to one at which
they agree; where there is none, the odd ones take a replica's state (``minority_ranks`` of the planner's input).
``--max-restarts`` ends what does not end otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.recovery_record import RecoveryRecord, failed_sources
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.protocol.worker_messages import RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource


def find_restore_mismatch(
    job: Job, recovery: RecoveryRecord, orders: Mapping[int, RestoreOrder]
) -> GenerationFailure | None:
    """After all ranks have carried out ``orders``: None where all is well, else why and how far the job must go back.

    What is found to be no snapshot of its epoch is left out of further plans of ``recovery``. Where all is well the
    digests are remembered: the same epoch, restored again, must be the same.
    """
    epoch = next((order.epoch for order in orders.values()), None)
    if epoch is None:
        return None
    digests = _told(job.members.ranks, orders)
    history = job.history
    own = {r: digest for r, digest in digests.items() if orders[r].source is not RestoreSource.PEER_COPY}
    departed = history.digest_diverged(epoch, own)
    odd = departed | _apart(job, digests)
    if not odd:
        history.remember(epoch, digests)
        return None
    recovery.apart = True
    recovery.bad |= {failed_sources(rank, orders[rank]) for rank in departed}
    sources = ", ".join(f"{rank} from {orders[rank].source}" for rank in sorted(orders))
    why = (
        f"the job goes back further than step {epoch}: what ranks {sorted(odd)} have restored of it is not what they "
        f"held before, or not what their replicas hold ({sources})"
    )
    return GenerationFailure(reason=why, before=epoch - 1, odd=frozenset(odd))


def _told(ranks: Iterable[RankMember], orders: Mapping[int, RestoreOrder]) -> dict[int, int]:
    votes = {rank.number: rank.resumed for rank in ranks if rank.number in orders}
    return {rank: vote.digest for rank, vote in votes.items() if vote is not None and vote.digest is not None}


def _apart(job: Job, digests: Mapping[int, int]) -> set[int]:
    """Replicas that differ: the minority, or all of a place where no majority says who is right."""
    shape = job.members.shape
    if shape is None or job.state.replicated is None or not job.state.parameters_equal:
        return set()
    places = {tuple(shape.dp_peers(rank)) for rank in digests}
    return set().union(*(_minority({rank: digests[rank] for rank in place if rank in digests}) for place in places))


def _minority(digests: Mapping[int, int]) -> set[int]:
    (most, votes), *others = Counter(digests.values()).most_common()
    if not others:
        return set()
    return {rank for rank, digest in digests.items() if digest != most or 2 * votes <= len(digests)}
