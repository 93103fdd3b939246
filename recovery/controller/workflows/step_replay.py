"""Bisection by replay: which device computes wrongly, found by the job itself, and then given no more work.

ask       a finding (``numeric_anomalies``), an operator (SIGUSR2) or ``--step-replay-every`` asks for it
fence     all ranks stop, a generation up; no rank is killed
restore   all of them to the newest epoch that is sound as far as is known, from memory or from disk
replay    in groups that do not talk to each other each makes the same few steps several times, as the same replica:
          same data, same seeds. With data parallelism only a group is one rank; else first a replica, then ranks
          from several replicas that together make one
judge     ``mainstay.detectors.job.replay_analysis``: a strict majority says which bits are right
continue  culprits are fenced and replaced on another device, the job restores the sound epoch and trains on; with no
          culprit the same without a fence

Any failure ends the replay: the generation is raised and the job recovers as always, from the same epoch. So
does a replay that takes too long. Not covered: state that is sharded among replicas (no two ranks do the same work),
and a device that computes wrongly only in collectives between replicas, which a replay does not make.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any, Final, NamedTuple

from mainstay.detectors.job.replay_analysis import ReplayOutcome, ReplayResult, ReplayTrace, analyze_replays
from mainstay.detectors.job.replay_bisection import Groups, MeshPlan, mesh_plan
from mainstay.probes.core_types import EventKind
from mainstay.recovery.controller.failure import EndedGeneration, GenerationFailure, ReplayTrigger, WorkflowName
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.recovery_record import RecoveryRecord, failed_sources
from mainstay.recovery.controller.restore_verification import find_restore_mismatch
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.protocol.step_replay_messages import PER_STEP, StepReplayRequest
from mainstay.recovery.protocol.worker_messages import Replayed, RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource

STEPS: Final = 4
"""Of one repeat. More show a rare fault as well as more repeats do, and say less of when it began."""
SHOWS, SURE = 0.5, 0.99
"""A fault that shows in every other repeat (one step in six) is found with this probability."""
BUDGET_SECONDS: Final = 300.0
"""What all repeats of one cut may take by the job's step time: slow steps are repeated less often, twice at least."""
LEAST_REPEATS: Final = 2
PATIENCE: Final = 5.0
"""Times what it should take, and no less than ``LEAST_SECONDS``: then a replay is given up."""
LEAST_SECONDS: Final = 60.0
ATTEMPTS: Final = 3
"""A snapshot that is not what it promised costs one."""
MOST_FRUITLESS: Final = 3
"""Replays in a row that findings asked for and that named no rank: the findings are not about a device, then."""
MOST_TORN: Final = 2
"""Replays without a majority: what the script computes is not the same twice."""


class _MeshPosition(NamedTuple):
    """Where a rank is in one cut."""

    cut: int
    group: str
    place: int


_Cut = dict[int, _MeshPosition]
"""One way to cut the job into groups; key: rank."""


class StepReplayError(RuntimeError):
    """The replay could not be carried out; the message says why."""


class StepReplayController:
    """One a job. ``ask`` begins a replay if one makes sense now; ``executor`` then calls ``carry_out``."""

    def __init__(self, job: Job, inputs: PlannerInputBuilder) -> None:
        self._job = job
        self._inputs = inputs
        self.proven = 0
        """The newest epoch at which a replay found no rank: gradients were sound at least until then."""
        self._told: dict[int, Replayed] = {}
        self._fruitless = self._torn = 0
        self._last = 0

    # Asking

    def request_replay(self, suspicion: ReplayTrigger) -> bool:
        """Begin a replay; False, with the reason in the log, where none makes sense."""
        why_not = self._why_not(suspicion)
        if why_not:
            log.warning("no replay: %s (it was wanted because: %s)", why_not, suspicion.reason)
            return False
        log.warning("REPLAY %s", suspicion.reason)
        failure = GenerationFailure(reason=suspicion.reason, replay=suspicion, workflow=WorkflowName.REPLAY)
        self._job.control.replay(failure)
        return True

    def committed(self, epoch: int) -> None:
        """All ranks have committed ``epoch``: perhaps a replay is due by the timetable."""
        every = self._job.options.step_replay_every
        if every and epoch // every > self._last // every and self._job.state.phase is JobPhase.RUNNING:
            self._last = epoch
            self.request_replay(ReplayTrigger(reason=f"every {every} steps all ranks are compared", asked=True))

    def went_back(self, epoch: int) -> None:
        """The job begins again at ``epoch``."""
        if self._last - epoch > max(STEPS, self._job.options.step_replay_every // 2):
            self._last = epoch  # a step or two back, as after every replay, must not make the same one due again
        self.proven = min(self.proven, epoch)

    def _why_not(self, suspicion: ReplayTrigger) -> str:
        job = self._job
        shape, ranks = job.members.shape, job.members.ranks
        reasons = {
            "a recovery is under way": job.state.phase is not JobPhase.RUNNING or job.active,
            "the script does not use the SDK": shape is None,
            "no two ranks do the same work": shape is not None and shape.dp < 2,
            "pipelines are cut unlike one another": shape is not None and bool(shape.depths),
            "ranks are away": bool(job.members.absent),
            "ranks shard their state, so that no two of them do the same work": not job.state.parameters_equal,
            "not all ranks are training": any(rank.gone or not rank.live for rank in ranks),
            f"{self._fruitless} replays have named no rank": not suspicion.asked and self._fruitless >= MOST_FRUITLESS,
            "two replays of this script came out without a majority": self._torn >= MOST_TORN,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def handle_replayed(self, rank: int, message: Replayed) -> None:
        """A rank's digests."""
        if message.generation == self._job.state.generation:
            self._told[rank] = message

    # Carrying out

    async def carry_out(self, executor: RecoveryExecutor, recovery: RecoveryRecord, ended: EndedGeneration) -> None:
        """All ranks are fenced by ``executor``; what follows ends in a recovery, with culprits or without."""
        suspicion = ended.failure.replay
        assert suspicion is not None
        begun = time.monotonic()
        recovery.begins("replay", suspicion.reason[:500])
        epoch = None
        try:
            epoch, result = await self._replay(executor, recovery)
        except StepReplayError as error:
            result = ReplayResult(outcome=ReplayOutcome.FAILED, sentence=f"The replay failed: {error}.")
        except asyncio.CancelledError:
            log.warning("REPLAY broken off: something has failed meanwhile, which comes first")
            raise
        seconds = time.monotonic() - begun
        recovery.replayed += seconds
        self._report(recovery, suspicion, result, seconds=seconds, epoch=epoch)
        self._go_on(recovery, suspicion, result, epoch)

    async def _replay(self, executor: RecoveryExecutor, recovery: RecoveryRecord) -> tuple[int, ReplayResult]:
        cuts = [_cut(number, groups) for number, groups in enumerate(self._plan().cuts)]
        epoch, steps = await self._first(executor, recovery, cuts[0])
        traces = await self._digests(cuts[0], epoch, steps)
        here = RestoreOrder(epoch=epoch, source=RestoreSource.LOCAL_SLOT)
        orders = {rank.number: here for rank in self._job.members.ranks}
        for cut in cuts[1:]:
            self._job.begin_generation("ranks replay again")
            executor.fencing.fence_all()
            await self._ready(executor, recovery)
            broken = await self._restore(executor, cut, orders, steps)
            if broken:
                raise StepReplayError(f"ranks could not be restored: {broken}")
            wrong = find_restore_mismatch(self._job, recovery, orders)
            if wrong is not None:
                raise StepReplayError(wrong.reason)
            traces += await self._digests(cut, epoch, steps)
        return epoch, analyze_replays(traces)

    async def _first(self, executor: RecoveryExecutor, recovery: RecoveryRecord, cut: _Cut) -> tuple[int, int]:
        """Have all ranks begin at a sound epoch, from wherever it can be had; it, and how many steps to make."""
        broken: dict[int, str] = {}
        for attempt in range(ATTEMPTS):
            if attempt:
                self._job.begin_generation("ranks replay again")
                executor.fencing.fence_all()
            await self._ready(executor, recovery)
            epoch, orders = self._restores(executor, recovery)
            steps = max(1, min(STEPS, (self._job.state.steps_total or epoch + STEPS) - epoch))
            broken = await self._restore(executor, cut, orders, steps)
            recovery.bad |= {failed_sources(rank, orders[rank]) for rank in broken}
            wrong = None if broken else find_restore_mismatch(self._job, recovery, orders)
            if wrong is not None:
                recovery.before, recovery.odd = wrong.before, wrong.odd
                broken = dict.fromkeys(sorted(wrong.odd), wrong.reason)
                log.warning("%s", wrong.reason)
            if not broken:
                return epoch, steps
        raise StepReplayError(f"ranks could not be restored: {broken}")

    async def _ready(self, executor: RecoveryExecutor, recovery: RecoveryRecord) -> None:
        if not await executor.fencing.wait_for_all(recovery):
            raise StepReplayError(f"not every rank stopped within {self._job.options.ready_seconds:g} s")

    def _restores(self, executor: RecoveryExecutor, recovery: RecoveryRecord) -> tuple[int, dict[int, RestoreOrder]]:
        """The newest sound epoch that all ranks can have, and where each has it from. The job goes back to it.

        Raises:
            StepReplayError: there is none.
        """
        plan = executor.plan(recovery, set(), use_live=False)
        if plan.chosen is None:
            raise StepReplayError(f"no epoch is held by all ranks: {plan.explanation}")
        chosen = plan.alternative()
        epoch = chosen.epoch or 0
        executor.discard(epoch)
        return epoch, executor.inputs.orders(chosen)

    def _plan(self) -> MeshPlan:
        shape = self._job.members.known_shape
        rows = [
            [str(shape.rank_of(dp=d, pp=p, tp=t)) for p in range(shape.pp) for t in range(shape.tp)]
            for d in range(shape.dp)
        ]
        return mesh_plan(rows, shows=SHOWS, sure=SURE)

    def _roles(self, steps: int) -> tuple[int, ...]:
        """Which replica's data each repeat uses. Two kinds of data where ranks are alone: a defect may need its own."""
        shape = self._job.members.known_shape
        wanted = self._plan().repeats
        seconds = steps * self._inputs.step_seconds
        affordable = math.floor(BUDGET_SECONDS / seconds) if seconds > 0.0 else wanted
        repeats = max(LEAST_REPEATS, min(wanted, affordable))
        return tuple(i % 2 if shape.pp * shape.tp == 1 else 0 for i in range(repeats))

    async def _restore(
        self, executor: RecoveryExecutor, cut: _Cut, orders: dict[int, RestoreOrder], steps: int
    ) -> dict[int, str]:
        """Have all ranks restore, and then replay; who could not restore, and why."""
        roles, found = self._roles(steps), {}
        self._told.clear()
        for rank, restore in orders.items():
            wanted = StepReplayRequest(group=cut[rank].group, place=cut[rank].place, steps=steps, roles=roles)
            found[rank] = self._job.regroup_order(restore, replay_request=wanted)
        executor.regroup(found)
        ranks = self._job.members.ranks
        await self._job.until(lambda: all(r.resumed for r in ranks), self._seconds(0))
        told = {r.number: r.resumed for r in ranks if r.resumed is None or not r.resumed.ok}
        return {rank: "no answer" if vote is None else vote.reason for rank, vote in told.items()}

    async def _digests(self, cut: _Cut, epoch: int, steps: int) -> list[ReplayTrace]:
        size, seconds = len(self._job.members.ranks), self._seconds(steps * len(self._roles(steps)))
        if not await self._job.until(lambda: len(self._told) == size, seconds):
            late = sorted(set(range(size)) - self._told.keys())
            raise StepReplayError(f"ranks {late} did not end their replays in {seconds:.0f} s")
        broken = {rank: told.reason for rank, told in self._told.items() if told.reason}
        if broken:
            raise StepReplayError(f"ranks broke off: {broken}")
        return [
            ReplayTrace(
                rank=rank, **cut[rank]._asdict(), role=run.role, repeat=repeat, digests=run.digests, first_step=epoch,
                per_step=PER_STEP,
            )
            for rank, told in self._told.items()
            for repeat, run in enumerate(told.runs)
        ]  # fmt: skip

    def _seconds(self, steps: int) -> float:
        restore = PATIENCE * self._job.options.ready_seconds
        return max(LEAST_SECONDS, restore, PATIENCE * steps * self._inputs.step_seconds)

    # Report and continue

    def _report(
        self,
        recovery: RecoveryRecord,
        suspicion: ReplayTrigger,
        result: ReplayResult,
        *,
        seconds: float,
        epoch: int | None,
    ) -> None:
        ranks = self._job.members.ranks
        level = logging.ERROR if result.outcome is ReplayOutcome.FOUND else logging.WARNING
        log.log(level, "REPLAY %s: %s", result.outcome.value, result.sentence)
        ok = result.outcome is not ReplayOutcome.FAILED
        recovery.ends("replay", ok=ok, seconds=seconds, detail=result.sentence[:500])
        culprits: list[dict[str, Any]] = [
            {
                "rank": odd.rank, "node": ranks[odd.rank].node, "replays": odd.replays, "shown": odd.shown,
                "steps": list(odd.steps), "groups": list(odd.groups),
            }
            for odd in result.culprits
        ]  # fmt: skip
        data = {
            "recovery": recovery.id,
            "outcome": result.outcome.value,
            "reason": suspicion.reason,
            "sentence": result.sentence,
            "culprits": culprits,
            "undecided": list(result.undecided),
            "replays": result.replays,
            "epoch": epoch,
            "seconds": seconds,
        }
        self._job.event(EventKind.STEP_REPLAY_FINISHED, data)

    def _go_on(
        self, recovery: RecoveryRecord, suspicion: ReplayTrigger, result: ReplayResult, epoch: int | None
    ) -> None:
        """Recover as from any loss. Not from within this task: beginning again cancels it."""
        job = self._job
        culprits = {odd.rank for odd in result.culprits}
        self._torn += result.outcome is ReplayOutcome.NO_MAJORITY
        self._fruitless = 0 if culprits else self._fruitless + (not suspicion.asked)
        if result.outcome is ReplayOutcome.CLEAN and epoch is not None:
            self.proven = max(self.proven, epoch)
        elif culprits and suspicion.before is None:  # averaged gradients were wrong from an unknown step on
            recovery.before = self.proven or recovery.before
        reason = f"ranks {sorted(culprits)} compute wrongly" if culprits else "after the replay training continues"
        quiet = suspicion.asked and not culprits and result.outcome is not ReplayOutcome.FAILED and not recovery.apart
        failure = GenerationFailure(ranks=culprits, reason=reason, exclude=frozenset(culprits), counts=not quiet)
        job.failed_soon(failure)


def _cut(number: int, groups: Groups) -> _Cut:
    name = f"across{number}" if number else "replica"
    return {
        int(rank): _MeshPosition(number, f"{name}-{i}", place)
        for i, group in enumerate(groups)
        for place, rank in enumerate(group)
    }
