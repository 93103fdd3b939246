"""How long a few kernels take on this rank, the same on every rank: run between two steps when someone asks.

A slow step has many reasons; the same kernels at the same moment have only the device and the host. Nothing that
training depends on is touched: no random state, no precision setting, no collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.timing import Stopwatch
from mainstay.recovery.protocol.worker_messages import SpeedMeasured

ROUNDS: Final = 3
"""The fastest counts: what a neighbor takes for a moment is no property of the device, and what is throttled is slow in
all of them."""
ROUND_SECONDS: Final = 0.06
"""Of one kernel. A throttled device stops and goes within some milliseconds."""
_SIZES: Final = {"cuda": (4096, 1 << 26), "cpu": (256, 1 << 22)}
"""Rows and columns of the matrices, bytes of the copy."""
_LOOP: Final = range(20_000)


def measure_speed(request: int, device: torch.device, clock: Clock = time.perf_counter) -> SpeedMeasured:
    """Answer ``request`` with the seconds of each kernel, or why they could not be had (no memory is left)."""
    try:
        return SpeedMeasured(request=request, seconds=_measure(device, clock))
    except RuntimeError as error:
        return SpeedMeasured(request=request, problem=str(error).splitlines()[0][:500])


def _measure(device: torch.device, clock: Clock) -> dict[str, float]:
    watch = Stopwatch(Device(kind="cuda" if device.type == "cuda" else "cpu", model=""), clock)
    found = {}
    for name, work in _kernels(device).items():
        work()  # allocates and plans
        found[name] = min(_mean(watch, work) for _ in range(ROUNDS))
    return found


def _mean(watch: Stopwatch, work: Callable[[], Any]) -> float:
    """Seconds a call: a mean, since a median would not see a device that stands still a part of the time."""
    calls, spent = 0, 0.0
    while spent < ROUND_SECONDS:
        spent += watch.seconds(work)
        calls += 1
    return spent / calls


def _kernels(device: torch.device) -> dict[str, Callable[[], Any]]:
    """What is measured: arithmetic, memory, and the thread that feeds them."""
    size, nbytes = _SIZES["cuda" if device.type == "cuda" else "cpu"]
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    left = torch.ones(size, size, dtype=dtype, device=device)
    out = torch.empty_like(left)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def multiply() -> None:
        with torch.no_grad():
            torch.mm(left, left, out=out)

    return {"matmul": multiply, "copy": lambda: target.copy_(source), "host": lambda: sum(_LOOP)}
