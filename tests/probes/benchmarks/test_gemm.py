"""GEMM: operations are counted right, and a format that is missing is a reason, not a failure."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks import gemm
from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.gemm import Gemm, same_bits
from mainstay.probes.benchmarks.timing import LEAST


def tiny() -> Gemm:
    return Gemm(Gemm.Config(budget_seconds=0.0, size=64, narrow_size=32))


def test_a_rate_is_operations_by_seconds(cpu: Device, ticking: Clock) -> None:
    """Between two looks at this clock lies a second, so the rate is 2 n^3."""
    result = tiny().run(cpu, ticking)
    values = {metric.name: metric.values for metric in result.metrics}
    assert values["fp32_n64"] == (2.0 * 64**3,) * LEAST
    assert values["bf16_n32"] == (2.0 * 32**3,) * LEAST


def test_a_missing_format_leaves_the_others_alone(cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock) -> None:
    def lacking(*_: object) -> None:
        raise RuntimeError("no int8 here\nand a long tail")

    monkeypatch.setattr(gemm, "int8_matmul", lacking)
    result = tiny().run(cpu, ticking)
    assert [metric.name for metric in result.metrics if not metric.values] == ["int8_n32", "int8_n32_repeat"]
    assert result.error == "int8_n32: no int8 here; int8_n32_repeat: no int8 here"


def test_the_metric_is_named_by_its_size() -> None:
    """A criterion for one size must never judge another."""
    device = Device(kind="cuda", model="any")
    names = {metric.name for metric in Gemm(Gemm.Config(size=8192, narrow_size=4096)).metrics(device)}
    assert {"fp64_n8192", "tf32_n8192", "bf16_n4096"} <= names


def test_one_flipped_bit_is_seen() -> None:
    """The lowest mantissa bit of one number in the third of five products."""
    import torch

    product, calls = torch.ones(8, 8), 0

    def work() -> torch.Tensor:
        nonlocal calls
        calls += 1
        out = product.clone()
        if calls == 3:
            out.view(torch.int32)[4, 4] ^= 1
        return out

    assert same_bits(work, 4) == [1.0, 1.0, 0.0, 1.0, 1.0]


def test_bits_are_compared_not_numbers() -> None:
    """A NaN that repeats is the same answer; a zero that changes its sign is not."""
    import torch

    assert same_bits(lambda: torch.full((2,), float("nan")), 1) == [1.0, 1.0]
    zeros = iter((torch.zeros(2), -torch.zeros(2)))
    assert same_bits(lambda: next(zeros), 1) == [1.0, 0.0]
