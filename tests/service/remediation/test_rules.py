"""The rules are pure: facts in, verdicts out, each with its why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.core_types import HealthState, RecommendedAction
from mainstay.service.fleet.lifecycle import OUT_OF_SERVICE, Owner
from mainstay.service.remediation.rules import (
    MOVES,
    RULES,
    RemediationFacts,
    asks_jobs,
    breaker,
    judge,
    limit,
    next_action,
)
from mainstay.service.remediation.schemas import RuleOutcome
from mainstay.service.settings import RemediationSettings

FREE = RemediationFacts(limits=RemediationSettings(), fleet=100, rack="r1", uptime_seconds=1e6)


def against(**changes: Any) -> list[tuple[str, RuleOutcome]]:
    spoken = judge(replace(FREE, **changes))
    assert all(said.reason for said in spoken)
    return [(said.name, said.verdict) for said in spoken if said.verdict is not RuleOutcome.ALLOW]


def test_nothing_against_it() -> None:
    assert against() == []
    assert [said.name for said in judge(FREE)] == [rule.name for rule in RULES]


@pytest.mark.parametrize(
    ("changes", "rule", "verdict"),
    [
        ({"known": False}, "node_known", RuleOutcome.DENY),
        ({"state": HealthState.DRAINING, "owner": Owner.EXTERNAL}, "not_drained_by_others", RuleOutcome.DENY),
        ({"state": HealthState.QUARANTINED, "owner": Owner.OPERATOR}, "not_drained_by_others", RuleOutcome.DENY),
        ({"state": HealthState.VALIDATING}, "in_service", RuleOutcome.DENY),
        ({"uptime_seconds": 10.0}, "boot_grace", RuleOutcome.HOLD),
        ({"first": "n0"}, "one_node_per_incident", RuleOutcome.HOLD),
        ({"touched": 5}, "breaker", RuleOutcome.HOLD),
        ({"rack_touched": 2}, "max_drained_per_rack", RuleOutcome.HOLD),
        ({"stranded": ("job demo needs one",)}, "job_has_spare", RuleOutcome.HOLD),
    ],
)
def test_each_rule_by_itself(changes: dict[str, Any], rule: str, verdict: RuleOutcome) -> None:
    assert against(**changes) == [(rule, verdict)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"known": False}, "no node of this name ever reported"),
        ({"state": HealthState.DRAINING, "owner": Owner.EXTERNAL, "said": "k8s: up"},
         "another system has it draining (k8s: up)"),
        ({"state": HealthState.DRAINING, "owner": Owner.OPERATOR, "said": "bob: up"},
         "a person has it draining (bob: up)"),
        ({"state": HealthState.QUARANTINED, "said": "x: y"}, "it is quarantined already (x: y)"),
        ({"uptime_seconds": 299.0},
         "it booted 299 s ago; what shows in the first 300 s may be links that still come up"),
        ({"first": "n0"}, "one incident, one node at a time: n0 is first"),
        ({"touched": 5}, "5 of 100 nodes drained within 60 min; at most 5 are allowed"),
        ({"rack_touched": 2}, "2 nodes of rack r1 were drained within 60 min"),
        ({"stranded": tuple("abcdef")}, "a drain would stop jobs that have no other replica: a; b; c; d; e"),
    ],
)  # fmt: skip
def test_each_reason_in_words(changes: dict[str, Any], reason: str) -> None:
    assert reason in [said.reason for said in judge(replace(FREE, **changes))]


@pytest.mark.parametrize(
    ("changes", "rule", "verdict", "reason"),
    [
        ({"recovering": tuple("abcdef")}, "jobs_running", RuleOutcome.DENY,
         "job a, b, c, d, e recovers or is in an unknown state: that comes first"),
        ({"short": "too few"}, "standbys_available", RuleOutcome.DENY, "too few"),
        ({"untold": ("a",)}, "standbys_known", RuleOutcome.HOLD, "job a does not say how many standbys wait"),
        ({"first": "n0"}, "one_node_per_incident", RuleOutcome.HOLD, "one incident, one node at a time: n0 is first"),
        ({"touched": 6}, "breaker", RuleOutcome.HOLD, "6 of 100 nodes drained within 60 min; at most 5 are allowed"),
    ],
)  # fmt: skip
def test_rules_for_ranks_that_leave(changes: dict[str, Any], rule: str, verdict: RuleOutcome, reason: str) -> None:
    assert all(said.verdict is RuleOutcome.ALLOW for said in judge(FREE, MOVES))
    spoken = judge(replace(FREE, state=HealthState.QUARANTINED, **changes), MOVES)
    assert [(said.name, said.reason) for said in spoken if said.verdict is verdict] == [(rule, reason)]
    assert spoken[-1].name == (rule if verdict is RuleOutcome.DENY else "breaker"), "a denial is the last word"


@pytest.mark.parametrize(
    "changes", [{"uptime_seconds": None}, {"uptime_seconds": 300.0}, {"touched": 4}, {"rack": "", "rack_touched": 9}]
)
def test_what_is_not_known_or_not_reached_holds_nothing(changes: dict[str, Any]) -> None:
    assert against(**changes) == []


@pytest.mark.parametrize(
    ("fleet", "share", "minimum", "allowed"),
    [(0, 0.05, 1, 1), (3, 0.05, 1, 1), (40, 0.05, 1, 2), (1250, 0.05, 1, 62), (1250, 0.0, 0, 0), (1000, 0.001, 3, 3)],
)
def test_the_breaker_allows_a_share_and_never_less_than_the_minimum(
    fleet: int, share: float, minimum: int, allowed: int
) -> None:
    limits = RemediationSettings(max_drained_ratio=share, min_drain_budget=minimum)
    assert limit(limits, fleet) == allowed
    facts = RemediationFacts(limits=limits, fleet=fleet)
    assert [breaker(replace(facts, touched=n)) is None for n in (max(0, allowed - 1), allowed)] == [allowed > 0, False]


@pytest.mark.parametrize(
    ("migrate", "by_mainstay", "by_an_operator"),
    [("off", False, False), ("manual", False, True), ("automatic", True, True)],
)
def test_a_drain_asks_jobs_to_move_as_the_site_has_set(migrate: Any, by_mainstay: bool, by_an_operator: bool) -> None:
    limits = RemediationSettings(migrate=migrate)
    asks = [asks_jobs(limits, is_automatic=is_automatic) for is_automatic in (True, False)]
    assert asks == [by_mainstay, by_an_operator]


@given(st.sampled_from(HealthState), st.sampled_from(Owner), st.integers(0, 9), st.booleans(), st.booleans())
def test_out_of_service_is_denied_whatever_else_holds(
    state: HealthState, owner: Owner, touched: int, stranded: bool, known: bool
) -> None:
    facts = replace(FREE, state=state, owner=owner, touched=touched, stranded=("j",) if stranded else (), known=known)
    denied = any(said.verdict is RuleOutcome.DENY for said in judge(facts))
    assert denied == (state in OUT_OF_SERVICE or not known)


@pytest.mark.parametrize(
    ("wanted", "tried", "proposed"),
    [
        (RecommendedAction.RESET_GPU, (), RecommendedAction.RESET_GPU),
        (RecommendedAction.RESET_GPU, (RecommendedAction.RESET_GPU,), RecommendedAction.REBOOT_NODE),
        (
            RecommendedAction.RESET_GPU,
            (RecommendedAction.RESET_GPU, RecommendedAction.REBOOT_NODE),
            RecommendedAction.INSPECT_NODE,
        ),
        (RecommendedAction.INSPECT_NODE, (RecommendedAction.RESET_GPU,), RecommendedAction.INSPECT_NODE),
        (RecommendedAction.REPLACE, (RecommendedAction.REPLACE,), RecommendedAction.REPLACE),
    ],
)
def test_the_ladder_is_climbed(
    wanted: RecommendedAction, tried: tuple[RecommendedAction, ...], proposed: RecommendedAction
) -> None:
    assert next_action(wanted, tried) is proposed
