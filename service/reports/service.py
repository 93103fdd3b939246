"""The reliability report of a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

from mainstay.service.auth.tokens import matches
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.reports import components, reliability, repository
from mainstay.service.reports.components import Component
from mainstay.service.reports.reliability import HOUR, Drain, DrainVerdict, Failure, JobCost, NodeSpan, Period
from mainstay.service.reports.schemas import (
    BatchReliability,
    BetweenRead,
    CauseReliability,
    CohortReliability,
    ComponentReliability,
    DetectorReliability,
    DrainCounts,
    JobReliability,
    LostGpuHours,
    NodeReliability,
    ReliabilityRead,
    ReliabilitySummary,
    TeamReliability,
)

_JOBS: Final = 200
_NODES: Final = 20


def report(
    session: AnySession,
    period: Period,
    fleet: Mapping[str, FleetNode],
    *,
    restart_seconds: float,
    checkpoint_seconds: float,
    now: float,
) -> ReliabilityRead:
    """What failures cost in the period, and in the one before it.

    Args:
        session: to read with.
        period: what to report on.
        fleet: node → its GPUs now, for the batches.
        restart_seconds: what a restart without Mainstay would take.
        checkpoint_seconds: between two checkpoints.
        now: Unix seconds.
    """
    costs, failures = _costs(session, period), repository.failures(session, period)
    nodes, before = repository.nodes(session, period), period.before
    drains = repository.drains(session, Period(since=before.since, until=period.until))
    in_service, in_service_before = _in_service(nodes, period), _in_service(nodes, before)
    batches, unbatched = components.between_of_batches(fleet, in_service, failures)

    def summary(of: Period, costs: Sequence[JobCost], failures: Sequence[Failure]) -> ReliabilitySummary:
        saved = reliability.saved_gpu_hours(
            costs, restart_seconds=restart_seconds, checkpoint_seconds=checkpoint_seconds
        )
        hours = sum((in_service if of is period else in_service_before).values()) / HOUR
        counted = _drains([drain for drain in drains if of.holds(drain.drained_at)], now)
        return _summary(of, costs, failures, nodes, hours=hours, saved=saved, drains=counted)

    return ReliabilityRead(
        since=period.since,
        until=period.until,
        summary=summary(period, costs, failures),
        before=summary(before, _costs(session, before), repository.failures(session, before)),
        jobs=[_job(cost) for cost in sorted(costs, key=lambda cost: -cost.lost_gpu_hours)[:_JOBS]],
        teams=_teams(costs, repository.teams(session)),
        causes=_causes(costs, failures),
        detectors=_detectors([drain for drain in drains if period.holds(drain.drained_at)], now),
        components=_components(nodes, failures, in_service),
        batches=[
            BatchReliability(model=model, firmware=firmware, gpus=gpus, between_failures=BetweenRead.of_period(found))
            for (model, firmware), (gpus, found) in batches.items()
        ],
        failures_in_no_batch=unbatched,
        cohorts=_cohorts(nodes, failures, in_service),
        nodes=_nodes(nodes, failures, period),
        assumptions=_assumptions(restart_seconds, checkpoint_seconds),
    )


def _assumptions(restart_seconds: float, checkpoint_seconds: float) -> list[str]:
    return [
        f"A restart from the last checkpoint takes {restart_seconds / 60:g} min.",
        f"It repeats half of the {checkpoint_seconds / 60:g} min between two checkpoints.",
        "A repeated step takes as long as the steps of its job do on average.",
        "A job that reports no more has ended with its last report.",
        "Each incident is one failure. Time out of service does not count between failures.",
        "A job in two teams counts in each.",
        "A rank uses one GPU. A rank that is absent after a recovery is absent until the next recovery ends.",
        "A repair is an exchange of hardware or a restart of the node. Others are not recorded.",
        "An incident without a known cause counts for no component, unless its findings name one.",
        "GPUs count for the model and VBIOS that their nodes report now, also before a replacement or an update.",
    ]


def _in_service(nodes: Iterable[NodeSpan], period: Period) -> dict[str, float]:
    """Node → seconds."""
    return {node.name: reliability.in_service_seconds(node, period) for node in nodes}


def _drains(drains: Collection[Drain], now: float) -> DrainCounts:
    found = Counter(drain.verdict(now) for drain in drains)
    false, confirmed = found[DrainVerdict.FALSE], found[DrainVerdict.CONFIRMED]
    decided = false + confirmed
    low, high = reliability.binomial_limits(false, decided) if decided else (None, None)
    return DrainCounts(
        drains=len(drains),
        false_drains=false,
        confirmed=confirmed,
        not_validated=found[DrainVerdict.NOT_VALIDATED],
        undecided=found[DrainVerdict.UNDECIDED],
        ratio=false / decided if decided else None,
        low=low,
        high=high,
    )


def _detectors(drains: Collection[Drain], now: float) -> list[DetectorReliability]:
    found = defaultdict[str, list[Drain]](list)
    for drain in drains:
        for detector in drain.detectors:
            found[detector].append(drain)
    return [DetectorReliability(detector=name, **_drains(own, now).model_dump()) for name, own in sorted(found.items())]


def _costs(session: AnySession, period: Period) -> list[JobCost]:
    spans = repository.jobs(session, period)
    stops = repository.stops(session, spans)
    return [reliability.cost_of(span, stops.get(span.id, ()), period) for span in spans]


def _summary(
    period: Period,
    costs: Sequence[JobCost],
    failures: Sequence[Failure],
    nodes: Sequence[NodeSpan],
    *,
    hours: float,
    saved: float,
    drains: DrainCounts,
) -> ReliabilitySummary:
    gpu_hours = _gpu_hours(costs)
    lost = sum(cost.lost_gpu_hours for cost in costs)
    detection, repeated = (
        sum(getattr(cost, name) * cost.job.ranks for cost in costs) / HOUR
        for name in ("detect_seconds", "repeated_seconds")
    )
    return ReliabilitySummary(
        jobs=len(costs),
        gpu_hours=gpu_hours,
        ettr=1.0 - lost / gpu_hours if gpu_hours else None,
        lost_gpu_hours=LostGpuHours(
            detection=detection,
            recovery=max(0.0, lost - detection - repeated),
            repeated=repeated,
            degraded=sum(cost.absent_rank_seconds for cost in costs) / HOUR,
            out_of_service=sum(reliability.out_seconds(node, period) * node.gpus for node in nodes) / HOUR,
        ),
        incidents=len(failures),
        recoveries=sum(cost.recoveries for cost in costs),
        failed_recoveries=sum(cost.failed_recoveries for cost in costs),
        mean_repair_seconds=reliability.mean_repair_seconds(failures),
        between_failures=BetweenRead.of_period(reliability.between(hours, len(failures))),
        drains=drains,
        saved_gpu_hours=saved,
    )


def _job(cost: JobCost) -> JobReliability:
    return JobReliability(
        id=cost.job.id,
        name=cost.job.name,
        ranks=cost.job.ranks,
        hours=cost.wall_seconds / HOUR,
        ettr=cost.ettr,
        recoveries=cost.recoveries,
        failed_recoveries=cost.failed_recoveries,
        steps_lost=cost.steps_lost,
        lost_gpu_hours=cost.lost_gpu_hours,
        degraded_gpu_hours=cost.absent_rank_seconds / HOUR,
    )


def _teams(costs: Sequence[JobCost], teams: Mapping[str, Collection[str]]) -> list[TeamReliability]:
    """Each team, and last the jobs that are in none, if there are any."""
    members = defaultdict[str | None, list[JobCost]](list)
    shared = Counter[str | None]()
    for cost in costs:
        own = [team for team, patterns in teams.items() if matches(cost.job.id, patterns)]
        shared.update(own if len(own) > 1 else ())
        for team in own:
            members[team].append(cost)
        if not own:
            members[None].append(cost)
    listed: list[str | None] = [*teams, *([None] if None in members else [])]
    return [_team(team, members[team], shared[team]) for team in listed]


def _team(team: str | None, costs: Sequence[JobCost], shared: int) -> TeamReliability:
    gpu_hours, lost = _gpu_hours(costs), sum(cost.lost_gpu_hours for cost in costs)
    return TeamReliability(
        team=team,
        jobs=len(costs),
        shared_jobs=shared,
        gpu_hours=gpu_hours,
        productive_gpu_hours=gpu_hours - lost,
        lost_gpu_hours=lost,
        ettr=1.0 - lost / gpu_hours if gpu_hours else None,
        recoveries=sum(cost.recoveries for cost in costs),
        failed_recoveries=sum(cost.failed_recoveries for cost in costs),
    )


def _gpu_hours(costs: Sequence[JobCost]) -> float:
    return sum(cost.wall_seconds * cost.job.ranks for cost in costs) / HOUR


def _components(
    nodes: Sequence[NodeSpan], failures: Sequence[Failure], in_service: Mapping[str, float]
) -> list[ComponentReliability]:
    hours = {
        "gpu": sum(node.gpus * in_service[node.name] for node in nodes) / HOUR,
        "node": sum(in_service.values()) / HOUR,
    }
    found = defaultdict[str, list[Failure]](list)
    for failure in failures:
        found[failure.component].append(failure)
    return [
        ComponentReliability(
            component=part, unit=_unit(part), mean_repair_seconds=reliability.mean_repair_seconds(found[part]),
            between_failures=BetweenRead.of_period(reliability.between(hours[_unit(part)], len(found[part]))),
        )
        for part in Component
    ]  # fmt: skip


def _unit(part: Component) -> Literal["gpu", "node"]:
    return "gpu" if part is Component.GPU else "node"


def _causes(costs: Sequence[JobCost], failures: Sequence[Failure]) -> list[CauseReliability]:
    lost, found = reliability.by_cause(costs), defaultdict[str, list[Failure]](list)
    for failure in failures:
        found[failure.cause].append(failure)
    rows = [
        CauseReliability(
            cause=cause, incidents=len(found[cause]), mean_repair_seconds=reliability.mean_repair_seconds(found[cause]),
            lost_gpu_hours=lost.get(cause, 0.0),
        )
        for cause in {*lost, *found}
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row.lost_gpu_hours, -row.incidents, row.cause))


def _cohorts(
    nodes: Sequence[NodeSpan], failures: Sequence[Failure], in_service: Mapping[str, float]
) -> list[CohortReliability]:
    cohort_of = {node.name: node.cohort for node in nodes}
    seconds, members, found = (
        defaultdict[str, float](float),
        Counter(cohort_of.values()),
        defaultdict[str, list[Failure]](list),
    )
    for name, cohort in cohort_of.items():
        seconds[cohort] += in_service[name]
    for failure in failures:
        if failure.node in cohort_of:
            found[cohort_of[failure.node]].append(failure)
    return [
        CohortReliability(
            cohort=cohort, nodes=members[cohort],
            mean_repair_seconds=reliability.mean_repair_seconds(found[cohort]),
            between_failures=BetweenRead.of_period(
                reliability.between(seconds[cohort] / HOUR, len(found[cohort]))
            ),
        )
        for cohort in sorted(members)
    ]  # fmt: skip


def _nodes(nodes: Sequence[NodeSpan], failures: Sequence[Failure], period: Period) -> list[NodeReliability]:
    counts = Counter(one.node for one in failures if one.node)
    out = {node.name: reliability.out_seconds(node, period) / HOUR for node in nodes if node.out}
    worst = sorted({*counts, *out}, key=lambda name: (-counts[name], -out.get(name, 0.0), name))[:_NODES]
    return [
        NodeReliability(name=name, incidents=counts[name], out_of_service_hours=out.get(name, 0.0))
        for name in worst
        if counts[name] or out[name]
    ]
