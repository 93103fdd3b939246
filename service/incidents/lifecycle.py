"""The life of an incident: one table of allowed transitions, a few small rules that may refuse one, and nothing else.

Invariant: a state changes only along ``TRANSITIONS``, and every proposal, accepted or refused, names the rules that
applied. The module is pure, so the whole life cycle can be read, drawn and tested without a database.

open -> acting -> recovered -> verified -> closed; a failed recovery or a relapse leads back to open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class IncidentState(StrEnum):
    OPEN = "open"
    RECOVERING = "recovering"
    RECOVERED = "recovered"
    VERIFIED = "verified"
    CLOSED = "closed"


class IncidentTrigger(StrEnum):
    """Why a transition is proposed."""

    RECOVERY_PLANNED = "recovery_planned"
    RECOVERED = "recovered"  # the coordinator reports that training continues
    CLEARED = "cleared"  # every finding is over, without any recovery
    RECOVERY_FAILED = "recovery_failed"
    RELAPSED = "relapsed"  # a further finding about the same trouble
    VERIFIED = "verified"  # the coordinator saw the restored state commit steps
    STAYED_CLEAR = "stayed_clear"
    QUIET = "quiet"
    OVERDUE = "overdue"  # no plan, no recovery or no verification within its deadline
    ACKNOWLEDGED = "acknowledged"
    CLOSED_BY_OPERATOR = "closed_by_operator"
    MERGED = "merged"  # it turned out to be the same thing as an older incident


LIVE = frozenset(set(IncidentState) - {IncidentState.CLOSED})
"""States in which an incident takes further findings and events."""


@dataclass(frozen=True, slots=True)
class IncidentTransition:
    """The target state of a transition, and whether it needs an operator afterwards (None: as before)."""

    to: IncidentState
    needs_operator: bool | None = None


def _table() -> dict[tuple[IncidentState, IncidentTrigger], IncidentTransition]:
    s, t = IncidentState, IncidentTrigger
    table = {
        (s.OPEN, t.RECOVERY_PLANNED): IncidentTransition(s.RECOVERING, needs_operator=False),
        (s.RECOVERING, t.RECOVERY_PLANNED): IncidentTransition(
            s.RECOVERING, needs_operator=False
        ),  # a second failure made a new plan
        (s.RECOVERED, t.RECOVERY_PLANNED): IncidentTransition(s.RECOVERING, needs_operator=False),
        (s.OPEN, t.RECOVERED): IncidentTransition(s.RECOVERED, needs_operator=False),  # its plan is still on the way
        (s.RECOVERING, t.RECOVERED): IncidentTransition(s.RECOVERED, needs_operator=False),
        (s.OPEN, t.CLEARED): IncidentTransition(s.RECOVERED),
        (s.RECOVERED, t.VERIFIED): IncidentTransition(s.VERIFIED, needs_operator=False),
        (s.RECOVERED, t.STAYED_CLEAR): IncidentTransition(s.VERIFIED, needs_operator=False),
        (s.VERIFIED, t.QUIET): IncidentTransition(s.CLOSED),
        (s.RECOVERING, t.RELAPSED): IncidentTransition(s.RECOVERING),
        (s.OPEN, t.RELAPSED): IncidentTransition(s.OPEN),
        (s.RECOVERED, t.RELAPSED): IncidentTransition(s.OPEN),
        (s.VERIFIED, t.RELAPSED): IncidentTransition(s.OPEN),
    }
    for state in (s.OPEN, s.RECOVERING, s.RECOVERED):
        table[state, t.OVERDUE] = IncidentTransition(state, needs_operator=True)
        table[state, t.RECOVERY_FAILED] = IncidentTransition(s.OPEN, needs_operator=True)
    for state in LIVE:
        table[state, t.ACKNOWLEDGED] = IncidentTransition(state, needs_operator=False)
        table[state, t.CLOSED_BY_OPERATOR] = IncidentTransition(s.CLOSED, needs_operator=False)
        table[state, t.MERGED] = IncidentTransition(s.CLOSED, needs_operator=False)
    return table


TRANSITIONS = _table()


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFacts:
    """What the rules may look at."""

    state: IncidentState
    active_findings: int = 0
    has_plan: bool = False
    others_stopped: int = 0
    """Other jobs that the same trouble stopped and that have not recovered."""
    reason: str = ""
    """The reason that an operator gave, or the text of the event."""


@dataclass(frozen=True, slots=True)
class IncidentRule:
    """Refuses some triggers out of some states: ``judge`` returns why, or None to let them pass."""

    name: str
    triggers: frozenset[IncidentTrigger]
    judge: Callable[[IncidentFacts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDecision:
    accepted: bool
    to: IncidentState
    """The state afterwards; the present one if refused."""
    needs_operator: bool | None
    rules: tuple[str, ...]
    """Names of the rules that looked at the proposal, the refusing one last."""
    reason: str


def _no_active_finding(facts: IncidentFacts) -> str | None:
    if facts.active_findings:
        return f"{facts.active_findings} finding(s) still hold"
    return None


def _no_pending_recovery(facts: IncidentFacts) -> str | None:
    # Only the coordinator can say that restored parameters are right; time passing proves nothing about them.
    return "a recovery ran: only its own verification counts" if facts.has_plan else None


def _no_other_job_stopped(facts: IncidentFacts) -> str | None:
    if facts.others_stopped:
        return f"{facts.others_stopped} other job(s) stopped by the same trouble have not recovered"
    return None


def _gave_reason(facts: IncidentFacts) -> str | None:
    return None if facts.reason.strip() else "a reason is needed: the next shift will read it"


RULES = (
    IncidentRule(
        "no_other_job_stopped", frozenset({IncidentTrigger.RECOVERED, IncidentTrigger.VERIFIED}), _no_other_job_stopped
    ),
    IncidentRule(
        "reason_given", frozenset({IncidentTrigger.CLOSED_BY_OPERATOR, IncidentTrigger.ACKNOWLEDGED}), _gave_reason
    ),
    IncidentRule(
        "no_active_finding",
        frozenset({IncidentTrigger.CLEARED, IncidentTrigger.STAYED_CLEAR, IncidentTrigger.QUIET}),
        _no_active_finding,
    ),
    IncidentRule(
        "no_pending_recovery", frozenset({IncidentTrigger.CLEARED, IncidentTrigger.STAYED_CLEAR}), _no_pending_recovery
    ),
)


def decide(facts: IncidentFacts, trigger: IncidentTrigger) -> IncidentDecision:
    """Judge one proposed transition. Never raises: a refusal is an answer, with its reason."""
    step = TRANSITIONS.get((facts.state, trigger))
    if step is None:
        return _refused(facts, ("allowed_transition",), f"{trigger} does not lead out of {facts.state}")
    fired = ["allowed_transition"]
    for rule in RULES:
        if trigger in rule.triggers:
            fired.append(rule.name)
            if (why := rule.judge(facts)) is not None:
                return _refused(facts, tuple(fired), why)
    return IncidentDecision(
        accepted=True, to=step.to, needs_operator=step.needs_operator, rules=tuple(fired), reason=facts.reason
    )


def _refused(facts: IncidentFacts, rules: tuple[str, ...], reason: str) -> IncidentDecision:
    return IncidentDecision(accepted=False, to=facts.state, needs_operator=None, rules=rules, reason=reason)
