"""Which signals become which metrics: derived from the table of signals, in base units, so that a new signal is there.

A metric is named ``mainstay_`` and the signal's name; nanoseconds become seconds and millijoules joules. Left out are
bit masks and the number of a link: as a value they can be neither compared nor added up (the counters of each throttle
cause say the same as numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainstay.probes.signals import SIGNALS, Signal, SignalKind, SignalSource, names

PREFIX: Final = "mainstay_"
_NO_QUANTITY: Final = frozenset({"gpu_nvlink_worst_link"})
_UNITS: Final = {"_nanoseconds_total": ("_seconds_total", 1_000_000_000), "_millijoules_total": ("_joules_total", 1000)}
_RARE: Final = {"gpu_processes": 150}
"""Signals that are read more rarely than every ``stale_seconds``: how long a reading is shown, s."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """One metric of one device."""

    signal: Signal
    name: str
    kind: str
    about: str
    divisor: int
    """Of a total, for its base unit."""

    def reach(self, stale_seconds: int) -> int:
        """How long a reading is shown, s."""
        return max(stale_seconds, _RARE.get(self.signal.name, 0))


def exposed(source: SignalSource, *, wide: bool) -> tuple[Exposed, ...]:
    """The metrics of a source's narrow (or wide) signals."""
    signals = (SIGNALS[name] for name in names(source, wide=wide))
    return tuple(_expose(signal) for signal in signals if _is_quantity(signal))


def _is_quantity(signal: Signal) -> bool:
    return signal.unit != "bitmask" and signal.name not in _NO_QUANTITY


def _expose(signal: Signal) -> Exposed:
    name, divisor = signal.name, 1
    for ending, (ours, factor) in _UNITS.items():
        if name.endswith(ending):
            name, divisor = name.removesuffix(ending) + ours, factor
    stem = "host_" if signal.source is SignalSource.HOST else ""
    kind = "counter" if signal.kind is SignalKind.COUNTER else "gauge"
    return Exposed(signal, f"{PREFIX}{stem}{name}", kind, signal.about, divisor)
