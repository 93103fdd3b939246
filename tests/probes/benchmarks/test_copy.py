"""Copies: the twin on a processor never shares a name with a link that it does not have."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.copy import Copy


def tiny() -> Copy:
    return Copy(Copy.Config(budget_seconds=0.0, mebibytes=1))


def test_the_twin_has_names_of_its_own(cpu: Device) -> None:
    links = {metric.name for metric in tiny().metrics(Device(kind="cuda", model="any"))}
    twin = {metric.name for metric in tiny().metrics(cpu)}
    assert twin == {"memcpy_1MiB"}
    assert not links & twin


def test_bytes_are_counted_once(cpu: Device, ticking: Clock) -> None:
    result = tiny().run(cpu, ticking)
    assert set(result.metrics[0].values) == {float(1 << 20)}


def test_a_copy_that_changes_bytes_is_an_error(cpu: Device, monkeypatch: pytest.MonkeyPatch, ticking: Clock) -> None:
    import torch

    real = torch.Tensor.copy_

    def shifted(target: torch.Tensor, source: torch.Tensor, **more: bool) -> torch.Tensor:
        return real(target, source.roll(1), **more)

    monkeypatch.setattr(torch.Tensor, "copy_", shifted)
    with pytest.raises(RuntimeError, match="memcpy copied wrong bytes"):
        tiny().run(cpu, ticking)
