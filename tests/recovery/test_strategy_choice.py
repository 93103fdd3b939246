"""What is decided over all ways: the objective, doubtful alarms, sequences, single copies, and plans made ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bench.lib_prepare import prepare
from mainstay.recovery.calibration import forecast
from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
)
from mainstay.recovery.cost_model.failure_cost import Repair
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.redundant_compute import REDUNDANT_SHARE
from mainstay.recovery.strategy_choice import StrategyDecision, StrategyOption, choose_strategy
from tests.recovery.strategies.made_up import cost_inputs

W = RecoveryStrategyName


def job(**over: Any) -> CostInputs:
    """Four pipelines of four stages; a node of stage 1 is gone, there is no standby, one node could be started."""
    made: dict[str, Any] = {
        "shape": IterationShape(dp=4, pp=4, micro_batches=16),
        "slot_s": 0.3,
        "layers": 8, "state_bytes": 1e9, "fault": FaultKind.NODE, "lost": (0, 1, 0, 0), "gpus": 8,
        "odds": FailureOdds(worker_rate=1e-7, repairs=(Repair(0.5, 600.0), Repair(0.5, 6000.0))),
        "held": RollbackCosts(local_s=3.0, peer_s=3.0, disk_s=900.0), "pool": SpareCapacity(spares=1),
        "costs": MachineCosts(spawn_cold_s=120.0),
        "able": frozenset({ProgramCapability.REROUTE, ProgramCapability.DECOUPLED}),
    }  # fmt: skip
    return CostInputs(**(made | over))


def option(made: StrategyDecision, *ways: RecoveryStrategyName) -> StrategyOption:
    return next(each for each in made.options if each.strategies == ways)


def test_options_are_sorted_and_the_cheapest_is_chosen() -> None:
    for seed in range(150):
        made = choose_strategy(cost_inputs(seed))
        assert choose_strategy(cost_inputs(seed)) == made
        costs = [each.expected_s for each in made.options if each.feasible]
        assert costs == sorted(costs)
        assert [each.feasible for each in made.options] == sorted(
            (each.feasible for each in made.options), reverse=True
        )
        assert made.chosen == (made.options[0].strategies if costs else None)
        assert {each.strategies[0] for each in made.options} == set(RecoveryStrategyName)
        for each in made.options:
            assert (each.expected_s is None) != each.feasible
            assert each.feasible or each == StrategyOption(
                strategies=each.strategies, feasible=False, executable=each.executable, reason=each.reason
            )
            if each.feasible and each.expected_s is not None and cost_inputs(seed).odds.confidence == 1.0:
                assert each.expected_s == pytest.approx(sum(each.parts.values()))
                assert each.gpu_seconds == pytest.approx(
                    each.expected_s * cost_inputs(seed).workers * cost_inputs(seed).gpus
                )


def test_going_on_degraded_and_swapping_later_beats_waiting_for_a_spare_and_for_a_repair() -> None:
    made = choose_strategy(job())
    assert made.chosen == (W.REROUTE_DECOUPLED, W.STANDBY_SWAP)
    best = option(made, *made.chosen)
    assert [step.what for step in best.steps[:2]] == ["reroute_decoupled", "standby_swap"]
    assert best.steps[1].at_s == 120.0
    assert not best.executable
    for other in ((W.REROUTE_DECOUPLED,), (W.DROP_AND_HEAL, W.STANDBY_SWAP), (W.PEER_COPY,)):
        assert (option(made, *other).expected_s or 0.0) > (best.expected_s or 0.0)
    assert made.explanation.startswith("reroute_decoupled, then standby_swap: Training continues at ")


def test_no_sequence_without_somebody_to_swap_in() -> None:
    none = choose_strategy(job(pool=SpareCapacity()))
    assert all(len(each.strategies) == 1 for each in none.options)
    later = choose_strategy(job(pool=SpareCapacity(standby_after_s=300.0)))
    assert option(later, W.DROP_AND_HEAL, W.STANDBY_SWAP).steps[1].at_s == 300.0
    now = choose_strategy(job(pool=SpareCapacity(standbys=1)))
    assert now.chosen == (W.STANDBY_SWAP,)


def test_a_long_repair_weighs_by_its_share() -> None:
    short = option(
        choose_strategy(job(odds=FailureOdds(worker_rate=1e-7, repairs=(Repair(1.0, 600.0),)))), W.DROP_AND_HEAL
    )
    both = option(choose_strategy(job()), W.DROP_AND_HEAL)
    long = option(
        choose_strategy(job(odds=FailureOdds(worker_rate=1e-7, repairs=(Repair(1.0, 6000.0),)))), W.DROP_AND_HEAL
    )
    assert both.parts["degraded"] == pytest.approx((short.parts["degraded"] + long.parts["degraded"]) / 2.0)
    assert both.worst_s == pytest.approx(long.expected_s)


def test_a_doubtful_alarm_is_acted_on_only_where_waiting_costs_more() -> None:
    def doubtful(p: float, confirm_s: float) -> StrategyDecision:
        odds = FailureOdds(worker_rate=1e-7, confidence=p, confirm_s=confirm_s)
        return choose_strategy(job(odds=odds, pool=SpareCapacity(standbys=1), fault=FaultKind.PROCESS))

    assert doubtful(0.9, 60.0).act
    assert not doubtful(0.01, 60.0).act
    assert not doubtful(0.9, 0.1).act, "a certain answer in a tenth of a second is cheaper than a recovery for nothing"
    assert "is not acted on yet: acting pays above" in doubtful(0.01, 60.0).explanation
    sure = choose_strategy(job())
    assert sure.act
    assert "sure" not in sure.explanation
    assert doubtful(0.3, 60.0).act_above > doubtful(0.3, 600.0).act_above


def test_a_false_alarm_counts_in_the_price() -> None:
    sure, unsure = (job(odds=FailureOdds(worker_rate=1e-7, confidence=p)) for p in (1.0, 0.5))
    real = option(choose_strategy(sure), W.DROP_AND_HEAL).expected_s or 0.0
    half = option(choose_strategy(unsure), W.DROP_AND_HEAL)
    assert half.expected_s == pytest.approx((real + real - half.parts["degraded"]) / 2.0)


def test_a_single_copy_is_not_left_for_longer_than_allowed() -> None:
    lonely = job(
        shape=IterationShape(dp=2, pp=4, micro_batches=16), held=RollbackCosts(local_s=3.0, disk_s=900.0),
        odds=FailureOdds(worker_rate=1e-7, single_copy_s=300.0),
    )  # fmt: skip
    made = choose_strategy(lonely)
    alone = option(made, W.DROP_AND_HEAL)
    assert not alone.feasible
    assert alone.reason.endswith("longer than the 300 s allowed.")
    assert option(made, W.DROP_AND_HEAL, W.STANDBY_SWAP).feasible, "the swap ends it after 120 s"
    assert option(made, W.DROP_AND_HEAL, W.STANDBY_SWAP).parts["risk"] > 0.0
    assert option(
        choose_strategy(replace(lonely, held=RollbackCosts(peer_s=3.0, disk_s=900.0))), W.DROP_AND_HEAL
    ).feasible
    bare = option(choose_strategy(replace(lonely, held=RollbackCosts())), W.DROP_AND_HEAL, W.STANDBY_SWAP)
    assert "no checkpoint on disk" in bare.reason


def test_the_longest_repair_says_how_long_a_copy_is_alone() -> None:
    lonely = job(
        shape=IterationShape(dp=2, pp=4, micro_batches=16), held=RollbackCosts(local_s=3.0, disk_s=900.0),
        odds=FailureOdds(worker_rate=1e-7, single_copy_s=1000.0, repairs=(Repair(0.9, 600.0), Repair(0.1, 6000.0))),
    )  # fmt: skip
    alone = option(choose_strategy(lonely), W.DROP_AND_HEAL)
    assert not alone.feasible
    assert "for up to 6000 s" in alone.reason
    longer = replace(lonely, odds=replace(lonely.odds, single_copy_s=6000.0))
    assert option(choose_strategy(longer), W.DROP_AND_HEAL).feasible


def test_single_copies_are_never_longer_than_allowed_in_any_cost_inputs() -> None:
    for seed in range(200):
        one = cost_inputs(seed)
        for each in choose_strategy(one).options:
            if each.feasible and "risk" in each.parts:
                assert one.odds.single_copy_s >= (each.steps[1].at_s if len(each.strategies) > 1 else 60.0)


def test_when_nothing_is_feasible_a_human_is_told_every_reason() -> None:
    made = choose_strategy(job(held=RollbackCosts(replicated=False), pool=SpareCapacity(), able=frozenset()))
    assert (made.chosen, made.act) == (None, False)
    assert made.explanation.startswith("Nothing brings the job back automatically")


def test_every_single_failure_is_decided_ahead_by_classes() -> None:
    ready = prepare(job())
    assert ready.keys() == {
        (fault, s) for fault in (FaultKind.ERROR, FaultKind.PROCESS, FaultKind.NODE) for s in range(4)
    }
    assert ready[FaultKind.NODE, 1] == choose_strategy(job())
    assert ready[FaultKind.NODE, 3] == choose_strategy(job(lost=(0, 0, 0, 1), broken=1))
    warm = prepare(job(pool=SpareCapacity(standbys=1)))
    assert warm[FaultKind.PROCESS, 0].chosen == (W.LOCAL_SLOT,)
    assert warm[FaultKind.NODE, 0].chosen == (W.STANDBY_SWAP,)


def test_the_price_of_readiness_is_told_by_its_name() -> None:
    """A redundant computation costs all the time: the forecast of what comes later counts it too."""
    given = job(able=frozenset({ProgramCapability.REDUNDANT}))
    made = choose_strategy(given)
    parts = option(made, W.REDUNDANT_COMPUTE).parts
    assert parts["readiness"] == pytest.approx(REDUNDANT_SHARE / given.job_rate)
    told = forecast(made, given, W.REDUNDANT_COMPUTE)
    assert told is not None
    assert told.later_s == pytest.approx(sum(parts.values()) - parts["downtime"] - parts.get("repeated", 0.0))


def test_a_decision_travels_as_json() -> None:
    made = choose_strategy(job())
    raw = msgspec.json.decode(msgspec.json.encode(made))
    assert raw["chosen"] == ["reroute_decoupled", "standby_swap"]
    assert raw["options"][0]["steps"][2]["at_s"] is None, "not known when"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"lost": (1,)}, "1 entries for 4 stages"),
        ({"lost": (0, 0, 0, 0)}, "names 0 of 16 workers"),
        ({"lost": (5, 0, 0, 0)}, "5 workers of a stage that has 4"),
        ({"broken": 2}, "1 workers cannot be of 2 pipelines"),
        ({"layers": 3}, "3 layers do not make 4 stages"),
        ({"speed": 0.0}, "speed lies above 0"),
        ({"warm_up_s": -1.0}, "must not be negative"),
    ],
)
def test_an_cost_inputs_that_makes_no_sense_is_refused_by_name(over: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        job(**over)


def test_odds_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"repairs: shares sum to 1, not 0\.5"):
        FailureOdds(worker_rate=0.0, repairs=(Repair(0.5, 1.0),))
    with pytest.raises(ValueError, match=r"confidence lies in 0\.\.1, not 2"):
        FailureOdds(worker_rate=0.0, confidence=2.0)
