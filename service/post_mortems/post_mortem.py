"""From the detail of an incident and the rows about it to its post-mortem. Pure: no database, no clock.

Invariant: an unknown figure is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.schemas import IncidentDetail, IncidentRead
from mainstay.service.incidents.serializers import acted_seconds
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.post_mortems.repository import Sources
from mainstay.service.post_mortems.schemas import (
    PostMortemComment,
    PostMortemCulprit,
    PostMortemEntry,
    PostMortemFinding,
    PostMortemImpact,
    PostMortemJob,
    PostMortemPlan,
    PostMortemRead,
    PostMortemRecovery,
    PostMortemTimes,
)
from mainstay.service.remediation.schemas import RemediationRead
from mainstay.service.reports.reliability import JobSpan, Period, Stop, cost_of


def build(detail: IncidentDetail, sources: Sources, now: float) -> PostMortemRead:
    """The post-mortem as of ``now`` (Unix seconds)."""
    return PostMortemRead(
        created_at=now,
        incident=IncidentRead.model_validate(detail.model_dump()),
        culprit=_culprit(detail, sources),
        times=_times(detail, sources.recoveries),
        impact=_impact(sources),
        timeline=[PostMortemEntry.model_validate(entry) for entry in detail.timeline],
        findings=[PostMortemFinding.model_validate(finding) for finding in detail.findings],
        findings_total=detail.findings_total,
        plan=None if detail.plan is None else PostMortemPlan.model_validate(detail.plan),
        remediations=[RemediationRead.model_validate(row) for row in sources.remediations],
        recoveries=[_recovery(row) for row in sources.recoveries],
        comments=_comments(detail),
    )


def _culprit(detail: IncidentDetail, sources: Sources) -> PostMortemCulprit:
    node, device = sources.node, sources.device
    return PostMortemCulprit(
        node=detail.node,
        rack=(node.rack or None) if node else None,
        device=detail.device,
        gpu=device.index if device and device.kind == "gpu" else None,
        serial=(device.serial or None) if device else None,
    )


def _times(detail: IncidentDetail, recoveries: Sequence[RecoveryRow]) -> PostMortemTimes:
    opened, acknowledged = detail.opened_at, detail.acknowledged_at
    found = min((entry.time for entry in detail.timeline if entry.kind == "finding"), default=None)
    recovered = detail.recovered_at if _has_recovered(detail) else None
    return PostMortemTimes(
        failed_at=recoveries[0].failed_at if recoveries else None,
        first_finding_at=found,
        opened_at=opened,
        acknowledged_at=acknowledged,
        recovered_at=recovered,
        closed_at=detail.closed_at,
        detection_seconds=_detection(recoveries, None if found is None else opened - found),
        acknowledge_seconds=None if acknowledged is None else max(0.0, acknowledged - opened),
        recovery_seconds=None if recovered is None else max(0.0, recovered - opened),
    )


def _has_recovered(detail: IncidentDetail) -> bool:
    """``recovered_at`` stays when the fault comes back: the last state before the end decides."""
    states = [entry.data["to"] for entry in detail.timeline if "to" in entry.data]
    before = [state for state in states if state != IncidentState.CLOSED]
    return bool(before) and before[-1] in {IncidentState.RECOVERED, IncidentState.VERIFIED}


def _detection(recoveries: Sequence[RecoveryRow], since_finding: float | None) -> float | None:
    if recoveries and "detect" in recoveries[0].parts:
        return float(recoveries[0].parts["detect"])
    # A reporter whose clock is ahead names a time after the opening: then it is not known.
    return since_finding if since_finding is not None and since_finding >= 0 else None


def _impact(sources: Sources) -> PostMortemImpact:
    rows = {row.id: row for row in sources.jobs}
    jobs = [_job(name, rows.get(name), [r for r in sources.recoveries if r.job == name]) for name in sources.job_ids]
    gpus = [job.gpus for job in jobs if job.gpus is not None]
    steps = [job.steps_lost for job in jobs if job.steps_lost is not None]
    hours = [job.idle_gpu_hours for job in jobs if job.idle_gpu_hours is not None]
    return PostMortemImpact(
        jobs=jobs,
        gpus=sum(gpus) if gpus else None,
        steps_lost=sum(steps) if steps else None,
        idle_gpu_hours=sum(hours) if hours else None,
        is_partial=any(len(known) < len(jobs) for known in (gpus, steps, hours)),
    )


def _job(name: str, row: JobRow | None, recoveries: Sequence[RecoveryRow]) -> PostMortemJob:
    gpus = int(row.topology.get("world_size") or 0) if row else 0
    stopped = _stopped_seconds(recoveries)
    steps = [recovery.steps_lost for recovery in recoveries if recovery.steps_lost is not None]
    return PostMortemJob(
        id=name,
        name=row.name if row else name,
        gpus=gpus or None,
        stopped_seconds=stopped,
        idle_gpu_hours=stopped * gpus / 3600 if stopped is not None and gpus else None,
        steps_lost=sum(steps) if steps and len(steps) == len(recoveries) else None,
    )


def _stopped_seconds(recoveries: Sequence[RecoveryRow]) -> float | None:
    """Time in which recoveries ran; those that overlap count once, as in the reliability report."""
    ends = [(row.failed_at, row.recovered_at) for row in recoveries]
    stops = [
        Stop(job="", started_at=start, ended_at=end, detect_seconds=0.0, steps_lost=0, cause="", succeeded=True)
        for start, end in ends
        if end is not None
    ]
    if not stops or len(stops) < len(ends):
        return None
    begin, end = min(stop.started_at for stop in stops), max(stop.ended_at for stop in stops)
    span = JobSpan(id="", name="", ranks=0, started_at=begin, ended_at=end, steps=None)
    return cost_of(span, stops, Period(since=begin, until=end)).stopped_seconds


def _recovery(row: RecoveryRow) -> PostMortemRecovery:
    whole = row.predicted_seconds is not None
    return PostMortemRecovery(
        job=row.job,
        strategy=row.strategy or row.restore_strategy,
        outcome=row.outcome,
        measured_from="failure" if whole else "decision",
        predicted_seconds=row.predicted_seconds if whole else row.planned_seconds,
        actual_seconds=row.seconds if whole else acted_seconds(row),
        steps_lost=row.steps_lost,
        excess_cost_seconds=row.excess_cost_seconds,
    )


def _comments(detail: IncidentDetail) -> list[PostMortemComment]:
    found = []
    for entry in detail.timeline:
        if entry.kind == "comment":
            author = str(entry.data.get("actor", "unknown"))
            found.append(PostMortemComment(time=entry.time, author=author, text=entry.text.removeprefix(f"{author}: ")))
    return found
