"""The life of an incident: one table of allowed transitions, a few small rules that may refuse one, and nothing else.

Invariant: a state changes only along ``TRANSITIONS``, and every proposal, accepted or refused, names the rules that
spoke. The module is pure, so the whole life cycle can be read, drawn and tested without a database.

open -> acting -> recovered -> verified -> closed; a failed recovery or a relapse leads back to open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class IncidentState(StrEnum):
    OPEN = "open"
    ACTING = "acting"
    RECOVERED = "recovered"
    VERIFIED = "verified"
    CLOSED = "closed"


class Trigger(StrEnum):
    """Why a transition is proposed."""

    PLAN_CHOSEN = "plan_chosen"
    RECOVERED = "recovered"  # the coordinator says that training goes on
    CLEARED = "cleared"  # every finding is over, without any recovery
    RECOVERY_FAILED = "recovery_failed"
    RELAPSED = "relapsed"  # a further finding about the same trouble
    VERIFIED = "verified"  # the coordinator saw the restored state commit steps
    STAYED_CLEAR = "stayed_clear"
    QUIET = "quiet"
    OVERDUE = "overdue"  # no plan, no recovery or no verification within its deadline
    ACKNOWLEDGED = "acknowledged"
    CLOSED_BY_HUMAN = "closed_by_human"
    MERGED = "merged"  # it turned out to be the same thing as an older incident


LIVE = frozenset(set(IncidentState) - {IncidentState.CLOSED})
"""States in which an incident takes further findings and events."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where a transition leads, and whether a human is needed afterwards (None: as before)."""

    to: IncidentState
    needs_human: bool | None = None


def _table() -> dict[tuple[IncidentState, Trigger], Step]:
    s, t = IncidentState, Trigger
    table = {
        (s.OPEN, t.PLAN_CHOSEN): Step(s.ACTING, needs_human=False),
        (s.ACTING, t.PLAN_CHOSEN): Step(s.ACTING, needs_human=False),  # a second failure made a new plan
        (s.RECOVERED, t.PLAN_CHOSEN): Step(s.ACTING, needs_human=False),
        (s.OPEN, t.RECOVERED): Step(s.RECOVERED, needs_human=False),  # its plan is still on the way
        (s.ACTING, t.RECOVERED): Step(s.RECOVERED, needs_human=False),
        (s.OPEN, t.CLEARED): Step(s.RECOVERED),
        (s.RECOVERED, t.VERIFIED): Step(s.VERIFIED, needs_human=False),
        (s.RECOVERED, t.STAYED_CLEAR): Step(s.VERIFIED, needs_human=False),
        (s.VERIFIED, t.QUIET): Step(s.CLOSED),
        (s.ACTING, t.RELAPSED): Step(s.ACTING),
        (s.OPEN, t.RELAPSED): Step(s.OPEN),
        (s.RECOVERED, t.RELAPSED): Step(s.OPEN),
        (s.VERIFIED, t.RELAPSED): Step(s.OPEN),
    }
    for state in (s.OPEN, s.ACTING, s.RECOVERED):
        table[state, t.OVERDUE] = Step(state, needs_human=True)
        table[state, t.RECOVERY_FAILED] = Step(s.OPEN, needs_human=True)
    for state in LIVE:
        table[state, t.ACKNOWLEDGED] = Step(state, needs_human=False)
        table[state, t.CLOSED_BY_HUMAN] = Step(s.CLOSED, needs_human=False)
        table[state, t.MERGED] = Step(s.CLOSED, needs_human=False)
    return table


TRANSITIONS = _table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules may look at."""

    state: IncidentState
    active_findings: int = 0
    has_plan: bool = False
    others_stopped: int = 0
    """Other jobs that the same trouble stopped and that have not recovered."""
    reason: str = ""
    """What a human gave as reason, or what the event said."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuses some triggers out of some states: ``judge`` returns why, or None to let them pass."""

    name: str
    triggers: frozenset[Trigger]
    judge: Callable[[Facts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    accepted: bool
    to: IncidentState
    """The state afterwards; the present one if refused."""
    needs_human: bool | None
    rules: tuple[str, ...]
    """Names of the rules that looked at the proposal, the refusing one last."""
    reason: str


def _no_active_finding(facts: Facts) -> str | None:
    if facts.active_findings:
        return f"{facts.active_findings} finding(s) still hold"
    return None


def _no_pending_recovery(facts: Facts) -> str | None:
    # Only the coordinator can say that restored parameters are right; time passing proves nothing about them.
    return "a recovery ran: only its own verification counts" if facts.has_plan else None


def _no_other_job_stopped(facts: Facts) -> str | None:
    if facts.others_stopped:
        return f"{facts.others_stopped} other job(s) stopped by the same trouble have not recovered"
    return None


def _gave_reason(facts: Facts) -> str | None:
    return None if facts.reason.strip() else "a reason is needed: the next shift will read it"


RULES = (
    Rule("no_other_job_stopped", frozenset({Trigger.RECOVERED, Trigger.VERIFIED}), _no_other_job_stopped),
    Rule("gave_reason", frozenset({Trigger.CLOSED_BY_HUMAN, Trigger.ACKNOWLEDGED}), _gave_reason),
    Rule("no_active_finding", frozenset({Trigger.CLEARED, Trigger.STAYED_CLEAR, Trigger.QUIET}), _no_active_finding),
    Rule("no_pending_recovery", frozenset({Trigger.CLEARED, Trigger.STAYED_CLEAR}), _no_pending_recovery),
)


def decide(facts: Facts, trigger: Trigger) -> Decision:
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
    return Decision(accepted=True, to=step.to, needs_human=step.needs_human, rules=tuple(fired), reason=facts.reason)


def _refused(facts: Facts, rules: tuple[str, ...], reason: str) -> Decision:
    return Decision(accepted=False, to=facts.state, needs_human=None, rules=rules, reason=reason)
