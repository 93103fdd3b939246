"""Healthy runs that resemble faults: nothing of them may be blamed on a rank, a node, or the job."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.generator.truth import Truth, one_node, one_rank
from mainstay.detectors.generator.world import World
from mainstay.probes.core_types import StepPhase

_MICRO_BATCHES = 8
Rng = np.random.Generator


def _pause(world: World, step: int, phase: StepPhase, seconds: float) -> Truth:
    world.pauses[step] += seconds
    world.phase[step] = float(phase)
    return Truth(step=step)


def _work(world: World, step: int, factor: float | np.ndarray) -> Truth:
    """All ranks have ``factor`` times as much to compute from ``step`` on, and report as many tokens."""
    rows = np.arange(world.mesh.size)
    world.slow(step, rows, factor)
    world.own["tokens"][step:] *= factor
    world.own["sequence_squares"][step:] *= factor
    return Truth(step=step)


def nothing(world: World, step: int, _rng: Rng) -> Truth:
    """A healthy run with one checkpoint in it."""
    return _pause(world, step, StepPhase.CHECKPOINT, 90.0)


def evaluation(world: World, step: int, _rng: Rng) -> Truth:
    """One evaluation of two minutes."""
    return _pause(world, step, StepPhase.EVALUATE, 120.0)


def evaluations(world: World, step: int, rng: Rng) -> Truth:
    """A short evaluation every 15 steps."""
    for at in range(15, world.steps, 15):
        _pause(world, at, StepPhase.EVALUATE, float(rng.uniform(5.0, 15.0)))
    return Truth(step=step)


def checkpoints(world: World, step: int, rng: Rng) -> Truth:
    """A checkpoint every 20 steps, some of them much longer than others."""
    for at in range(20, world.steps, 20):
        _pause(world, at, StepPhase.CHECKPOINT, float(3.0 * rng.lognormal(0.0, 0.7)))
    return Truth(step=step)


def compilation(world: World, step: int, _rng: Rng) -> Truth:
    """The program is compiled once more, for minutes."""
    return _pause(world, step, StepPhase.COMPILE, 200.0)


def recompilation(world: World, step: int, rng: Rng) -> Truth:
    """New shapes are compiled now and then."""
    for at in rng.choice(np.arange(10, world.steps), 3, replace=False):
        _pause(world, int(at), StepPhase.COMPILE, float(rng.uniform(10.0, 40.0)))
    return Truth(step=step)


def long_warm_up(world: World, step: int, _rng: Rng) -> Truth:
    """The first twenty steps become faster one after the other: caches, autotuning."""
    world.phase[:20] = float(StepPhase.WARM_UP)
    world.slow(0, np.arange(world.mesh.size), 1.0 + np.exp(-np.arange(world.steps) / 5.0)[:, None])
    return Truth(step=step)


def expert_imbalance(world: World, step: int, rng: Rng) -> Truth:
    """Mixture of experts: the load of each rank wanders by 4 % as tokens change their experts."""
    load = np.zeros(world.mesh.size)
    for at in range(world.steps):
        load = 0.9 * load + rng.normal(0.0, 0.04 * np.sqrt(1 - 0.81), world.mesh.size)
        world.own["forward_seconds"][at] *= np.exp(load)
        world.own["backward_seconds"][at] *= np.exp(load)
    return Truth(step=step, also=frozenset({FindingKind.SEQUENCE_IMBALANCE}))


def long_context(world: World, step: int, _rng: Rng) -> Truth:
    """Sequences grow to four times their length at the same number of tokens: attention costs more, step by step."""
    ramp = np.linspace(1.0, 4.0, world.steps - step)[:, None]
    world.own["sequence_squares"][step:] *= ramp
    world.slow(step, np.arange(world.mesh.size), 1.0 + 0.15 * (ramp - 1.0))
    return Truth(step=step)


def data_mix(world: World, step: int, _rng: Rng) -> Truth:
    """Another mix of data from a step on: 30 % more tokens a step, on every rank."""
    return _work(world, step, 1.3)


def one_long_sequence(world: World, step: int, rng: Rng) -> Truth:
    """One replica gets one very long sequence: it takes twice the time in one step."""
    rows = np.flatnonzero(world.mesh.on("dp") == rng.integers(world.dp))
    for name in ("tokens", "forward_seconds", "backward_seconds"):
        world.own[name][step, rows] *= 2.0
    world.own["sequence_squares"][step, rows] *= 4.0
    return Truth(step=step, also=frozenset({FindingKind.SEQUENCE_IMBALANCE}))


def accumulation(world: World, step: int, _rng: Rng) -> Truth:
    """Twice as many micro-batches a step from a step on, as a schedule of the batch size wants it."""
    world.own["micro_batches"][:step], world.own["micro_batches"][step:] = _MICRO_BATCHES, 2 * _MICRO_BATCHES
    return _work(world, step, 2.0)


def elastic_shape(world: World, step: int, rng: Rng) -> Truth:
    """A replica leaves the job, and the others share its micro-batches; steps become longer."""
    replica, gone = world.mesh.on("dp"), int(rng.integers(world.dp))
    world.since, world.absent = step, np.flatnonzero(replica == gone)
    share, extra = divmod(_MICRO_BATCHES * world.dp, world.dp - 1)
    order = np.cumsum(np.arange(world.dp) != gone) - 1
    counts = share + (order[replica] < extra)
    world.own["micro_batches"][:step], world.own["micro_batches"][step:] = _MICRO_BATCHES, counts
    return _work(world, step, np.where(replica == gone, 1.0, counts / _MICRO_BATCHES))


def swing(world: World, step: int, rng: Rng) -> Truth:
    """The speed of all ranks swings by 5 % over 300 steps: the power of the site, other jobs in the fabric."""
    phase = rng.uniform(0.0, 2.0 * np.pi)
    wave = 1.0 + 0.025 * np.sin(2.0 * np.pi * np.arange(world.steps) / 300.0 + phase)
    world.slow(0, np.arange(world.mesh.size), wave[:, None])
    return Truth(step=step)


def day_and_night(world: World, step: int, rng: Rng) -> Truth:
    """The room becomes warmer, and all ranks 2 % slower, each node a little differently (Llama 3: 1 to 2 %)."""
    nodes = np.array([world.nodes.index(node) for node in world.mesh.nodes])
    most = rng.uniform(0.015, 0.025, len(world.nodes))[nodes]
    world.slow(0, np.arange(world.mesh.size), 1.0 + np.linspace(0.0, 1.0, world.steps)[:, None] * most)
    world.change("gpu_temperature_celsius", 0, np.arange(world.mesh.size), 60.0, 66.0)
    return Truth(step=step)


def learning_rate_restart(world: World, step: int, _rng: Rng) -> Truth:
    """The learning rate starts again: the loss rises by a quarter, the gradients double, and both fall again."""
    bump = np.exp(-np.arange(world.steps - step) / 8.0)[:, None]
    world.own["loss"][step:] *= 1.0 + 0.25 * bump
    world.own["gradient_norm"][step:] *= 1.0 + bump
    return Truth(step=step)


def garbage_collection(world: World, step: int, rng: Rng) -> Truth:
    """Python collects garbage, each rank in another step (What-if, OSDI 2025): advice is right, blame is not."""
    turn = rng.integers(0, 20, world.mesh.size)
    due = np.arange(world.steps)[:, None] % 20 == turn
    world.own["gc_seconds"] += due * 0.15 * world.seconds * rng.uniform(0.8, 1.2, due.shape)
    return Truth(step=step, also=frozenset({FindingKind.GC_JITTER}))


def clock_boost(world: World, step: int, rng: Rng) -> Truth:
    """Some GPUs run at a higher clock for a while, and are 2 % faster."""
    rows = rng.choice(world.mesh.size, max(1, world.mesh.size // 8), replace=False)
    world.slow(step, rows, 0.98)
    world.change("gpu_sm_clock_hertz", step, rows, 1.83e9)
    return Truth(step=step)


def log_rotation(world: World, step: int, rng: Rng) -> Truth:
    """Logs of a node are rotated every 25 steps: its ranks wait once, and its daemon misses two seconds."""
    rows = one_node(world, rng)
    for at in range(25, world.steps, 25):
        world.own["run_delay_seconds"][at, rows] += 0.5
        world.dark.append((world.mesh.nodes[rows[0]], at, 2.0))
    return Truth(step=step)


def quiet_neighbor(world: World, step: int, rng: Rng) -> Truth:
    """A small job begins on another GPU of the node: half a percent of its processors, a little heat."""
    rows = one_node(world, rng)
    world.own["run_delay_seconds"][step:, rows] += 0.005 * world.seconds
    world.change("cpu_utilization_ratio", step, np.array([world.nodes.index(world.mesh.nodes[rows[0]])]), 0.36)
    return Truth(step=step)


def stuck_timers(world: World, step: int, _rng: Rng) -> Truth:
    """The compute timers of some ranks show the same value forever."""
    world.stuck = max(world.stuck, 0.05)
    return Truth(step=step)


def frozen_sensor(world: World, step: int, rng: Rng) -> Truth:
    """A GPU reports the same temperature and power forever: a stale cache of the driver."""
    rows = np.array([one_rank(world, rng)])
    world.change("gpu_temperature_celsius", step, rows, 62.0)
    world.change("gpu_power_watts", step, rows, 618.0)
    return Truth(step=step)


def late_samples(world: World, step: int, rng: Rng) -> Truth:
    """The progress of a node's ranks arrives three seconds late."""
    world.since = step
    world.clock[one_node(world, rng)] = -3.0
    return Truth(step=step)
