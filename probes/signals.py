"""Every signal Mainstay measures, declared once: name with unit, kind, source and plausible range.

A **narrow** signal travels as float32; a **wide** one (a counter too large for 24 bits of mantissa) as int64.
A missing sample is NaN (narrow) or ``WIDE_MISSING`` (wide): unknown, which is never zero and never healthy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mainstay.probes.core_types import GROUP_KINDS

WIDE_MISSING: Final = -(2**63)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")
_INF: Final = float("inf")


class SignalKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"  # monotonic until it resets; judged and drawn as a rate


class SignalSource(StrEnum):
    HOST = "host"
    GPU = "gpu"
    NIC = "nic"
    RANK = "rank"
    """Step axis, a row a rank."""
    PROGRESS = "progress"
    """Time axis, a row a rank: what it is doing between two steps, told by a thread that does not wait for it."""
    PAIR = "pair"
    """Step axis, a row a pair of ranks, ``"3>4"``: rank 3 sends to rank 4."""


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
    period: float = 1.0
    """Seconds between two readings of the node daemon."""


def _host(name: str, unit: str, about: str, *, counter: bool = False, high: float = _INF) -> Signal:
    kind = SignalKind.COUNTER if counter else SignalKind.GAUGE
    return Signal(name, unit, kind, SignalSource.HOST, wide=counter, high=high, about=about)


def _gpu(
    name: str, unit: str, about: str, *, counter: bool = False, low: float = 0.0, high: float = _INF, period: float = 1
) -> Signal:
    kind = SignalKind.COUNTER if counter else SignalKind.GAUGE
    return Signal(name, unit, kind, SignalSource.GPU, counter, low, high, about, period)


def _slow_gpu(name: str, unit: str, about: str, *, counter: bool = False, high: float = _INF) -> Signal:
    return _gpu(name, unit, about, counter=counter, high=high, period=10.0)


def _throttle(cause: str, about: str) -> Signal:
    return _gpu(f"gpu_throttle_{cause}_nanoseconds_total", "ns", f"time with clocks held down by {about}", counter=True)


def _nic(name: str, unit: str, about: str, *, counter: bool = True, high: float = _INF) -> Signal:
    kind = SignalKind.COUNTER if counter else SignalKind.GAUGE
    return Signal(name, unit, kind, SignalSource.NIC, wide=counter, high=high, about=about)


def _rank(name: str, unit: str, about: str, *, wide: bool = False, low: float = 0.0) -> Signal:
    return Signal(name, unit, SignalKind.GAUGE, SignalSource.RANK, wide=wide, low=low, about=about)


def _progress(name: str, unit: str, about: str, *, wide: bool = False) -> Signal:
    return Signal(name, unit, SignalKind.GAUGE, SignalSource.PROGRESS, wide=wide, about=about)


def _pair(name: str, unit: str, about: str) -> Signal:
    return Signal(name, unit, SignalKind.GAUGE, SignalSource.PAIR, about=about)


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
    _host("uptime_seconds", "s", "since the machine booted"),
    _host("inodes_used_ratio", "1", "used inodes of the root file system", high=1.001),
    _host("filesystems_read_only", "1", "local file systems that the kernel turned read-only"),
    _host("processes_stuck", "1", "processes in state D for ten seconds or longer"),
    _host("clock_synchronized", "1", "1 when the kernel's clock is disciplined", high=1.0),
    _host("clock_error_seconds", "s", "the kernel's estimate of its clock's error"),
    _host("fabric_manager_up", "1", "1 when the NVSwitch fabric manager runs; absent where none is needed", high=1.0),
    _host("oom_kills_total", "1", "processes that the kernel killed for want of memory", counter=True),
    _host("dram_corrected_total", "1", "corrected errors of host memory (EDAC)", counter=True),
    _host("dram_uncorrected_total", "1", "uncorrected errors of host memory (EDAC)", counter=True),
    # From NVML, one set a GPU. Tier 1 s unless it says otherwise; between two readings a slower one is missing.
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
    _gpu("gpu_temperature_margin_celsius", "C", "degrees below the slowdown temperature", low=-200.0, high=200.0),
    _throttle("power_cap", "board power at its limit: normal under load"),
    _throttle("thermal", "a thermal limit, as the driver's policy counts it"),
    _throttle("sync_boost", "waiting for the slowest of a sync-boost group"),
    _throttle("software_thermal", "software thermal slowdown"),
    _throttle("hardware_thermal", "hardware thermal slowdown"),
    _throttle("power_brake", "an external power brake asserted by the board or the rack"),
    # 10 s tier.
    _slow_gpu("gpu_power_limit_watts", "W", "enforced power limit", high=5000.0),
    _slow_gpu(
        "gpu_recovery_action",
        "state",
        "NVML field 230: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset,"
        " 5 recover IMEX domain, 6 bus reset, 7 system reboot",
        high=255.0,
    ),
    _slow_gpu("gpu_remap_pending", "1", "1 when rows wait for a reset to be remapped", high=1.0),
    _slow_gpu("gpu_remap_failed", "1", "1 when a row could not be remapped: a criterion for return", high=1.0),
    _slow_gpu(
        "gpu_sram_threshold_exceeded", "1", "1 when uncorrected SRAM errors passed the vendor's threshold", high=1.0
    ),
    _gpu("gpu_pcie_generation", "1", "current PCIe generation: falls at idle to save power", high=16.0),
    _gpu("gpu_pcie_generation_max", "1", "generation that card and slot allow", high=16.0),
    _gpu("gpu_pcie_width", "1", "current PCIe lanes", high=64.0),
    _gpu("gpu_pcie_width_max", "1", "lanes that card and slot allow", high=64.0),
    _slow_gpu("gpu_nvlinks_active", "1", "NVLinks that are up", high=64.0),
    _slow_gpu("gpu_nvlinks_supported", "1", "NVLinks that the card has", high=64.0),
    _slow_gpu("gpu_nvlink_worst_link", "1", "the link with the most errors a second since the last reading", high=64.0),
    _slow_gpu("gpu_nvlink_worst_link_errors_per_second", "1/s", "and how many; a link recovery counts as ten"),
    _slow_gpu("gpu_fabric_state", "state", "0 not supported, 1 not started, 2 in progress, 3 completed", high=255.0),
    _slow_gpu("gpu_fabric_health_mask", "bitmask", "NVML fabric health, bits of each condition", high=float(2**24)),
    _slow_gpu("gpu_ecc_corrected_aggregate_total", "1", "corrected ECC errors, lifetime", counter=True),
    _slow_gpu("gpu_ecc_uncorrected_aggregate_total", "1", "uncorrected ECC errors, lifetime", counter=True),
    _slow_gpu("gpu_remapped_rows_corrected_total", "1", "rows remapped after corrected errors", counter=True),
    _slow_gpu("gpu_remapped_rows_uncorrected_total", "1", "rows remapped after uncorrected errors", counter=True),
    _slow_gpu("gpu_pcie_recoveries_total", "1", "PCIe link recoveries (L0 to recovery)", counter=True),
    _slow_gpu("gpu_pcie_correctable_errors_total", "1", "correctable PCIe errors", counter=True),
    _slow_gpu("gpu_pcie_nonfatal_errors_total", "1", "uncorrectable, non-fatal PCIe errors", counter=True),
    _slow_gpu("gpu_pcie_fatal_errors_total", "1", "fatal PCIe errors", counter=True),
    _slow_gpu("gpu_pcie_receive_bytes_total", "B", "bytes received over PCIe", counter=True),
    _slow_gpu("gpu_pcie_transmit_bytes_total", "B", "bytes sent over PCIe", counter=True),
    _slow_gpu("gpu_nvlink_replays_total", "1", "NVLink replays, all links", counter=True),
    _slow_gpu("gpu_nvlink_recoveries_total", "1", "NVLink recovery events, all links", counter=True),
    _slow_gpu("gpu_nvlink_crc_errors_total", "1", "NVLink CRC errors (Blackwell: symbol errors)", counter=True),
    # 60 s tier.
    _gpu("gpu_processes", "1", "processes with a compute context", period=60.0),
    # From /sys/class/infiniband, one set a port.
    _nic("nic_link_up", "1", "1 when the port is ACTIVE and its physical state LinkUp", counter=False, high=1.0),
    _nic("nic_rate_bits_per_second", "bit/s", "negotiated rate", counter=False),
    _nic("nic_receive_bytes_total", "B", "bytes received"),
    _nic("nic_transmit_bytes_total", "B", "bytes sent"),
    _nic("nic_transmit_wait_total", "1", "ticks with data to send and no credit: congestion"),
    _nic("nic_symbol_errors_total", "1", "minor link errors on physical lanes"),
    _nic("nic_link_recoveries_total", "1", "successful link error recoveries"),
    _nic("nic_link_downed_total", "1", "failed link error recoveries: the link went down"),
    _nic("nic_receive_errors_total", "1", "packets received with errors"),
    _nic("nic_transmit_discards_total", "1", "packets discarded because the port was down or congested"),
    _nic("nic_local_integrity_errors_total", "1", "local physical errors above their threshold"),
    _nic("nic_buffer_overruns_total", "1", "excessive buffer overruns"),
    _nic("nic_ack_timeouts_total", "1", "RDMA acknowledgements that did not come in time"),
    _nic("nic_out_of_sequence_total", "1", "RDMA packets out of sequence"),
    _nic("nic_rnr_retries_total", "1", "receiver-not-ready retries exceeded"),
    _nic("nic_slow_restarts_total", "1", "RoCE slow restarts"),
    # From the training SDK, one sample a step.
    _rank("step_time_seconds", "s", "wall time of the step, commit to commit"),
    _rank("compute_time_seconds", "s", "the rank's own compute in the step (thread clock on CPU, CUDA events on GPU)"),
    _rank("snapshot_blocked_seconds", "s", "time the trainer waited for its snapshot copy"),
    _rank("loss", "1", "training loss where the rank knows it, else NaN", low=-_INF),
    _rank("forward_seconds", "s", "own compute in forward passes"),
    _rank("backward_seconds", "s", "own compute in backward passes"),
    _rank("optimizer_seconds", "s", "own compute in the optimizer's update"),
    _rank("data_wait_seconds", "s", "waiting for the next batch"),
    _rank("communication_wait_seconds", "s", "inside collectives and point-to-point calls, all groups"),
    *(_rank(f"{kind}_wait_seconds", "s", f"the same within the {kind} group") for kind in GROUP_KINDS),
    _rank("run_delay_seconds", "s", "training thread ready to run while its core ran another thread (schedstat)"),
    _rank("gc_seconds", "s", "Python garbage collection"),
    _rank("tokens", "1", "tokens that the rank worked on"),
    _rank("sequence_squares", "1", "sum of squared sequence lengths: what attention costs"),
    _rank("micro_batches", "1", "micro-batches that the rank computed, where it asks which are its own"),
    _rank("gradient_norm", "1", "2-norm of the rank's own gradients before they are averaged"),
    _rank("nonfinite_values", "1", "1 when the rank's own loss or gradients hold NaN or Inf, else 0"),
    _rank("parameters_digest", "1", "24 bits of a digest of the parameters, at the steps where one was made"),
    _rank("measuring_seconds", "s", "of the training thread, spent by the SDK on measuring, as it measured itself"),
    _rank("measured_every", "1", "steps between two readings of what the SDK thins to stay within 1 %; 1: nothing is"),
    _rank("step_phase", "enum", "StepPhase: 0 train, 1 warm-up, 2 compile, 3 evaluate, 4 checkpoint"),
    _rank("step_end_nanoseconds", "ns", "when the step committed, Unix time", wide=True),
    # From the training SDK, once or twice a second, independent of the training thread.
    _progress("progress_phase", "enum", "StepPhase"),
    _progress(
        "in_collective_seconds", "s", "how long the training thread has been inside its present call; 0: in none"
    ),
    _progress("progress_step", "1", "steps committed", wide=True),
    *(_progress(f"{kind}_enqueued", "1", f"collectives begun in the {kind} group", wide=True) for kind in GROUP_KINDS),
    *(_progress(f"{kind}_completed", "1", f"collectives ended in the {kind} group", wide=True) for kind in GROUP_KINDS),
    # From the training SDK, one sample a step and pair of ranks that exchanged something in it.
    _pair(
        "transfer_seconds", "s", "median time of a transfer from the first rank to the second, as the receiver saw it"
    ),
    _pair("transfer_bytes", "B", "bytes of all its transfers"),
)

SIGNALS: Final[dict[str, Signal]] = {signal.name: signal for signal in _DECLARED}
assert len(SIGNALS) == len(_DECLARED), "a signal is declared twice"


def names(source: SignalSource, *, wide: bool) -> tuple[str, ...]:
    """Names of one source's signals in table order."""
    return tuple(s.name for s in _DECLARED if s.source is source and s.wide is wide)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The signals a stream of frames carries, in the order of its tensors' middle axis.

    A name that is not in ``SIGNALS`` is one of a newer version: its place in the tensors is kept, its values are not.

    Raises:
        ValueError: a name is no legal one, stands twice, or is in the wrong half.
    """

    narrow: tuple[str, ...]
    wide: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        illegal = [n for n in (*self.narrow, *self.wide) if n not in SIGNALS and not _NAME.fullmatch(n)]
        if illegal:
            raise ValueError(f"{illegal[0]!r} is no name of a signal")
        if len({*self.narrow, *self.wide}) != len(self.narrow) + len(self.wide):
            raise ValueError("a signal is in the catalog twice")
        known = [(n, wide) for half, wide in ((self.narrow, False), (self.wide, True)) for n in half if n in SIGNALS]
        misplaced = [n for n, wide in known if SIGNALS[n].wide is not wide]
        if misplaced:
            raise ValueError(f"signal {misplaced[0]!r} is in the wrong half of the catalog (narrow or wide)")

    @property
    def digest(self) -> str:
        """16 hex digits that name this catalog in a frame's envelope."""
        import hashlib  # noqa: PLC0415 - brings OpenSSL with it: four megabytes that the sampler child does not need

        text = ",".join(self.narrow) + ";" + ",".join(self.wide)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def catalog(*sources: SignalSource) -> Catalog:
    """Return the catalog of everything that the given sources measure."""
    return Catalog(
        narrow=tuple(n for s in sources for n in names(s, wide=False)),
        wide=tuple(n for s in sources for n in names(s, wide=True)),
    )
