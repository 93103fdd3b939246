"""Measuring keeps to its share of a step by thinning the norm, never what ranks are judged by, and reports it."""

from __future__ import annotations

import math

import pytest
import torch

from mainstay.recovery.protocol.worker_messages import StepRecord
from mainstay.recovery.sdk.measurement_budget import LONGEST_STRIDE, NORM_SHARE, SHARE, MeasurementBudget
from mainstay.recovery.sdk.meter import StepMeter

STEPS = 20


def lived(*, norm: float, rest: float, step: float = 1.0, budget: MeasurementBudget | None = None) -> MeasurementBudget:
    """A job whose steps cost so much each time that something is measured."""
    budget = budget or MeasurementBudget()
    for epoch in range(STEPS):
        took = norm if budget.due(epoch) else None
        budget.learn(step, rest + (took or 0.0), took)
    return budget


def test_what_is_cheap_is_measured_in_every_step() -> None:
    assert lived(norm=0.3 * SHARE, rest=0.6 * SHARE).every == 1


def test_the_norm_is_thinned_to_a_power_of_two() -> None:
    budget = lived(norm=0.9 * SHARE, rest=0.6 * SHARE)
    assert budget.every == 4
    assert [epoch for epoch in range(9) if budget.due(epoch)] == [0, 4, 8]


@pytest.mark.parametrize("norm", [0.1, 0.6, 3.0, 6.0])
@pytest.mark.parametrize("rest", [0.1, 0.4, 0.6])
def test_it_stays_within_its_share(norm: float, rest: float) -> None:
    norm, rest = norm * SHARE, rest * SHARE
    budget = lived(norm=norm, rest=rest)
    assert rest + norm / budget.every <= SHARE
    assert norm / budget.every <= NORM_SHARE


def test_nothing_is_thinned_by_first_steps_or_single_ones() -> None:
    budget = MeasurementBudget()
    for _ in range(7):
        budget.learn(1.0, 1.0, 0.5)
    assert budget.every == 1
    budget = lived(norm=0.3 * SHARE, rest=0.4 * SHARE)
    budget.learn(1.0, 1.0, 0.5)
    assert budget.every == 1
    budget.learn(0.0, 1.0, 0.5)
    assert budget.every == 1


def test_what_cannot_be_afforded_is_measured_as_seldom_as_may_be() -> None:
    assert lived(norm=1.0, rest=1.0).every == LONGEST_STRIDE


def test_it_is_thinned_less_again_when_there_is_room_to_spare() -> None:
    budget = lived(norm=0.9 * SHARE, rest=0.6 * SHARE)
    assert budget.every > 1
    lived(norm=0.9 * SHARE, rest=0.6 * SHARE, step=10.0, budget=budget)
    assert budget.every == 1


def record_step(meter: StepMeter, model: torch.nn.Module, epoch: int, value: float = 1.0) -> StepRecord:
    meter.begin_step(epoch)
    model.zero_grad()
    (model(torch.ones(2, 4)).sum() * value).backward()
    if meter.traffic.on_exchange is not None:
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        meter.traffic.on_exchange([flat])
    meter.before_update()
    meter.end(1, epoch, digests=False)
    (record,) = meter.collect()
    assert isinstance(record, StepRecord)
    return record


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_thinned_step_is_marked_and_still_shows_a_numeric_anomaly(replicas: int) -> None:
    model = torch.nn.Linear(4, 4)
    meter = StepMeter(model, replicas=replicas)
    whole = record_step(meter, model, 1)
    assert whole.signals["measured_every"] == 1.0
    assert 0.0 < whole.signals["measuring_seconds"] < whole.step_time
    assert {"forward_seconds", "backward_seconds", "gradient_norm"} <= whole.signals.keys()
    meter.budget.every = 16
    for epoch, value in ((5, 1.0), (6, math.nan), (7, math.inf)):
        thin = record_step(meter, model, epoch, value)
        assert thin.signals["measured_every"] == 16.0
        assert {"forward_seconds", "backward_seconds"} <= thin.signals.keys(), "slow ranks are judged by these"
        # What replicas exchange in one piece has been read already when it is known to be finite.
        assert ("gradient_norm" in thin.signals) == (replicas == 2 and math.isfinite(value))
        assert thin.signals["nonfinite_values"] == float(not math.isfinite(value))
        assert {"communication_wait_seconds", "data_wait_seconds"} <= thin.signals.keys()
    assert {"forward_seconds", "backward_seconds", "gradient_norm"} <= record_step(meter, model, 16).signals.keys()
    meter.close()


def test_the_norm_of_what_is_exchanged_is_that_of_the_gradients() -> None:
    model = torch.nn.Linear(4, 4)
    meter = StepMeter(model, replicas=2)
    record = record_step(meter, model, 1)
    own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert record.signals["gradient_norm"] == pytest.approx(float(own.norm()), rel=1e-6)
    meter.begin_step(2)
    model(torch.ones(2, 4)).sum().backward()
    assert meter.traffic.on_exchange is not None
    assert not meter.traffic.on_exchange([torch.full((3,), 1e9)])  # something else: then the gradients themselves
    meter.before_update()
    meter.end(1, 2, digests=False)
    (other,) = meter.collect()
    assert isinstance(other, StepRecord)
    own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert other.signals["gradient_norm"] == pytest.approx(float(own.norm()), rel=1e-6)
    meter.close()
