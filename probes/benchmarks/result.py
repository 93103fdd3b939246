"""What a benchmark says, as data that crosses processes and the wire.

Invariant: "could not run" is a state of its own. A result whose state is not ``ok`` carries no values, and a metric
that could not be measured is present without values: nothing that is missing can look like something that passed.
No torch here: the control plane and the judges read these types.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from mainstay.probes.decoding import build_decoders

RAW: Final = "raw"
"""The unit of a value from another program that does not state one."""


class BenchmarkState(StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    PREEMPTED = "preempted"
    """Ended before it was done, or never begun: the machine was wanted for work."""


class Better(StrEnum):
    """Which way a metric improves; ``equal`` metrics are fingerprints that must be the same everywhere."""

    HIGHER = "higher"
    LOWER = "lower"
    EQUAL = "equal"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A declared metric. Problem sizes are part of the name: another size is another metric, never compared."""

    name: str
    unit: str
    """``s``, ``B/s``, ``FLOP/s``, ``OP/s``, ``Hz``, ``ratio``, ``raw`` or, for a fingerprint, nothing: not prefixed."""
    better: Better


class MetricValues(Metric, frozen=True, kw_only=True):
    """A declared metric with what was measured: one value a repetition, in the order taken; none: not measured."""

    values: tuple[float, ...] = ()


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark on one device."""

    benchmark: str
    state: BenchmarkState
    error: str | None
    """Why the state is not ``ok``; when it is, which metrics could not be measured, and what disturbed the others."""
    seconds: float
    device: str
    """``cpu``, ``cuda:0`` …, ``cuda`` for a benchmark that takes all of them at once, ``host`` for the disk."""
    metrics: tuple[MetricValues, ...]
    digest: str | None = None
    remeasured: int = 0
    """How often it was measured again because it had failed; what stands here passed at last, or failed every time."""


build_decoders(BenchmarkResult)

_DISTURBED = "disturbed: "


def with_contention_note(result: BenchmarkResult, by: str | None) -> BenchmarkResult:
    """The result with the remark that the machine was not idle; ``by`` None: as it was."""
    if by is None or result.state is not BenchmarkState.OK:
        return result
    said = "; ".join(filter(None, (result.error, _DISTURBED + by)))
    return msgspec.structs.replace(result, error=said)


def contention_note(result: BenchmarkResult) -> str | None:
    """What disturbed the measurement, if something did."""
    _, found, words = (result.error or "").rpartition(_DISTURBED)
    return words if found else None


class SuiteResult(msgspec.Struct, frozen=True, kw_only=True):
    """One suite on one machine: what ``mainstay validate --json`` prints (which adds the verdicts)."""

    suite: str
    started_at: float
    """Unix seconds."""
    finished_at: float
    host: str
    device: str
    """The device model and how many, in words."""
    cohort: str
    """Machines that may be compared: a legal id made from model and count."""
    software: str
    """torch's version and build, for the reader of an old file."""
    benchmarks: tuple[BenchmarkResult, ...]
    error: str | None = None
    """Why the suite ended early, if it did."""
    left_out: dict[str, str] = {}
    """Optional benchmarks of the suite that cannot run here → why."""


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_FRACTIONS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_value(value: float, unit: str) -> str:
    """A value for people: three significant digits and an SI prefix (``27.0 GB/s``, ``4.20 µs``)."""
    if unit == "":
        return f"{int(value):012x}" if value.is_integer() and value > 9 else f"{value:g}"
    if unit == RAW:
        return f"{value:.6g}"
    if unit == "ratio":
        return f"{value:.1%}"
    if unit == "s":
        scale, text = next((pair for pair in _FRACTIONS if abs(value) >= pair[0]), _FRACTIONS[-1])
        return f"{_digits(value / scale)} {text}"
    scale, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{_digits(value / scale)} {prefix}{unit}"


def _digits(value: float) -> str:
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, 3 - whole)}f}"
