"""Every signal Mainstay measures, declared once: name with unit, kind, source and plausible range.

A **narrow** signal travels as float32; a **wide** one (a counter too large for 24 bits of mantissa) as int64.
A missing sample is NaN (narrow) or ``WIDE_MISSING`` (wide): unknown, which is never zero and never healthy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WIDE_MISSING: Final = -(2**63)
_INF: Final = float("inf")


class SignalKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # monotonic until it resets; judged and drawn as a rate


class SignalSource(StrEnum):
    HOST = "host"
    GPU = "gpu"
    RANK = "rank"


@dataclass(frozen=True, slots=True)
class Signal:
    """One measured quantity. Values outside ``[low, high]`` are refused at ingest, by name."""

    name: str
    unit: str
    kind: SignalKind
    source: SignalSource
    wide: bool = False
    low: float = 0.0
    high: float = _INF
    about: str = ""


def _host(name: str, unit: str, about: str, *, counter: bool = False, high: float = _INF) -> Signal:
    kind = SignalKind.COUNTER if counter else SignalKind.GAUGE
    return Signal(name, unit, kind, SignalSource.HOST, wide=counter, high=high, about=about)


def _gpu(name: str, unit: str, about: str, *, counter: bool = False, low: float = 0.0, high: float = _INF) -> Signal:
    kind = SignalKind.COUNTER if counter else SignalKind.GAUGE
    return Signal(name, unit, kind, SignalSource.GPU, wide=counter, low=low, high=high, about=about)


def _rank(name: str, unit: str, about: str, *, wide: bool = False, low: float = 0.0) -> Signal:
    return Signal(name, unit, SignalKind.GAUGE, SignalSource.RANK, wide=wide, low=low, about=about)


_DECLARED: Final = (
    # From psutil and /proc.
    _host("cpu_utilization_ratio", "1", "busy share of all cores since the last sample", high=1.001),
    _host("cpu_steal_ratio", "1", "share of time the hypervisor ran someone else", high=1.001),
    _host("load_1m", "1", "run-queue length, one-minute average"),
    _host("memory_used_bytes", "B", "memory not available to new work"),
    _host("memory_used_ratio", "1", "the same as a share of all memory", high=1.001),
    _host("shm_used_ratio", "1", "fill of /dev/shm, where snapshots live", high=1.001),
    _host("disk_used_ratio", "1", "fill of the root file system", high=1.001),
    _host("processes_blocked", "1", "processes in uninterruptible sleep (state D)"),
    _host("disk_read_bytes_total", "B", "bytes read from block devices", counter=True),
    _host("disk_write_bytes_total", "B", "bytes written to block devices", counter=True),
    _host("network_receive_bytes_total", "B", "bytes received, loopback excluded", counter=True),
    _host("network_transmit_bytes_total", "B", "bytes sent, loopback excluded", counter=True),
    _host("network_errors_total", "1", "receive and transmit errors and drops", counter=True),
    _host("context_switches_total", "1", "context switches", counter=True),
    # From NVML, one set a GPU.
    _gpu("gpu_utilization_ratio", "1", "share of time in which any kernel ran", high=1.001),
    _gpu("gpu_memory_used_bytes", "B", "framebuffer in use"),
    _gpu("gpu_temperature_celsius", "C", "core temperature", low=-50.0, high=200.0),
    _gpu("gpu_memory_temperature_celsius", "C", "HBM temperature", low=-50.0, high=200.0),
    _gpu("gpu_power_watts", "W", "board power", high=5000.0),
    _gpu("gpu_sm_clock_hertz", "Hz", "SM clock"),
    _gpu("gpu_memory_clock_hertz", "Hz", "memory clock"),
    _gpu("gpu_throttle_reasons", "bitmask", "current clock event reasons"),
    _gpu("gpu_energy_millijoules_total", "mJ", "energy since driver load", counter=True),
    _gpu("gpu_ecc_corrected_total", "1", "corrected ECC errors, volatile", counter=True),
    _gpu("gpu_ecc_uncorrected_total", "1", "uncorrected ECC errors, volatile", counter=True),
    _gpu("gpu_pcie_replay_total", "1", "PCIe replays", counter=True),
    # From the training SDK, one sample a step.
    _rank("step_time_seconds", "s", "wall time of the step, commit to commit"),
    _rank("compute_time_seconds", "s", "the rank's own compute in the step (thread clock on CPU, CUDA events on GPU)"),
    _rank("snapshot_blocked_seconds", "s", "time the trainer waited for its snapshot copy"),
    _rank("loss", "1", "training loss where the rank knows it, else NaN", low=-_INF),
    _rank("step_end_nanoseconds", "ns", "when the step committed, Unix time", wide=True),
)

SIGNALS: Final[dict[str, Signal]] = {signal.name: signal for signal in _DECLARED}
assert len(SIGNALS) == len(_DECLARED), "a signal is declared twice"


def names(source: SignalSource, *, wide: bool) -> tuple[str, ...]:
    """Names of one source's signals in table order."""
    return tuple(s.name for s in _DECLARED if s.source is source and s.wide is wide)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The signals a stream of frames carries, in the order of its tensors' middle axis."""

    narrow: tuple[str, ...]
    wide: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [n for n in (*self.narrow, *self.wide) if n not in SIGNALS]
        if unknown:
            raise ValueError(f"unknown signal {unknown[0]!r}: declare it in probes/signals.py")
        if len({*self.narrow, *self.wide}) != len(self.narrow) + len(self.wide):
            raise ValueError("a signal stands twice in the catalogue")
        misplaced = [n for n in self.narrow if SIGNALS[n].wide] + [n for n in self.wide if not SIGNALS[n].wide]
        if misplaced:
            raise ValueError(f"signal {misplaced[0]!r} is in the wrong half of the catalogue (narrow or wide)")

    @property
    def digest(self) -> str:
        """16 hex digits that name this catalogue in a frame's envelope."""
        text = ",".join(self.narrow) + ";" + ",".join(self.wide)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def catalogue(*sources: SignalSource) -> Catalogue:
    """The catalogue of everything the given sources measure."""
    return Catalogue(
        narrow=tuple(n for s in sources for n in names(s, wide=False)),
        wide=tuple(n for s in sources for n in names(s, wide=True)),
    )
