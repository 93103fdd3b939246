"""What this node's transfers really achieve, in bytes per second: the planner prices with measurements."""

from __future__ import annotations

import threading
from typing import Final

from mainstay.recovery.agent.messages import TransferRates

_WEIGHT: Final = 0.3
"""Of the newest measurement: a few transfers replace the past, one slow one does not."""
_LEAST_BYTES: Final = 4096
"""Smaller transfers measure the latency, not the rate."""


class TransferRateMeter:
    """Smoothed rates by kind; safe from any thread."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}
        self._lock = threading.Lock()

    def add_transfer(self, kind: str, nbytes: int, seconds: float) -> None:
        """``kind`` is a field of ``messages.Rates``."""
        if nbytes < _LEAST_BYTES or seconds <= 0:
            return
        with self._lock:
            rate = nbytes / seconds
            old = self._rates.get(kind)
            self._rates[kind] = rate if old is None else (1 - _WEIGHT) * old + _WEIGHT * rate

    def rates(self) -> TransferRates:
        with self._lock:
            return TransferRates(**self._rates)
