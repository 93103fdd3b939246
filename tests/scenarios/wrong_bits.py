"""Give ``--preload`` this module on one node: the check of its devices computes other bits than other nodes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstay.probes.benchmarks.deterministic import Deterministic

if TYPE_CHECKING:
    from mainstay.probes.benchmarks.base import Device

_right = Deterministic._digest


def _wrong(self: Deterministic, device: Device) -> str:
    return _right(self, device)[::-1]


Deterministic._digest = _wrong  # type: ignore[method-assign]
