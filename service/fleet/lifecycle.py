"""The life of a node: one table of allowed moves, a few small rules that may refuse one, and nothing else.

unknown/healthy -> suspect -> draining -> quarantined -> validating -> healthy. A node in one of the last three before
that is out of service. Invariants: silence and speech lift nothing that takes a node out of service; out of quarantine
only a validation leads; the machine never lifts what a person or another system decided. The module is pure, so the
whole life cycle can be read, drawn and tested without a database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mainstay.probes.core_types import HealthState, Verdict


class Owner(StrEnum):
    """Who set the state of a node."""

    SYSTEM = "system"
    OPERATOR = "operator"
    EXTERNAL = "external"  # another system: a scheduler, another monitor


class NodeTrigger(StrEnum):
    """Why a move is proposed."""

    REPORTED = "reported"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"  # its daemon sent a shutdown notice
    FINDING_OPENED = "finding_opened"  # a finding about its machinery, or a failed validation
    CLEARED = "cleared"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    EMPTIED = "emptied"  # no job has a rank on it any more
    OVERDUE = "overdue"  # a job still has, and the drain's deadline has passed
    QUARANTINE = "quarantine"
    VALIDATE = "validate"
    PASSED = "passed"
    FAILED = "failed"


OUT_OF_SERVICE: Final = frozenset({HealthState.DRAINING, HealthState.QUARANTINED, HealthState.VALIDATING})
"""States set by an operator, a policy, or another system: no work is placed there, and no measurement ends them."""
IN_SERVICE: Final = frozenset(set(HealthState) - OUT_OF_SERVICE)

GOES_ON: Final = frozenset({NodeTrigger.EMPTIED, NodeTrigger.OVERDUE, NodeTrigger.FAILED})
"""Transitions that continue a drain or validation: the owner of the state stays the same."""


@dataclass(frozen=True, slots=True)
class NodeTransition:
    """Where a move leads (None: to what is known of the node, see ``rest``) and who may make it."""

    to: HealthState | None
    movers: frozenset[Owner]


def _table() -> dict[tuple[HealthState, NodeTrigger], NodeTransition]:
    s, t = HealthState, NodeTrigger
    machine, anybody = frozenset({Owner.SYSTEM}), frozenset(Owner)
    table = {
        (s.UNKNOWN, t.REPORTED): NodeTransition(None, machine),
        (s.HEALTHY, t.TIMED_OUT): NodeTransition(s.UNKNOWN, machine),
        (s.HEALTHY, t.STOPPED): NodeTransition(s.UNKNOWN, machine),
        (s.UNKNOWN, t.STOPPED): NodeTransition(s.UNKNOWN, machine),
        (s.SUSPECT, t.CLEARED): NodeTransition(None, machine),
        (s.DRAINING, t.UNDRAIN): NodeTransition(None, anybody - machine),
        (s.DRAINING, t.EMPTIED): NodeTransition(s.QUARANTINED, machine),
        (s.DRAINING, t.OVERDUE): NodeTransition(s.QUARANTINED, machine),
        (s.QUARANTINED, t.VALIDATE): NodeTransition(s.VALIDATING, anybody - {Owner.EXTERNAL}),
        (s.VALIDATING, t.PASSED): NodeTransition(None, machine),
        (s.VALIDATING, t.FAILED): NodeTransition(s.QUARANTINED, machine),
    }
    for state in IN_SERVICE:
        table[state, t.FINDING_OPENED] = NodeTransition(s.SUSPECT, machine)
    for state in IN_SERVICE | {s.DRAINING}:  # from draining to draining: another owner takes it over
        table[state, t.DRAIN] = NodeTransition(s.DRAINING, anybody)
    for state in s:
        table[state, t.QUARANTINE] = NodeTransition(s.QUARANTINED, frozenset({Owner.OPERATOR}))
    return table


TRANSITIONS = _table()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the rules may look at."""

    state: HealthState
    owner: Owner = Owner.SYSTEM
    """Who decided the present state."""
    by: Owner = Owner.SYSTEM
    """Who proposes."""
    reason: str = ""
    suspected: bool = False
    """A finding about its machinery is active, or its current verdict is FAIL."""
    silent: bool = False
    jobs: tuple[str, ...] = ()
    """Running jobs with a rank on it."""
    evicting: int = 0
    """Findings that still hold and whose recommended action wants work off the node."""
    verdict: Verdict | None = None
    """The node's current verdict; None when it was never validated."""
    needed: int = 0
    """Power of the check that must pass before the current verdict is lifted."""
    power: int = 0
    """Power of the suite that is ordered, or that ended."""


@dataclass(frozen=True, slots=True)
class NodeRule:
    """Refuses some triggers: ``judge`` returns why, or None to let them pass."""

    name: str
    triggers: frozenset[NodeTrigger]
    judge: Callable[[NodeFacts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDecision:
    accepted: bool
    to: HealthState
    """The state afterwards; the present one if refused."""
    rules: tuple[str, ...]
    """Names of the rules that looked at the proposal, the refusing one last."""
    reason: str
    """Why it was refused; what the proposer gave as reason if it was not."""
    lost: bool = False
    """The rules allowed it, but another process changed the node's state before this one was written."""


def rest(facts: NodeFacts) -> HealthState:
    """The state in service that follows from what is known. Unknown is never healthy."""
    if facts.suspected:
        return HealthState.SUSPECT
    return HealthState.UNKNOWN if facts.silent else HealthState.HEALTHY


def _gave_reason(facts: NodeFacts) -> str | None:
    if facts.by is Owner.OPERATOR and not facts.reason.strip():
        return "a reason is needed: the next shift will read it"
    return None


def _own_drain(facts: NodeFacts) -> str | None:
    # Mainstay does not know why an external system drained the node: that system, or an operator, lifts the drain.
    if (facts.owner is Owner.EXTERNAL) != (facts.by is Owner.EXTERNAL):
        return "the drain was made by another system" if facts.by is Owner.OPERATOR else "the drain was made here"
    return None


def _drain_is_news(facts: NodeFacts) -> str | None:
    return _is_news(facts, HealthState.DRAINING)


def _quarantine_is_news(facts: NodeFacts) -> str | None:
    return _is_news(facts, HealthState.QUARANTINED)


def _is_news(facts: NodeFacts, state: HealthState) -> str | None:
    """People and other systems may take over the state of another owner; Mainstay takes over none."""
    if facts.state is state and facts.by in {facts.owner, Owner.SYSTEM}:
        return f"it is {state} already, by {_WHO[facts.owner]}"
    return None


def _machine_owns(facts: NodeFacts) -> str | None:
    if facts.by is Owner.SYSTEM and facts.owner is not Owner.SYSTEM:
        return f"{_WHO[facts.owner]} set this state, and Mainstay does not change it"
    return None


def _not_from_outside(facts: NodeFacts) -> str | None:
    return "the drain was made by another system" if facts.owner is Owner.EXTERNAL else None


def _nothing_runs(facts: NodeFacts) -> str | None:
    return f"job {', '.join(facts.jobs[:5])} still has ranks on it" if facts.jobs else None


def _strong_enough(facts: NodeFacts) -> str | None:
    if facts.verdict not in {None, Verdict.PASS} and facts.power < facts.needed:
        return f"its current verdict is {facts.verdict}: a suite of power {facts.needed} has to pass, not {facts.power}"
    return None


def _passed(facts: NodeFacts) -> str | None:
    return None if facts.verdict is Verdict.PASS else f"its current verdict is {facts.verdict or Verdict.UNKNOWN}"


def _nothing_evicts(facts: NodeFacts) -> str | None:
    if facts.evicting:
        return (
            f"{facts.evicting} finding(s) that want work off the node are active: close their incident after the repair"
        )
    return None


_WHO: Final = {Owner.SYSTEM: "the machine", Owner.OPERATOR: "a person", Owner.EXTERNAL: "another system"}
_BY_PEOPLE: Final = frozenset({NodeTrigger.DRAIN, NodeTrigger.UNDRAIN, NodeTrigger.QUARANTINE, NodeTrigger.VALIDATE})

RULES: Final = (
    NodeRule("reason_given", _BY_PEOPLE, _gave_reason),
    NodeRule("drained_by_system", frozenset({NodeTrigger.UNDRAIN}), _own_drain),
    NodeRule("not_draining", frozenset({NodeTrigger.DRAIN}), _drain_is_news),
    NodeRule("not_quarantined", frozenset({NodeTrigger.QUARANTINE}), _quarantine_is_news),
    NodeRule("owned_by_system", frozenset({NodeTrigger.EMPTIED, NodeTrigger.VALIDATE}), _machine_owns),
    NodeRule("not_external", frozenset({NodeTrigger.OVERDUE}), _not_from_outside),
    NodeRule("no_running_job", frozenset({NodeTrigger.EMPTIED, NodeTrigger.VALIDATE}), _nothing_runs),
    NodeRule("suite_sufficient", frozenset({NodeTrigger.VALIDATE, NodeTrigger.PASSED}), _strong_enough),
    NodeRule("passed", frozenset({NodeTrigger.PASSED}), _passed),
    NodeRule("no_evicting_finding", frozenset({NodeTrigger.PASSED}), _nothing_evicts),
)


def decide(facts: NodeFacts, trigger: NodeTrigger) -> NodeDecision:
    """Judge one proposed move. Never raises: a refusal is an answer, with its reason."""
    step = TRANSITIONS.get((facts.state, trigger))
    if step is None:
        return _refused(facts, ("allowed_move",), f"{trigger} does not lead out of {facts.state}")
    if facts.by not in step.movers:
        return _refused(facts, ("allowed_move", "mover"), f"{_WHO[facts.by]} may not {trigger} a node")
    fired = ["allowed_move", "mover"]
    for rule in RULES:
        if trigger in rule.triggers:
            fired.append(rule.name)
            if (why := rule.judge(facts)) is not None:
                return _refused(facts, tuple(fired), why)
    to = rest(facts) if step.to is None else step.to
    return NodeDecision(accepted=True, to=to, rules=tuple(fired), reason=facts.reason)


def _refused(facts: NodeFacts, rules: tuple[str, ...], reason: str) -> NodeDecision:
    return NodeDecision(accepted=False, to=facts.state, rules=rules, reason=reason)
