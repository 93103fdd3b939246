"""A post-mortem as Markdown (CommonMark with tables). Pure.

Invariant: text from outside (names, titles, comments) passes through ``escape``, so that it renders as the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mainstay.service.common.time_texts import duration_text, iso_time
from mainstay.service.post_mortems.schemas import PostMortemFinding, PostMortemImpact, PostMortemJob, PostMortemRead

UNKNOWN: Final = "unknown"
_SPECIAL: Final = re.compile(r"[\\`*_\[\]<>|~&$#]|:(?=//)|(?<=[wW]{3})\.|^[-+=]|(?<=^\d)[.)]")
"""Characters with a meaning in Markdown, also those that begin a list or make an address a link."""
_NUMBER: Final = re.compile(r"^(\d{2,9})([.)])")


def escape(text: object) -> str:
    """Text on one line that renders as itself."""
    line = " ".join(str(text).split())
    return _NUMBER.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", line))


def to_markdown(found: PostMortemRead, url: str) -> str:
    """The whole document; ``url`` is the page of the incident."""
    sections = (
        _summary(found, url), _timeline(found), _evidence(found), _decisions(found), _cost(found), _comments(found),
        ["## Follow-up actions", "| Action | Owner | Due |\n| --- | --- | --- |\n|  |  |  |"],
    )  # fmt: skip
    return "\n\n".join(block for section in sections for block in section) + "\n"


def _summary(found: PostMortemRead, url: str) -> Iterator[str]:
    incident, culprit, times = found.incident, found.culprit, found.times
    yield f"# Post-mortem: {escape(incident.title)}"
    yield f"[Incident {escape(incident.id)}](<{url}>), as of {iso_time(found.created_at)}. All times are UTC."
    if incident.summary:
        yield escape(incident.summary)
    yield "## Summary"
    facts = {
        "Severity": incident.severity.value,
        "State": incident.state.value,
        "Cause": _words(incident.cause),
        "Node": _known(culprit.node),
        "Rack": _known(culprit.rack),
        "Device": _known(culprit.device),
        "GPU": _known(culprit.gpu),
        "Serial number": _known(culprit.serial),
        "Failed": _time(times.failed_at),
        "First finding": _time(times.first_finding_at),
        "Opened": _time(times.opened_at),
        "Acknowledged": _acknowledged(found),
        "Recovered": _time(times.recovered_at, "not recovered"),
        "Closed": _time(times.closed_at, "not closed"),
        "Time to detect": _duration(times.detection_seconds),
        "Time to acknowledge": _duration(times.acknowledge_seconds, "not acknowledged"),
        "Time to recover": _duration(times.recovery_seconds, "not recovered"),
        "Assigned to": _known(incident.assignee, "no one"),
    }
    yield _table(("Fact", "Value"), facts.items())
    yield from _impact(found.impact)


def _acknowledged(found: PostMortemRead) -> str:
    if found.times.acknowledged_at is None:
        return "not acknowledged"
    return f"{_time(found.times.acknowledged_at)} by {_known(found.incident.acknowledged_by)}"


def _impact(impact: PostMortemImpact) -> Iterator[str]:
    yield "## Impact"
    if not impact.jobs:
        yield "The incident names no job."
        return
    rows = [_job(job) for job in impact.jobs]
    sums = (impact.gpus, impact.idle_gpu_hours, impact.steps_lost)
    least = "at least " if impact.is_partial else ""
    gpus, *others = (_figure(value) if value is None else f"{least}{_figure(value)}" for value in sums)
    rows.append(["Total", gpus, "", *others])
    yield _table(("Job", "GPUs", "Stood still", "GPU hours idle", "Steps lost"), rows)


def _job(job: PostMortemJob) -> list[str]:
    stopped = _duration(job.stopped_seconds)
    return [escape(job.name), _figure(job.gpus), stopped, _figure(job.idle_gpu_hours), _figure(job.steps_lost)]


def _timeline(found: PostMortemRead) -> Iterator[str]:
    yield "## Timeline"
    rows = ([iso_time(entry.time), _words(entry.kind), escape(entry.text)] for entry in found.timeline)
    yield _table(("Time", "Event", "Text"), rows)


def _evidence(found: PostMortemRead) -> Iterator[str]:
    yield "## Evidence"
    if not found.findings:
        yield "No findings."
    else:
        rows = (
            [iso_time(one.time), _words(one.kind), _where(one), f"{one.confidence:.0%}", one.detector, _text(one)]
            for one in found.findings
        )
        yield _table(("Time", "Finding", "Where", "Confidence", "Detector", "Evidence"), rows)
    if found.findings_total > len(found.findings):
        yield f"{found.findings_total - len(found.findings)} further findings are not listed."


def _where(finding: PostMortemFinding) -> str:
    named = ((label, getattr(finding.entity, label)) for label in ("node", "device", "job", "rank", "peer"))
    return ", ".join(f"{label} {escape(value)}" for label, value in named if value is not None)


def _text(finding: PostMortemFinding) -> str:
    evidence = finding.evidence
    numbers = ", ".join(f"{_words(name)}: {_figure(value)}" for name, value in evidence.numbers.items())
    return escape(evidence.summary) + (f" ({numbers})" if numbers else "")


def _decisions(found: PostMortemRead) -> Iterator[str]:
    yield "## Decisions"
    if found.plan is None:
        yield "No recovery plan was made."
    else:
        yield f"Recovery plan {escape(found.plan.id)} of {iso_time(found.plan.created_at)}: " + escape(
            found.plan.explanation
        )
        rows = (
            [_words(way.strategy) + (" (chosen)" if way.strategy == found.plan.chosen else ""),
             "yes" if way.feasible else "no", _duration(way.seconds), _duration(way.cost_seconds), escape(way.reason)]
            for way in found.plan.alternatives
        )  # fmt: skip
        yield _table(("Strategy", "Feasible", "Predicted time", "Predicted cost", "Reason"), rows)
    if found.remediations:
        yield "Remediations:"
        rows = (
            [iso_time(one.created_at), _words(one.recommended_action), escape(one.node), _words(one.state),
             _known(one.decided_by), escape(one.reason),
             "; ".join(f"{_words(rule.name)}: {rule.verdict.value} ({escape(rule.reason)})" for rule in one.rules)]
            for one in found.remediations
        )  # fmt: skip
        yield _table(("Time", "Action", "Node", "State", "Decided by", "Reason", "Rules"), rows)


def _cost(found: PostMortemRead) -> Iterator[str]:
    yield "## Cost"
    if not found.recoveries:
        yield "No recovery ran."
        return
    rows = (
        [escape(one.job), _words(one.strategy), _words(one.outcome), one.measured_from,
         *map(_duration, (one.predicted_seconds, one.actual_seconds, one.excess_cost_seconds))]
        for one in found.recoveries
    )  # fmt: skip
    yield _table(("Job", "Strategy", "Outcome", "Measured from", "Predicted", "Actual", "Excess cost"), rows)


def _comments(found: PostMortemRead) -> Iterator[str]:
    yield "## Comments"
    if not found.comments:
        yield "No comments."
    for comment in found.comments:
        yield f"**{escape(comment.author)}**, {iso_time(comment.time)}:"
        lines = [escape(line) for line in comment.text.splitlines()]
        yield "\n".join(f"> {line}  " if line else ">" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _words(name: str | None) -> str:
    return UNKNOWN if name is None else escape(name.replace("_", " "))


def _known(value: object, absent: str = UNKNOWN) -> str:
    return absent if value is None else escape(value)


def _time(seconds: float | None, absent: str = UNKNOWN) -> str:
    return absent if seconds is None else iso_time(seconds)


def _duration(seconds: float | None, absent: str = UNKNOWN) -> str:
    return absent if seconds is None else duration_text(seconds)


def _figure(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
