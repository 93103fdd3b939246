"""Live migration: ranks of a living node that is not trusted move to warm standbys on other nodes with a short pause.

request   by an operator, the service or file (``mainstay.recovery.job_request``); rejected in one line if invalid
ahead     ranks train on; the agents of the targets make arenas and fetch the newest slots: the pages are there then
fence     right after a step all ranks stop, a generation up; every process stays, each with the state of that step
fetch     the targets fetch the slots of that step. If one cannot be had, all continue where they were: nothing is lost
move      the processes at the source end, standbys take their ranks and load the slot beside them; the others keep
          their tensors. All vote, as after any recovery

What fails after that is a recovery like any other, and the slots at the source are still among its sources: its agent
keeps them until the job ends. Training stands still from the fence to the first new step: about state / bandwidth and
a regroup. TrainMover (2412.12636) and Parcae (2403.14097) move ahead of a failure as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.recovery.agent.messages import NEWEST
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, WorkflowName
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.job_requests import JobRequests, RequestRejectedError, named_ranks
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.recovery.protocol.messages import Prefetch, PrefetchResult

FETCH_SECONDS: Final = 600.0
"""As long as an agent gives one transfer."""


@dataclass(frozen=True, slots=True)
class _Current:
    request: JobRequest
    moves: dict[int, str]
    """Rank -> node that it goes to."""
    sources: dict[int, str]


def choose(
    moving: Collection[int],
    homes: Mapping[int, str],
    standbys: Mapping[str, int],
    peers: Callable[[int], list[int]],
    target: str | None = None,
    *,
    warned: Mapping[str, str] = MappingProxyType({}),
) -> dict[int, str]:
    """A node for each rank that moves: away from its replicas, then where most standbys wait.

    Args:
        moving: ranks.
        homes: rank -> node, of all ranks.
        standbys: node -> warm standbys that it has room for.
        peers: rank -> ranks that hold the same state, itself included.
        target: the only node that is wanted; None: any.
        warned: node -> why it takes no rank; it has no ``standbys``.

    Raises:
        RequestRejectedError: there are too few standbys.
    """
    # All refusals come first, each with its own sentence for the operator; after them the choice cannot fail.
    away = {homes[rank] for rank in moving}
    if target in away:
        raise RequestRejectedError(f"what is to move is on {target} already")
    if target is not None and target not in standbys:
        raise RequestRejectedError(f"the job has no living node {target}: its nodes are {', '.join(sorted(standbys))}")
    if target is not None and target in warned:
        raise RequestRejectedError(
            f"{target} takes no rank while it is not trusted: {warned[target]}. Choose another node, or return it to "
            "service first"
        )
    wanted = standbys.keys() - away if target is None else {target}
    free = {node: count for node, count in standbys.items() if node in wanted and count > 0}
    if sum(free.values()) < len(moving):
        where = "other nodes" if target is None else target
        raise RequestRejectedError(
            f"{len(moving)} warm standbys on {where} are needed and {sum(free.values())} are ready (see --standbys)"
            + "".join(f"; {node} takes no rank: {warned[node]}" for node in sorted(wanted & warned.keys()))
        )
    now, moves = dict(homes), dict[int, str]()
    for rank in sorted(moving):
        others = [now[peer] for peer in peers(rank) if peer != rank]
        best = min((others.count(node), -count, node) for node, count in free.items() if count)[2]
        now[rank] = moves[rank] = best
        free[best] -= 1
    return moves


class MigrationController:
    """One a coordinator: one migration at a time, only while the job runs."""

    def __init__(self, job: Job, requests: JobRequests) -> None:
        self._job = job
        self._requests = requests
        self._brought: dict[int, PrefetchResult] = {}
        self._current: _Current | None = None

    def obstacle(self, _: RequestKind) -> str:
        """Nothing: the job report tells apart how many standbys wait."""
        return ""

    def start(self, request: JobRequest) -> None:
        """Begin to move what ``request`` names.

        Raises:
            RequestRejectedError: it cannot move; one line.
        """
        moves = self._plan(request)
        if not moves:
            detail = f"no rank of this job is on {request.subject}"
            self._requests.answer(request, RequestState.COMPLETED, detail)
            return
        self._current = _Current(request, moves, {rank: self._job.members.ranks[rank].node for rank in moves})
        self._job.spawn(self._ahead(self._current))

    # The plan

    def _plan(self, request: JobRequest) -> dict[int, str]:
        members = self._job.members
        moving = named_ranks(members, request)
        bare = [n for n in moving if not (a := members.ranks[n].attached) or not a.protected]
        if bare:
            raise RequestRejectedError(f"ranks {bare} are not protected: there is no snapshot that could move")
        homes = {rank.number: rank.node for rank in members.ranks}
        if request.target is not None:
            self._job.warn(members.warnings.trust(request.target))
        warned = {node: warning.reason for node, warning in members.warnings.current().items()}
        return choose(moving, homes, members.standbys(), members.known_shape.dp_peers, request.target, warned=warned)

    # Before any rank stops

    async def _ahead(self, current: _Current) -> None:
        job, moves = self._job, current.moves
        where = ", ".join(f"rank {rank} to {node}" for rank, node in sorted(moves.items()))
        log.warning("MIGRATION of %s: %s (%s)", current.request.subject, where, current.request.reason or "no reason")
        told = {"reason": current.request.reason, "finding": current.request.finding}
        self._event(EventKind.MIGRATION_STARTED, current, told)
        self._requests.answer(current.request, RequestState.ACCEPTED, where)
        problem = await self._bring(moves, current.sources, NEWEST)
        problem = problem or await job.next_step()
        problem = problem or self._distrusted(moves)
        if problem:
            self._finish(current, f"no rank was stopped and nothing has moved: {problem}")
            return
        reason = f"migration of {current.request.subject}: {current.request.reason}"
        job.control.replay(GenerationFailure(reason=reason, counts=False, workflow=WorkflowName.MIGRATE))

    def _distrusted(self, moves: Mapping[int, str]) -> str:
        """Which targets got a warning since they were chosen; empty: none."""
        warned = self._job.members.warnings.current()
        return "; ".join(
            f"{n} is not trusted now: {warned[n].reason}" for n in sorted(warned.keys() & {*moves.values()})
        )

    async def _bring(self, moves: Mapping[int, str], sources: Mapping[int, str], epoch: int) -> str:
        """Have the targets fetch the slots; why one cannot be had, or nothing."""
        members = self._job.members
        self._brought.clear()
        for rank, node in moves.items():
            endpoint = members.nodes[sources[rank]].endpoint
            self._job.send(members.nodes[node], Prefetch(rank=rank, epoch=epoch, endpoint=endpoint))
        nodes = [members.nodes[name] for name in {*moves.values(), *sources.values()}]

        def over() -> bool:
            return moves.keys() <= self._brought.keys() or not all(node.alive for node in nodes)

        await self._job.until(over, FETCH_SECONDS)
        problems = [f"rank {b.rank}: {b.problem}" for b in self._brought.values() if b.problem]
        late = sorted(moves.keys() - self._brought.keys())
        return "; ".join([*problems, *([f"the slots of ranks {late} did not come"] if late else [])])

    def brought(self, message: PrefetchResult) -> None:
        """A target's agent has fetched a slot, or could not."""
        self._brought[message.rank] = message

    # While everybody waits

    async def carry_out(self, executor: RecoveryExecutor, recovery: RecoveryRecord, ended: EndedGeneration) -> None:
        """All ranks are fenced by ``executor``; what follows ends like a recovery, with ranks moved or without."""
        current = self._current
        assert current is not None
        problem = "something failed meanwhile, which came first"
        try:
            if ended.victims:  # lost in the very moment: a recovery like any other
                await executor.recover_job(recovery, ended.victims, ended.waiting)
            else:
                problem = await self._move(executor, recovery, ended.waiting, current) or problem
        finally:  # cancelled too: by any failure meanwhile, or by the end of the job
            self._finish(current, problem, recovery)

    async def _move(
        self, executor: RecoveryExecutor, recovery: RecoveryRecord, waiting: set[int], current: _Current
    ) -> str:
        job, moves = self._job, current.moves
        if not await executor.fencing.wait_for_survivors(recovery, waiting):
            return "not all ranks left their collectives"
        # The fence may have cut the copy of the step that has just ended: then the one before it moves.
        recovery.before = self._newest_whole(executor, current)
        plan = executor.plan(recovery, set())
        problem = plan.explanation
        if plan.chosen is not None:
            problem = await self._bring(moves, current.sources, plan.alternative().epoch or 0)
            problem = problem or self._distrusted(moves)  # since the ranks stopped
        if problem:
            log.warning("MIGRATION given up, all continue where they are: %s", problem)
            recovery.before = None
            await executor.recover_job(recovery, set(), waiting)
            return problem
        recovery.marks.clear()
        recovery.acted_at = time.time()  # what came before is not the price of a fence
        job.begin_generation(f"{current.request.subject} moves")
        if executor.fencing.replace(set(moves), moves=moves):
            await executor.recover_job(recovery, set(moves), waiting - moves.keys())
        return ""

    def _newest_whole(self, executor: RecoveryExecutor, current: _Current) -> int | None:
        """The newest epoch that the sources still hold of all ranks that move; None: there is none."""
        newest: dict[int, int] = {}
        for hold in executor.inputs.situation(set()).slots:
            if current.sources.get(hold.rank) == hold.node:
                newest[hold.rank] = max(hold.epoch, newest.get(hold.rank, 0))
        return min(newest.values()) if newest.keys() == current.moves.keys() else None

    def _finish(self, current: _Current, problem: str, recovery: RecoveryRecord | None = None) -> None:
        """Say what became of it: done when all ranks live where they should and training continues."""
        if self._current is not current:
            return
        self._current = None
        job = self._job
        ranks = [job.members.ranks[number] for number in current.moves]
        went_on = recovery is not None and any(phase == "first_step" for phase, _ in recovery.marks)
        done = went_on and all(rank.live and rank.node == current.moves[rank.number] for rank in ranks)
        seconds = recovery.seconds() if recovery is not None and went_on else {}
        figures: dict[str, Any] = {}
        if recovery is not None and went_on and ranks[0].resumed is not None:
            lost = max(0, recovery.step_before - ranks[0].resumed.epoch)
            figures = {"seconds": seconds["total"], "steps_lost": lost}
        detail = f"ranks {sorted(current.moves)} moved" if done else problem
        log.warning("MIGRATION of %s: %s", current.request.subject, detail)
        if done and current.request.node is not None:
            left = f"its ranks left it: {current.request.reason}"
            job.warn(job.members.warnings.suspect(current.request.node, left))
        told = {"ok": done, "detail": detail[:500], "phases": seconds, **figures}
        self._event(EventKind.MIGRATION_FINISHED, current, told)
        state = RequestState.COMPLETED if done else RequestState.FAILED
        self._requests.answer(current.request, state, detail, **figures)

    def _event(self, kind: EventKind, current: _Current, data: dict[str, Any]) -> None:
        request = current.request
        moves = [{"rank": r, "from": current.sources[r], "to": to} for r, to in sorted(current.moves.items())]
        told = {"migration": request.id, "subject": request.subject, "moves": moves, **data}
        self._job.event(kind, told, node=request.node, rank=request.rank)
