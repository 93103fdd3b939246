"""Burn: what fades is seen without a criterion, and bits that flip when hot are."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks import burn
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.burn import Burn
from mainstay.probes.benchmarks.result import BenchmarkResult


def tiny() -> Burn:
    return Burn(Burn.Config(size=32, seconds=0.05))


class Fading:
    """A clock whose every tick is longer than the last: a device that gets slower."""

    def __init__(self, growth: float) -> None:
        self.now, self.tick, self.growth = 0.0, 0.0005, growth

    def __call__(self) -> float:
        self.now += self.tick
        self.tick *= self.growth
        return self.now


def values(result: BenchmarkResult) -> dict[str, tuple[float, ...]]:
    return {metric.name: metric.values for metric in result.metrics}


def test_a_device_that_fades_is_not_steady(cpu: Device) -> None:
    steady = values(tiny().run(cpu, Fading(1.0)))["steady"]
    fading = values(tiny().run(cpu, Fading(1.02)))["steady"]
    assert steady == pytest.approx((1.0,))
    assert fading[0] < 0.8


def test_a_bit_that_flips_once_warm_is_another_answer(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    made = 0

    def multiply(*_: object) -> object:
        def work() -> torch.Tensor:
            nonlocal made
            made += 1
            out = torch.ones(4, 4)
            if made == 12:  # one of those that are compared, once the burn is under way
                out.view(torch.int32)[0, 0] ^= 1 << 3
            return out

        return work

    monkeypatch.setattr(burn, "multiply", multiply)
    assert set(values(tiny().run(cpu, Fading(1.0)))["fp32_n32_repeat"]) == {0.0, 1.0}


def test_a_clock_that_nobody_tells_is_a_reason(cpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: Device) -> float:
        raise OSError("no such file")

    monkeypatch.setattr(burn, "_hertz", silent)
    result = tiny().run(cpu, Fading(1.0))
    assert values(result)["clock"] == ()
    assert "clock: no clock to read: no such file" in (result.error or "")
    assert values(result)["fp32_n32_rate"]
