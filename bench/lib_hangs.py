"""A training job that stops: who enters and leaves which collective when, simulated without the detector's own model.

Each rank runs its program in order: compute, enter a call, leave it when the slowest member has entered. Clocks are
arrays over ranks, a group's exit is the maximum over its entries (max-plus); a rank that never enters, or a group
whose call never ends, is an infinity, and all else follows from that. Pipelines run one-forward-one-backward with
buffered sends, so counts differ by stage as they do in life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.hang.wait_graph import INNERMOST_FIRST, GroupProgress
from mainstay.detectors.job.mesh import JobMesh
from mainstay.probes.core_types import GROUP_KINDS, StepPhase

INF = float("inf")
AXES = ("dp", "ep", "pp", "cp", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the axes, outermost first, and how a step is made."""

    dp: int = 1
    ep: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    microbatches: int = 2
    layers: int = 1
    ranks_per_node: int = 8

    @property
    def size(self) -> int:
        return self.dp * self.ep * self.pp * self.cp * self.tp

    def mesh(self, job: str = "demo") -> JobMesh:
        lengths = (self.dp, self.ep, self.pp, self.cp, self.tp)
        ranks = np.arange(self.size)
        return JobMesh(
            job=job,
            axes=AXES,
            ranks=ranks.astype(np.int64),
            index=np.stack(np.unravel_index(ranks, lengths)).astype(np.int64),
            nodes=tuple(f"node-{rank // self.ranks_per_node}" for rank in ranks),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong in step ``step`` at call number ``call`` of the ranks' (the group's) program; or at a time."""

    step: int = -1
    call: int = -1
    at: float = INF
    """Seconds since the job began, instead of step and call: the ranks stop wherever they are."""
    ranks: tuple[int, ...] = ()
    """They never enter the call: stuck in their own code."""
    stopped: bool = False
    """And nothing is heard of them from then on (SIGSTOP, lock held, node gone)."""
    inside: bool = False
    """They stop within the call instead of before it."""
    link: str = ""
    """Kind of group whose call never ends; the group is that of ``ranks[0]``, who is no culprit then."""


@dataclass(slots=True)
class Timeline:
    """Per kind of group: when each rank entered and left each call, [call, rank]; infinity = never, or not a member."""

    shape: Shape
    enter: dict[str, list[np.ndarray]] = field(default_factory=dict)
    leave: dict[str, list[np.ndarray]] = field(default_factory=dict)
    steps: list[np.ndarray] = field(default_factory=list)
    """[step] arrays over ranks: when the step was committed."""
    stopped: dict[int, float] = field(default_factory=dict)
    """Rank -> when it stopped reporting."""
    happened: set[int] = field(default_factory=set)
    """Ranks that came to their fault: one that waits for another before it never does."""
    totals: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Kind -> how many calls each rank ever entered and left; all that is kept where ``keep`` is not asked for."""
    phases: list[tuple[float, float, StepPhase]] = field(default_factory=list)
    onset: float = INF
    """When the first culprit should have entered its call."""

    def counters(self) -> tuple[np.ndarray, np.ndarray]:
        """[kind, rank] calls entered and left when all has come to rest; NaN for kinds that the job does not have."""
        shape = (len(GROUP_KINDS), self.shape.size)
        enqueued, completed = np.full(shape, np.nan), np.full(shape, np.nan)
        for k, kind in enumerate(GROUP_KINDS):
            if kind in self.totals:
                enqueued[k], completed[k] = self.totals[kind]
        return enqueued, completed


Pause = tuple[int, StepPhase, float]
"""Before this step all ranks are in this phase for so many seconds, uneven by a tenth."""


class Simulator:
    """One job. ``run`` gives its timeline."""

    def __init__(
        self, shape: Shape, seed: int, *, compute: float = 0.05, noise: float = 0.1, keep: bool = True
    ) -> None:
        self.shape, self.mesh = shape, shape.mesh()
        self.rng = np.random.default_rng(seed)
        self.compute, self.noise, self.keep = compute, noise, keep
        self.stage = self.mesh.on("pp")
        self.labels = {kind: self.mesh.labels(kind) for kind in ("world", *AXES)}
        self.on_stage = [np.flatnonzero(self.stage == s) for s in range(shape.pp)]

    def run(self, steps: int, faults: tuple[Fault, ...] = (), pauses: tuple[Pause, ...] = ()) -> Timeline:
        self.line = Timeline(self.shape)
        self.clock = np.zeros(self.shape.size)
        for step in range(steps):
            for _, phase, seconds in (p for p in pauses if p[0] == step):
                self._pause(phase, seconds)
            self._step(tuple(f for f in faults if f.step in {step, -1}))
        for fault in (f for f in faults if f.at < INF):
            self._note(fault, fault.at, fault.ranks)
        return self.line

    def _pause(self, phase: StepPhase, seconds: float) -> None:
        start = float(self.clock.min())
        self.clock = self.clock + seconds * self.rng.uniform(0.9, 1.0, self.shape.size)
        if np.isfinite(self.clock).all():
            self.line.phases.append((start, float(self.clock.max()), phase))

    def _programs(self) -> list[list[tuple[str, int]]]:
        """Calls of each stage in order: (kind, peer) where a peer is a stage for transfers, else -1."""
        shape = self.shape
        inner = [(kind, -1) for kind in ("tp", "cp", "ep") if getattr(shape, kind) > 1] * shape.layers
        inner = inner or ([("dp", -1)] if shape.dp > 1 and shape.pp == 1 else [])
        programs = []
        for stage in range(shape.pp):
            ahead = min(shape.pp - stage - 1, shape.microbatches)
            order = ["f"] * ahead + ["f", "b"] * (shape.microbatches - ahead) + ["b"] * ahead
            program: list[tuple[str, int]] = []
            for way in order:
                source, sink = (stage - 1, stage + 1) if way == "f" else (stage + 1, stage - 1)
                program += [("recv" + way, source)] if 0 <= source < shape.pp else []
                program += inner
                program += [("send" + way, sink)] if 0 <= sink < shape.pp else []
            program += [("dp", -1)] if shape.dp > 1 else []
            programs.append([*program, ("world", -1)])
        return programs

    def _step(self, faults: tuple[Fault, ...]) -> None:
        programs = self._programs()
        place = [0] * self.shape.pp
        mail: dict[tuple[int, int, str], list[np.ndarray]] = {}
        while True:
            moved = False
            for stage, program in enumerate(programs):
                while place[stage] < len(program) - 1:
                    if not self._call(stage, place[stage], program[place[stage]], mail, faults):
                        break
                    place[stage] += 1
                    moved = True
            if not moved:
                break
        assert all(p == len(program) - 1 for p, program in zip(place, programs, strict=True)), "the schedule deadlocks"
        for stage, program in enumerate(programs):
            self._arrive(self.on_stage[stage], len(program) - 1, faults)
        self._collective(np.arange(self.shape.size), "world", faults, [len(p) - 1 for p in programs])
        self.line.steps.append(self.clock.copy())

    def _call(
        self,
        stage: int,
        number: int,
        call: tuple[str, int],
        mail: dict[tuple[int, int, str], list[np.ndarray]],
        faults: tuple[Fault, ...],
    ) -> bool:
        kind, peer = call
        rows = self.on_stage[stage]
        if kind.startswith("recv") and not mail.get((peer, stage, kind[-1])):
            return False
        self._arrive(rows, number, faults)
        if kind[:4] not in {"recv", "send"}:
            self._collective(rows, kind, faults, [number] * self.shape.pp)
            return True
        enter = self.clock[rows].copy()
        if kind.startswith("send"):
            mail.setdefault((stage, peer, kind[-1]), []).append(self.clock[rows].copy())
            ready = self.clock[rows]
        else:
            ready = np.maximum(self.clock[rows], mail[(peer, stage, kind[-1])].pop(0))
        done = ready + 0.001
        for fault in faults:
            if fault.link == "pp" and fault.call == number and kind.startswith("recv"):
                done[rows == fault.ranks[0]] = INF
                self._note(fault, float(self.clock[fault.ranks[0]]), ())
            if fault.inside and fault.call == number:
                done[np.isin(rows, fault.ranks)] = INF
        done[self._stops(rows, done, faults)] = INF
        self._record("pp", enter, rows, done)
        return True

    def _arrive(self, rows: np.ndarray, number: int, faults: tuple[Fault, ...]) -> None:
        spread = self.rng.lognormal(0.0, self.noise, len(rows))
        self.clock[rows] = self.clock[rows] + self.compute * spread
        self.clock[rows] = np.where(self._stops(rows, self.clock[rows], faults), INF, self.clock[rows])
        for fault in faults:
            if fault.link or fault.call != number:
                continue
            mine = np.intersect1d(rows, np.array(fault.ranks))
            for rank in mine:
                when = float(self.clock[rank])
                if not np.isfinite(when):
                    continue  # it never came so far: another fault was first
                self._note(fault, when, (int(rank),))
                if not fault.inside:
                    self.clock[rank] = INF

    def _note(self, fault: Fault, when: float, ranks: tuple[int, ...]) -> None:
        self.line.onset = min(self.line.onset, when)
        if not fault.link:
            self.line.happened |= set(ranks)
        if fault.stopped:
            self.line.stopped |= dict.fromkeys(ranks, when + 0.001)

    def _stops(self, rows: np.ndarray, done: np.ndarray, faults: tuple[Fault, ...]) -> np.ndarray:
        """[rows] whether a rank stops before it would leave."""
        stops = np.zeros(len(rows), np.bool_)
        for fault in faults:
            if fault.at < INF:
                stops |= np.isin(rows, fault.ranks) & (done > fault.at)
        return stops

    def _collective(self, rows: np.ndarray, kind: str, faults: tuple[Fault, ...], numbers: list[int]) -> None:
        label = self.labels[kind][rows]
        groups, number = np.unique(label, return_inverse=True)
        latest = np.full(len(groups), -INF)
        np.maximum.at(latest, number, self.clock[rows])
        for fault in faults:
            if fault.call != numbers[int(self.stage[fault.ranks[0]])]:
                continue
            if (fault.link == kind or fault.inside) and np.isfinite(self.clock[fault.ranks[0]]):
                hit = np.isin(rows, fault.ranks[:1] if fault.link else fault.ranks)
                self._note(fault, float(self.clock[fault.ranks[0]]), fault.ranks)
                latest[number[hit]] = INF
        latest[number[self._stops(rows, latest[number] + 0.002, faults)]] = INF
        enter = self.clock[rows].copy()
        self._record(kind, enter, rows, latest[number] + 0.002)

    def _record(self, kind: str, enter: np.ndarray, rows: np.ndarray, done: np.ndarray) -> None:
        size = self.shape.size
        entered, left = self.line.totals.setdefault(kind, (np.zeros(size), np.zeros(size)))
        entered[rows] += np.isfinite(enter)
        left[rows] += np.isfinite(done)
        self.clock[rows] = done
        if self.keep:
            for table, values in ((self.line.enter, enter), (self.line.leave, done)):
                whole = np.full(size, INF)
                whole[rows] = values
                table.setdefault(kind, []).append(whole)


SIGNALS = (
    "progress_phase",
    "in_collective_seconds",
    "progress_step",
    *(f"{kind}_enqueued" for kind in GROUP_KINDS),
    *(f"{kind}_completed" for kind in GROUP_KINDS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What is lost or wrong on the way."""

    missing: float = 0.0
    skew: float = 0.0
    """Seconds, plus or minus, fixed a rank."""
    stuck: float = 0.0
    """Share of (rank, signal) that freeze somewhere in the first half."""
    counted: bool = True
    """Whether collectives are counted, or only steps."""


def samples(line: Timeline, until: float, seed: int, telemetry: Telemetry | None = None, dt: float = 1.0) -> Samples:
    """What the job's ranks report once every ``dt`` until ``until`` (seconds since the job began)."""
    told = telemetry or Telemetry()
    rng = np.random.default_rng(seed)
    shape, mesh = line.shape, line.shape.mesh()
    times = np.arange(dt, until, dt)
    lag = rng.uniform(0.0, 0.5 * dt, shape.size) + rng.uniform(-told.skew, told.skew, shape.size)
    at = times[:, None] - lag[None, :]  # [time, rank]: when each rank looked
    x = np.full((len(times), len(SIGNALS), shape.size), np.nan)
    x[:, 0] = StepPhase.TRAIN
    for start, stop, phase in line.phases:
        x[:, 0] = np.where((at >= start) & (at < stop), phase, x[:, 0])
    x[:, 1] = 0.0
    x[:, 2] = _count(np.stack(line.steps), at)
    for k, kind in enumerate(GROUP_KINDS):
        if kind in line.enter:
            enter, leave = np.stack(line.enter[kind]), np.stack(line.leave[kind])
            entered, left = _count(enter, at), _count(leave, at)
            x[:, 1] = np.maximum(x[:, 1], np.where(entered > left, at - _last(enter, at), 0.0))
            if told.counted:
                x[:, 3 + k], x[:, 3 + len(GROUP_KINDS) + k] = entered, left
    for rank, when in line.stopped.items():
        x[at[:, rank] >= when, :, rank] = np.nan
    x[np.broadcast_to((rng.random((len(times), 1, shape.size)) < told.missing), x.shape)] = np.nan
    for _ in range(round(told.stuck * shape.size * len(SIGNALS))):
        rank, signal = int(rng.integers(shape.size)), int(rng.integers(len(SIGNALS)))
        first = int(rng.integers(1, len(times) // 2))
        x[first:, signal, rank] = np.where(np.isfinite(x[first:, signal, rank]), x[first, signal, rank], np.nan)
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=mesh.nodes[r]) for r in range(shape.size)),
        groups=tuple(f"stage {s}" for s in mesh.on("pp")),
        signals=SIGNALS,
        t=1.7e9 + times,
        x=x,
        mesh=mesh,
    )


def standstill(line: Timeline, more: int = 0) -> tuple[GroupProgress, np.ndarray, np.ndarray]:
    """Counters when all has come to rest, the ranks that are silent, and those inside a call.

    ``more`` groups a rank are added: copies of its tensor-parallel group, for the cost of large memberships.
    """
    mesh, shape = line.shape.mesh(), line.shape
    enqueued, completed = line.counters()
    inside = np.flatnonzero((np.nan_to_num(enqueued) > np.nan_to_num(completed)).any(axis=0))
    mates = [axis for axis in ("tp", "cp", "ep", "dp") if mesh.length(axis) > 1]
    parts, base = [], 0
    kinds: list[str] = []
    for kind in (*GROUP_KINDS, *["tp"] * more):
        k = GROUP_KINDS.index(kind)
        if not np.isfinite(enqueued[k]).any():
            continue
        label = mesh.labels(kind)
        parts.append((np.arange(shape.size), base + label, enqueued[k], completed[k]))
        kinds += [kind] * (int(label.max()) + 1)
        base = len(kinds)
    rank, group, entered, left = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    progress = GroupProgress(
        rank=rank.astype(np.int64),
        group=group.astype(np.int64),
        enqueued=entered,
        completed=left,
        kinds=tuple(kinds),
        pairwise=np.array([kind == "pp" for kind in kinds], np.bool_),
        depth=np.array([INNERMOST_FIRST.index(kind) for kind in kinds], np.int64),
        role=mesh.labels(mates[0])[rank] if mates else None,
    )
    return progress, np.array(sorted(line.stopped), np.int64), inside


def _count(when: np.ndarray, at: np.ndarray) -> np.ndarray:
    """[time, rank] how many of ``when`` [event, rank] lie before ``at``."""
    ordered = np.sort(when, axis=0)
    columns = (np.searchsorted(ordered[:, r], at[:, r], side="right") for r in range(at.shape[1]))
    return np.stack(list(columns), axis=1).astype(np.float64)


def _last(enter: np.ndarray, at: np.ndarray) -> np.ndarray:
    """[time, rank] the latest entry at or before ``at``; -inf where none."""
    ordered = np.sort(enter, axis=0)

    def column(r: int) -> np.ndarray:
        number = np.searchsorted(ordered[:, r], at[:, r], side="right")
        return np.where(number > 0, ordered[np.maximum(number - 1, 0), r], -INF)

    return np.stack([column(r) for r in range(at.shape[1])], axis=1)


def calls_of(shape: Shape) -> list[list[tuple[str, int]]]:
    """Programs of the stages, to draw a fault's place from."""
    return Simulator(shape, 0)._programs()  # noqa: SLF001 - one module


def shapes(rng: np.random.Generator, largest: int) -> Iterator[Shape]:
    """Topologies without end, sizes spread evenly in the logarithm."""
    while True:
        sizes: dict[str, int] = {axis: int(2 ** rng.integers(0, 5)) for axis in AXES}
        sizes["ep"], sizes["cp"] = min(sizes["ep"], 8), min(sizes["cp"], 4)
        shape = Shape(**sizes, microbatches=int(rng.integers(1, 5)), layers=int(rng.integers(1, 3)))
        if 4 <= shape.size <= largest:
            yield shape
