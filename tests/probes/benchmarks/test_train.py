"""The training step: it learns, its operations are counted, and a wrong model is no measurement."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.timing import LEAST
from mainstay.probes.benchmarks.train import Train, one_step

SMALL = {"layers": 1, "width": 16, "heads": 2, "tokens": 8, "batch": 1, "vocabulary": 64}


def tiny() -> Train:
    return Train(Train.Config(budget_seconds=0.0, **SMALL))


def test_a_step_trains(cpu: Device) -> None:
    step = one_step(tiny().config, cpu)
    losses = [float(step().detach()) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_operations_are_those_of_the_parameters(cpu: Device, ticking: Clock) -> None:
    """Between two looks at this clock lies a second."""
    result = tiny().run(cpu, ticking)
    operations = 8 * (6.0 * (12 * 16**2 + 64 * 16) + 12 * 16 * 8)
    assert result.metrics[1].values == (operations,) * LEAST


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="width 10 must be a multiple of heads 3"):
        Train.Config(width=10, heads=3)
