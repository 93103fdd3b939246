"""Are some ranks slow, or is their work? They and a few peers run the same kernels at the end of the same step.

Step times alone do not say which of two replicas is the slow one, and never whether the device is at fault: a rank may
have more work. Equal kernels do, and no rank loses a step. The result is an event: the service makes a finding of it
where a rank is slow.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.job_requests import JobRequests, RequestRejectedError, named_ranks
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.recovery.protocol.messages import MeasureSpeeds
from mainstay.recovery.protocol.worker_messages import SpeedMeasured

SLOWER: Final = 1.2
"""Times the peers' seconds from which a rank is slow: devices of one model differ by some percent, and a processor that
other programs use as well by more."""
PEERS: Final = 4
"""Ranks to compare with, on other nodes where there are any: one of them may be slow itself."""
ANSWER_SECONDS: Final = 30.0
STEPS: Final = 3.0
"""The present step has to end first: so many steps are waited for beside."""


class SpeedChecker:
    """One a coordinator."""

    def __init__(self, job: Job, inputs: PlannerInputBuilder, requests: JobRequests) -> None:
        self._job = job
        self._inputs = inputs
        self._requests = requests
        self._number = 0
        self._answers: dict[int, SpeedMeasured] = {}
        self._current: JobRequest | None = None

    def obstacle(self, _: RequestKind) -> str:
        """Why no ranks can be compared; empty: they can."""
        return "" if len(self._job.members.present) > 1 else "there is no other rank to compare with"

    def start(self, request: JobRequest) -> None:
        """Begin to compare.

        Raises:
            RequestRejectedError: there is nothing to compare now; one line.
        """
        members = self._job.members
        suspects = {number for number in named_ranks(members, request) if not members.ranks[number].away}
        if self._current is not None:
            raise RequestRejectedError("another check is under way")
        if not suspects:
            raise RequestRejectedError(f"{request.subject} takes no part in training now")
        peers = self._peers(suspects)
        if not peers:
            raise RequestRejectedError("there is no other rank to compare with")
        self._current = request
        who = f"ranks {sorted(suspects)} and {peers} run the same kernels after this step"
        self._requests.answer(request, RequestState.ACCEPTED, who)
        self._job.spawn(self._compare(request, suspects, peers))

    def _peers(self, suspects: Collection[int]) -> list[int]:
        """Others: first of the same role, whose devices are alike; on other nodes; one on each before a second."""
        members = self._job.members
        role = {rank.number: members.known_shape.place(rank.number)[1:] for rank in members.present}
        own, roles = {members.ranks[number].node for number in suspects}, {role[number] for number in suspects}
        seen = Counter[str]()
        order = []
        for rank in members.present:
            if rank.number not in suspects:
                seen[rank.node] += 1
                order.append((role[rank.number] not in roles, rank.node in own, seen[rank.node], rank.number))
        return [number for *_, number in sorted(order)[:PEERS]]

    def add_answer(self, rank: int, answer: SpeedMeasured) -> None:
        """Keep a rank's answer; one to an older request comes too late."""
        if answer.request == self._number:
            self._answers[rank] = answer

    async def _compare(self, request: JobRequest, suspects: Collection[int], peers: list[int]) -> None:
        nodes = {number: self._job.members.ranks[number].node for number in suspects}  # a rank may move meanwhile
        try:
            problem = await self._measure({*suspects, *peers})
        finally:
            self._current = None
        if problem:
            self._requests.answer(request, RequestState.FAILED, problem)
            return
        found = compare({rank: answer.seconds for rank, answer in self._answers.items()}, suspects, peers)
        if not all(found.values()):
            self._requests.answer(request, RequestState.FAILED, "the ranks measured no kernel in common")
            return
        ranks = [
            {"rank": rank, "node": nodes[rank], "slow": slow(ratios), "ratios": ratios}
            for rank, ratios in found.items()
        ]
        summary = "; ".join(describe(rank, ratios) for rank, ratios in found.items())
        log.warning("speed check of %s: %s", request.subject, summary)
        data: dict[str, Any] = {"summary": summary, "reason": request.reason, "peers": peers, "ranks": ranks}
        self._job.event(EventKind.SPEED_CHECK_FINISHED, data)
        self._requests.answer(request, RequestState.COMPLETED, summary)

    async def _measure(self, asked: set[int]) -> str:
        """Have the ranks measure; why there is no result, or nothing."""
        job = self._job
        self._number, self._answers = self._number + 1, {}
        job.ask_ranks(asked, lambda ranks: MeasureSpeeds(request=self._number, ranks=ranks))
        wait = ANSWER_SECONDS + STEPS * (self._inputs.step_seconds or 0.0)
        await job.until(lambda: job.state.over or asked <= self._answers.keys(), wait)
        missing = sorted(asked - self._answers.keys())
        if missing:
            return f"ranks {missing} gave no answer within {wait:.0f} s"
        problems = [f"rank {rank}: {one.problem}" for rank, one in sorted(self._answers.items()) if one.problem]
        return "; ".join(problems)


def compare(
    seconds: Mapping[int, Mapping[str, float]], suspects: Collection[int], peers: Collection[int]
) -> dict[int, dict[str, float]]:
    """Suspect -> kernel that all have measured -> how many times the median of its peers' seconds it takes."""
    measured = ({name for name, value in seconds[rank].items() if 0 < value < math.inf} for rank in (*suspects, *peers))
    kernels = sorted(set.intersection(*measured))
    usual = {kernel: statistics.median(seconds[peer][kernel] for peer in peers) for kernel in kernels}
    return {
        rank: {kernel: round(seconds[rank][kernel] / usual[kernel], 3) for kernel in usual} for rank in sorted(suspects)
    }


def slow(ratios: Mapping[str, float]) -> bool:
    """Whether a rank is slower than its peers in any kernel."""
    return max(ratios.values(), default=0.0) >= SLOWER


def describe(rank: int, ratios: Mapping[str, float]) -> str:
    """One clause for people."""
    if not slow(ratios):
        return f"rank {rank} is as fast as its peers"
    worst = max(ratios, key=ratios.__getitem__)
    return f"rank {rank} is slow: {worst} takes {ratios[worst]:.2f} times as long as on its peers"
