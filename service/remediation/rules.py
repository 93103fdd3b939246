"""Ordered, named rules for and against taking a node out of service, each with its reason.

allow: nothing against it. hold: not now, or not without a person. deny: no one may in the current state. The module is
pure; ``survey`` gathers the facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mainstay.probes.core_types import HealthState, RecommendedAction
from mainstay.service.fleet.lifecycle import OUT_OF_SERVICE, Owner
from mainstay.service.remediation.schemas import RuleOutcome
from mainstay.service.settings import RemediationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediationFacts:
    """What the rules may look at."""

    limits: RemediationSettings
    known: bool = True
    """Whether the node ever reported."""
    state: HealthState = HealthState.HEALTHY
    owner: Owner = Owner.SYSTEM
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
    """Why jobs on the node that have no other replica cannot move to warm standbys, a sentence each."""
    recovering: tuple[str, ...] = ()
    """Jobs on the node that are recovering from a failure on another node."""
    short: str = ""
    """Which jobs have too few warm standbys on other nodes for the ranks that would move, and no other way."""
    weaker: str = ""
    """Which jobs have too few, and can continue without the ranks or save a checkpoint instead."""
    untold: tuple[str, ...] = ()
    """Jobs on the node that do not say how many standbys they have."""
    policy: str = ""
    """Why the policy of the detector wants a person to decide; empty: it does not."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule."""

    name: str
    verdict: RuleOutcome
    reason: str


@dataclass(frozen=True, slots=True)
class RemediationRule:
    """``judge`` returns the reason against, or None to allow; ``against`` is the verdict with a reason."""

    name: str
    against: RuleOutcome
    allowed: str
    judge: Callable[[RemediationFacts], str | None]


def limit(limits: RemediationSettings, fleet: int) -> int:
    """How many nodes we may drain within the window."""
    return max(limits.min_drain_budget, math.floor(limits.max_drained_ratio * fleet))


def asks_jobs(limits: RemediationSettings, *, is_automatic: bool) -> bool:
    """Whether a drain asks the jobs on its node to move; ``is_automatic``: it was not an operator who accepted it."""
    return limits.migrate == "automatic" or (limits.migrate == "manual" and not is_automatic)


def breaker(facts: RemediationFacts) -> str | None:
    """Why the circuit breaker is open, or None while it is closed."""
    allowed = limit(facts.limits, facts.fleet)
    if facts.touched < allowed:
        return None
    window = facts.limits.window_seconds / 60
    return f"{facts.touched} of {facts.fleet} nodes drained within {window:g} min; at most {allowed} are allowed"


def _known(facts: RemediationFacts) -> str | None:
    return None if facts.known else "no node of this name ever reported"


def _foreign(facts: RemediationFacts) -> str | None:
    if facts.state in OUT_OF_SERVICE and facts.owner is not Owner.SYSTEM:
        who = "another system" if facts.owner is Owner.EXTERNAL else "a person"
        return f"{who} has it {facts.state} ({facts.said})"
    return None


def _in_service(facts: RemediationFacts) -> str | None:
    return f"it is {facts.state} already ({facts.said})" if facts.state in OUT_OF_SERVICE else None


def _boot_grace(facts: RemediationFacts) -> str | None:
    up, grace = facts.uptime_seconds, facts.limits.boot_grace_seconds
    if up is not None and up < grace:
        return f"it booted {up:.0f} s ago; what shows in the first {grace:g} s may be links that still come up"
    return None


def _one_by_one(facts: RemediationFacts) -> str | None:
    return None if facts.first is None else f"one incident, one node at a time: {facts.first} is first"


def _rack(facts: RemediationFacts) -> str | None:
    if facts.rack and facts.rack_touched >= facts.limits.max_drained_per_rack:
        window = facts.limits.window_seconds / 60
        return f"{facts.rack_touched} nodes of rack {facts.rack} were drained within {window:g} min"
    return None


def _spare(facts: RemediationFacts) -> str | None:
    if facts.stranded:
        return f"a drain would stop jobs that have no other replica: {'; '.join(facts.stranded[:5])}"
    return None


def _policy(facts: RemediationFacts) -> str | None:
    return facts.policy or None


BY_POLICY: Final = "detector_policy"
_DETECTOR_POLICY: Final = RemediationRule(
    BY_POLICY, RuleOutcome.HOLD, "the policy of its detector asks for no person", _policy
)
RULES: Final = (
    RemediationRule("node_known", RuleOutcome.DENY, "the node reports", _known),
    RemediationRule("not_drained_by_others", RuleOutcome.DENY, "no other owner holds it", _foreign),
    RemediationRule("in_service", RuleOutcome.DENY, "it is in service", _in_service),
    _DETECTOR_POLICY,
    RemediationRule("boot_grace", RuleOutcome.HOLD, "it has been up for long enough", _boot_grace),
    RemediationRule("one_node_per_incident", RuleOutcome.HOLD, "no other node of the incident waits", _one_by_one),
    RemediationRule("breaker", RuleOutcome.HOLD, "the circuit breaker is closed", breaker),
    RemediationRule("max_drained_per_rack", RuleOutcome.HOLD, "its rack can spare it", _rack),
    RemediationRule("job_has_spare", RuleOutcome.HOLD, "its jobs have another replica or enough warm standbys", _spare),
)


def _quiet(facts: RemediationFacts) -> str | None:
    jobs = ", ".join(facts.recovering[:5])
    return f"job {jobs} recovers or is in an unknown state: that comes first" if jobs else None


def _standbys(facts: RemediationFacts) -> str | None:
    return facts.short or None


def _full_strength(facts: RemediationFacts) -> str | None:
    return facts.weaker or None


def _told(facts: RemediationFacts) -> str | None:
    return f"job {', '.join(facts.untold[:5])} does not say how many standbys wait" if facts.untold else None


MOVES: Final = (
    RemediationRule("jobs_running", RuleOutcome.DENY, "its jobs train", _quiet),
    RemediationRule("standbys_available", RuleOutcome.DENY, "warm standbys wait on other nodes", _standbys),
    _DETECTOR_POLICY,
    RemediationRule("full_strength", RuleOutcome.HOLD, "its jobs keep all their ranks", _full_strength),
    RemediationRule("standbys_known", RuleOutcome.HOLD, "its jobs say how many standbys wait", _told),
    RemediationRule("one_node_per_incident", RuleOutcome.HOLD, "no other node of the incident waits", _one_by_one),
    RemediationRule("breaker", RuleOutcome.HOLD, "the circuit breaker is closed", breaker),
)
"""Rules for ranks that leave a node in service: the node need not be ours, and no other job is touched."""


def judge(facts: RemediationFacts, rules: tuple[RemediationRule, ...] = RULES) -> tuple[RuleResult, ...]:
    """Every rule's verdict, in order; after a denial nothing more is asked."""
    spoken: list[RuleResult] = []
    for rule in rules:
        why = rule.judge(facts)
        spoken.append(RuleResult(rule.name, RuleOutcome.ALLOW if why is None else rule.against, why or rule.allowed))
        if why is not None and rule.against is RuleOutcome.DENY:
            break
    return tuple(spoken)


def next_action(wanted: RecommendedAction, tried: tuple[RecommendedAction, ...]) -> RecommendedAction:
    """What to propose where ``tried`` did not last: the next stronger action."""
    highest = max((recommended_action.level for recommended_action in tried), default=-1)
    if highest < wanted.level:
        return wanted
    return list(RecommendedAction)[min(highest + 1, RecommendedAction.REPLACE.level)]
