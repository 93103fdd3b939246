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

from probes.words import HealthState, Verdict


class Owner(StrEnum):
    """Who decided the state that a node is in."""

    MACHINE = "machine"
    PERSON = "person"
    OUTSIDE = "outside"  # another system: a scheduler, another monitor


class Trigger(StrEnum):
    """Why a move is proposed."""

    HEARD = "heard"
    SILENT = "silent"
    STOPPED = "stopped"  # its daemon said goodbye
    FOUND = "found"  # a finding about its machinery, or a failed validation
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
"""States that somebody decided: no work is to be placed there, and no measurement ends them."""
IN_SERVICE: Final = frozenset(set(HealthState) - OUT_OF_SERVICE)

GOES_ON: Final = frozenset({Trigger.EMPTIED, Trigger.OVERDUE, Trigger.FAILED})
"""Moves that carry on what somebody began: the state stays theirs."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where a move leads (None: to what is known of the node, see ``rest``) and who may make it."""

    to: HealthState | None
    movers: frozenset[Owner]


def _table() -> dict[tuple[HealthState, Trigger], Step]:
    s, t = HealthState, Trigger
    machine, anybody = frozenset({Owner.MACHINE}), frozenset(Owner)
    table = {
        (s.UNKNOWN, t.HEARD): Step(None, machine),
        (s.HEALTHY, t.SILENT): Step(s.UNKNOWN, machine),
        (s.HEALTHY, t.STOPPED): Step(s.UNKNOWN, machine),
        (s.UNKNOWN, t.STOPPED): Step(s.UNKNOWN, machine),
        (s.SUSPECT, t.CLEARED): Step(None, machine),
        (s.DRAINING, t.UNDRAIN): Step(None, anybody - machine),
        (s.DRAINING, t.EMPTIED): Step(s.QUARANTINED, machine),
        (s.DRAINING, t.OVERDUE): Step(s.QUARANTINED, machine),
        (s.QUARANTINED, t.VALIDATE): Step(s.VALIDATING, anybody - {Owner.OUTSIDE}),
        (s.VALIDATING, t.PASSED): Step(None, machine),
        (s.VALIDATING, t.FAILED): Step(s.QUARANTINED, machine),
    }
    for state in IN_SERVICE:
        table[state, t.FOUND] = Step(s.SUSPECT, machine)
    for state in IN_SERVICE | {s.DRAINING}:  # from draining to draining: somebody else takes it over
        table[state, t.DRAIN] = Step(s.DRAINING, anybody)
    for state in s:
        table[state, t.QUARANTINE] = Step(s.QUARANTINED, frozenset({Owner.PERSON}))
    return table


TRANSITIONS = _table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules may look at."""

    state: HealthState
    owner: Owner = Owner.MACHINE
    """Who decided the present state."""
    by: Owner = Owner.MACHINE
    """Who proposes."""
    reason: str = ""
    suspected: bool = False
    """A finding about its machinery holds, or its standing verdict is FAIL."""
    silent: bool = False
    jobs: tuple[str, ...] = ()
    """Running jobs with a rank on it."""
    evicting: int = 0
    """Findings that still hold and whose remedy wants work off the node."""
    verdict: Verdict | None = None
    """The node's standing verdict; None when it never was validated."""
    needed: int = 0
    """Power of the check that has to pass before the standing verdict is lifted."""
    power: int = 0
    """Power of the suite that is ordered, or that ended."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuses some triggers: ``judge`` returns why, or None to let them pass."""

    name: str
    triggers: frozenset[Trigger]
    judge: Callable[[Facts], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    accepted: bool
    to: HealthState
    """The state afterwards; the present one if refused."""
    rules: tuple[str, ...]
    """Names of the rules that looked at the proposal, the refusing one last."""
    reason: str
    """Why it was refused; what the proposer gave as reason if it was not."""
    lost: bool = False
    """The rules allowed it, but somebody else moved the node before it was written."""


def rest(facts: Facts) -> HealthState:
    """The state in service that follows from what is known. Unknown is never healthy."""
    if facts.suspected:
        return HealthState.SUSPECT
    return HealthState.UNKNOWN if facts.silent else HealthState.HEALTHY


def _gave_reason(facts: Facts) -> str | None:
    if facts.by is Owner.PERSON and not facts.reason.strip():
        return "a reason is needed: the next shift will read it"
    return None


def _own_drain(facts: Facts) -> str | None:
    # Whoever drained it from outside may have reasons that nobody here knows: they, or whoever takes over, lift it.
    if (facts.owner is Owner.OUTSIDE) != (facts.by is Owner.OUTSIDE):
        return "the drain was made by another system" if facts.by is Owner.PERSON else "the drain was made here"
    return None


def _drain_is_news(facts: Facts) -> str | None:
    return _is_news(facts, HealthState.DRAINING)


def _quarantine_is_news(facts: Facts) -> str | None:
    return _is_news(facts, HealthState.QUARANTINED)


def _is_news(facts: Facts, state: HealthState) -> str | None:
    """People and other systems may take over what somebody else began; the machine takes over nothing."""
    if facts.state is state and facts.by in {facts.owner, Owner.MACHINE}:
        return f"it is {state} already, by {_WHO[facts.owner]}"
    return None


def _machine_owns(facts: Facts) -> str | None:
    if facts.by is Owner.MACHINE and facts.owner is not Owner.MACHINE:
        return f"{_WHO[facts.owner]} decided that, and the machine does not go on from there"
    return None


def _not_from_outside(facts: Facts) -> str | None:
    return "the drain was made by another system" if facts.owner is Owner.OUTSIDE else None


def _nothing_runs(facts: Facts) -> str | None:
    return f"job {', '.join(facts.jobs[:5])} still has ranks on it" if facts.jobs else None


def _strong_enough(facts: Facts) -> str | None:
    if facts.verdict not in {None, Verdict.PASS} and facts.power < facts.needed:
        return (
            f"its standing verdict is {facts.verdict}: a suite of power {facts.needed} has to pass, not {facts.power}"
        )
    return None


def _passed(facts: Facts) -> str | None:
    return None if facts.verdict is Verdict.PASS else f"its standing verdict is {facts.verdict or Verdict.UNKNOWN}"


def _nothing_evicts(facts: Facts) -> str | None:
    if facts.evicting:
        return (
            f"{facts.evicting} finding(s) that want work off the node still hold: close their incident if it is mended"
        )
    return None


_WHO: Final = {Owner.MACHINE: "the machine", Owner.PERSON: "a person", Owner.OUTSIDE: "another system"}
_BY_PEOPLE: Final = frozenset({Trigger.DRAIN, Trigger.UNDRAIN, Trigger.QUARANTINE, Trigger.VALIDATE})

RULES: Final = (
    Rule("gave_reason", _BY_PEOPLE, _gave_reason),
    Rule("own_drain", frozenset({Trigger.UNDRAIN}), _own_drain),
    Rule("drain_is_news", frozenset({Trigger.DRAIN}), _drain_is_news),
    Rule("quarantine_is_news", frozenset({Trigger.QUARANTINE}), _quarantine_is_news),
    Rule("machine_owns", frozenset({Trigger.EMPTIED, Trigger.VALIDATE}), _machine_owns),
    Rule("not_from_outside", frozenset({Trigger.OVERDUE}), _not_from_outside),
    Rule("nothing_runs", frozenset({Trigger.EMPTIED, Trigger.VALIDATE}), _nothing_runs),
    Rule("strong_enough", frozenset({Trigger.VALIDATE, Trigger.PASSED}), _strong_enough),
    Rule("passed", frozenset({Trigger.PASSED}), _passed),
    Rule("nothing_evicts", frozenset({Trigger.PASSED}), _nothing_evicts),
)


def decide(facts: Facts, trigger: Trigger) -> Decision:
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
    return Decision(accepted=True, to=to, rules=tuple(fired), reason=facts.reason)


def _refused(facts: Facts, rules: tuple[str, ...], reason: str) -> Decision:
    return Decision(accepted=False, to=facts.state, rules=rules, reason=reason)
