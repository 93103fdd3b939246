"""What a simulation may be asked, and what it refuses by the name of the field."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mainstay.recovery.simulate.scenario import (
    POLICIES,
    USUAL,
    PolicyName,
    Scenario,
    ScenarioError,
    SweepOver,
    expected_failures,
    impossible,
    usual_values,
)

SMALL = {"nodes": 4, "gpus_per_node": 2, "dp": 2, "pp": 2, "tp": 2, "spares": 1}


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"nodes": 0}, "nodes", "nodes: expected a number from 1 to 100000, not 0"),
        ({"mtbf_hours": math.nan}, "mtbf_hours", "mtbf_hours: expected a number from 0.01 to 1e+08, not nan"),
        ({"days": math.inf}, "days", "days: expected a number from 0.001 to 3650, not inf"),
        ({"dp": 3}, "dp", "dp: dp x pp x tp: 3 x 2 x 2 is 12 ranks, but the nodes have 8 GPUs"),
        ({"policies": ()}, "policies", "policies: expected at least one policy, each once"),
        ({"policies": (USUAL[0], USUAL[0])}, "policies", "policies: expected at least one policy, each once"),
        ({"sweep_values": (1.0,)}, "sweep_values", "sweep_values: given, but not what they are of (sweep_over)"),
        (
            {"sweep_over": SweepOver.SPARES, "sweep_values": (0.5,)},
            "sweep_values",
            "sweep_values: expected whole numbers of spares, not 0.5",
        ),
        (
            {"sweep_over": SweepOver.MTBF_HOURS, "sweep_values": (0.0,)},
            "sweep_values",
            "sweep_values: expected a number from 0.01 to 1e+08, not 0",
        ),
        (
            {"sweep_over": SweepOver.SPARES, "sweep_values": tuple(range(17))},
            "sweep_values",
            "sweep_values: expected at most 16 values, each once",
        ),
    ],
)
def test_what_no_run_can_have_is_refused_by_its_field(changes, field, said) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario(**{**SMALL, **changes})
    assert str(caught.value) == said
    assert caught.value.field == field


@pytest.mark.parametrize("change", [{"save_s": -1.0}, {"restart_s": math.nan}, {"every_s": 0.0}])
def test_a_policy_has_seconds_that_can_be(change) -> None:
    with pytest.raises(ScenarioError, match=next(iter(change))):
        replace(POLICIES[PolicyName.OWN], **change)


def test_the_usual_policies_are_all_but_ones_own() -> None:
    assert {policy.name for policy in USUAL} == set(PolicyName) - {PolicyName.OWN}


def test_no_policy_saves_more_often_than_once_an_iteration() -> None:
    scenario = Scenario(iteration_s=4.0)
    assert scenario.cadence(POLICIES[PolicyName.STANDBY_SWAP]).interval_s == 4.0
    # Young: sqrt(2 C M) = sqrt(2 x 30 s x 10,547 s) = 795 s; the exact best lies a little below.
    assert scenario.cadence(POLICIES[PolicyName.DISK_RESTART]).interval_s == pytest.approx(776.0, abs=5.0)
    asked = replace(POLICIES[PolicyName.DISK_RESTART], every_s=100.0)
    assert scenario.cadence(asked).interval_s == 100.0


def test_a_peer_must_live_on_another_node() -> None:
    peer, disk = POLICIES[PolicyName.STANDBY_SWAP], POLICIES[PolicyName.DISK_RESTART]
    lone = Scenario(nodes=4, gpus_per_node=2, dp=1, pp=4, tp=2)
    assert impossible(disk, lone) is None
    assert "no live peer" in (impossible(peer, lone) or "")
    # Two replicas of two ranks on one node of four GPUs: both go with it.
    together = Scenario(nodes=1, gpus_per_node=4, dp=2, pp=2, tp=1)
    assert impossible(peer, together) is not None
    assert impossible(peer, Scenario(**SMALL)) is None


def test_the_usual_values_of_a_sweep_hold_the_scenarios_own() -> None:
    assert usual_values(Scenario(spares=20), SweepOver.SPARES) == (0, 5, 10, 20, 40)
    assert 1 in usual_values(Scenario(spares=1), SweepOver.SPARES)
    hours = usual_values(Scenario(mtbf_hours=1000.0), SweepOver.MTBF_HOURS)
    assert hours == (250.0, 500.0, 1000.0, 2000.0, 4000.0)
    most = usual_values(Scenario(mtbf_hours=1e8), SweepOver.MTBF_HOURS)
    assert max(most) == 1e8
    assert max(usual_values(Scenario(spares=100_000), SweepOver.SPARES)) == 100_000


def test_a_sweep_changes_one_thing_and_ends_there() -> None:
    scenario = Scenario(**SMALL, sweep_over=SweepOver.SPARES, sweep_values=(3.0, 0.0))
    (none, first), (three, second) = scenario.sweep()
    assert (none, three) == (0.0, 3.0)
    assert (first.spares, second.spares) == (0, 3)
    assert replace(first, spares=scenario.spares) == replace(scenario, sweep_over=None, sweep_values=())
    assert first.sweep() == ()


def test_expected_work_counts_every_run() -> None:
    scenario = Scenario(nodes=24, gpus_per_node=1, dp=24, pp=1, tp=1, mtbf_hours=24.0, days=10.0, seeds=3)
    # 24 nodes x 10 days / 1 day = 240 failures and one end a run; 3 seeds x 5 policies.
    assert expected_failures(scenario) == pytest.approx(15 * 241)
    swept = replace(scenario, sweep_over=SweepOver.MTBF_HOURS, sweep_values=(24.0, 48.0))
    assert expected_failures(swept) == pytest.approx(15 * (241 + 241 + 121))
