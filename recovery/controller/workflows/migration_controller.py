"""Live migration: ranks of a living node that is not trusted move to warm standbys on other nodes with a short pause.

request   by an operator, the service or file (``mainstay.recovery.migration_request``); rejected in one line if invalid
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

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from mainstay.probes.core_types import EventKind
from mainstay.recovery.agent.messages import NEWEST
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, WorkflowName
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.migration_request import MigrationRequest, MigrationResult, MigrationState, read, read_requests
from mainstay.recovery.protocol.messages import Prefetch, PrefetchResult

log = logging.getLogger("mainstay.coordinator")

FETCH_SECONDS: Final = 600.0
"""As long as an agent gives one transfer."""
REMEMBERED: Final = 64
"""Answers that a job report carries at most: an advice is asked after until its answer has arrived."""


class MigrationRejectedError(RuntimeError):
    """The advice is not followed; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class _Current:
    advice: MigrationRequest
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
        MigrationRejectedError: there are too few standbys.
    """
    # All refusals come first, each with its own sentence for the operator; after them the choice cannot fail.
    away = {homes[rank] for rank in moving}
    if target in away:
        raise MigrationRejectedError(f"what is to move is on {target} already")
    if target is not None and target not in standbys:
        raise MigrationRejectedError(
            f"the job has no living node {target}: its nodes are {', '.join(sorted(standbys))}"
        )
    if target is not None and target in warned:
        raise MigrationRejectedError(
            f"{target} takes no rank while it is not trusted: {warned[target]}. Choose another node, or return it to "
            "service first"
        )
    wanted = standbys.keys() - away if target is None else {target}
    free = {node: count for node, count in standbys.items() if node in wanted and count > 0}
    if sum(free.values()) < len(moving):
        where = "other nodes" if target is None else target
        raise MigrationRejectedError(
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

    def __init__(self, job: Job) -> None:
        self._job = job
        self._waiting: dict[str, MigrationRequest] = {}
        self._answers: dict[str, MigrationResult] = {}
        self._brought: dict[int, PrefetchResult] = {}
        self._current: _Current | None = None
        loop = asyncio.get_running_loop()

        def answered(answer: Any) -> None:  # in a thread of the reporter
            if (given := read(answer)) and not loop.is_closed():
                loop.call_soon_threadsafe(self.submit, given)

        job.reporter.listen(answered)

    # Advice

    def submit(self, given: Collection[MigrationRequest]) -> None:
        """Hear advice; what was heard before is not done twice."""
        for advice in given:
            if advice.id not in self._answers:
                self._waiting.setdefault(advice.id, advice)

    def run_once(self) -> None:
        """Called every second or so: follow the next advice if the job has time for it."""
        job = self._job
        self.submit(read_requests(job.options.state_dir))
        if not self._waiting or self._current or job.state.phase is not JobPhase.RUNNING or job.busy or job.state.over:
            return
        advice = self._waiting.pop(next(iter(self._waiting)))
        try:
            moves = self._plan(advice)
        except MigrationRejectedError as error:
            self._answer(advice, MigrationState.REJECTED, str(error))
            log.warning("no migration of %s: %s", advice.subject, error)
            return
        if not moves:
            self._answer(advice, MigrationState.COMPLETED, f"no rank of this job is on {advice.subject}")
            return
        self._current = _Current(advice, moves, {rank: job.members.ranks[rank].node for rank in moves})
        job.spawn(self._ahead(self._current))

    def answers(self) -> list[MigrationResult]:
        """What became of advice, for the job report; the oldest are forgotten first."""
        return list(self._answers.values())[-REMEMBERED:]

    def _answer(self, advice: MigrationRequest, state: MigrationState, detail: str, **figures: Any) -> None:
        self._answers.pop(advice.id, None)
        self._answers[advice.id] = MigrationResult(id=advice.id, state=state, detail=detail[:500], **figures)
        while len(self._answers) > 2 * REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._job.control.report()

    # The plan

    def _plan(self, advice: MigrationRequest) -> dict[int, str]:
        members = self._job.members
        shape = members.shape
        if shape is None:
            raise MigrationRejectedError("the script does not use the SDK: its ranks have no state that could move")
        moving = self._moving(advice)
        bare = [n for n in moving if not (a := members.ranks[n].attached) or not a.protected]
        if bare:
            raise MigrationRejectedError(f"ranks {bare} are not protected: there is no snapshot that could move")
        if any(rank.gone for rank in members.ranks):
            raise MigrationRejectedError("ranks have left the training loop already: the job is about to end")
        homes = {rank.number: rank.node for rank in members.ranks}
        if advice.target is not None:
            self._job.warn(members.warnings.trust(advice.target))
        warned = {node: warning.reason for node, warning in members.warnings.current().items()}
        return choose(moving, homes, members.standbys(), shape.dp_peers, advice.target, warned=warned)

    def _moving(self, advice: MigrationRequest) -> list[int]:
        members = self._job.members
        if advice.rank is not None:
            if not 0 <= advice.rank < len(members.ranks):
                raise MigrationRejectedError(
                    f"the job has no rank {advice.rank}: its ranks are 0 to {len(members.ranks) - 1}"
                )
            return [advice.rank]
        if advice.node not in members.nodes:
            raise MigrationRejectedError(
                f"the job has no node {advice.node}: its nodes are {', '.join(sorted(members.nodes))}"
            )
        return [rank.number for rank in members.on(advice.node)]

    # Before any rank stops

    async def _ahead(self, current: _Current) -> None:
        job, moves = self._job, current.moves
        where = ", ".join(f"rank {rank} to {node}" for rank, node in sorted(moves.items()))
        log.warning("MIGRATION of %s: %s (%s)", current.advice.subject, where, current.advice.reason or "no reason")
        told = {"reason": current.advice.reason, "finding": current.advice.finding}
        self._event(EventKind.MIGRATION_STARTED, current, told)
        self._answer(current.advice, MigrationState.ACCEPTED, where)
        problem = await self._bring(moves, current.sources, NEWEST)
        problem = problem or await job.next_step()
        problem = problem or self._distrusted(moves)
        if problem:
            self._finish(current, f"no rank was stopped and nothing has moved: {problem}")
            return
        reason = f"migration of {current.advice.subject}: {current.advice.reason}"
        job.control.replay(
            GenerationFailure(ranks=set(), time=time.time(), reason=reason, counts=False, workflow=WorkflowName.MIGRATE)
        )

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
        job.begin_generation(f"{current.advice.subject} moves")
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
        detail = problem
        if done:
            detail = f"ranks {sorted(current.moves)} moved, training stood still for {seconds['total']:.3f} s"
        log.warning("MIGRATION of %s: %s", current.advice.subject, detail)
        if done and current.advice.node is not None:
            left = f"its ranks left it: {current.advice.reason}"
            job.warn(job.members.warnings.suspect(current.advice.node, left))
        told = {"ok": done, "detail": detail[:500], "phases": seconds, **figures}
        self._event(EventKind.MIGRATION_FINISHED, current, told)
        self._answer(current.advice, MigrationState.COMPLETED if done else MigrationState.FAILED, detail, **figures)

    def _event(self, kind: EventKind, current: _Current, data: dict[str, Any]) -> None:
        advice = current.advice
        moves = [{"rank": r, "from": current.sources[r], "to": to} for r, to in sorted(current.moves.items())]
        told = {"migration": advice.id, "subject": advice.subject, "moves": moves, **data}
        self._job.reporter.event(
            kind, node=advice.node, rank=advice.rank, generation=self._job.state.generation, data=told
        )
