"""A simulated fleet as its daemons would report it: cards, ports and hosts with plausible numbers and running counters.

What a story changes, it changes here (a share of throttled time, a link's error rate, a lost card); the frames that
result go the way of real ones. Slow tiers are read every ten or sixty seconds, staggered over the cards as the real
sampler does, and are missing in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import HOST_DEVICE
from mainstay.probes.frame import Axis, Frame, checksum
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, Catalog, SignalSource, catalog

CATALOG: Catalog = catalog(SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)
_ROW = {name: row for row, name in enumerate(CATALOG.narrow)}
_WIDE_ROW = {name: row for row, name in enumerate(CATALOG.wide)}
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
_COUNTERS = {s: np.array([r for n, r in _WIDE_ROW.items() if SIGNALS[n].source is s], np.intp) for s in SignalSource}
"""Where the counters of a source stand. Whole rows are written at once."""
_SLOW = np.array([_ROW[name] for name in _TEN_SECONDS if name in _ROW])
_SLOW_WIDE = frozenset(_WIDE_ROW[name] for name in _TEN_SECONDS if name in _WIDE_ROW)
_QUICK = np.array([row for row in _COUNTERS[SignalSource.GPU].tolist() if row not in _SLOW_WIDE], np.intp)
_GPU_SAYS = np.array([_ROW[name] for name in (
    "gpu_utilization_ratio", "gpu_power_watts", "gpu_temperature_celsius", "gpu_memory_temperature_celsius",
    "gpu_temperature_margin_celsius", "gpu_sm_clock_hertz", "gpu_memory_used_bytes", "gpu_throttle_reasons",
    "gpu_pcie_generation", "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_memory_clock_hertz",
    "gpu_pcie_generation_max", "gpu_pcie_width", "gpu_pcie_width_max", "gpu_power_limit_watts", "gpu_recovery_action",
    "gpu_remap_pending", "gpu_remap_failed", "gpu_sram_threshold_exceeded",
    "gpu_nvlink_worst_link_errors_per_second", "gpu_fabric_state", "gpu_fabric_health_mask",
)])  # fmt: skip
_ALWAYS = (2.619e9, 5.0, 16.0, 16.0, LIMIT_W, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0)
"""What the last of them say unless a story says otherwise: from the memory clock on."""
_HOST_SAYS = {
    "cpu_utilization_ratio": 0.2, "cpu_steal_ratio": 0.0, "load_1m": 12.0, "memory_used_bytes": 4e11,
    "memory_used_ratio": 0.2, "shm_used_ratio": 0.1, "disk_used_ratio": 0.4, "inodes_used_ratio": 0.1,
    "processes_blocked": 0.0, "processes_stuck": 0.0, "filesystems_read_only": 0.0, "clock_synchronized": 1.0,
    "clock_error_seconds": 1e-4, "fabric_manager_up": 1.0,
}  # fmt: skip
_HOST_ROWS, _HOST_VALUES = np.array([_ROW[name] for name in _HOST_SAYS]), np.array([*_HOST_SAYS.values()])
_PORT_ROWS = np.array([_ROW["nic_link_up"], _ROW["nic_rate_bits_per_second"]])
_PORT_VALUES = np.array([1.0, 400e9])
_JITTER = np.array([6.0, 0.01, 0.8, 0.8])
"""Of a card's power, utilization (when busy) and two temperatures, in this order."""
_DIGEST = CATALOG.digest
Narrow = NDArray[np.float32]
Wide = NDArray[np.int64]


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
    """Utilization that its job asks for, 0 to 1."""
    power_share: float | None = None
    """Power as a share of its limit; None: what the load needs."""
    links: int = 18

    def throttle(self, cause: str, share: float) -> None:
        """Hold its clocks down for ``share`` of each second from now on."""
        self.rates[f"gpu_throttle_{cause}_nanoseconds_total"] = share * 1e9

    def held(self) -> float:
        """Nanoseconds of each second in which a brake or heat holds its clocks down."""
        if not self.rates:
            return 0.0
        causes = ("power_brake", "hardware_thermal")
        return sum(self.rates.get(f"gpu_throttle_{cause}_nanoseconds_total", 0.0) for cause in causes)


@dataclass
class Port(Thing):
    """A network port at 400 Gbit/s."""


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


def frames(nodes: Sequence[Node], t: float, chance: np.random.Generator) -> list[Frame]:
    """One second of everything that answers, counters advanced by that second: a frame of each node.

    All nodes speak at once: a story is some hundred thousand cards and seconds.
    """
    things = [thing for node in nodes for thing in node.things()]
    narrow = np.full((len(things), len(CATALOG.narrow)), np.nan, "<f4")
    wide = np.full((len(things), len(CATALOG.wide)), WIDE_MISSING, "<i8")
    for thing in things:
        thing.advance()
    spoken = [(row, thing) for row, thing in enumerate(things) if thing.answers]
    cards = [(row, thing) for row, thing in spoken if isinstance(thing, Gpu)]
    if cards:
        rows = np.array([row for row, _ in cards])
        turn = np.array([card.index for _, card in cards])
        narrow[np.ix_(rows, _GPU_SAYS)] = _cards_say([card for _, card in cards], chance)
        for row, card in cards:
            if card.index == int(t) % 60:
                narrow[row, _ROW["gpu_processes"]] = bool(card.load)
        wide[np.ix_(rows, _QUICK)] = 0
        wide[np.ix_(rows[int(t) % 10 == turn % 10], _COUNTERS[SignalSource.GPU])] = 0
    ports = np.array([row for row, thing in spoken if isinstance(thing, Port)], np.intp)
    narrow[np.ix_(ports, _PORT_ROWS)] = _PORT_VALUES
    wide[np.ix_(ports, _COUNTERS[SignalSource.NIC])] = 0
    hosts = np.array([row for row, thing in spoken if thing.id == HOST_DEVICE], np.intp)
    narrow[np.ix_(hosts, _HOST_ROWS)] = _HOST_VALUES
    booted = {id(node.host): node.booted_at for node in nodes}
    narrow[hosts, _ROW["uptime_seconds"]] = [t - booted[id(things[row])] for row in hosts]
    wide[np.ix_(hosts, _COUNTERS[SignalSource.HOST])] = 0
    for row, thing in spoken:
        _special(thing, narrow[row], wide[row], int(t))
    made, end = [], 0
    for node in nodes:
        mine = slice(end, end := end + len(node.things()))
        node.sequence += 1
        values, big = narrow[mine].tobytes(), wide[mine].tobytes()
        made.append(Frame(
            version=1, subject=node.name, axis=Axis.TIME, stream="sim", sequence=node.sequence, t0=t, dt=1.0,
            catalog=_DIGEST, entities=tuple(thing.id for thing in things[mine]), samples=1, values=values,
            wide=big, crc32=checksum(values, big),
        ))  # fmt: skip
    return made


def _cards_say(cards: list[Gpu], chance: np.random.Generator) -> NDArray[np.float64]:
    """What the driver says now of healthy cards under their load: [card, ``_GPU_SAYS``]."""
    load = np.array([card.load for card in cards])
    share = np.array([0.9 * card.load if card.power_share is None else card.power_share for card in cards])
    held = np.array([card.held() for card in cards])
    links = np.array([card.links for card in cards])
    busy = load > 0
    watts, used, core, memory = chance.normal(0.0, _JITTER, (len(cards), len(_JITTER))).T
    said = np.empty((len(cards), len(_GPU_SAYS)))
    said[:, 0] = np.where(busy, np.clip(load + used, 0.0, 1.0), 0.0)
    said[:, 1] = np.maximum(40.0, IDLE_W + share * (LIMIT_W - IDLE_W) + watts)
    said[:, 2] = np.round(32.0 + 34.0 * share + core)
    said[:, 3] = np.round(36.0 + 38.0 * share + memory)
    said[:, 4] = np.round(55.0 - 34.0 * share)
    said[:, 5] = np.where(busy, 1.98e9, 345e6) * (1.0 - 0.6 * np.minimum(held / 1e9, 1.0))
    said[:, 6] = np.where(busy, 70e9, 0.5e9)
    said[:, 7] = ~busy
    said[:, 8] = np.where(busy, 5.0, 1.0)
    said[:, 9] = said[:, 10] = links
    said[:, -len(_ALWAYS) :] = _ALWAYS
    return said


def _special(thing: Thing, narrow: Narrow, wide: Wide, second: int) -> None:
    """What a story says of it, its counters, and the silence of slow tiers."""
    late = isinstance(thing, Gpu) and second % 10 != thing.index % 10
    for name, value in thing.gauges.items():
        narrow[_ROW[name]] = value
    if late:
        narrow[_SLOW] = np.nan
    for name, total in thing.totals.items():
        place = _WIDE_ROW[name]
        if not (late and place in _SLOW_WIDE):
            wide[place] = int(total)


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
