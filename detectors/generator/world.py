"""A training run made from a seed: steps, progress, transfers, GPUs, and hosts of every rank, healthy until a fault.

``World(...)`` draws a healthy run; a fault of ``catalog.FAULTS`` changes the drawn arrays and says what is true;
``recording()`` turns the whole into what a service would have recorded. Noise has the size of that in published traces:
own compute varies by half a percent from step to step with some memory, now and then a step takes longer, sequences of
varying length move the work between replicas by some ten percent. None of it uses a detector's own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.generator.progress import Stop, progress_of
from mainstay.detectors.job.mesh import JobMesh, regular, rows_by_label
from mainstay.detectors.recording.in_memory import InMemoryRecording
from mainstay.detectors.recording.model import DeviceInfo, FleetInfo, JobInfo, NodeInfo
from mainstay.probes.core_types import Event, EventKind, StepPhase
from mainstay.probes.signals import SignalSource

Floats = npt.NDArray[np.float64]
JOB = "run"
START = 1_800_000_000.0
RANKS_PER_NODE = 8
_FORWARD, _BACKWARD, _UPDATE = 0.33, 0.62, 0.05
"""Shares of a rank's own compute."""
_WARM_UP = 3
"""First steps, which compile and touch memory for the first time: three times as long."""
_NVLINK, _NETWORK = 300e9, 45e9
"""Bytes a second inside a node and between nodes (400 Gbit/s, nine tenths of it)."""
_PAIR_BYTES = 2.0**26
_BOOT_SECONDS = 30.0
"""A node that says nothing for longer has booted."""
STEP_SIGNALS = (
    "step_time_seconds", "compute_time_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds",
    "data_wait_seconds", "communication_wait_seconds", "run_delay_seconds", "gc_seconds", "tokens",
    "sequence_squares", "micro_batches", "loss", "gradient_norm", "nonfinite_values", "parameters_digest", "step_phase",
)  # fmt: skip
GPU_SIGNALS = (
    "gpu_utilization_ratio", "gpu_power_watts", "gpu_temperature_celsius", "gpu_sm_clock_hertz",
    "gpu_throttle_hardware_thermal_nanoseconds_total", "gpu_throttle_software_thermal_nanoseconds_total",
    "gpu_throttle_power_brake_nanoseconds_total", "gpu_ecc_uncorrected_total", "gpu_pcie_width", "gpu_pcie_width_max",
)  # fmt: skip
HOST_SIGNALS = (
    "cpu_utilization_ratio", "memory_used_ratio", "disk_used_ratio", "uptime_seconds", "clock_synchronized",
    "clock_error_seconds", "oom_kills_total",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Change:
    """A device or host signal that is not as usual from step ``first`` on: from ``low`` evenly to ``high``."""

    signal: str
    first: int
    rows: npt.NDArray[np.int64]
    """Of ranks for a GPU signal, of nodes for a host signal."""
    low: float
    high: float


@dataclass(kw_only=True)
class World:
    """One job on ``dp x pp x tp`` ranks, eight to a node, at most four nodes to a leaf switch, two switches or more."""

    dp: int = 8
    pp: int = 2
    tp: int = 4
    steps: int = 120
    seed: int = 0
    seconds: float = 4.0
    """Of own compute in a step."""
    noise: float = 0.005
    """Standard deviation of the logarithm of own compute, from step to step."""
    last_stage: float = 1.0
    """How much longer the last stage takes: its vocabulary head."""
    lengths: float = 0.0
    """Spread of the work between replicas from sequences of varying length; 0.1 is common."""

    mesh: JobMesh = field(init=False)
    own: dict[str, Floats] = field(init=False)
    """[step, rank] of every step signal that a rank measures itself."""
    phase: Floats = field(init=False)
    """[step] StepPhase."""
    pauses: Floats = field(init=False)
    """[step] seconds in which everybody waits: checkpoints, evaluation."""
    pairs: npt.NDArray[np.int64] = field(init=False)
    """[2, pair] sender and receiver."""
    transfer: Floats = field(init=False)
    """[step, pair] seconds."""
    changes: list[Change] = field(default_factory=list)
    stop: Stop | None = None
    after: float = 45.0
    """Seconds for which a run that stopped is watched."""
    dark: list[tuple[str, int, float]] = field(default_factory=list)
    """Nodes whose daemon says nothing: node, from the beginning of which step, seconds."""
    absent: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of ranks that have left the job since step ``since``."""
    clock: Floats = field(init=False)
    """[rank] seconds by which its clock is ahead since step ``since``."""
    since: int = 0
    events: list[Event] = field(default_factory=list)
    missing: float = 0.0
    """Share of samples that are lost."""
    skew: float = 0.0
    """Largest error of a node's clock, seconds."""
    stuck: float = 0.0
    """Share of ranks with a stuck compute timer."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        ranks = self.dp * self.pp * self.tp
        leaf = min(4, max(1, ranks // RANKS_PER_NODE // 2))
        self.mesh = regular(JOB, dp=self.dp, pp=self.pp, tp=self.tp, ranks_per_node=RANKS_PER_NODE, leaf_nodes=leaf)
        self.nodes = tuple(dict.fromkeys(self.mesh.nodes))
        self.clock = np.zeros(ranks)
        shape = (self.steps, self.mesh.size)
        self.phase = np.full(self.steps, float(StepPhase.TRAIN))
        self.phase[:_WARM_UP] = float(StepPhase.WARM_UP)
        self.pauses = np.zeros(self.steps)
        tokens = self._tokens(shape)
        work = self._compute(shape, tokens / tokens.mean())
        self.own = {
            "forward_seconds": _FORWARD * work,
            "backward_seconds": _BACKWARD * work,
            "optimizer_seconds": _UPDATE * work,
            "data_wait_seconds": 0.01 * self.rng.gamma(4.0, 0.25, shape),
            "run_delay_seconds": 0.002 * self.rng.gamma(2.0, 0.5, shape),
            "gc_seconds": np.zeros(shape),
            "tokens": tokens,
            "sequence_squares": tokens**2 / 4.0,
            "micro_batches": np.full(shape, np.nan),
            "nonfinite_values": np.zeros(shape),
        }
        self._values(shape)
        self._wires()

    # what is drawn

    def _tokens(self, shape: tuple[int, int]) -> Floats:
        """Ranks of one replica and all its stages work on the same sequences."""
        spread = self.lengths * self.rng.standard_normal((shape[0], self.dp))
        return np.round(8192.0 * np.exp(spread))[:, self.mesh.on("dp")]

    def _compute(self, shape: tuple[int, int], work: Floats) -> Floats:
        memory = np.zeros(shape[1])
        noise = np.empty(shape)
        for k in range(shape[0]):  # a little memory from step to step: clocks and caches do not forget at once
            memory = 0.3 * memory + self.rng.standard_normal(shape[1])
            noise[k] = self.noise * memory
        spikes = self.rng.random(shape) < 0.002
        noise += spikes * self.rng.exponential(0.05, shape)
        stage = np.where(self.mesh.on("pp") == self.pp - 1, self.last_stage, 1.0)
        card = np.exp(0.003 * self.rng.standard_normal(shape[1]))
        warm = np.where(self.phase == StepPhase.WARM_UP, 3.0, 1.0)[:, None]
        return self.seconds * stage * card * work * np.exp(noise) * warm

    def _values(self, shape: tuple[int, int]) -> None:
        """Loss and gradients that fall as they do, with heavy-tailed noise; equal replicas have equal digests."""
        k = np.arange(shape[0])[:, None]
        last = self.mesh.on("pp") == self.pp - 1
        loss = 2.0 + 8.0 / np.sqrt(k + 20.0) + 0.02 * self.rng.standard_normal(shape)
        self.own["loss"] = np.where(last, loss, np.nan)
        norm = (0.8 + 4.0 / np.sqrt(k + 20.0)) * np.exp(0.08 * self.rng.standard_t(5, shape))
        self.own["gradient_norm"] = norm
        digest = self.rng.integers(0, 2**24, (shape[0], self.pp * self.tp)).astype(np.float64)
        place = self.mesh.on("pp") * self.tp + self.mesh.on("tp")
        digest = digest[:, place]
        digest[k[:, 0] % 20 != 0] = np.nan
        self.own["parameters_digest"] = digest

    def _wires(self) -> None:
        """Transfers: a ring in each data-parallel group, both ways along the pipeline, a ring of tensor parallel."""
        ways = [self._ring("dp"), self._chain(), self._ring("tp")]
        self.pairs = np.concatenate([way for way in ways if way.size], axis=1) if self.mesh.size > 1 else ways[0]
        self.pairs = np.unique(self.pairs, axis=1)
        host = np.arange(self.mesh.size) // RANKS_PER_NODE
        near = host[self.pairs[0]] == host[self.pairs[1]]
        base = _PAIR_BYTES / np.where(near, _NVLINK, _NETWORK)
        noise = 0.03 * self.rng.standard_normal((self.steps, self.pairs.shape[1]))
        tail = (self.rng.random(noise.shape) < 0.01) * self.rng.exponential(0.4, noise.shape)
        self.transfer = base * np.exp(noise + tail)

    def _ring(self, kind: str) -> npt.NDArray[np.int64]:
        groups = (
            [rows for rows in rows_by_label(self.mesh.labels(kind)) if len(rows) > 1]
            if self.mesh.length(kind) > 1
            else []
        )
        ways = [np.stack([rows, np.roll(rows, -1)]) for rows in groups]
        return np.concatenate(ways, axis=1).astype(np.int64) if ways else np.zeros((2, 0), np.int64)

    def _chain(self) -> npt.NDArray[np.int64]:
        groups = rows_by_label(self.mesh.labels("pp")) if self.mesh.length("pp") > 1 else []
        ways = [np.stack([rows[:-1], rows[1:]]) for rows in groups]
        down = np.concatenate(ways, axis=1).astype(np.int64) if ways else np.zeros((2, 0), np.int64)
        return np.concatenate([down, down[::-1]], axis=1)

    # what a fault writes

    def slow(self, step: int, rows: Sequence[int] | npt.NDArray[np.int64], factor: float | Floats) -> None:
        """Own compute from ``step`` on, times a number or [step, 1 or row]."""
        for name in ("forward_seconds", "backward_seconds"):
            self.own[name][step:, rows] *= factor

    def change(
        self, signal: str, step: int, rows: npt.NDArray[np.int64], low: float, high: float | None = None
    ) -> None:
        """A device or host signal from ``step`` on."""
        end = low if high is None else high
        self.changes.append(Change(signal=signal, first=step, rows=rows, low=low, high=end))

    def happen(self, kind: EventKind, step: int, row: int, *, device: str | None = None, **data: Any) -> None:
        """An event of a rank's process, or of its node's device, a moment after ``step`` began."""
        begin = float(self.times()[1][step - 1])
        owner = {"job": JOB, "rank": row} if device is None else {"device": device}
        number = f"generated-{len(self.events)}"
        self.events.append(Event(id=number, time=begin + 0.3, kind=kind, node=self.mesh.nodes[row], data=data, **owner))

    # what it becomes

    def busy(self) -> Floats:
        """[step, rank] seconds until the rank is ready for its peers."""
        parts = ("forward_seconds", "backward_seconds", "optimizer_seconds", "data_wait_seconds", "run_delay_seconds")
        return np.asarray(np.sum([self.own[name] for name in parts], axis=0) + self.own["gc_seconds"])

    def times(self) -> tuple[Floats, Floats]:
        """[step] duration and [step] Unix time of its end: all wait for the slowest, then for the wire."""
        slowest_wire = np.median(self.transfer, axis=1) if self.transfer.size else np.zeros(self.steps)
        duration = self.busy().max(axis=1) + 60.0 * slowest_wire + 0.05 + self.pauses
        return duration, START + np.cumsum(duration)

    def recording(self) -> InMemoryRecording:
        """As a service would have recorded it."""
        duration, ends = self.times()
        done = self.steps if self.stop is None else self.stop.step
        cut = self._lose(self._steps(duration, ends), done)
        held = InMemoryRecording(
            fleet=self._fleet(ends), happened=tuple(sorted(self.events, key=lambda event: event.time))
        )
        held.by_step[JOB] = cut
        held.by_pair[JOB] = self._transfers(ends, done)
        over = ends[done - 1] + (self.after if self.stop else 0.0)
        t = np.arange(np.ceil(START), np.ceil(over))
        x, signals = progress_of(self, ends, t)
        entities = self._entities()
        held.by_progress[JOB] = Samples(
            entities=entities, groups=(JOB,) * len(entities), signals=signals, t=t, x=x, mesh=self.mesh
        )
        held.by_source[SignalSource.GPU] = self._devices(ends, t)
        held.by_source[SignalSource.HOST] = self._hosts(ends, t)
        return held

    def _entities(self) -> tuple[Entity, ...]:
        return tuple(Entity(job=JOB, rank=r, node=node) for r, node in enumerate(self.mesh.nodes))

    def _steps(self, duration: Floats, ends: Floats) -> Samples:
        shape = (self.steps, self.mesh.size)
        told = dict(self.own)
        told["compute_time_seconds"] = told["forward_seconds"] + told["backward_seconds"] + told["optimizer_seconds"]
        told["step_time_seconds"] = np.repeat(duration[:, None], shape[1], axis=1)
        told["communication_wait_seconds"] = np.maximum(duration[:, None] - self.busy() - self.pauses[:, None], 0.0)
        told["step_phase"] = np.repeat(self.phase[:, None], shape[1], axis=1)
        return Samples(
            entities=self._entities(),
            groups=tuple(f"pp{stage}" for stage in self.mesh.on("pp")),
            signals=STEP_SIGNALS,
            t=ends,
            x=np.stack([told[name] for name in STEP_SIGNALS], axis=1).astype(np.float32),
            steps=np.arange(self.steps),
            mesh=self.mesh,
        )

    def _lose(self, samples: Samples, done: int) -> Samples:
        """What a real feed would lack: whole rows of some ranks and steps, timers that stand still."""
        cut = samples.part(0, done)
        chance = np.random.default_rng(self.seed + 1)
        lost = chance.random((done, self.mesh.size)) < self.missing
        x = np.where(lost[:, None], np.nan, cut.x)
        x[self.since :, :, self.absent] = np.nan
        status = np.flatnonzero(chance.random(self.mesh.size) < self.stuck)
        for name in ("compute_time_seconds", "forward_seconds", "backward_seconds"):
            row = STEP_SIGNALS.index(name)
            x[:, row, status] = cut.x[0, row, status]
        return Samples(
            entities=cut.entities, groups=cut.groups, signals=cut.signals, t=cut.t, x=x, steps=cut.steps, mesh=cut.mesh
        )

    def _transfers(self, ends: Floats, done: int) -> Samples:
        count = self.pairs.shape[1]
        chance = np.random.default_rng(self.seed + 2)
        seconds = np.where(chance.random((done, count)) < self.missing, np.nan, self.transfer[:done])
        return Samples(
            entities=tuple(Entity(job=JOB, rank=int(a), peer=int(b)) for a, b in self.pairs.T),
            groups=("pair",) * count,
            signals=("transfer_seconds", "transfer_bytes"),
            t=ends[:done],
            x=np.stack([seconds, np.where(np.isnan(seconds), np.nan, _PAIR_BYTES)], axis=1),
            steps=np.arange(done),
            mesh=self.mesh,
        )

    def _devices(self, ends: Floats, t: Floats) -> Samples:
        """GPUs under a steady load, with the device faults written in."""
        chance = np.random.default_rng(self.seed + 3)
        shape = (len(t), self.mesh.size)
        usual = {
            "gpu_utilization_ratio": 0.97 + 0.01 * chance.random(shape),
            "gpu_power_watts": 620.0 + 8.0 * chance.standard_normal(shape),
            "gpu_temperature_celsius": np.round(62.0 + chance.standard_normal(shape)),
            "gpu_sm_clock_hertz": np.full(shape, 1.755e9),
        }
        usual |= dict.fromkeys(("gpu_pcie_width", "gpu_pcie_width_max"), np.full(shape, 16.0))
        x = np.stack([usual.get(name, np.zeros(shape)) for name in GPU_SIGNALS], axis=1).astype(np.float32)
        entities = tuple(
            Entity(node=node, device=device) for node, device in zip(self.mesh.nodes, self.mesh.devices, strict=True)
        )
        told = Samples(entities=entities, groups=("h100",) * len(entities), signals=GPU_SIGNALS, t=t, x=x)
        return self._heard(told, ends, chance)

    def _hosts(self, ends: Floats, t: Floats) -> Samples:
        """The machines, with steady load, an uptime of weeks, and a disciplined clock."""
        chance = np.random.default_rng(self.seed + 5)
        shape = (len(t), len(self.nodes))
        usual = {
            "cpu_utilization_ratio": 0.3 + 0.02 * chance.random(shape),
            "memory_used_ratio": 0.4 + 0.005 * chance.random(shape),
            "disk_used_ratio": np.full(shape, 0.5),
            "uptime_seconds": np.broadcast_to(1e6 + t[:, None] - t[0], shape).copy(),
            "clock_synchronized": np.ones(shape),
            "clock_error_seconds": 1e-3 * chance.random(shape),
        }
        for node, step, seconds in self.dark:
            booted = self._begin(step, ends) + seconds
            if seconds > _BOOT_SECONDS:
                usual["uptime_seconds"][t >= booted, self.nodes.index(node)] = t[t >= booted] - booted
        x = np.stack([usual.get(name, np.zeros(shape)) for name in HOST_SIGNALS], axis=1).astype(np.float32)
        entities = tuple(Entity(node=node, device="host") for node in self.nodes)
        told = Samples(entities=entities, groups=("pod",) * len(entities), signals=HOST_SIGNALS, t=t, x=x)
        return self._heard(told, ends, chance)

    def _begin(self, step: int, ends: Floats) -> float:
        return float(ends[step - 1]) if step else START

    def _heard(self, told: Samples, ends: Floats, chance: np.random.Generator) -> Samples:
        """With the changes written in, and without what was lost."""
        for change in (change for change in self.changes if change.signal in told.signals):
            within = np.flatnonzero((told.t >= self._begin(change.first, ends)) & (told.t < ends[self.steps - 1]))
            values = np.linspace(change.low, change.high, len(within), dtype=np.float32)[:, None, None]
            told.x[np.ix_(within, np.array([told.signals.index(change.signal)]), change.rows)] = values
        lost = chance.random((len(told.t), len(told.entities))) < self.missing
        for node, step, seconds in self.dark:
            passed = told.t - self._begin(step, ends)
            lost |= ((passed >= 0.0) & (passed < seconds))[:, None] & np.array([e.node == node for e in told.entities])
        return replace(told, x=np.where(lost[:, None], np.float32(np.nan), told.x))

    def _fleet(self, ends: Floats) -> FleetInfo:
        above = dict(zip(self.mesh.nodes, self.mesh.switches, strict=True))
        index = [dict(zip(self.mesh.axes, map(int, places), strict=True)) for places in self.mesh.index.T]
        ranks: tuple[dict[str, int | str | None], ...] = tuple(
            {"rank": r, "node": self.mesh.nodes[r], "device": self.mesh.devices[r], **index[r]}
            for r in range(self.mesh.size)
        )
        return FleetInfo(
            source=f"generated, seed {self.seed}",
            start=START,
            stop=float(ends[-1]),
            nodes=tuple(NodeInfo(name=node, cohort="pod", switches=switches) for node, switches in above.items()),
            devices=tuple(
                DeviceInfo(node=node, id=str(device), model="H100")
                for node, device in zip(self.mesh.nodes, self.mesh.devices, strict=True)
            )
            + tuple(DeviceInfo(node=node, id="host", model="server") for node in self.nodes),
            jobs=(JobInfo(id=JOB, ranks=ranks),),
        )
