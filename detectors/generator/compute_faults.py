"""Faults that slow down own compute or the wait for data, and what the devices and hosts under it report."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.generator.network_faults import slow_cable
from mainstay.detectors.generator.truth import Truth, blame, one_node, one_rack, one_rank
from mainstay.detectors.generator.world import World

_K = FindingKind
_SLOW = (_K.STRAGGLER, _K.DEVICE_SLOW)
_HOT = (_K.STRAGGLER, _K.DEVICE_SLOW, _K.SIGNAL_OUTLIER)
Rng = np.random.Generator


def slow_rank(world: World, step: int, rng: Rng) -> Truth:
    """A GPU computes 8 % slower: worn silicon, or memory that corrects itself."""
    rank = one_rank(world, rng)
    world.slow(step, [rank], 1.08)
    return blame(step, _SLOW, [rank])


def slow_start(world: World, _step: int, rng: Rng) -> Truth:
    """A GPU is 8 % slow from the first step, as 0.5 % of the machines of MegaScale (NSDI 2024)."""
    return slow_rank(world, 0, rng)


def creeping(world: World, step: int, rng: Rng) -> Truth:
    """A GPU becomes slower by degrees, up to 15 %: dust, a failing fan, dried thermal paste."""
    rank = one_rank(world, rng)
    world.slow(step, [rank], np.linspace(1.0, 1.15, world.steps - step)[:, None])
    return blame(step, _SLOW, [rank])


def intermittent(world: World, step: int, rng: Rng) -> Truth:
    """A GPU is 12 % slow for five of ten steps: a flapping power or thermal limit."""
    rank = one_rank(world, rng)
    bursts = np.where(np.arange(world.steps - step) % 10 < 5, 1.12, 1.0)
    world.slow(step, [rank], bursts[:, None])
    return blame(step, _SLOW, [rank])


def migrating(world: World, step: int, rng: Rng) -> Truth:
    """Another rank is 15 % slow every ten steps: a periodic job of the operating system that visits each node."""
    count = -(-(world.steps - step) // 10)
    ranks = rng.choice(world.mesh.size, count, replace=False)
    for turn, rank in enumerate(ranks):
        here = np.where(np.arange(world.steps - step) // 10 == turn, 1.15, 1.0)
        world.slow(step, [int(rank)], here[:, None])
    return blame(step, _SLOW, ranks)


def two_stragglers(world: World, step: int, rng: Rng) -> Truth:
    """Two GPUs on different nodes become slow at once."""
    first = one_rank(world, rng)
    other = rng.choice([row for row, node in enumerate(world.mesh.nodes) if node != world.mesh.nodes[first]])
    world.slow(step, [first, int(other)], np.array([[1.08, 1.10]]))
    return Truth(step=step, parts=tuple(blame(step, _SLOW, [int(rank)]) for rank in (first, other)))


def straggler_and_cable(world: World, step: int, rng: Rng) -> Truth:
    """Two independent faults at once: a slow GPU, and a slow cable."""
    return Truth(step=step, parts=(slow_rank(world, step, rng), slow_cable(world, step, rng)))


def slow_node(world: World, step: int, rng: Rng) -> Truth:
    """All ranks of a node are 10 % slow: its processor fell into a power-saving state."""
    rows = one_node(world, rng)
    world.slow(step, rows, 1.10)
    return blame(step, _SLOW, rows)


def bad_image(world: World, _step: int, rng: Rng) -> Truth:
    """A quarter of the nodes runs another image and is 6 % slow from the first step: a driver, a kernel parameter."""
    nodes = rng.choice(world.nodes, max(1, len(world.nodes) // 4), replace=False)
    rows = np.flatnonzero(np.isin(world.mesh.nodes, nodes))
    world.slow(0, rows, 1.06)
    return blame(0, _SLOW, rows)


def throttled(world: World, step: int, rng: Rng) -> Truth:
    """Heat holds the clock of a GPU down; its rank becomes slow."""
    rows = np.array([one_rank(world, rng)])
    world.slow(step, rows, 1.25)
    world.change("gpu_throttle_hardware_thermal_nanoseconds_total", step, rows, 0.9e9)
    world.change("gpu_sm_clock_hertz", step, rows, 1.3e9)
    world.change("gpu_temperature_celsius", step, rows, 90.0)
    return blame(step, [_K.THERMAL_THROTTLE], rows, _HOT)


def rack_cooling(world: World, step: int, rng: Rng) -> Truth:
    """The cooling of a rack fails: its GPUs heat up over minutes and throttle more and more."""
    rows = one_rack(world, rng)
    world.slow(step, rows, np.linspace(1.0, 1.3, world.steps - step)[:, None])
    world.change("gpu_temperature_celsius", step, rows, 62.0, 92.0)
    world.change("gpu_sm_clock_hertz", step, rows, 1.755e9, 1.3e9)
    world.change("gpu_throttle_hardware_thermal_nanoseconds_total", step, rows, 0.0, 0.9e9)
    return blame(step, [_K.THERMAL_THROTTLE], rows, _HOT)


def _braked(world: World, step: int, rows: np.ndarray) -> Truth:
    world.slow(step, rows, 1.2)
    world.change("gpu_throttle_power_brake_nanoseconds_total", step, rows, 0.95e9)
    world.change("gpu_sm_clock_hertz", step, rows, 1.2e9)
    world.change("gpu_power_watts", step, rows, 430.0)
    return blame(step, [_K.POWER_BRAKE], rows, _HOT)


def power_brake(world: World, step: int, rng: Rng) -> Truth:
    """A power supply of a node fails, and the board asserts the brake on all its GPUs."""
    return _braked(world, step, one_node(world, rng))


def rack_power_brake(world: World, step: int, rng: Rng) -> Truth:
    """The power distribution of a rack asserts the brake on every GPU in it."""
    return _braked(world, step, one_rack(world, rng))


def contended(world: World, step: int, rng: Rng) -> Truth:
    """Another process runs on a rank's core: the rank is ready and waits for its turn (FALCON)."""
    rank = one_rank(world, rng)
    world.own["run_delay_seconds"][step:, rank] += 0.25 * world.seconds * rng.gamma(20.0, 0.05, world.steps - step)
    return blame(step, [_K.CPU_CONTENTION], [rank])


def slowdown(world: World, step: int, _rng: Rng) -> Truth:
    """All ranks become slower by an eighth: a power cap, a change of the code."""
    world.slow(step, np.arange(world.mesh.size), 1.125)
    return blame(step, [_K.JOB_SLOWDOWN])


def _late(world: World, step: int, rng: Rng, rows: np.ndarray, *, each: bool = False) -> None:
    """Loaders of these ranks are late again and again, together or each by its own."""
    late = 0.4 * world.seconds * rng.gamma(4.0, 0.25, (world.steps - step, len(rows) if each else 1))
    world.own["data_wait_seconds"][step:, rows] += late


def stalled_data(world: World, step: int, rng: Rng) -> Truth:
    """The loader of a replica is late again and again."""
    rows = np.flatnonzero(world.mesh.on("dp") == rng.integers(world.dp))
    _late(world, step, rng, rows)
    return blame(step, [_K.DATA_STALL], rows)


def slow_storage(world: World, step: int, rng: Rng) -> Truth:
    """The shared file system is slow, and every loader is late."""
    _late(world, step, rng, np.arange(world.mesh.size), each=True)
    return blame(step, [_K.DATA_STALL], range(world.mesh.size), job=True)


def slow_node_storage(world: World, step: int, rng: Rng) -> Truth:
    """The mount or the local disk of a node is slow, and the loaders on it are late."""
    rows = one_node(world, rng)
    _late(world, step, rng, rows, each=True)
    return blame(step, [_K.DATA_STALL], rows)
