"""A simulated fleet as its daemons would report it: cards, ports and hosts with plausible numbers and running counters.

What a story changes, it changes here (a share of throttled time, a link's error rate, a lost card); the frames that
result go the way of real ones. Slow tiers are read every ten or sixty seconds, staggered over the cards as the real
sampler does, and are missing in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probes.frame import Axis, Frame, checksum
from probes.signals import SIGNALS, WIDE_MISSING, Catalogue, SignalSource, catalogue
from probes.words import HOST_DEVICE

CATALOGUE: Catalogue = catalogue(SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)
_ROW = {name: row for row, name in enumerate(CATALOGUE.narrow)}
_WIDE_ROW = {name: row for row, name in enumerate(CATALOGUE.wide)}
LIMIT_W = 700.0
IDLE_W = 75.0
_TEN_SECONDS = (
    "gpu_power_limit_watts", "gpu_recovery_action", "gpu_remap_pending", "gpu_remap_failed",
    "gpu_sram_threshold_exceeded", "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link",
    "gpu_nvlink_worst_link_errors_per_second", "gpu_fabric_state", "gpu_fabric_health_mask",
    "gpu_ecc_corrected_total", "gpu_ecc_uncorrected_total", "gpu_ecc_corrected_aggregate_total",
    "gpu_ecc_uncorrected_aggregate_total", "gpu_remapped_rows_corrected_total", "gpu_remapped_rows_uncorrected_total",
    "gpu_pcie_recoveries_total", "gpu_pcie_correctable_errors_total", "gpu_pcie_nonfatal_errors_total",
    "gpu_pcie_fatal_errors_total", "gpu_nvlink_replays_total", "gpu_nvlink_recoveries_total",
    "gpu_nvlink_crc_errors_total",
)  # fmt: skip
_GPU_COUNTERS = tuple(n for n in CATALOGUE.wide if SIGNALS[n].source is SignalSource.GPU)
_NIC_COUNTERS = tuple(n for n in CATALOGUE.wide if SIGNALS[n].source is SignalSource.NIC)
_HOST_COUNTERS = tuple(n for n in CATALOGUE.wide if SIGNALS[n].source is SignalSource.HOST)


@dataclass
class Thing:
    """Anything that is measured: gauges by name, counters with a rate each, and whether it answers at all."""

    id: str
    gauges: dict[str, float] = field(default_factory=dict)
    """Said instead of what the model would say; NaN leaves a signal out."""
    rates: dict[str, float] = field(default_factory=dict)
    """Counter name -> growth per second."""
    totals: dict[str, float] = field(default_factory=dict)
    answers: bool = True

    def advance(self, seconds: float = 1.0) -> None:
        for name, rate in self.rates.items():
            self.totals[name] = self.totals.get(name, 0.0) + rate * seconds


@dataclass
class Gpu(Thing):
    """A card of an eight-way H100 board."""

    index: int = 0
    load: float = 0.0
    """Utilisation that its job asks for, 0 to 1."""
    power_share: float | None = None
    """Power as a share of its limit; None: what the load needs."""
    links: int = 18

    def throttle(self, cause: str, share: float) -> None:
        """Hold its clocks down for ``share`` of each second from now on."""
        self.rates[f"gpu_throttle_{cause}_nanoseconds_total"] = share * 1e9

    def narrow(self, second: int, chance: np.random.Generator) -> dict[str, float]:
        """What the driver says now."""
        share = 0.9 * self.load if self.power_share is None else self.power_share
        power = IDLE_W + share * (LIMIT_W - IDLE_W) + chance.normal(0.0, 6.0)
        held = sum(
            self.rates.get(f"gpu_throttle_{c}_nanoseconds_total", 0.0) for c in ("power_brake", "hardware_thermal")
        )
        clock = (1.98e9 if self.load else 345e6) * (1.0 - 0.6 * min(held / 1e9, 1.0))
        said = {
            "gpu_utilization_ratio": float(np.clip(self.load + chance.normal(0.0, 0.01), 0.0, 1.0))
            if self.load
            else 0.0,
            "gpu_memory_used_bytes": 70e9 if self.load else 0.5e9,
            "gpu_temperature_celsius": round(32.0 + 34.0 * share + chance.normal(0.0, 0.8)),
            "gpu_memory_temperature_celsius": round(36.0 + 38.0 * share + chance.normal(0.0, 0.8)),
            "gpu_temperature_margin_celsius": round(55.0 - 34.0 * share),
            "gpu_power_watts": max(40.0, power),
            "gpu_sm_clock_hertz": clock,
            "gpu_memory_clock_hertz": 2.619e9,
            "gpu_throttle_reasons": 0.0 if self.load else 1.0,
            "gpu_pcie_generation": 5.0 if self.load else 1.0,
            "gpu_pcie_generation_max": 5.0,
            "gpu_pcie_width": 16.0,
            "gpu_pcie_width_max": 16.0,
            "gpu_power_limit_watts": LIMIT_W,
            "gpu_recovery_action": 0.0,
            "gpu_remap_pending": 0.0,
            "gpu_remap_failed": 0.0,
            "gpu_sram_threshold_exceeded": 0.0,
            "gpu_nvlinks_active": float(self.links),
            "gpu_nvlinks_supported": float(self.links),
            "gpu_nvlink_worst_link_errors_per_second": 0.0,
            "gpu_fabric_state": 3.0,
            "gpu_fabric_health_mask": 0.0,
        }
        said.update(self.gauges)
        if second % 10 != self.index % 10:
            said = {name: value for name, value in said.items() if name not in _TEN_SECONDS}
        if second % 60 == self.index:
            said["gpu_processes"] = 1.0 if self.load else 0.0
        return said

    def wide(self, second: int) -> dict[str, int]:
        due = second % 10 == self.index % 10
        names = (n for n in _GPU_COUNTERS if due or n not in _TEN_SECONDS)
        return {name: int(self.totals.get(name, 0.0)) for name in names}


@dataclass
class Port(Thing):
    """A network port at 400 Gbit/s."""

    def narrow(self) -> dict[str, float]:
        return {"nic_link_up": 1.0, "nic_rate_bits_per_second": 400e9} | self.gauges

    def wide(self) -> dict[str, int]:
        return {name: int(self.totals.get(name, 0.0)) for name in _NIC_COUNTERS}


@dataclass
class Node:
    """A host with its cards and ports. ``up`` is False while it reboots: then nothing at all is heard."""

    name: str
    rack: str
    booted_at: float
    gpus: list[Gpu]
    ports: list[Port]
    host: Thing = field(default_factory=lambda: Thing(HOST_DEVICE))
    up: bool = True
    sequence: int = 0

    def things(self) -> list[Thing]:
        return [self.host, *self.gpus, *self.ports]

    def load(self, share: float) -> None:
        """A job begins (or, with 0, ends) on all cards."""
        for gpu in self.gpus:
            gpu.load = share
        for port in self.ports:
            port.rates["nic_transmit_bytes_total"] = port.rates["nic_receive_bytes_total"] = 30e9 * share

    def reset_counters(self) -> None:
        """As a driver reload or a reboot does; lifetime counters stay."""
        for thing in self.things():
            thing.totals = {name: total for name, total in thing.totals.items() if "aggregate" in name}

    def host_narrow(self, t: float) -> dict[str, float]:
        return {
            "cpu_utilization_ratio": 0.2, "cpu_steal_ratio": 0.0, "load_1m": 12.0, "memory_used_bytes": 4e11,
            "memory_used_ratio": 0.2, "shm_used_ratio": 0.1, "disk_used_ratio": 0.4, "inodes_used_ratio": 0.1,
            "processes_blocked": 0.0, "processes_stuck": 0.0, "filesystems_read_only": 0.0, "clock_synchronized": 1.0,
            "clock_error_seconds": 1e-4, "fabric_manager_up": 1.0, "uptime_seconds": t - self.booted_at,
        } | self.host.gauges  # fmt: skip

    def frame(self, t: float, chance: np.random.Generator) -> Frame:
        """One second of everything that answers, counters advanced by that second."""
        second = int(t)
        things = self.things()
        narrow = np.full((len(things), len(CATALOGUE.narrow), 1), np.nan, "<f4")
        wide = np.full((len(things), len(CATALOGUE.wide), 1), WIDE_MISSING, "<i8")
        for row, thing in enumerate(things):
            thing.advance()
            if thing.answers:
                _fill(narrow[row, :, 0], _ROW, self._narrow(thing, t, second, chance))
                _fill(wide[row, :, 0], _WIDE_ROW, self._wide(thing, second))
        self.sequence += 1
        values, big = narrow.tobytes(), wide.tobytes()
        return Frame(
            version=1, subject=self.name, axis=Axis.TIME, stream="sim", sequence=self.sequence, t0=t, dt=1.0,
            catalogue=CATALOGUE.digest, entities=tuple(thing.id for thing in things), samples=1, values=values,
            wide=big, crc32=checksum(values, big),
        )  # fmt: skip

    def _narrow(self, thing: Thing, t: float, second: int, chance: np.random.Generator) -> Mapping[str, float]:
        if isinstance(thing, Gpu):
            return thing.narrow(second, chance)
        return thing.narrow() if isinstance(thing, Port) else self.host_narrow(t)

    @staticmethod
    def _wide(thing: Thing, second: int) -> Mapping[str, float]:
        if isinstance(thing, Gpu):
            return thing.wide(second)
        if isinstance(thing, Port):
            return thing.wide()
        return {name: int(thing.totals.get(name, 0.0)) for name in _HOST_COUNTERS}


def _fill(row: NDArray[np.generic], places: Mapping[str, int], said: Mapping[str, float]) -> None:
    for name, value in said.items():
        if not (isinstance(value, float) and math.isnan(value)):
            row[places[name]] = value  # type: ignore[index]


def make_nodes(count: int, racks: int, booted_at: float) -> Iterator[Node]:
    """Nodes ``n00``... spread over racks ``r0``...; ids are theirs alone."""
    for n in range(count):
        name = f"n{n:02d}"
        yield Node(
            name=name,
            rack=f"r{n * racks // count}",
            booted_at=booted_at,
            gpus=[Gpu(id=f"GPU-{name}-{i}", index=i) for i in range(8)],
            ports=[Port(id=f"nic:mlx5_{i}:1") for i in range(2)],
        )
