"""Telemetry of a fleet in which nothing is broken, but much happens: the other half of every detector's proof.

``healthy_chunks(gpus, seconds, seed, chunk)`` yields ``Samples`` of the GPU source, as the detection loop's feed would
cut them from the ring: counters as rates, slow tiers as NaN between two readings, the host's ``uptime_seconds`` beside.
One second of 10,000 GPUs costs a few milliseconds. What is in it, all of it healthy:

- jobs that start, run in steps, write checkpoints, fluctuate, end; of different sizes, weights and memory;
- power at its limit with clocks held down for it; temperatures that follow power, the place in the chassis and the day;
- idle cards with low clocks and PCIe generation 1;
- GPUs that differ by a few percent, and a few whose corrected errors come often, alone or in bursts;
- sensors that stick for minutes, seconds without a sample, nodes silent for a while;
- planned reboots (counters and uptime restart, links and fabric train for a minute) and driver reloads;
- throttle-time counters that move by a nanosecond, short touches of software thermal slowdown;
- a recovery action of the IMEX domain on idle cards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity

PER_NODE = 8
NODES_PER_RACK = 16
START = 1_700_000_000.0
_DAY = 86_400.0

FAST = (
    "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_temperature_celsius", "gpu_memory_temperature_celsius",
    "gpu_power_watts", "gpu_sm_clock_hertz", "gpu_memory_clock_hertz", "gpu_temperature_margin_celsius",
    "gpu_throttle_power_cap_nanoseconds_total", "gpu_throttle_thermal_nanoseconds_total",
    "gpu_throttle_software_thermal_nanoseconds_total", "gpu_throttle_hardware_thermal_nanoseconds_total",
    "gpu_throttle_power_brake_nanoseconds_total", "gpu_ecc_corrected_total", "gpu_ecc_uncorrected_total",
    "gpu_pcie_replay_total", "gpu_pcie_generation", "gpu_pcie_generation_max", "gpu_pcie_width", "gpu_pcie_width_max",
)  # fmt: skip
"""Read each second."""
SLOW = (
    "gpu_power_limit_watts", "gpu_recovery_action", "gpu_remap_pending", "gpu_remap_failed",
    "gpu_sram_threshold_exceeded", "gpu_nvlinks_active", "gpu_nvlinks_supported", "gpu_nvlink_worst_link",
    "gpu_nvlink_worst_link_errors_per_second", "gpu_fabric_state", "gpu_fabric_health_mask",
    "gpu_ecc_corrected_aggregate_total", "gpu_ecc_uncorrected_aggregate_total", "gpu_remapped_rows_corrected_total",
    "gpu_remapped_rows_uncorrected_total", "gpu_pcie_recoveries_total", "gpu_pcie_correctable_errors_total",
    "gpu_pcie_nonfatal_errors_total", "gpu_pcie_fatal_errors_total", "gpu_pcie_receive_bytes_total",
    "gpu_pcie_transmit_bytes_total", "gpu_nvlink_replays_total", "gpu_nvlink_recoveries_total",
    "gpu_nvlink_crc_errors_total",
)  # fmt: skip
"""Read each 10 s, at a phase of the node's own."""
SIGNALS = (*FAST, *SLOW, "uptime_seconds")
ROW = {name: row for row, name in enumerate(SIGNALS)}
_SLOW_ROWS = slice(len(FAST), len(FAST) + len(SLOW))
HEALTHY_MASK = 0b01_10_10_10_10
"""Fabric health: no degraded bandwidth, no route trouble, no time-outs, no misconfiguration."""
_IDLE, _STARTING, _BUSY = 0, 1, 2
_TRAINING_SECONDS = 60.0
"""How long links and fabric train after a boot."""


def healthy_chunks(gpus: int, seconds: int, seed: int, chunk: int = 60, start: float = START) -> Iterator[Samples]:
    """The telemetry of a healthy fleet.

    Args:
        gpus: E; a multiple of 8 makes whole nodes.
        seconds: simulated in all.
        seed: the same seed gives the same bytes, however long the chunks are.
        chunk: seconds in one ``Samples``; each is a fresh array, so a test may write a fault into it.
        start: Unix time of the first second.
    """
    fleet = HealthyFleet(gpus, seed, start)
    for begin in range(0, seconds, chunk):
        yield fleet.next(min(chunk, seconds - begin))


class HealthyFleet:
    """The state behind ``healthy_chunks``: for a test that wants to look inside, or to plan a reboot.

    Entities are ``n0000``/``GPU-0000-0`` …; ``groups`` name one cohort; ``racks`` maps a node to its rack.
    """

    def __init__(self, gpus: int, seed: int, start: float = START) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.now, self.gpus = start, gpus
        self.node = np.arange(gpus) // PER_NODE
        self.nodes = int(self.node[-1]) + 1 if gpus else 0
        self.entities = tuple(
            Entity(node=f"n{n:04d}", device=f"GPU-{n:04d}-{i % PER_NODE}") for i, n in enumerate(self.node)
        )
        self.groups = ("pod-a/H100",) * gpus
        self.racks = {f"n{n:04d}": f"r{n // NODES_PER_RACK:03d}" for n in range(self.nodes)}
        # what a card is
        place = np.arange(gpus) % PER_NODE
        self.heat = (0.052 * (1 + 0.04 * rng.standard_normal(gpus)) + 0.001 * (place % 4)).astype(np.float32)
        self.inlet = (22 + 2 * rng.standard_normal(self.nodes))[self.node].astype(np.float32)
        self.thirst = (1 + 0.025 * rng.standard_normal(gpus)).astype(np.float32)
        self.temperature = self.inlet + 8
        # a few cards see corrected errors often: gamma-distributed rates with a heavy tail, events a second
        self.corrected = rng.gamma(0.05, 20.0 / 0.05 / _DAY / 20, gpus)
        self.replays = rng.gamma(0.1, 5.0 / 0.1 / _DAY / 10, gpus)
        self.phase = rng.integers(0, 10, self.nodes)[self.node]
        # what a node is doing
        self.uptime = rng.uniform(600, 30 * _DAY, self.nodes)
        self.away = np.zeros(self.nodes)  # seconds of silence left
        self.loaded = np.full(self.nodes, 1e9)  # since the driver was loaded
        self.fresh = np.ones(gpus, np.bool_)  # the next reading of the fast counters has no predecessor
        self.fresh_slow = np.ones(gpus, np.bool_)
        self.stuck = np.full(gpus, np.nan, np.float32)
        self.idle_for = np.full(gpus, 100.0)
        self._fill_slots()

    def _fill_slots(self) -> None:
        """Cut the fleet into slots in which jobs follow one another."""
        sizes: list[int] = []
        while sum(sizes) < self.nodes:
            sizes.append(min(int(2 ** self.rng.integers(0, 6)), self.nodes - sum(sizes)))
        self.slot = np.repeat(np.arange(len(sizes)), sizes)[self.node] if sizes else np.zeros(0, np.intp)
        slots = len(sizes)
        self.work = np.where(self.rng.random(slots) < 0.8, _BUSY, _IDLE)
        self.left = self.rng.uniform(60, 7200, slots)
        self.draw = np.zeros(slots, np.float32)
        self.memory = np.zeros(slots, np.float32)
        self.step = np.ones(slots)
        self.every = np.ones(slots)
        self.ran = self.rng.uniform(0, 600, slots)
        for one in range(slots):
            self._take_up(one)

    def _take_up(self, slot: int) -> None:
        """A new job's nature: watts under load, memory, seconds a step, seconds between checkpoints."""
        rng = self.rng
        self.draw[slot] = rng.choice([690.0, 640.0, 560.0, 430.0, 300.0], p=[0.3, 0.3, 0.2, 0.1, 0.1])
        self.memory[slot] = rng.uniform(20e9, 78e9)
        self.step[slot] = rng.uniform(2, 20)
        self.every[slot] = rng.uniform(300, 1800)

    def next(self, seconds: int) -> Samples:
        """The next seconds of all GPUs."""
        x = np.full((seconds, len(SIGNALS), self.gpus), np.nan, np.float32)
        t = self.now + np.arange(seconds, dtype=np.float64)
        for k in range(seconds):
            self._second(x[k])
            self.now += 1.0
        return Samples(entities=self.entities, groups=self.groups, signals=SIGNALS, t=t, x=x)

    def reboot(self, node: int, seconds: float = 240.0) -> None:
        """Take a node down in order; it comes back with new counters."""
        self.away[node], self.uptime[node], self.loaded[node] = seconds, -seconds + 45.0, -seconds + 30.0

    def reload_driver(self, node: int, seconds: float = 20.0) -> None:
        self.away[node], self.loaded[node] = seconds, -seconds

    def _second(self, x: np.ndarray) -> None:
        self._happen()
        self._work()
        up = (self.away <= 0)[self.node]
        self._fast(x)
        slow = (int(self.now) % 10 == self.phase) & up
        if slow.any():
            self._slow(x, slow)
        x[ROW["uptime_seconds"]] = self.uptime[self.node]
        x[:, ~up] = np.nan
        self.fresh = ~up
        self.fresh_slow |= ~up
        if self.rng.random() < self.nodes * 4e-5:  # one node's second is lost now and then
            x[:, self.node == self.rng.integers(0, max(self.nodes, 1))] = np.nan

    def _happen(self) -> None:
        """Reboots, driver reloads, outages, sensors that stick."""
        rng, nodes = self.rng, self.nodes
        self.uptime += 1.0
        self.loaded += 1.0
        self.away -= 1.0
        if rng.random() < nodes / (7 * _DAY):
            self.reboot(int(rng.integers(nodes)), rng.uniform(180, 400))
        if rng.random() < nodes / (5 * _DAY):
            self.reload_driver(int(rng.integers(nodes)))
        if rng.random() < nodes / (2 * _DAY):
            self.away[rng.integers(nodes)] = rng.uniform(5, 60)
        if rng.random() < self.gpus / (2 * _DAY):
            one = rng.integers(self.gpus)
            self.stuck[one] = np.rint(self.temperature[one])
        if rng.random() < 0.01:
            self.stuck[:] = np.nan

    def _work(self) -> None:
        """Let jobs begin and end."""
        self.left -= 1.0
        self.ran += 1.0
        for one in np.flatnonzero(self.left <= 0):
            if self.work[one] == _IDLE:
                self.work[one], self.left[one] = _STARTING, self.rng.uniform(20, 120)
                self._take_up(one)
            elif self.work[one] == _STARTING:
                self.work[one], self.left[one], self.ran[one] = _BUSY, self.rng.uniform(600, 20_000), 0.0
            else:
                self.work[one], self.left[one] = _IDLE, self.rng.uniform(60, 1800)

    def _fast(self, x: np.ndarray) -> None:
        rng, slot, gpus = self.rng, self.slot, self.gpus
        busy_slot = (self.work == _BUSY) & (self.ran % self.every > 25.0 * (self.ran > 60))  # the rest is a checkpoint
        wave = (1 - 0.08 * (np.sin(2 * np.pi * self.ran / self.step) > 0.6)).astype(np.float32)
        busy = busy_slot[slot] & (self.loaded > 60)[self.node]
        self.idle_for = np.where(busy, 0.0, self.idle_for + 1.0)
        noise = rng.standard_normal((4, gpus), np.float32)
        util = np.where(busy, np.clip(0.97 * wave[slot] + 0.02 * noise[0], 0, 1), 0.0)
        wanted = np.where(busy, self.draw[slot] * wave[slot] * self.thirst + 8 * noise[1], 75 + 2 * noise[1])
        power = np.minimum(wanted, 700 + noise[1])
        ambient = self.inlet + 2 * np.sin(2 * np.pi * self.now / _DAY)
        self.temperature += (ambient + 6 + self.heat * power - self.temperature) * np.float32(1 / 30)
        temperature = np.rint(self.temperature + 0.3 * noise[2])
        temperature = np.where(np.isnan(self.stuck), temperature, self.stuck)
        capped = wanted > 695
        clock = np.where(busy, 1980e6 - 15e6 * np.rint(np.maximum(wanted - 560, 0) / 8 + 0.5 * np.abs(noise[3])), 345e6)
        values = {
            "gpu_utilization_ratio": util, "gpu_power_watts": power, "gpu_temperature_celsius": temperature,
            "gpu_memory_temperature_celsius": temperature + 9, "gpu_temperature_margin_celsius": 87 - temperature,
            "gpu_sm_clock_hertz": clock, "gpu_memory_clock_hertz": np.float32(2619e6),
            "gpu_memory_used_bytes": np.where(self.work[slot] == _IDLE, 5e8, self.memory[slot]),
            "gpu_pcie_generation": np.where(self.idle_for > 4, 1.0, 5.0), "gpu_pcie_generation_max": 5.0,
            "gpu_pcie_width": 16.0, "gpu_pcie_width_max": 16.0,
        }  # fmt: skip
        for name, value in values.items():
            x[ROW[name]] = value
        self._fast_counters(x, capped)

    def _fast_counters(self, x: np.ndarray, capped: np.ndarray) -> None:
        rng, gpus = self.rng, self.gpus
        x[ROW["gpu_throttle_power_cap_nanoseconds_total"]] = np.where(capped, np.float32(9e8), 0)
        for name in FAST[9:16]:
            x[ROW[name]] = 0.0
        touched = rng.integers(0, max(gpus, 1), 3)
        for name, most in (
            ("thermal", 1e6),
            ("software_thermal", 5e7),
            ("hardware_thermal", 1.0),
            ("power_brake", 1.0),
        ):
            x[ROW[f"gpu_throttle_{name}_nanoseconds_total"], touched] = rng.integers(0, int(most), endpoint=True)
        self._events(x[ROW["gpu_ecc_corrected_total"]], self.corrected, 1.0, burst=0.1)
        self._events(x[ROW["gpu_pcie_replay_total"]], self.replays, 1.0)
        x[13:16, self.fresh] = np.nan  # a first reading has no rate
        x[8:13, self.fresh] = np.nan

    def _events(self, row: np.ndarray, rate: np.ndarray, seconds: float, burst: float = 0.0) -> None:
        """Counts over ``seconds`` as a rate, drawn sparsely; a burst is one weak cell read again and again."""
        rng = self.rng
        total = rng.poisson(rate.sum() * seconds)
        if total:
            hit = rng.choice(self.gpus, total, p=rate / rate.sum())
            size = np.where(rng.random(total) < burst, rng.geometric(0.05, total), 1)
            np.add.at(row, hit, size / seconds)

    def _slow(self, x: np.ndarray, now: np.ndarray) -> None:
        training = (self.loaded < _TRAINING_SECONDS)[self.node]
        booting = training & (self.uptime < 300)[self.node]
        settling = (self.loaded < 12)[self.node]
        idle = self.work[self.slot] == _IDLE
        rows = np.zeros((len(SLOW), self.gpus), np.float32)
        put = {name: i for i, name in enumerate(SLOW)}
        rows[put["gpu_power_limit_watts"]] = 700.0
        rows[put["gpu_recovery_action"]] = np.where(idle & (self.node % 97 == 5), 5.0, 0.0)
        rows[put["gpu_nvlinks_supported"]] = 18.0
        trained = np.clip(np.floor(self.loaded[self.node] / 3), 0, 18)
        rows[put["gpu_nvlinks_active"]] = np.where(booting, trained, np.where(settling, 0.0, 18.0))
        rows[put["gpu_fabric_state"]] = np.where(training, 2.0, 3.0)
        rows[put["gpu_fabric_health_mask"]] = HEALTHY_MASK
        busy = (self.idle_for == 0).astype(np.float32)
        for name in ("gpu_pcie_receive_bytes_total", "gpu_pcie_transmit_bytes_total"):
            rows[put[name]] = 1e6 + 2e9 * busy
        rows[put["gpu_pcie_recoveries_total"]] = np.where((self.idle_for > 0) & (self.idle_for < 15), 0.2, 0.0)
        self._events(rows[put["gpu_pcie_correctable_errors_total"]], self.replays, 10.0)
        rows[put["gpu_nvlink_recoveries_total"]] = 0.3 * settling
        for name in SLOW:
            if name.endswith("_total"):
                rows[put[name], self.fresh_slow] = np.nan
        rows[put["gpu_nvlink_worst_link_errors_per_second"], self.fresh_slow] = np.nan
        x[_SLOW_ROWS, now] = rows[:, now]
        self.fresh_slow &= ~now
