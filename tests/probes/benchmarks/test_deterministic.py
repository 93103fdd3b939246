"""Deterministic: the same bits every time, and one wrong bit anywhere changes the fingerprint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainstay.probes.benchmarks import deterministic
from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.deterministic import Deterministic
from mainstay.probes.benchmarks.result import BenchmarkResult


def tiny() -> Deterministic:
    return Deterministic(Deterministic.Config(width=32, steps=2, repeats=3))


def test_two_processes_agree(run: Callable[..., BenchmarkResult]) -> None:
    first, second = run(tiny()), run(tiny())
    assert first.digest is not None
    assert first.digest == second.digest
    assert len(set(first.metrics[0].values + second.metrics[0].values)) == 1
    assert first.metrics[0].values[0] == float(int(first.digest[:12], 16)), "exact in a float64"


def test_one_flipped_mantissa_bit_shows(cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock) -> None:
    import torch

    honest, calls = deterministic._loss, iter(range(100))

    def flips_once(tokens: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        if next(calls) == 3:  # in the second of three repetitions
            with torch.no_grad():
                weights[0].view(torch.int32)[5, 7] ^= 1
        return honest(tokens, weights)

    monkeypatch.setattr(deterministic, "_loss", flips_once)
    values = tiny().run(cpu, ticking).metrics[0].values
    assert values[0] == values[2] != values[1]


def test_one_repetition_compares_nothing() -> None:
    with pytest.raises(ValueError, match="repeats must be at least 2"):
        Deterministic.build({"repeats": 1})
