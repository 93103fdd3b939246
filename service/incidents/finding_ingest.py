"""Ingest of findings: stores them as rows and carries out the decisions of ``detectors.correlation.correlation``.

Invariant: one active row a finding key, and never a second incident for the same thing: a repeated statement renews its
row, news of a failure that a recovery already answers joins that recovery's incident, and a finding that comes back
before its incident is closed reopens it. A key holds the detector: what two of them witness are two rows of one
incident, and neither ends a finding of the other. Information that becomes more severe counts as a new finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import select

from mainstay.detectors.correlation import correlation as pure
from mainstay.detectors.correlation.places import CorrelationConfig
from mainstay.detectors.finding import ADVICE, Evidence, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.service.incidents import correlation_view, node_reboots, node_suspicion, repository, service
from mainstay.service.incidents import findings as wire
from mainstay.service.incidents.finding_rows import FindingRows
from mainstay.service.incidents.lifecycle import LIVE, IncidentState, IncidentTrigger
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.incidents.service import Context
from mainstay.service.jobs.models import RecoveryRow

_STOPPED: Final = frozenset({FindingKind.PROCESS_EXIT, FindingKind.NODE_LOST})
_LINES: Final = 20
"""Lines that one batch adds to the timeline of an incident; more are one line."""
_NOISE_SECONDS: Final = 10.0
_EARLY_SECONDS: Final = 30.0
"""How much older than the first sign of a recovery its cause may be: clocks and spools differ."""


@dataclass
class _News:
    """What a batch adds to findings that incidents hold: one change an incident, however much it is."""

    found: dict[str, list[Finding]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[str, str] = field(default_factory=dict)

    def add_finding(self, incident_id: str, finding: Finding, text: str) -> None:
        self.found[incident_id].append(finding)
        self.texts.setdefault(incident_id, text)

    def apply(self, context: Context) -> None:
        for incident_id, findings in self.found.items():
            others = len(findings) - 1
            text = self.texts[incident_id] + (f" {others} more like it." if others else "")
            _grow(context, service.require(context.session, incident_id), findings, text)


def ingest_findings(context: Context, findings: Iterable[Finding]) -> None:
    """Store a batch of findings and let incidents open, grow and clear."""
    batch = list(findings)
    if not batch:
        return
    rows, news = FindingRows(context.session, batch), _News()
    fresh = [f for f in batch if f.active and not _known(context, rows, news, f)]
    context.session.flush()
    news.apply(context)
    if fresh:
        _place(context, rows, fresh)
    _clear(context, rows, [f for f in batch if not f.active])
    timeout = context.settings.fleet.heartbeat_timeout_seconds
    node_suspicion.reconsider(context.session, _nodes(batch), now=context.now, heartbeat_timeout_seconds=timeout)


def _nodes(findings: Iterable[Finding]) -> set[str]:
    return {f.entity.node for f in findings if f.entity.node is not None}


def _place(context: Context, rows: FindingRows, fresh: Sequence[Finding]) -> None:
    """Store new findings: in the incidents that correlation names, or without one."""
    session = context.session
    correlated = [finding for finding in fresh if finding.detector not in rows.recording]
    incidents = correlation_view.open_incidents(session, _nodes(correlated)) if correlated else []
    named = _nodes([*correlated, *(f for incident in incidents for f in incident.findings)])
    for incident in incidents:
        struck = frozenset[str]().union(*incident.nodes.values())
        named |= struck if len(struck) <= correlation_view.PLACED else set()
    decisions = pure.correlate(
        [*correlated, *_explaining(context, rows, correlated)],
        incidents,
        correlation_view.topology(session, named),
        CorrelationConfig(rack_nodes=context.settings.incidents.shared_fault_nodes),
    )
    for decision in decisions:
        _apply(context, rows, decision)
    placed = {id(f) for d in decisions for f in d.findings}
    for finding in fresh:
        if id(finding) not in placed:  # recommendations, information, and what is only recorded open no incident
            _store(context, rows, finding, None)
    context.session.flush()


def _explaining(context: Context, rows: FindingRows, fresh: Sequence[Finding]) -> list[Finding]:
    """Return findings that were information until a process ended: errors just before it explain the exit."""
    exits = [finding.time for finding in fresh if finding.kind is FindingKind.PROCESS_EXIT]
    if not exits:
        return []
    told = repository.unplaced(context.session, RecommendedAction.RESTART_JOB, since=min(exits) - _EARLY_SECONDS)
    for row in told:
        rows.put(row)
    return [wire.from_row(row) for row in told]


def _known(context: Context, rows: FindingRows, news: _News, finding: Finding) -> bool:
    """Whether the finding is no news: it holds already, was answered already, or came back."""
    return _renewed(rows, news, finding) or _answered(context, rows, finding) or _returned(rows, news, finding)


def _renewed(rows: FindingRows, news: _News, finding: Finding) -> bool:
    row = rows.active(finding)
    if row is None:
        return False
    if row.incident_id is None and finding.severity is not Severity.INFO and finding.kind not in ADVICE:
        return False  # it was information and is trouble now: it has to find its incident
    again = finding.event is not None and finding.event != row.event_id and not _noise(row, finding)
    more_severe = _is_more_severe(row, finding)
    _write(row, finding)
    if (again or more_severe) and row.incident_id is not None:
        what = "More severe" if more_severe else "Again"
        news.add_finding(row.incident_id, finding, f"{what}: {finding.evidence.summary}")
    return True


def can_replace(before: Finding | None, finding: Finding) -> bool:
    """Whether a finding may be stored instead of the one before it with the same key, which it only repeats."""
    if before is None:
        return True
    same = (before.active, before.severity, before.recommended_action, before.detector)
    now = (finding.active, finding.severity, finding.recommended_action, finding.detector)
    return same == now and finding.kind not in _STOPPED and abs(finding.time - before.time) < _NOISE_SECONDS


def _is_more_severe(row: FindingRow, finding: Finding) -> bool:
    """Whether it is worse than before, or recommends more."""
    worse = service.worse(row.severity, finding.severity.value) != row.severity
    return worse or finding.recommended_action.level > RecommendedAction(row.recommended_action).level


def _noise(row: FindingRow, finding: Finding) -> bool:
    """A driver may report the same XID hundreds of times a second; Mainstay repeats it only after a pause."""
    return finding.kind not in _STOPPED and abs(finding.time - row.time) < _NOISE_SECONDS


def _write(row: FindingRow, finding: Finding) -> None:
    for name, value in wire.renewed_columns(finding).items():
        setattr(row, name, value)
    row.cleared_at = None


def _answered(context: Context, rows: FindingRows, finding: Finding) -> bool:
    """The coordinator's report of the recovery overtook the launcher's report of the failure."""
    recovery = _recovery_of(context, finding)
    if recovery is None or recovery.incident_id is None:
        return False
    incident = context.session.get(IncidentRow, recovery.incident_id)
    if incident is None:
        return False
    recovery.failed_at = min(recovery.failed_at, finding.time)
    row = wire.to_row(finding, incident.id)
    if recovery.recovered_at is not None:
        row.active, row.cleared_at = False, recovery.recovered_at
    else:
        rows.put(row)
    context.session.add(row)
    _tell(context, incident, "finding", [(finding, row)])
    if incident.state != IncidentState.CLOSED:
        _widen(context, incident, [finding])
    return True


def _recovery_of(context: Context, finding: Finding) -> RecoveryRow | None:
    entity = finding.entity
    if finding.kind not in _STOPPED or entity.job is None:
        return None
    statement = select(RecoveryRow).where(RecoveryRow.job == entity.job, RecoveryRow.planned_at.is_not(None))
    for row in context.session.scalars(statement.order_by(RecoveryRow.failed_at.desc()).limit(5)):
        # A failure after the plan is another failure, unless it is the plan's own and only its clock differs.
        until = row.planned_at if row.planned_at is not None else row.failed_at
        in_time = row.failed_at - _EARLY_SECONDS <= finding.time <= until
        mine = entity.rank is None or entity.rank in row.failed_ranks
        if in_time and mine:
            return row
    return None


def _returned(rows: FindingRows, news: _News, finding: Finding) -> bool:
    """A finding that cleared without action is back before its incident was closed."""
    row = rows.returnable.get(finding.key)
    if row is None or row.incident_id is None or finding.detector in rows.recording:
        return False
    _write(row, finding)
    rows.put(row)
    news.add_finding(row.incident_id, finding, f"Back: {finding.evidence.summary}")
    return True


def _apply(context: Context, rows: FindingRows, decision: pure.CorrelationDecision) -> None:
    if decision.incident is None:
        _attach(context, rows, _open(context, decision), decision.findings)
        return
    incident = service.require(context.session, decision.incident)
    _attach(context, rows, incident, decision.findings)
    for other in decision.also:
        _merge(context, service.require(context.session, other), incident)
    _describe(context, incident, decision)
    text = f"{len(decision.findings)} further finding(s): {decision.title}"
    service.propose(context, incident, IncidentTrigger.RELAPSED, text=text)


def _open(context: Context, decision: pure.CorrelationDecision) -> IncidentRow:
    return open_incident(
        context,
        kinds=[kind.value for kind in decision.kinds],
        severity=decision.severity.value,
        job=decision.job,
        node=decision.node,
        device=decision.device,
        ranks=decision.ranks,
        title=decision.title,
        summary=_summary(decision.causes),
        cause=_cause(decision.causes),
    )


def _cause(causes: Sequence[Finding]) -> str | None:
    """What is behind it: of the likeliest root cause that names a category."""
    return next((finding.cause.value for finding in causes if finding.cause is not None), None)


def _summary(causes: Sequence[Finding]) -> str:
    """The likeliest cause first; what follows from it after."""
    return " ".join(dict.fromkeys(finding.evidence.summary for finding in causes[:5]))


def _attach(context: Context, rows: FindingRows, incident: IncidentRow, findings: Iterable[Finding]) -> None:
    pairs = [(finding, _store(context, rows, finding, incident.id)) for finding in findings]
    _tell(context, incident, "finding", pairs)
    context.session.flush()


def _tell(context: Context, incident: IncidentRow, kind: str, pairs: Sequence[tuple[Finding, FindingRow]]) -> None:
    """Put findings on the timeline: each in its line, or many in one."""
    if len(pairs) > _LINES:
        first = min(pairs, key=lambda pair: pair[0].time)[0]
        service.add_timeline_entry(
            context.session, incident, time=first.time, kind=kind,
            text=f"{len(pairs)} findings, the first: {first.evidence.summary}",
            data={"findings": len(pairs), "kinds": sorted({finding.kind.value for finding, _ in pairs})},
        )  # fmt: skip
        return
    for finding, row in pairs:
        data = {"finding": row.id, "kind": row.kind, "detector": finding.detector, "event": finding.event}
        service.add_timeline_entry(
            context.session, incident, time=finding.time, kind=kind, text=finding.evidence.summary, data=data
        )


def _store(context: Context, rows: FindingRows, finding: Finding, incident_id: str | None) -> FindingRow:
    """A new row, or the one in which the same was mere information until now."""
    row = rows.active(finding)
    if row is None:
        row = wire.to_row(finding, incident_id)
        context.session.add(row)
        rows.put(row)
    else:
        if (row.time, row.severity) != (finding.time, finding.severity.value):
            _write(row, finding)
        row.incident_id = incident_id
    return row


def _describe(context: Context, incident: IncidentRow, decision: pure.CorrelationDecision) -> None:
    """Bring the incident's face up to date: an earlier cause found later changes the title."""
    service.amend(
        context.session,
        incident,
        title=decision.title[:300],
        summary=_summary(decision.causes),
        severity=service.worse(incident.severity, decision.severity.value),
        job=incident.job or decision.job,
        node=decision.node or incident.node,
        device=decision.device or incident.device,
        ranks=sorted({*incident.ranks, *decision.ranks}),
        kinds=list(dict.fromkeys([*(kind.value for kind in decision.kinds), *incident.kinds])),
        cause=_cause(decision.causes) or incident.cause,
        updated_at=context.now,
    )


def _widen(context: Context, incident: IncidentRow, findings: Sequence[Finding]) -> None:
    """Add what findings say to an incident that keeps its title."""
    ranks = {f.entity.rank for f in findings if f.entity.rank is not None}
    severity = incident.severity
    for finding in findings:
        severity = service.worse(severity, finding.severity.value)
    service.amend(
        context.session,
        incident,
        severity=severity,
        node=incident.node or findings[0].entity.node,
        ranks=sorted({*incident.ranks, *ranks}),
        kinds=list(dict.fromkeys([*incident.kinds, *(f.kind.value for f in findings)])),
        cause=incident.cause or _cause(findings),
        updated_at=context.now,
    )


def _grow(context: Context, incident: IncidentRow, findings: Sequence[Finding], text: str) -> None:
    if IncidentState(incident.state) in LIVE:
        _widen(context, incident, findings)
        service.propose(context, incident, IncidentTrigger.RELAPSED, text=text)


def _merge(context: Context, younger: IncidentRow, older: IncidentRow) -> None:
    """Two incidents turned out to be one: everything moves to the older."""
    repository.move(context.session, from_id=younger.id, to_id=older.id)
    text = f"The same thing as incident {older.id}."
    service.propose(context, younger, IncidentTrigger.MERGED, text=text, data={"incident": older.id})
    service.add_timeline_entry(
        context.session, older, time=context.now, kind="merged", text=f"Took in incident {younger.id}.",
        data={"incident": younger.id},
    )  # fmt: skip


def _clear(context: Context, rows: FindingRows, ended: Iterable[Finding]) -> None:
    """End what no longer holds; an incident of which nothing holds any more may end too."""
    over: dict[str, list[tuple[Finding, FindingRow]]] = defaultdict(list)
    known = [(finding, row) for finding in ended if (row := rows.active(finding)) is not None]
    lost = {f.entity.node: row.time for f, row in known if f.kind is FindingKind.NODE_LOST and f.entity.node}
    rebooted = node_reboots.rebooted(context.session, lost)
    for finding, row in known:
        if not row.active:
            continue  # it ends twice in one batch
        if finding.kind is FindingKind.NODE_LOST and finding.entity.node in rebooted:
            text = f"Node {finding.entity.node} rebooted and is heard again."
            finding = replace(finding, evidence=Evidence(summary=text))  # noqa: PLW2901 - says more
        row.active, row.cleared_at = False, finding.time
        rows.drop(row)
        if row.incident_id is not None:
            over[row.incident_id].append((finding, row))
    context.session.flush()
    for incident_id, pairs in over.items():
        incident = service.require(context.session, incident_id)
        _tell(context, incident, "finding_cleared", pairs)
        if _over(context, incident, pairs[-1][1]):
            service.propose(context, incident, IncidentTrigger.CLEARED, text="Everything that was found is over.")


def _over(context: Context, incident: IncidentRow, row: FindingRow) -> bool:
    """Whether an incident can end without an operator. A job that died and ended needs one."""
    stopped = {kind.value for kind in _STOPPED}
    if incident.state != IncidentState.OPEN or (incident.needs_operator and row.kind in stopped):
        return False
    session = context.session
    return not repository.holds(session, incident.id) and not repository.has_recovery(session, incident.id)
