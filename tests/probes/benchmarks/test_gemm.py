"""GEMM: operations are counted right, and a format that is missing is a reason, not a failure."""

from __future__ import annotations

import pytest

from probes.benchmarks.base import Clock, Device
from probes.benchmarks.gemm import Gemm
from probes.benchmarks.timing import LEAST


def tiny() -> Gemm:
    return Gemm(Gemm.Config(budget_seconds=0.0, size=64, narrow_size=32))


def test_a_rate_is_operations_by_seconds(cpu: Device, ticking: Clock) -> None:
    """Between two looks at this clock lies a second, so the rate is 2 n^3."""
    result = tiny().run(cpu, ticking)
    values = {metric.name: metric.values for metric in result.metrics}
    assert values["fp32_n64"] == (2.0 * 64**3,) * LEAST
    assert values["bf16_n32"] == (2.0 * 32**3,) * LEAST


def test_a_missing_format_leaves_the_others_alone(cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock) -> None:
    import torch

    def lacking(*_: object) -> None:
        raise RuntimeError("no int8 here\nand a long tail")

    monkeypatch.setattr(torch, "_int_mm", lacking)
    result = tiny().run(cpu, ticking)
    assert [metric.name for metric in result.metrics if not metric.values] == ["int8_n32"]
    assert result.error == "int8_n32: no int8 here"


def test_the_metric_is_named_by_its_size() -> None:
    """A criterion for one size must never judge another."""
    device = Device(kind="cuda", model="any")
    names = {metric.name for metric in Gemm(Gemm.Config(size=8192, narrow_size=4096)).metrics(device)}
    assert {"fp64_n8192", "tf32_n8192", "bf16_n4096"} <= names
