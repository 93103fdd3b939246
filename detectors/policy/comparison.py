"""What another policy would have said of the same events: both are run over them, and every difference is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstay.detectors.finding import Entity, Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.policy.model import XidPolicy
from mainstay.probes.core_types import Event, EventKind, Severity

KINDS: Final = frozenset(
    {EventKind.XID, EventKind.SXID, EventKind.GPU_EVENT, EventKind.NODE_STARTED, EventKind.NODE_STOPPING}
)
"""What a policy looks at."""
NOTHING: Final = "nothing"
_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class PolicyTotals:
    """What came of a policy."""

    findings: int = 0
    """Times that a statement of at least a warning began: each opens an incident or joins one."""
    drains: int = 0
    """Times that a statement began to take its node out of service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementChange:
    """One statement that differs. ``before`` and ``after`` are what the two policies said, ``nothing`` if nothing."""

    time: float
    node: str
    device: str | None
    code: int
    """Of the statement, else of the event; -1 where neither has one."""
    before: str
    after: str
    event: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two policies side by side."""

    events: int
    before: PolicyTotals
    after: PolicyTotals
    changes: tuple[StatementChange, ...]
    changed: int
    """How many changes there are; ``changes`` holds the first of them."""


@dataclass(slots=True)
class Statements:
    """Counts what one policy says."""

    held: dict[str, Finding] = field(default_factory=dict)
    findings: int = 0
    drains: int = 0

    def count_findings(self, found: Iterable[Finding]) -> None:
        for finding in found:
            old = self.held.pop(finding.key, None)
            if not finding.active:
                continue
            self.held[finding.key] = finding
            loud = finding.severity is not Severity.INFO
            self.findings += loud and (old is None or old.severity is Severity.INFO)
            self.drains += finding.recommended_action.evicts and (old is None or not old.recommended_action.evicts)

    @property
    def tally(self) -> PolicyTotals:
        return PolicyTotals(self.findings, self.drains)


def compare(before: XidPolicy, after: XidPolicy, events: Sequence[Event], *, limit: int = 500) -> Comparison:
    """Run two policies over events, in order of time.

    Args:
        before: the one that judges now.
        after: the one that is tried out.
        events: other kinds than ``KINDS`` are passed over.
        limit: changes kept.
    """
    # Both remember as many as there are: nothing of the comparison is lost to a bound.
    old, new = (XidDetector(XidDetector.Config(policy=policy)) for policy in (before, after))
    counts = (Statements(), Statements())
    changes: list[StatementChange] = []
    changed = taken = 0
    for event in sorted((e for e in events if e.kind in KINDS), key=lambda e: (e.time, e.id)):
        taken += 1
        counts[0].count_findings(old.advance_clock(event.time))
        counts[1].count_findings(new.advance_clock(event.time))
        one, other = old.update([event]), new.update([event])
        counts[0].count_findings(one)
        counts[1].count_findings(other)
        different = differences(event, one, other)
        changed += len(different)
        changes += different[: max(0, limit - len(changes))]
    return Comparison(taken, counts[0].tally, counts[1].tally, tuple(changes), changed)


def differences(event: Event, before: Sequence[Finding], after: Sequence[Finding]) -> list[StatementChange]:
    """Statements about one event that differ in more than words."""
    old, new = ({finding.key: finding for finding in found} for found in (before, after))
    keys = [key for key in dict.fromkeys([*old, *new]) if _gist(old.get(key)) != _gist(new.get(key))]
    return [_change(event, old.get(key), new.get(key)) for key in keys]


def _gist(finding: Finding | None) -> tuple[bool, str, str] | None:
    return None if finding is None else (finding.active, finding.severity.value, finding.recommended_action.value)


def _change(event: Event, old: Finding | None, new: Finding | None) -> StatementChange:
    about = old or new
    entity = about.entity if about is not None else Entity(node=event.node, device=event.device)
    codes = [f.evidence.numbers["code"] for f in (new, old) if f is not None and "code" in f.evidence.numbers]
    told = event.data.get("code")
    own = told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 10**6 else -1
    return StatementChange(
        time=event.time,
        node=entity.node or "",
        device=entity.device,
        code=int(codes[0]) if codes else own,
        before=describe(old),
        after=describe(new),
        event=event.id,
    )


def describe(finding: Finding | None) -> str:
    """A statement in one line."""
    if finding is None:
        return NOTHING
    what = f"{finding.severity}, {finding.recommended_action}" if finding.active else "over"
    return f"{what}: {finding.evidence.summary}"[:_TEXT]
