"""What the coordinator decides by, over every recovery strategy, and what it keeps of each recovery.

ready     a decision for every single failure, made again when what it rests on has changed
glance    before the fence: what is lost, and the job as it stood. Cheap
decide    behind the fence, while agents and survivors answer it: looked up, or weighed in some milliseconds
carry     what the planner then restores from where, as the way that it is
recovered predicted beside measured; constants and factors learn of it
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from mainstay.recovery.calibration import CostPrediction, RecoveryOutcome, forecast
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.planning.cost_input_builder import (
    CARRIED,
    LEAVES,
    JobFacts,
    cost_inputs_of,
    executed,
    held_of,
)
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.recovery_record import FailureAssessment
from mainstay.recovery.cost_inputs import CostInputs, FaultKind, ProgramCapability, SpareCapacity
from mainstay.recovery.cost_model.failure_cost import MEASURED
from mainstay.recovery.protection_scheme import SchemeKind
from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.recovery_plan import RecoveryPlan, RecoveryStrategyName
from mainstay.recovery.strategy_choice import (
    ExecutionCapabilities,
    PreparedDecisions,
    StrategyDecision,
    choose_strategy,
    single,
)

TOLD: Final = 8
"""Feasible options that an event names; of the infeasible ones all, each a sentence."""
REMEMBERED: Final = 256
"""Recoveries that the log sums up."""
ERRED: Final = "No process is gone: whoever raised makes the step again."
PLACED: Final = "Each lost rank has a place to run: no pipeline need change."
ALIKE: Final = 0.1
"""Steps, and ages of what is held, may differ by so much from when a decision was made ahead; ages by a step too."""


class StrategyController:
    """One a coordinator."""

    def __init__(
        self, job: Job, inputs: PlannerInputBuilder, participation: ParticipationPolicy, durability: DurabilityMonitor
    ) -> None:
        self._job = job
        self._inputs = inputs
        self._participation = participation
        self._durability = durability
        self.records: list[RecoveryOutcome] = []
        self._assigned: dict[int, int] = {}
        """Rank of a first stage -> micro-batches of its last step."""
        self._ready: PreparedDecisions = {}
        self._basis: CostInputs | None = None
        """What the decisions that are ready rest on."""
        self._task: asyncio.Task[None] | None = None

    # What is known

    def committed(self, rank: int, message: StepRecord) -> None:
        """A rank has made a step."""
        shape = self._job.members.shape
        if shape is not None and shape.place(rank)[1:] == (0, 0):
            self._assigned[rank] = message.micro_batches

    def job_facts(self, victims: Collection[int] = ()) -> JobFacts | None:
        """The job as it stands; None before a step was timed. ``victims`` need a place."""
        # Most conditions give the value that stands for a figure which the job has not reported yet.
        job, inputs = self._job, self._inputs
        shape, step_s = job.members.shape, inputs.step_seconds
        if shape is None or step_s <= 0.0:
            return None
        standbys, spares = self._places(shape.tp)
        if victims:
            standbys = len({shape.place(rank)[:2] for rank in inputs.case(set(victims)).warm})
        kept, scheme = self._durability.kept, job.options.protection
        disk, own = job.begun_at or None, kept.disk if kept and job.options.recovers_from_disk else None
        return JobFacts(
            shape=shape,
            nodes=tuple(rank.node for rank in job.members.ranks),
            state_bytes=tuple(rank.attached.state_bytes if rank.attached else 0 for rank in job.members.ranks),
            micro_batches=sum(self._assigned.get(rank.number, 0) for rank in job.members.present),
            step_s=step_s,
            node_rate=1.0 / (3600.0 * job.failure_rate.node_hours()),
            held=held_of(
                step_s=step_s,
                committed=job.state.committed,
                slots=all(rank.attached is not None and rank.attached.protected for rank in job.members.present),
                replicas=bool(job.state.replicated) and not job.options.shard_snapshots and shape.dp > 1,
                protected=None if kept is None else kept.protected,
                tolerance=scheme.tolerance,
                copies=scheme.kind is SchemeKind.COPIES,
                disk=max((e for e in (own, disk) if e is not None), default=None),
            ),
            pool=SpareCapacity(standbys=standbys, spares=spares),
            costs=inputs.costs,
            warm_up_s=job.prices.warm_up_s,
            able=self._able(),
        )

    def _able(self) -> frozenset[ProgramCapability]:
        """Every step under protection can be made again; the rest is what the script says of itself."""
        members, shape = self._job.members, self._job.members.shape
        found = {ProgramCapability.IN_PROCESS}
        if self._participation.rigid() is None:
            found.add(ProgramCapability.REROUTE)
        if self._job.options.checkpoint_dir and not members.fixed_shape() and shape is not None and shape.tp == 1:
            found.add(ProgramCapability.TEMPLATES)
        return frozenset(found)

    def _places(self, tp: int) -> tuple[int, int]:
        """Workers that warm standbys could replace, and that could start beyond them."""
        room, warm = sum(self._job.members.rooms().values()), sum(self._job.members.standbys().values())
        return warm // tp, (room - warm) // tp

    def means(self, fault: FaultKind) -> ExecutionCapabilities:
        """What this job is able to carry out now. Whoever raised keeps its process, or gets another one."""
        why = ERRED if fault is FaultKind.ERROR else self._participation.unable()
        barred = {} if why is None else dict.fromkeys(LEAVES, why)
        if fault is not FaultKind.NODE:
            barred[RecoveryStrategyName.REINSTANTIATE] = PLACED
        return ExecutionCapabilities(carried=CARRIED, barred=barred, factors=self._job.calibration.factors)

    # Ahead

    def prepare(self) -> None:
        """What decisions rest on may have changed: make them again, beside everything else."""
        if self._task is None or self._task.done():
            self._task = self._job.spawn(self._prepare())

    async def _prepare(self) -> None:
        known = self.job_facts()
        if known is None:
            return
        basis = cost_inputs_of(known, (0,), FaultKind.PROCESS, MEASURED.detect_s)
        ready: PreparedDecisions = {}
        for fault in (FaultKind.PROCESS, FaultKind.NODE):
            means = self.means(fault)
            for stage in range(known.shape.pp):
                ready[fault, stage] = choose_strategy(single(basis, fault, stage), means=means)
                await asyncio.sleep(0.0)  # some milliseconds each in a large job: messages come first
        self._basis, self._ready = basis, ready

    def _looked_up(self, cost_inputs: CostInputs) -> StrategyDecision | None:
        """A decision made ahead, where one worker is lost and all that it rests on is still so."""
        basis = self._basis
        if basis is None or cost_inputs.gone != 1 or cost_inputs.fault not in {FaultKind.PROCESS, FaultKind.NODE}:
            return None
        same = _frame(cost_inputs) == _frame(basis)
        step_s = basis.step_s
        near = abs(cost_inputs.step_s - step_s) <= ALIKE * step_s and all(
            abs(one - other) <= max(ALIKE * other, step_s)
            for one, other in zip(_ages(cost_inputs), _ages(basis), strict=True)
            if one is not None and other is not None
        )
        return self._ready.get((cost_inputs.fault, cost_inputs.lost.index(1))) if same and near else None

    # At a failure

    def assess_quickly(self, victims: set[int], failure: GenerationFailure) -> CostInputs | None:
        """Before anything moves: what is lost; None where nothing is, or too little is known to weigh it."""
        # The conditions decide what counts as lost: a planned change is not, a rank that failed alone is.
        job = self._job
        planned = failure.workflow is not None or failure.changes
        away = {rank.number for rank in job.members.ranks if rank.away and not rank.waits}
        gone = victims or ({failure.erred} if failure.erred is not None else set())
        known = None if planned or not gone or not job.state.formed_once else self.job_facts(victims | away)
        if known is None:
            return None
        ranks = [job.members.ranks[number] for number in gone | away]
        lost = any(rank.unplaced or not job.members.nodes[rank.node].alive for rank in ranks)
        fault = FaultKind.NODE if lost else FaultKind.PROCESS if victims else FaultKind.ERROR
        try:
            return cost_inputs_of(known, gone | away, fault, time.time() - failure.time)
        except ValueError as error:
            log.warning("this failure cannot be weighed: %s", error)
            return None

    def decide(
        self, cost_inputs: CostInputs | None, way: RecoveryStrategyName | None = None
    ) -> FailureAssessment | None:
        """Weigh every strategy; carry out ``way`` in any case, if it is given."""
        if cost_inputs is None:
            return None
        began, means = time.perf_counter(), self.means(cost_inputs.fault)
        found = self._looked_up(cost_inputs)
        decision = found or choose_strategy(cost_inputs, means=means)
        return FailureAssessment(cost_inputs, means, decision, time.perf_counter() - began, found is not None, way)

    def select_executed(self, verdict: FailureAssessment | None, plan: RecoveryPlan) -> None:
        """Note which way is carried out."""
        if verdict is None or plan.chosen is None:
            return
        cost_inputs = verdict.cost_inputs
        warm = cost_inputs.fault is FaultKind.NODE and cost_inputs.pool.standbys >= cost_inputs.gone
        verdict.strategy = executed(
            plan.chosen,
            away=bool(self._job.members.absent),
            rerouted=self._participation.crossed,
            warm=warm,
            lives=cost_inputs.fault is FaultKind.ERROR,
        )
        verdict.parts = dict(plan.alternative().parts)

    # Afterwards

    def recovered(
        self, verdict: FailureAssessment | None, recovery: str, seconds: dict[str, float], lost: int
    ) -> dict[str, Any]:
        """Keep what happened, learn of it, and say it as data of the event; nothing where nothing was predicted."""
        if verdict is None or verdict.strategy is None or not seconds["total"] > 0.0:
            return {}
        predicted = predict(verdict, verdict.strategy)
        made = RecoveryOutcome(recovery, predicted, seconds["total"], lost)
        self.records = [*self.records[-REMEMBERED + 1 :], made]
        prices = self._job.prices
        prices.learn_first_step(seconds.get("first_step", 0.0), predicted.phases["step"])
        known = replace(verdict.cost_inputs, costs=self._inputs.costs, warm_up_s=prices.warm_up_s)
        explained = forecast(choose_strategy(known), known, made.strategy)
        if explained is not None:
            self._job.calibration = self._job.calibration.learn(made, explained)
        alarms = self._job.calibration.alarms()
        for alarm in alarms:
            log.warning("DRIFT %s: %s", self._job.options.job, alarm)
        log.info(
            "%s took %.3f s, predicted %.3f s; %d of %d recoveries within a quarter, excess cost %.3f s in all",
            made.strategy, made.measured_s, predicted.seconds,
            sum(each.is_accurate for each in self.records), len(self.records),
            sum(each.excess_cost_s for each in self.records),
        )  # fmt: skip
        data = {"outcome": outcome(made) | ({"drift": list(alarms)} if alarms else {})}
        # Where no plan was made, nothing has said yet what was weighed.
        return data if verdict.parts else data | {"decision": decision_event_data(verdict)}


def predict(verdict: FailureAssessment, way: RecoveryStrategyName) -> CostPrediction:
    """What ``way`` was bound to take by what was known at the failure, when that took to be seen included.

    Decisions made ahead know neither that nor the newest constants. Where the cost inputs knew of no such source the
    planner's own parts count: an agent held more than had been seen.
    """
    cost_inputs = verdict.cost_inputs
    found = forecast(choose_strategy(cost_inputs, means=verdict.means), cost_inputs, way)
    if found is not None:
        return found
    fence = verdict.parts.get("fence", 0.0)
    phases = {
        "detect": cost_inputs.detect_s,
        "fence": fence,
        "regroup": max(0.0, sum(verdict.parts.values()) - fence),
        "warm_up": cost_inputs.warm_up_s,
        "step": cost_inputs.step_s,
    }
    return CostPrediction(strategy=way, phases=phases, step_s=cost_inputs.step_s)


def _frame(cost_inputs: CostInputs) -> tuple[object, ...]:
    """What a decision on the loss of one worker rests on, but for seconds: which ways there are."""
    held, pool = cost_inputs.held, cost_inputs.pool
    places = (pool.standbys > 0, pool.standbys + pool.spares > 0)
    return cost_inputs.shape, cost_inputs.able, held.replicated, places, *(age is None for age in _ages(cost_inputs))


def _ages(cost_inputs: CostInputs) -> tuple[float | None, ...]:
    held = cost_inputs.held
    return held.local_s, held.peer_s, held.parity_s, held.disk_s


def outcome(made: RecoveryOutcome) -> dict[str, Any]:
    """A record as the event tells it."""
    return {
        "strategy": made.strategy.value,
        "predicted_s": made.predicted.seconds,
        "measured_s": made.measured_s,
        "error": made.error,
        "excess_cost_s": made.excess_cost_s,
        "parts": dict(made.predicted.phases),
        "others": dict(made.predicted.others),
    }


def decision_event_data(verdict: FailureAssessment) -> dict[str, Any]:
    """A decision as the event tells it: the best options with their prices, and why the others are none."""
    decision = verdict.decision
    feasible = [option for option in decision.options if option.feasible]
    chosen = [option for option in feasible[TOLD:] if option.strategies == decision.chosen]
    options = [*feasible[:TOLD], *chosen, *(option for option in decision.options if not option.feasible)]
    return {
        "act": decision.act,
        "chosen": None if decision.chosen is None else [way.value for way in decision.chosen],
        "explanation": decision.explanation,
        "fault": verdict.cost_inputs.fault.value,
        "lost": list(verdict.cost_inputs.lost),
        "seconds": verdict.seconds,
        "ready": verdict.ready,
        "options": [
            {
                "strategies": [way.value for way in option.strategies],
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
