"""How long a piece of work takes on a device, repeated until a budget is spent.

Invariant: what is timed has finished. On a GPU the clock is read only after the device is idle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mainstay.probes.benchmarks.base import Clock, Device

Work = Callable[[], Any]

SLICE_SECONDS = 0.01
"""Length of one repetition: a thousand times what reading the clock and synchronizing a GPU cost (about 10 µs)."""
QUICKEST_SECONDS = 1e-7
"""No call of Python into torch returns sooner: a clock that claims so was not looked at twice."""
LEAST = 3
"""Repetitions, for any budget: a median of fewer is a lottery."""
MOST = 200
"""Repetitions, for any budget: a larger result holds no more information."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    device: Device
    clock: Clock

    def settle(self) -> None:
        """Wait until the device has nothing left to do."""
        if self.device.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def seconds(self, work: Work, calls: int = 1) -> float:
        """Seconds per call, over ``calls`` back to back."""
        self.settle()
        begun = self.clock()
        for _ in range(calls):
            work()
        self.settle()
        return (self.clock() - begun) / calls

    def repeat(self, work: Work, budget: float) -> list[float]:
        """Seconds per call, one value a repetition, until ``budget`` seconds are spent; warmed up before."""
        work()  # allocates, plans, faults pages in
        calls = max(1, math.ceil(SLICE_SECONDS / max(self.seconds(work), QUICKEST_SECONDS)))
        end = self.clock() + budget
        taken: list[float] = []
        while len(taken) < LEAST or (len(taken) < MOST and self.clock() < end):
            taken.append(self.seconds(work, calls))
        return taken
