"""STREAM: bytes are counted as STREAM counts them, and wrong numbers in memory are an error."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.memory import Memory


def tiny() -> Memory:
    return Memory(Memory.Config(budget_seconds=0.0, mebibytes=1))


def test_bytes_are_counted_as_stream_does(cpu: Device, ticking: Clock) -> None:
    result = tiny().run(cpu, ticking)
    values = {metric.name: metric.values[0] for metric in result.metrics}
    mebibyte = float(1 << 20)
    assert values == {
        "copy_1MiB": 2 * mebibyte,
        "scale_1MiB": 2 * mebibyte,
        "add_1MiB": 3 * mebibyte,
        "triad_1MiB": 3 * mebibyte,
    }


def test_wrong_numbers_in_memory_are_an_error(cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock) -> None:
    import torch

    right = torch.add

    def flips_a_bit(*args: object, out: torch.Tensor, **more: object) -> torch.Tensor:
        right(*args, out=out, **more)  # type: ignore[call-overload]
        out[1234] += 1e-9
        return out

    monkeypatch.setattr(torch, "add", flips_a_bit)
    with pytest.raises(RuntimeError, match="add left wrong numbers in memory"):
        tiny().run(cpu, ticking)
