"""Faults that stop a run, values that are wrong, and faults of hosts that a run may survive."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.generator.progress import Stop
from mainstay.detectors.generator.traps import checkpoints
from mainstay.detectors.generator.truth import Truth, blame, one_node, one_rank
from mainstay.detectors.generator.world import World
from mainstay.probes.core_types import EventKind

_K = FindingKind
_WATCHED = 180.0
"""Seconds after the stop, where more than a hang's limit has to pass."""
Rng = np.random.Generator


def _stop(world: World, step: int, ranks: np.ndarray, *, silent: bool = False) -> Truth:
    world.stop = Stop(step=step, ranks=tuple(int(rank) for rank in ranks), silent=silent)
    return blame(step, [_K.NONCOMM_HANG], ranks)


def hang(world: World, step: int, rng: Rng) -> Truth:
    """A rank begins no further collective: a deadlock, a stuck loader; its process still reports."""
    return _stop(world, step, np.array([one_rank(world, rng)]))


def stopped(world: World, step: int, rng: Rng) -> Truth:
    """A process stops altogether: SIGSTOP, a held interpreter lock."""
    return _stop(world, step, np.array([one_rank(world, rng)]), silent=True)


def two_hangs(world: World, step: int, rng: Rng) -> Truth:
    """Two ranks stop at once."""
    return _stop(world, step, rng.choice(world.mesh.size, 2, replace=False))


def partial_hang(world: World, step: int, rng: Rng) -> Truth:
    """All ranks of one tensor-parallel group stop outside a collective: they wait for the same lock or file."""
    label = world.mesh.labels("tp")
    return _stop(world, step, np.flatnonzero(label == rng.integers(label.max() + 1)))


def checkpoint_hang(world: World, step: int, rng: Rng) -> Truth:
    """Half of the ranks never return from a checkpoint: a server of the file system stopped. Earlier ones were fine."""
    checkpoints(world, step, rng)
    world.phase[step], world.after = 4.0, _WATCHED
    return _stop(world, step, rng.choice(world.mesh.size, world.mesh.size // 2, replace=False))


def dead_link(world: World, step: int, rng: Rng) -> Truth:
    """A collective that all members have begun and no member ends."""
    kind = str(rng.choice([axis for axis in world.mesh.axes if world.mesh.length(axis) > 1]))
    label = world.mesh.labels(kind)
    number = int(rng.integers(label.max() + 1))
    world.stop = Stop(step=step, group=(kind, number))
    return blame(step, [_K.COMM_HANG], np.flatnonzero(label == number), job=True)


def process_exit(world: World, step: int, rng: Rng) -> Truth:
    """A process is killed."""
    rank = one_rank(world, rng)
    world.happen(EventKind.PROCESS_EXIT, step, rank, signal=9, expected=False)
    _stop(world, step, np.array([rank]), silent=True)
    return blame(step, [_K.PROCESS_EXIT], [rank], [_K.NONCOMM_HANG])


def out_of_memory(world: World, step: int, rng: Rng) -> Truth:
    """A host runs out of memory, and the kernel kills a rank: loaders with too many workers, pinned buffers."""
    rows = one_node(world, rng)
    node = np.array([world.nodes.index(world.mesh.nodes[rows[0]])])
    world.change("memory_used_ratio", step - 4, node, 0.8, 0.98)
    world.change("oom_kills_total", step, node, 1.0)
    world.happen(EventKind.PROCESS_EXIT, step, int(rows[0]), signal=9, expected=False)
    _stop(world, step, rows[:1], silent=True)
    return blame(step, [_K.OUT_OF_MEMORY, _K.PROCESS_EXIT], rows, [_K.NONCOMM_HANG])


def reboot(world: World, step: int, rng: Rng) -> Truth:
    """A node reboots unasked and is back after a minute and a half; the run does not survive it."""
    rows = one_node(world, rng)
    world.after = _WATCHED
    world.dark.append((world.mesh.nodes[rows[0]], step, 90.0))
    _stop(world, step, rows, silent=True)
    return blame(step, [_K.NODE_LOST], rows, [_K.NONCOMM_HANG, _K.PROBE_UNRESPONSIVE])


def lost_gpu(world: World, step: int, rng: Rng) -> Truth:
    """A GPU falls off the bus (XID 79), and its rank stops."""
    rank = one_rank(world, rng)
    device = world.mesh.devices[rank]
    world.happen(EventKind.XID, step, rank, device=device, code=79, text="GPU has fallen off the bus.", uptime=1e6)
    world.happen(EventKind.GPU_LOST, step, rank, device=device, reason="gpu_is_lost", uptime=1e6)
    _stop(world, step, np.array([rank]), silent=True)
    return blame(step, [_K.GPU_LOST, _K.XID], [rank], [_K.NONCOMM_HANG, _K.PROCESS_EXIT])


def memory_error(world: World, step: int, rng: Rng) -> Truth:
    """GPU memory has an uncorrectable error (XID 48): HBM3 is 17.2 % of the interruptions in Llama 3 (table 5)."""
    rows = np.array([one_rank(world, rng)])
    world.change("gpu_ecc_uncorrected_total", step, rows, 1.0)
    world.happen(EventKind.XID, step, int(rows[0]), device=world.mesh.devices[rows[0]], code=48, uptime=1e6)
    return blame(step, [_K.ECC_UNCORRECTABLE, _K.XID], rows, [_K.SIGNAL_OUTLIER])


def not_a_number(world: World, step: int, rng: Rng) -> Truth:
    """The gradients of one rank overflow; the next all-reduce gives them to every rank."""
    rank = one_rank(world, rng)
    world.own["nonfinite_values"][step, rank] = 1.0
    world.own["nonfinite_values"][step + 1 :] = 1.0
    for name in ("loss", "gradient_norm"):
        world.own[name][step + 1 :] = np.nan
    world.own["gradient_norm"][step, rank] = np.nan
    return blame(step, [_K.NAN], [rank])


def bad_batch(world: World, step: int, _rng: Rng) -> Truth:
    """Loss and gradients of every rank are NaN in the same step: a learning rate that is too high, a division by 0."""
    world.own["nonfinite_values"][step:] = 1.0
    for name in ("loss", "gradient_norm"):
        world.own[name][step:] = np.nan
    return blame(step, [_K.NAN], range(world.mesh.size), job=True)


def spike(world: World, step: int, _rng: Rng) -> Truth:
    """Loss and gradients jump to six times their level."""
    for name in ("loss", "gradient_norm"):
        world.own[name][step : step + 4] *= 6.0
    return blame(step, [_K.LOSS_SPIKE])


def silent_corruption(world: World, step: int, rng: Rng) -> Truth:
    """The parameters of a replica are no longer those of the others."""
    rank = one_rank(world, rng)
    digest = world.own["parameters_digest"]
    digest[step:, rank] = (digest[step:, rank] + 12345) % 2**24
    twins = [rank] if world.dp > 2 else np.flatnonzero(world.mesh.labels("dp") == world.mesh.labels("dp")[rank])
    return blame(step, [_K.SDC_SUSPECT], twins)


def clock_skew(world: World, step: int, rng: Rng) -> Truth:
    """The clock of a node loses its time source and drifts away by 0.8 s."""
    rows = one_node(world, rng)
    return _wrong_clock(world, step, rows, 0.8)


def clock_step(world: World, step: int, rng: Rng) -> Truth:
    """The clock of a node jumps ahead by three seconds: a wrong time server."""
    return _wrong_clock(world, step, one_node(world, rng), 3.0)


def _wrong_clock(world: World, step: int, rows: np.ndarray, seconds: float) -> Truth:
    world.since = step
    world.clock[rows] = seconds
    world.change("clock_error_seconds", step, np.array([world.nodes.index(world.mesh.nodes[rows[0]])]), seconds)
    return blame(step, [_K.CLOCK_SKEW], rows)


def disk_full(world: World, step: int, rng: Rng) -> Truth:
    """The disk of a node fills up: core dumps, logs, old checkpoints."""
    rows = one_node(world, rng)
    world.change("disk_used_ratio", step, np.array([world.nodes.index(world.mesh.nodes[rows[0]])]), 0.995)
    return blame(step, [_K.DISK_FULL], rows)


def narrow_pcie(world: World, step: int, rng: Rng) -> Truth:
    """A PCIe link trains down to four lanes; the copies of its rank take longer."""
    rank = one_rank(world, rng)
    world.change("gpu_pcie_width", step, np.array([rank]), 4.0)
    world.slow(step, [rank], 1.05)
    return blame(step, [_K.PCIE_DEGRADED], [rank], [_K.STRAGGLER, _K.DEVICE_SLOW, _K.SIGNAL_OUTLIER])
