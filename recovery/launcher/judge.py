"""What the coordinator decides by, over every way of recovering, and what it keeps of each recovery.

ready     a decision for every single failure, made anew when what it rests on has changed
glance    before the fence: what is lost, and the job as it stood. Cheap
decide    behind the fence, while agents and survivors answer it: looked up, or weighed in some milliseconds
carry     what the planner then restores from where, as the way that it is
recovered predicted beside measured; constants and factors learn of it
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from recovery.cadence import Hazard
from recovery.decide import Classes, Decision, Means, decide, single
from recovery.launcher.outlooks import CARRIED, LEAVES, Known, executed, held_of, outlook_of
from recovery.launcher.worker_messages import StepRecord
from recovery.outlook import Ability, Fault, Outlook
from recovery.plan import Plan, WayName
from recovery.pricing.event import MEASURED
from recovery.regret import Calibration, Forecast, Record, forecast, ledger, record
from recovery.scheme import Kind

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator
    from recovery.launcher.membership import Failure

log = logging.getLogger("mainstay.coordinator")

TOLD: Final = 8
"""Feasible options that an event names; of the infeasible ones all, each a sentence."""
REMEMBERED: Final = 256
"""Recoveries of which the ledger speaks."""
ERRED: Final = "No process is gone: whoever raised makes the step again."
PLACED: Final = "Each lost rank has a place to run: nobody need form other pipelines."
ALIKE: Final = 0.1
"""Steps, and ages of what is held, may differ by so much from when a decision was made ahead; ages by a step too."""


@dataclass(slots=True)
class Verdict:
    """One failure as it was judged."""

    outlook: Outlook
    means: Means
    decision: Decision
    seconds: float
    """That deciding took."""
    ready: bool
    """It was decided ahead."""
    way: WayName | None = None
    """That is carried out, once the planner has said from where state comes."""
    parts: dict[str, float] = field(default_factory=dict)
    """What the planner predicts of it, by phase."""

    @property
    def first(self) -> WayName | None:
        """What the decision begins with; None: nothing is feasible."""
        return None if self.decision.chosen is None else self.decision.chosen[0]


class Judge:
    """One a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self.calibration = Calibration()
        self.records: list[Record] = []
        self._dealt: dict[int, int] = {}
        """Rank of a first stage -> micro-batches of its last step."""
        self._ready: Classes = {}
        self._basis: Outlook | None = None
        """What the decisions that are ready rest on."""
        self._task: asyncio.Task[None] | None = None

    # What is known

    def committed(self, rank: int, message: StepRecord) -> None:
        """A rank has made a step."""
        shape = self._c.members.shape
        if shape is not None and shape.place(rank)[1:] == (0, 0):
            self._dealt[rank] = message.micro_batches

    def known(self, victims: Collection[int] = ()) -> Known | None:
        """The job as it stands; None before a step was timed. ``victims`` need a place."""
        c, survey = self._c, self._c.healing.survey
        shape, step_s = c.members.shape, survey.step_seconds
        if shape is None or step_s <= 0.0:
            return None
        standbys, spares = self._places(shape.tp)
        if victims:
            standbys = len({shape.place(rank)[:2] for rank in survey.case(set(victims)).warm})
        hours = (time.time() - c.started_at) / 3600.0
        hazard = Hazard(len(c.members.nodes), c.options.mtbf_hours, c.recoveries, hours)
        kept, scheme = c.orders.guard.kept, c.options.protect
        disk = c.disk.begun_at or None
        return Known(
            shape=shape,
            nodes=tuple(rank.node for rank in c.members.ranks),
            state_bytes=tuple(rank.attached.state_bytes if rank.attached else 0 for rank in c.members.ranks),
            micro_batches=sum(self._dealt.get(rank.number, 0) for rank in c.members.present),
            step_s=step_s,
            node_rate=1.0 / (3600.0 * hazard.node_hours()),
            held=held_of(
                step_s=step_s,
                committed=c.committed,
                slots=all(rank.attached is not None and rank.attached.protected for rank in c.members.present),
                replicas=bool(survey.replicated) and not c.options.shard_save and shape.dp > 1,
                protected=None if kept is None else kept.protected,
                tolerance=scheme.tolerance,
                copies=scheme.kind is Kind.COPIES,
                disk=disk if kept is None else max((e for e in (kept.disk, disk) if e is not None), default=None),
            ),
            standbys=standbys,
            spares=spares,
            costs=survey.costs,
            warm_up_s=survey.prices.warm_up_s,
            able=self._able(),
        )

    def _able(self) -> frozenset[Ability]:
        """Every step under protection can be made again; the rest is what the script says of itself."""
        disk, shape = self._c.disk, self._c.members.shape
        found = {Ability.IN_PROCESS}
        if self._c.healing.attendance.rigid() is None:
            found.add(Ability.REROUTE)
        if disk.enabled and not disk.reshaping.rigid() and shape is not None and shape.tp == 1:
            found.add(Ability.TEMPLATES)
        return frozenset(found)

    def _places(self, tp: int) -> tuple[int, int]:
        """Workers that warm standbys could replace, and that could start beyond them."""
        nodes, there = self._c.members.alive(), Counter(rank.node for rank in self._c.members.ranks)
        room = {n.name: max(0, n.hello.nproc + n.hello.spares - n.shunned - there[n.name]) for n in nodes}
        warm = sum(min(node.standbys, room[node.name]) for node in nodes)
        return warm // tp, (sum(room.values()) - warm) // tp

    def means(self, fault: Fault) -> Means:
        """What this job is able to carry out now. Whoever raised keeps its process, or gets another one."""
        why = ERRED if fault is Fault.ERROR else self._c.healing.attendance.unable()
        barred = {} if why is None else dict.fromkeys(LEAVES, why)
        if fault is not Fault.NODE:
            barred[WayName.REINSTANTIATE] = PLACED
        return Means(carried=CARRIED, barred=barred, factors=self.calibration.factors)

    # Ahead

    def prepare(self) -> None:
        """What decisions rest on may have changed: make them anew, beside everything else."""
        if self._task is None or self._task.done():
            self._task = self._c.spawn(self._prepare())

    async def _prepare(self) -> None:
        known = self.known()
        if known is None:
            return
        basis = outlook_of(known, (0,), Fault.PROCESS, MEASURED.detect_s)
        ready: Classes = {}
        for fault in (Fault.PROCESS, Fault.NODE):
            means = self.means(fault)
            for stage in range(known.shape.pp):
                ready[fault, stage] = decide(single(basis, fault, stage), means=means)
                await asyncio.sleep(0.0)  # some milliseconds each in a large job: messages come first
        self._basis, self._ready = basis, ready

    def _looked_up(self, outlook: Outlook) -> Decision | None:
        """A decision made ahead, where one worker is lost and all that it rests on is still so."""
        basis = self._basis
        if basis is None or outlook.gone != 1 or outlook.fault not in {Fault.PROCESS, Fault.NODE}:
            return None
        same = _frame(outlook) == _frame(basis)
        step_s = basis.step_s
        near = abs(outlook.step_s - step_s) <= ALIKE * step_s and all(
            abs(one - other) <= max(ALIKE * other, step_s)
            for one, other in zip(_ages(outlook), _ages(basis), strict=True)
            if one is not None and other is not None
        )
        return self._ready.get((outlook.fault, outlook.lost.index(1))) if same and near else None

    # At a failure

    def glance(self, victims: set[int], failure: Failure) -> Outlook | None:
        """Before anything moves: what is lost; None where nothing is, or too little is known to weigh it."""
        c = self._c
        planned = failure.replay is not None or failure.migrates or failure.reshapes or failure.changes
        away = {rank.number for rank in c.members.ranks if rank.away and not rank.waits}
        gone = victims or ({failure.erred} if failure.erred is not None else set())
        known = None if planned or not gone or not c.healing.formed_once else self.known(victims | away)
        if known is None:
            return None
        lost = any(not c.members.nodes[c.members.ranks[rank].node].alive for rank in gone | away)
        fault = Fault.NODE if lost else Fault.PROCESS if victims else Fault.ERROR
        try:
            return outlook_of(known, gone | away, fault, time.time() - failure.time)
        except ValueError as error:
            log.warning("this failure cannot be weighed: %s", error)
            return None

    def decide(self, outlook: Outlook | None, way: WayName | None = None) -> Verdict | None:
        """Weigh every way; ``way`` is carried out whatever is found, where that is settled already."""
        if outlook is None:
            return None
        began, means = time.perf_counter(), self.means(outlook.fault)
        found = self._looked_up(outlook)
        decision = found or decide(outlook, means=means)
        return Verdict(outlook, means, decision, time.perf_counter() - began, found is not None, way)

    def carry(self, verdict: Verdict | None, plan: Plan) -> None:
        """Note which way is carried out."""
        if verdict is None or plan.chosen is None:
            return
        outlook, attendance = verdict.outlook, self._c.healing.attendance
        warm = outlook.fault is Fault.NODE and outlook.pool.standbys >= outlook.gone
        verdict.way = executed(
            plan.chosen,
            away=bool(attendance.away),
            rerouted=attendance.crossed,
            warm=warm,
            lives=outlook.fault is Fault.ERROR,
        )
        verdict.parts = dict(plan.alternative().parts)

    # Afterwards

    def recovered(self, verdict: Verdict | None, recovery: str, seconds: dict[str, float], lost: int) -> dict[str, Any]:
        """Keep what happened, learn of it, and say it as data of the event; nothing where nothing was predicted."""
        if verdict is None or verdict.way is None or not seconds["total"] > 0.0:
            return {}
        predicted = predict(verdict, verdict.way)
        made = record(predicted, recovery, seconds["total"], lost)
        self.records = [*self.records[-REMEMBERED + 1 :], made]
        prices = self._c.healing.survey.prices
        prices.learn_first_step(seconds.get("first_step", 0.0), predicted.phases["step"])
        known = replace(verdict.outlook, costs=self._c.healing.survey.costs, warm_up_s=prices.warm_up_s)
        explained = forecast(decide(known), known, made.way)
        if explained is not None:
            self.calibration = self.calibration.learn(made, explained)
        alarms = self.calibration.alarms()
        for alarm in alarms:
            log.warning("DRIFT %s: %s", self._c.options.job, alarm)
        summed = ledger(self.records)
        log.info(
            "%s took %.3f s, predicted %.3f s; %d of %d recoveries within a quarter, regret %.3f s in all",
            made.way, made.measured_s, predicted.seconds, summed.within_promise, summed.recoveries, summed.regret_s,
        )  # fmt: skip
        data = {"outcome": outcome(made) | ({"drift": list(alarms)} if alarms else {})}
        # Where no plan was made, nothing has said yet what was weighed.
        return data if verdict.parts else data | {"decision": told(verdict)}


def predict(verdict: Verdict, way: WayName) -> Forecast:
    """What ``way`` was bound to take by what was known at the failure, when that took to be seen included.

    Decisions made ahead know neither that nor the newest constants. Where the outlook knew of no such source the
    planner's own parts count: an agent held more than had been seen.
    """
    outlook = verdict.outlook
    found = forecast(decide(outlook, means=verdict.means), outlook, way)
    if found is not None:
        return found
    fence = verdict.parts.get("fence", 0.0)
    phases = {
        "detect": outlook.detect_s,
        "fence": fence,
        "regroup": max(0.0, sum(verdict.parts.values()) - fence),
        "warm_up": outlook.warm_up_s,
        "step": outlook.step_s,
    }
    return Forecast(way=way, phases=phases, step_s=outlook.step_s)


def _frame(outlook: Outlook) -> tuple[object, ...]:
    """What a decision on the loss of one worker rests on, but for seconds: which ways there are."""
    held, pool = outlook.held, outlook.pool
    places = (pool.standbys > 0, pool.standbys + pool.spares > 0)
    return outlook.shape, outlook.able, held.replicated, places, *(age is None for age in _ages(outlook))


def _ages(outlook: Outlook) -> tuple[float | None, ...]:
    held = outlook.held
    return held.local_s, held.peer_s, held.parity_s, held.disk_s


def outcome(made: Record) -> dict[str, Any]:
    """A record as the event tells it."""
    return {
        "way": made.way.value,
        "predicted_s": made.predicted.seconds,
        "measured_s": made.measured_s,
        "error": made.error,
        "regret_s": made.regret_s,
        "parts": dict(made.predicted.phases),
        "others": dict(made.predicted.others),
    }


def told(verdict: Verdict) -> dict[str, Any]:
    """A decision as the event tells it: the best options with their prices, and why the others are none."""
    decision = verdict.decision
    feasible = [option for option in decision.options if option.feasible]
    chosen = [option for option in feasible[TOLD:] if option.ways == decision.chosen]
    options = [*feasible[:TOLD], *chosen, *(option for option in decision.options if not option.feasible)]
    return {
        "act": decision.act,
        "chosen": None if decision.chosen is None else [way.value for way in decision.chosen],
        "explanation": decision.explanation,
        "fault": verdict.outlook.fault.value,
        "lost": list(verdict.outlook.lost),
        "seconds": verdict.seconds,
        "ready": verdict.ready,
        "options": [
            {
                "ways": [way.value for way in option.ways],
                "feasible": option.feasible,
                "executable": option.executable,
                "reason": option.reason,
                "expected_s": _finite(option.expected_s),
                "gpu_seconds": _finite(option.gpu_seconds),
                "rate": option.rate,
                "parts": {part: seconds for part, seconds in option.parts.items() if math.isfinite(seconds)},
            }
            for option in options
        ],
    }


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None
