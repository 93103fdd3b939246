"""Which redundancy in memory costs least for the safety that is wanted (Chen et al., ICCD 2023; GEMINI, SOSP'23).

A scheme keeps ``extra`` blocks for ``data`` of them on as many nodes: one of data 1 is a copy, others are codes. What
it costs stands beside what it saves: traffic of each save that training waits for, and the restarts from disk when
more nodes of a group are lost at once than it bears.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundancyScheme:
    """``extra`` blocks beside ``data``, each on a node of its own."""

    data: int
    extra: int
    every_s: float
    """Training seconds between saves."""
    save_s: float = 0.0
    """That training waits for one."""

    def __post_init__(self) -> None:
        if self.data < 1 or self.extra < 1 or not self.every_s > 0.0 or self.save_s < 0.0:
            raise ValueError(f"data and extra at least 1, every_s above 0 and save_s at least 0, not {self}")

    @property
    def memory(self) -> float:
        """Bytes kept for each byte of state, the state's own snapshot included."""
        return (self.data + self.extra) / self.data

    @property
    def share(self) -> float:
        """Of the time, that saving takes from training."""
        return self.save_s / (self.every_s + self.save_s)


def group_loss(scheme: RedundancyScheme, worker_rate: float, window_s: float) -> float:
    """Probability that more than ``extra`` of a group's nodes go within one window: a binomial tail."""
    p = -math.expm1(-worker_rate * window_s)
    n = scheme.data + scheme.extra
    return sum(math.comb(n, k) * p**k * (1.0 - p) ** (n - k) for k in range(scheme.extra + 1, n + 1))


def torn_rate(scheme: RedundancyScheme, *, workers: int, worker_rate: float, window_s: float) -> float:
    """How often per second some group loses more than it bears.

    Args:
        scheme: of each group; groups do not overlap.
        workers: of the job.
        worker_rate: failures of one per second.
        window_s: from a loss until the group is whole again.
    """
    if not window_s > 0.0:
        return 0.0
    return workers / (scheme.data + scheme.extra) * group_loss(scheme, worker_rate, window_s) / window_s
