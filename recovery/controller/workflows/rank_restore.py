"""Restore or leave on request: ranks lose their processes as in a failure, and the usual recovery follows.

restore   the processes of the ranks end, and new ones restore the newest snapshots. A node that was left before takes
          ranks again: those that were away since come back
degrade   the node takes no rank until it is restored, or is back in service where the service has it out. Places on
          other nodes take its ranks; without enough of them the job continues without those that are left over, as with
          ``--on-loss auto`` where it was started with ``wait``
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.job_requests import JobRequests, RequestRejectedError, named_ranks
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.state.events import SettingsChanged
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.recovery.node_warning import cordon
from mainstay.recovery.work_assignment import LossPolicy

RECOVERY_SECONDS: Final = 600.0
"""A request that takes longer is reported as failed; the recovery continues."""


class RankRestorer:
    """One a coordinator."""

    def __init__(self, job: Job, participation: ParticipationPolicy, requests: JobRequests) -> None:
        self._job = job
        self._participation = participation
        self._requests = requests

    def obstacle(self, kind: RequestKind) -> str:
        """Why no rank can be restored or given up now; empty: some may."""
        if kind is RequestKind.RESTORE or any(self._job.members.rooms().values()):
            return ""
        return self._participation.unable() or ""

    def start(self, request: JobRequest) -> None:
        """Begin to restore ranks, or to leave a node.

        Raises:
            RequestRejectedError: the job cannot continue so; one line.
        """
        members = self._job.members
        ranks = set(named_ranks(members, request))
        if request.kind is RequestKind.DEGRADE:
            self._leave(request, ranks)
        elif request.node is not None:
            self._use_again(request.node)
        ranks = {number for number in ranks if request.kind is RequestKind.RESTORE or not members.ranks[number].away}
        if not ranks:
            takes = "ranks" if request.node is not None and members.can_run(request.node) else "none"
            detail = f"no rank is on {request.node}; it takes {takes} from now on"
            self._requests.answer(request, RequestState.COMPLETED, detail)
            return
        self._requests.answer(request, RequestState.ACCEPTED, f"ranks {sorted(ranks)} lose their processes")
        self._job.spawn(self._carry_out(request, ranks))

    # Leave a node

    def _leave(self, request: JobRequest, ranks: Collection[int]) -> None:
        job, members, node = self._job, self._job.members, request.node
        assert node is not None
        rooms = sum(room for name, room in members.rooms().items() if name != node)
        if rooms < len(ranks):
            why = self._participation.cannot_lose(ranks)
            if why:
                raise RequestRejectedError(f"{rooms} places are free on other nodes for {len(ranks)} ranks. {why}")
            if job.state.on_loss is LossPolicy.WAIT:
                job.apply(SettingsChanged(on_loss=LossPolicy.AUTO))
        # A finding may clear only because no rank is there any more. What is out of service comes back validated.
        if members.can_run(node):
            reason = f"left on request: {request.reason or 'no reason'}"
            job.warn(members.warnings.note(node, cordon(reason)))

    def _use_again(self, node: str) -> None:
        members = self._job.members
        closed = members.by_trust().cordoned
        self._job.warn(members.warnings.trust(node))
        self._participation.reopen(closed)

    # The recovery

    async def _carry_out(self, request: JobRequest, ranks: set[int]) -> None:
        job, members = self._job, self._job.members
        present = {number for number in ranks if not members.ranks[number].away}
        record: RecoveryRecord | None = None
        if present:
            reason = f"{request.kind} of {request.subject}: {request.reason or 'no reason'}"
            failure = GenerationFailure(ranks=present, reason=reason, counts=False, requested=True)
            job.control.failed(failure)
            record = job.recovery

        def over() -> bool:
            trains = job.state.phase is JobPhase.RUNNING and not job.active
            back = request.kind is RequestKind.DEGRADE or not any(members.ranks[number].away for number in ranks)
            return job.state.over or (trains and back)

        done = await job.until(over, RECOVERY_SECONDS)
        if job.state.over or not done:
            detail = (
                "the job has ended" if job.state.over else f"training did not continue within {RECOVERY_SECONDS:g} s"
            )
            self._requests.answer(request, RequestState.FAILED, detail)
            return
        self._answer(request, ranks, record)

    def _answer(self, request: JobRequest, ranks: Collection[int], record: RecoveryRecord | None) -> None:
        members = self._job.members
        away = sorted(number for number in ranks if members.ranks[number].away)
        placed = sorted(set(ranks) - set(away))
        told = [f"ranks {placed} are restored on {', '.join(sorted({members.ranks[n].node for n in placed}))}"]
        detail = "; ".join([*(told if placed else []), *([f"ranks {away} stay away"] if away else [])])
        figures: dict[str, Any] = {}
        if record is not None:
            epochs = [rank.resumed.epoch for rank in members.present if rank.resumed is not None]
            step = min(epochs, default=record.step_before)
            lost = max(0, record.step_before - step)
            figures = {"seconds": record.seconds()["total"], "steps_lost": lost, "step": step}
        self._requests.answer(request, RequestState.COMPLETED, detail, **figures)
