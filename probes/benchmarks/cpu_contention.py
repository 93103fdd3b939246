"""Who else used the processor while a benchmark ran: the first thing to know about a slow result.

Invariant: it only ever adds a sentence. A disturbed measurement keeps its values and its verdict; whoever reads the
verdict learns that the machine was not idle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mainstay.probes.benchmarks.base import Clock

NOTEWORTHY = 0.1
"""Share of all cores: below it are the daemons and kernel threads that every machine runs."""

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """Processor seconds since boot, over all cores, and those of this process and its ended children."""

    busy: float
    stolen: float
    """Taken by the hypervisor for other guests."""
    own: float
    at: float

    @classmethod
    def now(cls, clock: Clock) -> Self:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(field) * _TICK for field in first[1:9])
        return cls(user + nice + system + irq + softirq, stolen, sum(os.times()[:4]), clock())

    def since(self, before: Self) -> str | None:
        """What others took from ``before`` until now, if that is worth a sentence."""
        capacity = max(self.at - before.at, _TICK) * (os.cpu_count() or 1)
        others = (self.busy - before.busy - (self.own - before.own)) / capacity
        stolen = (self.stolen - before.stolen) / capacity
        words = []
        if others >= NOTEWORTHY:
            words.append(f"other processes used {others:.0%} of the processor")
        if stolen >= NOTEWORTHY:
            words.append(f"the hypervisor withheld {stolen:.0%} of it")
        return " and ".join(words) or None
