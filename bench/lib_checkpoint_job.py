"""Two ranks of a job that is not there: slots that steps are written from, and what a look at the disk says of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from bench.lib_source import ArraySource
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.encoded_writer import EncodedWriter
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig, StepEncoding
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import SlotOrder, Writer, WriteRequest, WriteResult
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter

RANKS, KEEP, ROWS = 2, 2, 200
IN_A_ROW = 8
"""Steps that are encoded, and as many that are not."""


@dataclass
class Job:
    """Two ranks with a slot each, and the step directory that both write."""

    memory: Path
    disk: Path
    epoch: int = 0
    copies: int = 0
    rows: int = ROWS
    encodes: bool = False
    """Steps hold differences in turn."""
    encoding: StepEncoding = "full"
    run_id: str = "run-1"
    encoders: list[dict[int, EncodedWriter]] = field(default_factory=lambda: [{} for _ in range(RANKS)])
    """What the process of each node keeps in memory."""
    states: dict[int, list[bytes]] = field(default_factory=dict)
    """Epoch -> what the slots of the ranks held; of the last ones, which may be on disk."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        weights = (self.rows, 1024)
        self.weights = np.zeros(weights, np.uint8)
        self.arrays = [{"param.w": np.zeros(weights, np.uint8), "rng.x": np.zeros(99, np.uint8)} for _ in range(RANKS)]
        self.arenas = []
        self.writers = []
        for rank, arrays in enumerate(self.arrays):
            source = ArraySource(arrays)
            arena = Arena.create(self.memory / f"rank-{rank}.arena", rank=rank, layout=source.layout, slots=2)
            self.arenas.append(arena)
            self.writers.append(SnapshotWriter(arena, source))

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.disk / "checkpoints" / self.run_id)

    def step(self) -> None:
        """The next step is in memory."""
        self.epoch += 1
        self.encoding = "exact" if self.encodes and self.epoch // IN_A_ROW % 2 else "full"
        self.copies = self.epoch % 2 if self.encoding == "full" else 0
        rows = self.random.choice(self.rows, self.rows // 10 if self.encoding == "exact" else self.rows, replace=False)
        self.weights[rows] = self.random.integers(0, 256, (len(rows), 1024))
        for rank, arrays in enumerate(self.arrays):
            arrays["param.w"][:] = self.weights
            arrays["rng.x"][:] = rank + self.epoch % 100
            self.writers[rank].start(self.epoch, 1)
            self.writers[rank].wait()
            self.arenas[rank].verify(self.arenas[rank].find(self.epoch))
        kept = {*self.whole()}  # of any age: one whose upload has failed stays a while
        self.states = {e: state for e, state in self.states.items() if e > self.epoch - 4 * IN_A_ROW or e in kept}
        self.states[self.epoch] = [
            arena.slot_bytes(arena.find(self.epoch).slot)[: arena.layout.nbytes].tobytes() for arena in self.arenas
        ]

    def begin_order(self) -> WriteRequest:
        """Make the run's directory."""
        config = DiskConfig(
            run=self.run_id, generation=1, every=1, dp=RANKS, pp=1, tp=1, copies=self.copies, encoding=self.encoding
        )
        directory = str(self.disk / "checkpoints")
        return WriteRequest(directory=directory, job="bench", config=config, keep=RetentionPolicy(last=KEEP))

    def order(self, *ranks: int) -> WriteRequest:
        """Write the slots of ``ranks``."""
        slots = (SlotOrder(arena=str(self.arenas[rank].path), rank=rank, epoch=self.epoch) for rank in ranks)
        return msgspec.structs.replace(self.begin_order(), slots=tuple(slots))

    def write(self, *ranks: int) -> str:
        """In this process; what went wrong."""
        writer = Writer()
        writer.encoders = self.encoders[ranks[0]]
        return problem_of(writer.carry_out(self.begin_order())) or problem_of(writer.carry_out(self.order(*ranks)))

    def start(self, rank: int) -> int:
        """A process that writes the slot of ``rank``; its id. It has this program's memory, so it begins at once."""
        child = os.fork()
        if child == 0:
            os._exit(1 if self.write(rank) else 0)
        return child

    def false_steps(self, run: RunDirectory | None = None) -> list[str]:
        """Steps that claim to be whole and are not."""
        wrong, run = [], run or self.run
        for manifest in run.complete():
            for entry, expected in zip(manifest.parts, self.states[manifest.epoch], strict=True):
                layout = self.arenas[entry.rank].layout
                slot = np.empty(layout.nbytes, np.uint8)
                try:
                    read_slot(run, run.part(manifest.epoch, entry.rank, entry.generation), layout, slot)
                except CheckpointError as error:
                    wrong.append(str(error))
                    continue
                if slot.tobytes() != expected:
                    wrong.append(f"step {manifest.epoch} rank {entry.rank} has other bytes")
        return wrong

    def whole(self) -> list[int]:
        return [manifest.epoch for manifest in self.run.complete()]


def problem_of(result: WriteResult) -> str:
    return result.problem or next((slot.problem for slot in result.slots if slot.problem), "")


@dataclass
class Counts:
    """What faults have done."""

    points: int = 0
    struck: int = 0
    """Faults that hit a process at work."""
    false_whole: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """What failed without one line that names the place."""

    def note(self, where: str, problem: str | None, job: Job, before: list[int]) -> None:
        """Look at the disk after a fault.

        Args:
            where: the fault.
            problem: what was reported; None: the process was killed.
            job: whose steps are looked at.
            before: steps that were whole until then.
        """
        if problem and ("\n" in problem or str(job.disk) not in problem):
            self.silent.append(f"{where}: {problem!r}")
        self.false_whole += [f"{where}: {wrong}" for wrong in job.false_steps()]
        kept, there = before[: KEEP - 1], job.whole()  # the step under way may have pushed the oldest out
        self.lost += [f"{where}: step {epoch} was whole and is gone" for epoch in kept if epoch not in there]
