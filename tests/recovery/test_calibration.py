"""Forecasts beside what happened: errors, excess cost, what is learned of the model, and alarms where that fails."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from mainstay.recovery.calibration import PROMISED, Calibration, RecoveryOutcome, forecast
from mainstay.recovery.cost_inputs import CostInputs, FailureOdds, FaultKind, RollbackCosts, SpareCapacity
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategy_choice import ExecutionCapabilities, choose_strategy

CARRIED = frozenset(
    {
        RecoveryStrategyName.LOCAL_SLOT,
        RecoveryStrategyName.PEER_COPY,
        RecoveryStrategyName.DISK_RESTART,
        RecoveryStrategyName.DROP_AND_HEAL,
    }
)


def lost(**changed: object) -> CostInputs:
    """Three replicas of two stages; a process is gone, and no standby is warm. A step takes a second."""
    known = CostInputs(
        shape=IterationShape(dp=3, pp=2, micro_batches=4),
        slot_s=1.0 / 5.0,
        layers=2,
        state_bytes=1e8,
        fault=FaultKind.PROCESS,
        lost=(1, 0),
        broken=1,
        odds=FailureOdds(worker_rate=1e-7),
        held=RollbackCosts(local_s=0.5, peer_s=0.5, disk_s=60.0),
        pool=SpareCapacity(),
        detect_s=0.2,
    )
    return replace(known, **changed)  # type: ignore[arg-type]


def seen(
    factor: float, way: RecoveryStrategyName = RecoveryStrategyName.LOCAL_SLOT, *, lost_steps: int = 0
) -> RecoveryOutcome:
    """A recovery in which all that was done took ``factor`` times as long as predicted."""
    cost_inputs = lost()
    made = forecast(choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED)), cost_inputs, way)
    assert made is not None
    took = made.seconds + (factor - 1.0) * made.acting_s
    return RecoveryOutcome(f"r-{factor}", made, took, lost_steps)


def test_a_forecast_runs_from_the_failure_to_the_first_step() -> None:
    cost_inputs = lost()
    decision = choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED))
    made = forecast(decision, cost_inputs, RecoveryStrategyName.LOCAL_SLOT)
    assert made is not None
    option = next(each for each in decision.options if each.strategies == (RecoveryStrategyName.LOCAL_SLOT,))
    assert made.seconds == pytest.approx(option.parts["downtime"] + 1.0), "the first step whole"
    assert made.phases["detect"] == 0.2
    assert made.acting_s == pytest.approx(option.parts["downtime"] - 0.2)
    degraded = forecast(decision, cost_inputs, RecoveryStrategyName.DROP_AND_HEAL)
    assert degraded is not None
    assert degraded.phases["step"] == pytest.approx(7 / 5), "two replicas do the work of three: 6 + 1 slots for 4 + 1"
    assert degraded.later_s > 0.0
    assert forecast(decision, cost_inputs, RecoveryStrategyName.MORPH) is None, "the program is not able to"


def test_a_record_is_kept_as_it_was() -> None:
    found = seen(1.5)
    assert found.strategy is RecoveryStrategyName.LOCAL_SLOT
    assert found.error == pytest.approx(0.5 * found.predicted.acting_s / found.predicted.seconds)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RecoveryOutcome) == found


def test_what_went_as_predicted_costs_what_was_expected() -> None:
    """So that what it cost and what alternatives were expected to can be compared."""
    cost_inputs = lost()
    decision = choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED))
    for way in (RecoveryStrategyName.LOCAL_SLOT, RecoveryStrategyName.DROP_AND_HEAL):
        made = forecast(decision, cost_inputs, way)
        assert made is not None
        option = next(each for each in decision.options if each.strategies == (way,))
        assert RecoveryOutcome("r", made, made.seconds, 0).cost_s == pytest.approx(option.expected_s)


def test_excess_cost_is_what_the_best_alternative_would_have_saved() -> None:
    fine, bad = seen(1.0, RecoveryStrategyName.DROP_AND_HEAL), seen(40.0)
    assert fine.excess_cost_s == 0.0
    assert bad.excess_cost_s == pytest.approx(bad.cost_s - min(bad.predicted.others.values()))
    assert "drop_and_heal" in bad.predicted.others
    assert not any(name.startswith("local_slot") for name in bad.predicted.others), "itself is no alternative"
    assert [each.is_accurate for each in (fine, bad, seen(1.1))] == [True, False, True]


def test_steps_made_again_cost_what_they_take() -> None:
    assert seen(1.0, lost_steps=3).cost_s == pytest.approx(seen(1.0).cost_s + 3.0)


def test_what_constants_explain_teaches_the_model_nothing() -> None:
    """Twice as long, and constants that are now twice as large: the next prediction must not be four times as long."""
    made = seen(2.0)
    doubled = replace(made.predicted, phases=made.predicted.phases | {
        part: 2.0 * made.predicted.phases[part] for part in ("fence", "regroup", "warm_up")
    })  # fmt: skip
    known = Calibration().learn(made, doubled)
    assert known.factors[RecoveryStrategyName.LOCAL_SLOT] == pytest.approx(1.0)


def test_what_they_leave_unexplained_corrects_the_next_prediction_of_that_way() -> None:
    made = seen(2.0)
    known = Calibration().learn(made, made.predicted)
    assert known.factors == {RecoveryStrategyName.LOCAL_SLOT: pytest.approx(2.0)}
    cost_inputs = lost()
    again = forecast(
        choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED, factors=known.factors)),
        cost_inputs,
        RecoveryStrategyName.LOCAL_SLOT,
    )
    assert again is not None
    assert again.seconds == pytest.approx(made.measured_s), "what was known already, the time to notice, is not scaled"
    plain = forecast(
        choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED)),
        cost_inputs,
        RecoveryStrategyName.DROP_AND_HEAL,
    )
    other = forecast(
        choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED, factors=known.factors)),
        cost_inputs,
        RecoveryStrategyName.DROP_AND_HEAL,
    )
    assert plain is not None
    assert other is not None
    assert other.phases == plain.phases


def test_one_odd_recovery_moves_an_average_little_and_raises_no_alarm() -> None:
    known = Calibration()
    for factor in (1.0, 1.0, 1.0, 4.0):
        known = known.learn(seen(factor), seen(1.0).predicted)
    assert 1.0 < known.factors[RecoveryStrategyName.LOCAL_SLOT] < 1.5
    assert not known.alarms()
    for _ in range(20):
        known = known.learn(seen(1.0), seen(1.0).predicted)
    assert known.factors[RecoveryStrategyName.LOCAL_SLOT] == pytest.approx(1.0, abs=0.01)
    assert not known.alarms()


def test_what_gets_ever_slower_raises_an_alarm() -> None:
    known, cost_inputs = Calibration(), lost()
    for event in range(8):
        made = forecast(
            choose_strategy(cost_inputs, means=ExecutionCapabilities(carried=CARRIED, factors=known.factors)),
            cost_inputs,
            RecoveryStrategyName.LOCAL_SLOT,
        )
        assert made is not None
        plain = seen(1.0).predicted
        took = made.phases["detect"] + made.phases["step"] + plain.acting_s * 3.0**event
        known = known.learn(RecoveryOutcome(str(event), made, took, 0), plain)
    (alarm,) = known.alarms()
    assert alarm.startswith("local_slot: 8 recoveries took longer than predicted")


def test_within_the_promise_is_a_quarter_either_way() -> None:
    made = seen(1.0).predicted
    for took, fine in ((1.24, True), (1.26, False), (1 / 1.24, True), (1 / 1.26, False)):
        assert RecoveryOutcome("r", made, made.seconds * took, 0).is_accurate is fine
    assert math.exp(PROMISED) == pytest.approx(1.25)


def test_times_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"recovery r took 0\.0 s"):
        RecoveryOutcome("r", seen(1.0).predicted, 0.0, 0)
