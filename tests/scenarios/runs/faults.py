"""Faults of the catalog, each written into a healthy ``World``, with what is true afterwards.

A fault costs one function: it changes what the ranks would measure and returns the truth by which findings are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.finding import ADVICE, Finding, FindingKind
from mainstay.probes.core_types import Event, EventKind, Severity, StepPhase
from mainstay.probes.ids import uuid7
from tests.scenarios.runs.progress import Stop
from tests.scenarios.runs.world import JOB, START, World

_K = FindingKind


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What happened, and what has to be said."""

    kinds: frozenset[FindingKind] = frozenset()
    """Any of these names it; empty where nothing is wrong."""
    ranks: frozenset[int] = frozenset()
    """Those that are to blame; a finding about any of them, or their node or device, is right."""
    job_wide: bool = False
    """The job as a whole, not a rank."""
    step: int = 0
    """First step that it touches."""
    also: frozenset[FindingKind] = frozenset()
    """Consequences that may be reported too, for any rank."""


Fault = Callable[[World, int, np.random.Generator], Truth]


def culprit(world: World, rng: np.random.Generator) -> int:
    return int(rng.integers(world.mesh.size))


def _ranks(*ranks: int) -> frozenset[int]:
    return frozenset(ranks)


def nothing(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A healthy run, balanced or not, with a checkpoint and an evaluation in it."""
    del rng
    return _pause(world, step, StepPhase.CHECKPOINT, 90.0)


def _pause(world: World, step: int, phase: StepPhase, seconds: float) -> Truth:
    world.pauses[step] += seconds
    world.phase[step] = float(phase)
    return Truth(step=step)


def evaluation(world: World, step: int, rng: np.random.Generator) -> Truth:
    del rng
    return _pause(world, step, StepPhase.EVALUATE, 120.0)


def compilation(world: World, step: int, rng: np.random.Generator) -> Truth:
    del rng
    return _pause(world, step, StepPhase.COMPILE, 200.0)


def _slow(world: World, step: int, ranks: list[int], factor: float) -> None:
    for name in ("forward_seconds", "backward_seconds"):
        world.own[name][step:, ranks] *= factor


def slow_rank(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A GPU that computes eight percent slower: worn silicon, memory that corrects itself."""
    rank = culprit(world, rng)
    _slow(world, step, [rank], 1.08)
    return Truth(kinds=frozenset({_K.STRAGGLER}), ranks=_ranks(rank), step=step, also=frozenset({_K.JOB_SLOWDOWN}))


def throttled(world: World, step: int, rng: np.random.Generator) -> Truth:
    """Heat holds the clock down; the rank on it becomes slow."""
    rank = culprit(world, rng)
    _slow(world, step, [rank], 1.25)
    who = np.array([rank])
    world.gpu |= {
        "gpu_throttle_hardware_thermal_nanoseconds_total": (step, world.steps, who, 0.9e9),
        "gpu_sm_clock_hertz": (step, world.steps, who, 1.3e9),
        "gpu_temperature_celsius": (step, world.steps, who, 90.0),
    }
    kinds = frozenset({_K.THERMAL_THROTTLE})
    also = frozenset({_K.JOB_SLOWDOWN, _K.STRAGGLER, _K.SIGNAL_OUTLIER})
    return Truth(kinds=kinds, ranks=_ranks(rank), step=step, also=also)


def hang(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A rank stops beginning collectives: a deadlock, a stuck loader; its process still reports."""
    rank = culprit(world, rng)
    world.stop = Stop(step=step, ranks=(rank,))
    return Truth(kinds=frozenset({_K.NONCOMM_HANG}), ranks=_ranks(rank), step=step)


def stopped(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A process that is stopped altogether (SIGSTOP, a held interpreter lock)."""
    rank = culprit(world, rng)
    world.stop = Stop(step=step, ranks=(rank,), silent=True)
    return Truth(kinds=frozenset({_K.NONCOMM_HANG}), ranks=_ranks(rank), step=step)


def two_hangs(world: World, step: int, rng: np.random.Generator) -> Truth:
    ranks = tuple(int(r) for r in rng.choice(world.mesh.size, 2, replace=False))
    world.stop = Stop(step=step, ranks=ranks)
    return Truth(kinds=frozenset({_K.NONCOMM_HANG}), ranks=_ranks(*ranks), step=step)


def dead_link(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A collective that all members have begun and no member ends."""
    kind = str(rng.choice([axis for axis in world.mesh.axes if world.mesh.length(axis) > 1]))
    label = world.mesh.labels(kind)
    number = int(rng.integers(label.max() + 1))
    world.stop = Stop(step=step, group=(kind, number))
    members = frozenset(int(r) for r in world.mesh.ranks[label == number])
    return Truth(kinds=frozenset({_K.COMM_HANG}), ranks=members, job_wide=True, step=step)


def slow_sender(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A network card that sends at half its speed."""
    far = _far(world)
    rank = int(rng.choice(np.unique(world.pairs[0][far])))
    world.transfer[step:, far & (world.pairs[0] == rank)] *= 2.0
    kinds = frozenset({_K.NIC_DEGRADED, _K.CONGESTION})
    return Truth(kinds=kinds, ranks=_ranks(rank), step=step, also=frozenset({_K.JOB_SLOWDOWN}))


def slow_leaf(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A leaf switch whose uplinks are congested: all traffic across it takes longer, no card is at fault."""
    leaf = np.array([above[0] for above in world.mesh.switches])
    one = rng.choice(np.unique(leaf))
    inside = leaf[world.pairs] == one
    world.transfer[step:, inside[0] ^ inside[1]] *= 1.8
    ranks = frozenset(int(r) for r in world.mesh.ranks[leaf == one])
    return Truth(
        kinds=frozenset({_K.CONGESTION}), ranks=ranks, job_wide=True, step=step, also=frozenset({_K.JOB_SLOWDOWN})
    )


def _far(world: World) -> np.ndarray:
    node = np.array(world.mesh.nodes)
    return node[world.pairs[0]] != node[world.pairs[1]]


def contended(world: World, step: int, rng: np.random.Generator) -> Truth:
    """Another process runs on a rank's core: the rank is ready and waits for its turn."""
    rank = culprit(world, rng)
    count = world.steps - step
    world.own["run_delay_seconds"][step:, rank] += 0.25 * world.seconds * rng.gamma(20.0, 0.05, count)
    also = frozenset({_K.JOB_SLOWDOWN})
    return Truth(kinds=frozenset({_K.CPU_CONTENTION}), ranks=_ranks(rank), step=step, also=also)


def stalled_data(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A replica's loader is late again and again."""
    replica = int(rng.integers(world.dp))
    rows = np.flatnonzero(world.mesh.on("dp") == replica)
    late = 0.4 * world.seconds * rng.gamma(4.0, 0.25, world.steps - step)
    world.own["data_wait_seconds"][step:, rows] += late[:, None]
    ranks = frozenset(int(r) for r in world.mesh.ranks[rows])
    return Truth(kinds=frozenset({_K.DATA_STALL}), ranks=ranks, step=step, also=frozenset({_K.JOB_SLOWDOWN}))


def not_a_number(world: World, step: int, rng: np.random.Generator) -> Truth:
    """One rank's gradients overflow; the next all-reduce gives it to everybody."""
    rank = culprit(world, rng)
    world.own["nonfinite_values"][step, rank] = 1.0
    world.own["nonfinite_values"][step + 1 :] = 1.0
    for name in ("loss", "gradient_norm"):
        world.own[name][step + 1 :] = np.nan
    world.own["gradient_norm"][step, rank] = np.nan
    return Truth(kinds=frozenset({_K.NAN}), ranks=_ranks(rank), step=step)


def spike(world: World, step: int, rng: np.random.Generator) -> Truth:
    """Loss and gradients jump by five."""
    del rng
    for name in ("loss", "gradient_norm"):
        world.own[name][step : step + 4] *= 6.0
    return Truth(kinds=frozenset({_K.LOSS_SPIKE}), job_wide=True, step=step)


def silent_corruption(world: World, step: int, rng: np.random.Generator) -> Truth:
    """A replica's parameters are no longer those of the others."""
    rank = culprit(world, rng)
    digest = world.own["parameters_digest"]
    digest[step:, rank] = np.where(np.isnan(digest[step:, rank]), np.nan, (digest[step:, rank] + 12345) % 2**24)
    return Truth(kinds=frozenset({_K.SDC_SUSPECT}), ranks=_ranks(rank), step=step)


def slowdown(world: World, step: int, rng: np.random.Generator) -> Truth:
    """Everybody slows down by an eighth: a power cap, a change of code."""
    del rng
    _slow(world, step, list(range(world.mesh.size)), 1.125)
    return Truth(kinds=frozenset({_K.JOB_SLOWDOWN}), job_wide=True, step=step)


def process_exit(world: World, step: int, rng: np.random.Generator) -> Truth:
    rank = culprit(world, rng)
    world.stop = Stop(step=step, ranks=(rank,), silent=True)
    _, ends = world.times()
    world.events.append(
        Event(
            id=uuid7(), time=float(ends[step - 1]) + 0.3, kind=EventKind.PROCESS_EXIT, job=JOB, rank=rank,
            node=world.mesh.nodes[rank], data={"signal": 9, "expected": False},
        )
    )  # fmt: skip
    kinds = frozenset({_K.PROCESS_EXIT})
    return Truth(kinds=kinds, ranks=_ranks(rank), step=step, also=frozenset({_K.NONCOMM_HANG}))


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        slow_rank, throttled, hang, stopped, two_hangs, dead_link, slow_sender, slow_leaf, contended, stalled_data,
        not_a_number, spike, silent_corruption, slowdown, process_exit,
    )
}  # fmt: skip
QUIET: dict[str, Fault] = {fault.__name__: fault for fault in (nothing, evaluation, compilation)}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the findings compare with the truth."""

    seconds: float | None
    """From the first moment at which it could be seen to the first right finding; None: missed."""
    steps: int | None
    """The same in steps begun."""
    right: frozenset[int]
    """Ranks that were rightly named."""
    wrong: tuple[Finding, ...]
    """Findings that blame the innocent, or see what is not there."""


def outcome(world: World, truth: Truth, found: list[Finding]) -> Outcome:
    """Judge the findings. Recommendations and information blame no rank."""
    _, ends = world.times()
    begun = float(ends[truth.step - 1]) if truth.step else START
    told = [f for f in found if f.active and f.kind not in ADVICE and f.severity is not Severity.INFO]
    hits = [f for f in told if f.kind in truth.kinds and f.time >= begun and _about(world, truth, f)]
    wrong = tuple(f for f in told if f not in hits and not _excused(world, truth, f, begun))
    named = frozenset(f.entity.rank for f in hits if f.entity.rank is not None)
    if not hits:
        return Outcome(seconds=None, steps=None, right=named, wrong=wrong)
    first = min(f.time for f in hits)
    steps = int(np.searchsorted(ends, first, side="left")) - truth.step + 1
    return Outcome(seconds=first - begun, steps=steps, right=named & truth.ranks, wrong=wrong)


def _about(world: World, truth: Truth, finding: Finding) -> bool:
    entity = finding.entity
    if entity.rank is not None:
        return entity.rank in truth.ranks or entity.peer in truth.ranks
    rows = world.mesh.rows(sorted(truth.ranks))
    if entity.node is not None:
        places = {(world.mesh.nodes[row], world.mesh.devices[row]) for row in rows}
        return any(node == entity.node and entity.device in {None, device} for node, device in places)
    return truth.job_wide


def _excused(world: World, truth: Truth, finding: Finding, begun: float) -> bool:
    """A consequence; or, of the right ones, another word for the same."""
    return finding.time >= begun and (
        finding.kind in truth.also or (finding.kind in truth.kinds and _about(world, truth, finding))
    )
