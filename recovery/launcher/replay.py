"""Bisection by replay: which device computes wrongly, found by the job itself, and then given no more work.

ask       a finding (``sick``), an operator (SIGUSR2) or ``--replay-every`` wants to know whether all compute alike
fence     all ranks stop, a generation up; nobody is killed
restore   all of them to the newest epoch that is sound as far as anybody knows, from memory or from disk
replay    in groups that do not talk to each other each makes the same few steps several times, as the same replica:
          same data, same seeds. With data parallelism only a group is one rank; else first a replica, then ranks
          from several replicas that together make one
judge     ``detectors.replayed``: a strict majority says which bits are right
go on     culprits are fenced and replaced on another device, the job restores the sound epoch and trains on; with no
          culprit the same without a fence

Whatever fails meanwhile ends the replay: the generation is raised and the job heals as always, from the same epoch. So
does a replay that takes too long. Not covered: state that is sharded among replicas (no two ranks do the same work),
and a device that computes wrongly only in collectives between replicas, which a replay does not make.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from detectors.bisect import Groups, MeshPlan, mesh_plan
from detectors.replayed import Outcome, Result, Trace, judge
from probes.words import EventKind
from recovery.launcher.membership import Failure, JobState
from recovery.launcher.rehearsal import PER_STEP, Rehearsal
from recovery.launcher.survey import spoiled
from recovery.launcher.unison import discord
from recovery.launcher.worker_messages import Regroup, Replayed, RestoreOrder
from recovery.plan import RestoreSource

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator
    from recovery.launcher.episode import Episode
    from recovery.launcher.healing import Healing

log = logging.getLogger("mainstay.coordinator")

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
"""Replays in a row that findings asked for and that named nobody: the findings are not about a device, then."""
MOST_TORN: Final = 2
"""Replays without a majority: what the script computes is not the same twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Why ranks should replay."""

    reason: str
    before: int | None = None
    """The newest epoch that is sound; None: any may be."""
    odd: frozenset[int] = frozenset()
    """Ranks whose state differs from their replicas'."""
    asked: bool = False
    """By a person or a timetable, not by a finding."""


class _Seat(NamedTuple):
    """Where a rank is in one cut."""

    cut: int
    group: str
    place: int


_Cut = dict[int, _Seat]
"""One way to cut the job into groups; key: rank."""


class ReplayError(RuntimeError):
    """The replay could not be carried out; the message says why."""


class Replays:
    """One a job. ``ask`` begins a replay if one makes sense now; ``healing`` then calls ``carry_out``."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self.proven = 0
        """The newest epoch at which a replay found nobody: gradients were sound at least until then."""
        self._told: dict[int, Replayed] = {}
        self._fruitless = self._torn = 0
        self._last = 0

    # Asking

    def ask(self, suspicion: Suspicion) -> bool:
        """Begin a replay; False, with the reason in the log, where none makes sense."""
        why_not = self._why_not(suspicion)
        if why_not:
            log.warning("no replay: %s (it was wanted because: %s)", why_not, suspicion.reason)
            return False
        log.warning("REPLAY %s", suspicion.reason)
        self._c.replay(Failure(ranks=set(), time=time.time(), reason=suspicion.reason, replay=suspicion))
        return True

    def committed(self, epoch: int) -> None:
        """All ranks have committed ``epoch``: perhaps a replay is due by the timetable."""
        every = self._c.options.replay_every
        if every and epoch // every > self._last // every and self._c.state is JobState.RUNNING:
            self._last = epoch
            self.ask(Suspicion(reason=f"every {every} steps all ranks are compared", asked=True))

    def went_back(self, epoch: int) -> None:
        """The job begins again at ``epoch``."""
        if self._last - epoch > max(STEPS, self._c.options.replay_every // 2):
            self._last = epoch  # a step or two back, as after every replay, must not make the same one due again
        self.proven = min(self.proven, epoch)

    def _why_not(self, suspicion: Suspicion) -> str:
        c = self._c
        shape, ranks = c.members.shape, c.members.ranks
        reasons = {
            "a recovery is under way": c.state is not JobState.RUNNING or c.healing.active,
            "the script does not use the SDK": shape is None,
            "no two ranks do the same work": shape is not None and shape.dp < 2,
            "pipelines are cut unlike one another": shape is not None and bool(shape.depths),
            "ranks are away": bool(c.healing.attendance.away),
            "ranks shard their state, so that no two of them do the same work": not c.healing.survey.parameters_equal,
            "not all ranks are training": any(rank.gone or not rank.live for rank in ranks),
            f"{self._fruitless} replays have named nobody": not suspicion.asked and self._fruitless >= MOST_FRUITLESS,
            "two replays of this script came out without a majority": self._torn >= MOST_TORN,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def heard(self, rank: int, message: Replayed) -> None:
        """A rank's digests."""
        if message.generation == self._c.generation:
            self._told[rank] = message

    # Carrying out

    async def carry_out(self, healing: Healing, episode: Episode, suspicion: Suspicion) -> None:
        """All ranks are fenced by ``healing``; what follows ends in a recovery, with culprits or without."""
        begun = time.monotonic()
        episode.begins("replay", suspicion.reason[:500])
        epoch = None
        try:
            epoch, result = await self._replay(healing, episode)
        except ReplayError as error:
            result = Result(outcome=Outcome.FAILED, sentence=f"The replay failed: {error}.")
        except asyncio.CancelledError:
            log.warning("REPLAY broken off: something has failed meanwhile, which comes first")
            raise
        seconds = time.monotonic() - begun
        episode.replayed += seconds
        self._report(episode, suspicion, result, seconds=seconds, epoch=epoch)
        self._go_on(episode, suspicion, result, epoch)

    async def _replay(self, healing: Healing, episode: Episode) -> tuple[int, Result]:
        cuts = [_cut(number, groups) for number, groups in enumerate(self._plan().cuts)]
        epoch, steps = await self._first(healing, episode, cuts[0])
        traces = await self._digests(healing, cuts[0], epoch, steps)
        here = RestoreOrder(epoch=epoch, source=RestoreSource.LOCAL_SLOT)
        orders = {rank.number: here for rank in self._c.members.ranks}
        for cut in cuts[1:]:
            self._c.generation += 1
            healing.fence_all()
            await self._ready(healing, episode)
            self._order(cut, orders, steps)
            broken = await self._broken(healing)
            if broken:
                raise ReplayError(f"ranks could not be restored: {broken}")
            wrong = discord(self._c, episode, orders)
            if wrong is not None:
                raise ReplayError(wrong.reason)
            traces += await self._digests(healing, cut, epoch, steps)
        return epoch, judge(traces)

    async def _first(self, healing: Healing, episode: Episode, cut: _Cut) -> tuple[int, int]:
        """Have all ranks begin at a sound epoch, from wherever it can be had; it, and how many steps to make."""
        broken: dict[int, str] = {}
        for attempt in range(ATTEMPTS):
            if attempt:
                self._c.generation += 1
                healing.fence_all()
            await self._ready(healing, episode)
            epoch, orders = self._restores(healing, episode)
            steps = max(1, min(STEPS, (self._c.steps_total or epoch + STEPS) - epoch))
            self._order(cut, orders, steps)
            broken = await self._broken(healing)
            episode.bad |= {spoiled(rank, orders[rank]) for rank in broken}
            wrong = None if broken else discord(self._c, episode, orders)
            if wrong is not None:
                episode.before, episode.odd = wrong.before, wrong.odd
                broken = dict.fromkeys(sorted(wrong.odd), wrong.reason)
                log.warning("%s", wrong.reason)
            if not broken:
                return epoch, steps
        raise ReplayError(f"ranks could not be restored: {broken}")

    async def _ready(self, healing: Healing, episode: Episode) -> None:
        if not await healing.all_ready(episode):
            raise ReplayError(f"not every rank stopped within {self._c.options.ready_seconds:g} s")

    def _restores(self, healing: Healing, episode: Episode) -> tuple[int, dict[int, RestoreOrder]]:
        """The newest sound epoch that all ranks can have, and where each has it from. The job goes back to it.

        Raises:
            ReplayError: there is none.
        """
        plan = healing.plan(episode, set(), use_live=False)
        if plan.chosen is None:
            raise ReplayError(f"no epoch is held by all ranks: {plan.explanation}")
        chosen = plan.alternative()
        epoch = chosen.epoch or 0
        healing.discard(epoch)
        return epoch, {restore.rank: healing.survey.order(restore, epoch) for restore in chosen.restores}

    def _plan(self) -> MeshPlan:
        shape = self._c.members.shape
        assert shape is not None
        rows = [
            [str(shape.rank_of(dp=d, pp=p, tp=t)) for p in range(shape.pp) for t in range(shape.tp)]
            for d in range(shape.dp)
        ]
        return mesh_plan(rows, shows=SHOWS, sure=SURE)

    def _roles(self, steps: int) -> tuple[int, ...]:
        """Which replica's data each repeat uses. Two kinds of data where ranks are alone: a defect may need its own."""
        shape = self._c.members.shape
        assert shape is not None
        wanted = self._plan().repeats
        seconds = steps * self._c.healing.survey.step_seconds
        affordable = math.floor(BUDGET_SECONDS / seconds) if seconds > 0.0 else wanted
        repeats = max(LEAST_REPEATS, min(wanted, affordable))
        return tuple(i % 2 if shape.pp * shape.tp == 1 else 0 for i in range(repeats))

    def _order(self, cut: _Cut, orders: dict[int, RestoreOrder], steps: int) -> None:
        c, roles = self._c, self._roles(steps)
        self._told.clear()
        host, port = c.store
        found = {}
        for rank, restore in orders.items():
            seat = cut[rank]
            rehearsal = Rehearsal(group=seat.group, place=seat.place, steps=steps, roles=roles)
            found[rank] = Regroup(
                generation=c.generation, store_host=host, store_port=port, restore=restore, rehearsal=rehearsal
            )
        c.orders.regroup(found)

    async def _broken(self, healing: Healing) -> dict[int, str]:
        """Wait until all have restored; who could not, and why."""
        ranks = self._c.members.ranks
        await healing.until(lambda: all(r.resumed for r in ranks), self._seconds(0))
        told = {r.number: r.resumed for r in ranks if r.resumed is None or not r.resumed.ok}
        return {rank: "no answer" if vote is None else vote.reason for rank, vote in told.items()}

    async def _digests(self, healing: Healing, cut: _Cut, epoch: int, steps: int) -> list[Trace]:
        c = self._c
        size = len(c.members.ranks)
        roles = self._roles(steps)
        done = await healing.until(lambda: len(self._told) == size, self._seconds(steps * len(roles)))
        if not done:
            late = sorted(set(range(size)) - self._told.keys())
            raise ReplayError(f"ranks {late} did not end their replays in {self._seconds(steps * len(roles)):.0f} s")
        broken = {rank: told.reason for rank, told in self._told.items() if told.reason}
        if broken:
            raise ReplayError(f"ranks broke off: {broken}")
        traces = []
        for rank, told in self._told.items():
            seat = cut[rank]
            for repeat, run in enumerate(told.runs):
                traces.append(
                    Trace(
                        rank=rank, place=seat.place, cut=seat.cut, group=seat.group, role=run.role, repeat=repeat,
                        digests=run.digests, first_step=epoch, per_step=PER_STEP,
                    )
                )  # fmt: skip
        return traces

    def _seconds(self, steps: int) -> float:
        restore = PATIENCE * self._c.options.ready_seconds
        return max(LEAST_SECONDS, restore, PATIENCE * steps * self._c.healing.survey.step_seconds)

    # Telling, and going on

    def _report(
        self, episode: Episode, suspicion: Suspicion, result: Result, *, seconds: float, epoch: int | None
    ) -> None:
        ranks = self._c.members.ranks
        level = logging.ERROR if result.outcome is Outcome.FOUND else logging.WARNING
        log.log(level, "REPLAY %s: %s", result.outcome.value, result.sentence)
        ok = result.outcome is not Outcome.FAILED
        episode.ends("replay", ok=ok, seconds=seconds, detail=result.sentence[:500])
        culprits: list[dict[str, Any]] = [
            {
                "rank": odd.rank, "node": ranks[odd.rank].node, "replays": odd.replays, "shown": odd.shown,
                "steps": list(odd.steps), "groups": list(odd.groups),
            }
            for odd in result.culprits
        ]  # fmt: skip
        data = {
            "recovery": episode.id,
            "outcome": result.outcome.value,
            "reason": suspicion.reason,
            "sentence": result.sentence,
            "culprits": culprits,
            "undecided": list(result.undecided),
            "replays": result.replays,
            "epoch": epoch,
            "seconds": seconds,
        }
        self._c.reporter.event(EventKind.REPLAYED, generation=self._c.generation, data=data)

    def _go_on(self, episode: Episode, suspicion: Suspicion, result: Result, epoch: int | None) -> None:
        """Heal as from any loss. Not from within this task: beginning anew cancels it."""
        c = self._c
        culprits = {odd.rank for odd in result.culprits}
        self._torn += result.outcome is Outcome.NO_MAJORITY
        self._fruitless = 0 if culprits else self._fruitless + (not suspicion.asked)
        if result.outcome is Outcome.CLEAN and epoch is not None:
            self.proven = max(self.proven, epoch)
        elif culprits and suspicion.before is None:  # averaged gradients were wrong from a step on that nobody knows
            episode.before = self.proven or episode.before
        reason = f"ranks {sorted(culprits)} compute wrongly" if culprits else "after the replay training goes on"
        quiet = suspicion.asked and not culprits and result.outcome is not Outcome.FAILED and not episode.apart
        failure = Failure(ranks=culprits, time=time.time(), reason=reason, shun=frozenset(culprits), counts=not quiet)
        asyncio.get_running_loop().call_soon(c.failed, failure)


def _cut(number: int, groups: Groups) -> _Cut:
    name = f"across{number}" if number else "replica"
    return {
        int(rank): _Seat(number, f"{name}-{i}", place)
        for i, group in enumerate(groups)
        for place, rank in enumerate(group)
    }
