"""What speaks for and against taking a node out of service: small named rules, asked in order, each with its why.

allow: nothing against it. hold: not now, or not without a person. deny: nobody may, as things stand. The module is
pure; ``survey`` gathers the facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from probes.words import HealthState, Remedy
from service.fleet.life_cycle import OUT_OF_SERVICE, Owner
from service.remediation.schemas import Ruling
from service.settings import RemediationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules may look at."""

    limits: RemediationSettings
    known: bool = True
    """Whether the node ever reported."""
    state: HealthState = HealthState.HEALTHY
    owner: Owner = Owner.MACHINE
    said: str = ""
    """Who put the node into its state, and why."""
    uptime_seconds: float | None = None
    first: str | None = None
    """Another node of the same incident whose proposal waits already."""
    fleet: int = 1
    touched: int = 0
    """Nodes that we drained within the window."""
    rack: str = ""
    rack_touched: int = 0
    stranded: tuple[str, ...] = ()
    """Jobs on the node that have no other replica and no spare to move to."""
    recovering: tuple[str, ...] = ()
    """Jobs on the node that have failed elsewhere and come back just now."""
    short: str = ""
    """Which jobs have too few warm standbys on other nodes for the ranks that would move."""
    untold: tuple[str, ...] = ()
    """Jobs on the node that do not say how many standbys they have."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule said."""

    name: str
    verdict: Ruling
    why: str


@dataclass(frozen=True, slots=True)
class Rule:
    """``judge`` returns why not, or None to allow; ``against`` is the verdict then."""

    name: str
    against: Ruling
    allowed: str
    judge: Callable[[Facts], str | None]


def limit(limits: RemediationSettings, fleet: int) -> int:
    """How many nodes we may drain within the window."""
    return max(limits.minimum, math.floor(limits.share_limit * fleet))


def breaker(facts: Facts) -> str | None:
    """Why the circuit breaker is open, or None while it is closed."""
    allowed = limit(facts.limits, facts.fleet)
    if facts.touched < allowed:
        return None
    window = facts.limits.window_seconds / 60
    return f"{facts.touched} of {facts.fleet} nodes drained within {window:g} min; at most {allowed} are allowed"


def _known(facts: Facts) -> str | None:
    return None if facts.known else "no node of this name ever reported"


def _foreign(facts: Facts) -> str | None:
    if facts.state in OUT_OF_SERVICE and facts.owner is not Owner.MACHINE:
        who = "another system" if facts.owner is Owner.OUTSIDE else "a person"
        return f"{who} has it {facts.state} ({facts.said})"
    return None


def _in_service(facts: Facts) -> str | None:
    return f"it is {facts.state} already ({facts.said})" if facts.state in OUT_OF_SERVICE else None


def _boot_grace(facts: Facts) -> str | None:
    up, grace = facts.uptime_seconds, facts.limits.boot_grace_seconds
    if up is not None and up < grace:
        return f"it booted {up:.0f} s ago; what shows in the first {grace:g} s may be links that still come up"
    return None


def _one_by_one(facts: Facts) -> str | None:
    return None if facts.first is None else f"one incident, one node at a time: {facts.first} is first"


def _rack(facts: Facts) -> str | None:
    if facts.rack and facts.rack_touched >= facts.limits.rack_limit:
        window = facts.limits.window_seconds / 60
        return f"{facts.rack_touched} nodes of rack {facts.rack} were drained within {window:g} min"
    return None


def _spare(facts: Facts) -> str | None:
    if facts.stranded:
        return f"job {', '.join(facts.stranded[:5])} has no other replica and no spare node: a person decides"
    return None


RULES: Final = (
    Rule("node_known", Ruling.DENY, "the node reports", _known),
    Rule("not_drained_by_others", Ruling.DENY, "nobody else holds it", _foreign),
    Rule("in_service", Ruling.DENY, "it is in service", _in_service),
    Rule("boot_grace", Ruling.HOLD, "it has been up for long enough", _boot_grace),
    Rule("one_by_one", Ruling.HOLD, "no other node of the incident waits", _one_by_one),
    Rule("breaker", Ruling.HOLD, "the circuit breaker is closed", breaker),
    Rule("rack_limit", Ruling.HOLD, "its rack can spare it", _rack),
    Rule("job_has_spare", Ruling.HOLD, "no job depends on it alone", _spare),
)


def _quiet(facts: Facts) -> str | None:
    return f"job {', '.join(facts.recovering[:5])} recovers: that comes first" if facts.recovering else None


def _standbys(facts: Facts) -> str | None:
    return facts.short or None


def _told(facts: Facts) -> str | None:
    return f"job {', '.join(facts.untold[:5])} does not say how many standbys wait" if facts.untold else None


MOVES: Final = (
    Rule("job_runs", Ruling.DENY, "its jobs train", _quiet),
    Rule("standbys_wait", Ruling.DENY, "warm standbys wait on other nodes", _standbys),
    Rule("standbys_known", Ruling.HOLD, "its jobs say how many standbys wait", _told),
    Rule("one_by_one", Ruling.HOLD, "no other node of the incident waits", _one_by_one),
    Rule("breaker", Ruling.HOLD, "the circuit breaker is closed", breaker),
)
"""Of ranks that leave a node which stays in service: it need not be ours, and nobody else is touched."""


def judge(facts: Facts, rules: tuple[Rule, ...] = RULES) -> tuple[Judged, ...]:
    """Every rule's verdict, in order; after a denial nothing more is asked."""
    spoken: list[Judged] = []
    for rule in rules:
        why = rule.judge(facts)
        spoken.append(Judged(rule.name, Ruling.ALLOW if why is None else rule.against, why or rule.allowed))
        if why is not None and rule.against is Ruling.DENY:
            break
    return tuple(spoken)


def next_remedy(wanted: Remedy, tried: tuple[Remedy, ...]) -> Remedy:
    """What to propose where ``tried`` did not last: the rung after the highest of them, up to the top of the ladder."""
    highest = max((remedy.rung for remedy in tried), default=-1)
    if highest < wanted.rung:
        return wanted
    return list(Remedy)[min(highest + 1, Remedy.REPLACE.rung)]
