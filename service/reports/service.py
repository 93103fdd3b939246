"""The reliability report of a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from mainstay.service.common.db import AnySession
from mainstay.service.reports import reliability, repository
from mainstay.service.reports.reliability import HOUR, Failure, JobCost, NodeSpan, Period
from mainstay.service.reports.schemas import (
    BetweenRead,
    CauseReliability,
    CohortReliability,
    JobReliability,
    LostGpuHours,
    NodeReliability,
    ReliabilityRead,
    ReliabilitySummary,
)

_JOBS: Final = 200
_NODES: Final = 20


def report(
    session: AnySession, period: Period, *, restart_seconds: float, checkpoint_seconds: float
) -> ReliabilityRead:
    """What failures cost in the period, and in the one before it."""
    costs, failures = _costs(session, period), repository.failures(session, period)
    nodes, before = repository.nodes(session, period), period.before

    def summary(of: Period, costs: Sequence[JobCost], failures: Sequence[Failure]) -> ReliabilitySummary:
        saved = reliability.saved_gpu_hours(
            costs, restart_seconds=restart_seconds, checkpoint_seconds=checkpoint_seconds
        )
        return _summary(of, costs, failures, nodes, saved)

    return ReliabilityRead(
        since=period.since,
        until=period.until,
        summary=summary(period, costs, failures),
        before=summary(before, _costs(session, before), repository.failures(session, before)),
        jobs=[_job(cost) for cost in sorted(costs, key=lambda cost: -cost.lost_gpu_hours)[:_JOBS]],
        causes=_causes(costs, failures),
        cohorts=_cohorts(nodes, failures, period),
        nodes=_nodes(nodes, failures, period),
        assumptions=[
            f"A restart from the last checkpoint takes {restart_seconds / 60:g} min.",
            f"It repeats half of the {checkpoint_seconds / 60:g} min between two checkpoints.",
            "A repeated step takes as long as the steps of its job do on average.",
            "A job that reports no more has ended with its last report.",
            "Each incident is one failure. Time out of service does not count between failures.",
        ],
    )


def _costs(session: AnySession, period: Period) -> list[JobCost]:
    spans = repository.jobs(session, period)
    stops = repository.stops(session, spans)
    return [reliability.cost_of(span, stops.get(span.id, ()), period) for span in spans]


def _summary(
    period: Period, costs: Sequence[JobCost], failures: Sequence[Failure], nodes: Sequence[NodeSpan], saved: float
) -> ReliabilitySummary:
    gpu_hours = sum(cost.wall_seconds * cost.job.ranks for cost in costs) / HOUR
    lost = sum(cost.lost_gpu_hours for cost in costs)
    detection, repeated = (
        sum(getattr(cost, name) * cost.job.ranks for cost in costs) / HOUR
        for name in ("detect_seconds", "repeated_seconds")
    )
    hours = reliability.node_hours(nodes, period)
    return ReliabilitySummary(
        jobs=len(costs),
        gpu_hours=gpu_hours,
        ettr=1.0 - lost / gpu_hours if gpu_hours else None,
        lost_gpu_hours=LostGpuHours(
            detection=detection,
            recovery=max(0.0, lost - detection - repeated),
            repeated=repeated,
            out_of_service=sum(reliability.out_seconds(node, period) * node.gpus for node in nodes) / HOUR,
        ),
        incidents=len(failures),
        recoveries=sum(cost.recoveries for cost in costs),
        failed_recoveries=sum(cost.failed_recoveries for cost in costs),
        mean_repair_seconds=reliability.mean_repair_seconds(failures),
        between_failures=BetweenRead.of_period(reliability.between(hours, len(failures))),
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
    )


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


def _cohorts(nodes: Sequence[NodeSpan], failures: Sequence[Failure], period: Period) -> list[CohortReliability]:
    cohort_of, members = {node.name: node.cohort for node in nodes}, defaultdict[str, list[NodeSpan]](list)
    for node in nodes:
        members[node.cohort].append(node)
    counts = Counter(cohort_of[one.node] for one in failures if one.node in cohort_of)
    return [
        CohortReliability(
            cohort=cohort, nodes=len(found),
            between_failures=BetweenRead.of_period(
                reliability.between(reliability.node_hours(found, period), counts[cohort])
            ),
        )
        for cohort, found in sorted(members.items())
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
