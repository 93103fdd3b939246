"""Writers of checkpoints that are killed by SIGKILL at random moments, on disks that fill, vanish, or turn read-only.

Two nodes write a step side by side, each in a process of its own, whole states and shares in turn. After each fault a
reader looks: every step that claims to be whole must verify to the last byte and hold the bytes that were in memory,
and no step that was whole before may be gone that retention keeps. Then the same writers try again.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.lib_cluster import small_disk
from bench.lib_source import ArraySource
from bench.report import RESULTS, Row, publish
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import SlotOrder, Writer, WriteRequest, WriteResult
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter

RUN, RANKS, KEEP, ROWS = "run-1", 2, 2, 200
WARM_UP = 5


@dataclass
class Job:
    """Two ranks with a slot each, and the step directory that both write."""

    memory: Path
    disk: Path
    epoch: int = 0
    copies: int = 0
    states: dict[int, list[bytes]] = field(default_factory=dict)
    """Epoch -> what the slots of the ranks held."""

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.arrays = [{"param.w": np.zeros((ROWS, 1024), np.uint8), "rng.x": np.zeros(99, np.uint8)} for _ in "ab"]
        self.arenas = []
        self.writers = []
        for rank, arrays in enumerate(self.arrays):
            source = ArraySource(arrays)
            arena = Arena.create(self.memory / f"rank-{rank}.arena", rank=rank, layout=source.layout, slots=2)
            self.arenas.append(arena)
            self.writers.append(SnapshotWriter(arena, source))

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.disk / "checkpoints" / RUN)

    def step(self) -> None:
        """The next step is in memory."""
        self.epoch += 1
        self.copies = self.epoch % 2
        weights = self.random.integers(0, 256, (ROWS, 1024)).astype(np.uint8)
        for rank, arrays in enumerate(self.arrays):
            arrays["param.w"][:] = weights
            arrays["rng.x"][:] = rank + self.epoch % 100
            self.writers[rank].start(self.epoch, 1)
            self.writers[rank].wait()
            self.arenas[rank].verify(self.arenas[rank].find(self.epoch))
        self.states[self.epoch] = [
            arena.slot_bytes(arena.find(self.epoch).slot)[: arena.layout.nbytes].tobytes() for arena in self.arenas
        ]

    def order(self, rank: int) -> WriteRequest:
        config = DiskConfig(run=RUN, generation=1, every=1, dp=RANKS, pp=1, tp=1, copies=self.copies)
        slot = SlotOrder(arena=str(self.arenas[rank].path), rank=rank, epoch=self.epoch)
        directory = str(self.disk / "checkpoints")
        return WriteRequest(
            directory=directory, job="bench", config=config, keep=RetentionPolicy(last=KEEP), slots=(slot,)
        )

    def write(self, rank: int) -> WriteResult:
        order = self.order(rank)
        writer = Writer()
        begun = writer.carry_out(
            WriteRequest(directory=order.directory, job="bench", config=order.config, keep=RetentionPolicy(last=KEEP))
        )
        return begun if begun.problem else writer.carry_out(order)

    def start(self, rank: int) -> int:
        """A process that writes the slot of ``rank``; its id. It has this program's memory, so it begins at once."""
        child = os.fork()
        if child == 0:
            result = self.write(rank)
            os._exit(1 if result.problem or any(slot.problem for slot in result.slots) else 0)
        return child

    def false_steps(self) -> list[str]:
        """Steps that claim to be whole and are not."""
        wrong = []
        for manifest in self.run.complete():
            for entry, expected in zip(manifest.parts, self.states[manifest.epoch], strict=True):
                layout = self.arenas[entry.rank].layout
                slot = np.empty(layout.nbytes, np.uint8)
                try:
                    read_slot(self.run, self.run.part(manifest.epoch, entry.rank, entry.generation), layout, slot)
                except CheckpointError as error:
                    wrong.append(str(error))
                    continue
                if slot.tobytes() != expected:
                    wrong.append(f"step {manifest.epoch} rank {entry.rank} has other bytes")
        return wrong

    def whole(self) -> list[int]:
        return [manifest.epoch for manifest in self.run.complete()]


@dataclass
class Counts:
    points: int = 0
    struck: int = 0
    """Faults that hit a writer at work."""
    false_whole: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Writes that failed without a line that says why."""


def usual_seconds(job: Job) -> float:
    """That both writers take for a step that nothing disturbs."""
    found = []
    for _ in range(WARM_UP):
        job.step()
        begun = time.monotonic()
        children = [job.start(rank) for rank in range(RANKS)]
        for child in children:
            os.waitpid(child, 0)
        found.append(time.monotonic() - begun)
    return sorted(found)[WARM_UP // 2]


def kill_once(job: Job, chance: random.Random, longest: float, counts: Counts) -> None:
    """A step whose writers are killed within ``longest`` seconds, one or both; then it is written to its end."""
    job.step()
    before = job.whole()
    children = [job.start(rank) for rank in range(RANKS)]
    for child in children[: chance.choice((1, RANKS))]:
        time.sleep(chance.random() * longest / RANKS)
        os.kill(child, signal.SIGKILL)
    ended = [os.waitpid(child, 0)[1] for child in children]
    counts.points += 1
    counts.struck += any(os.WIFSIGNALED(status) for status in ended)
    _look(job, before, counts)
    for rank in range(RANKS):
        result = job.write(rank)
        if result.problem or any(slot.problem for slot in result.slots):
            counts.lost.append(f"step {job.epoch} could not be written after the kill: {result}")
    if job.whole()[:1] != [job.epoch]:
        counts.lost.append(f"step {job.epoch} is not whole after both wrote it")


def _look(job: Job, before: list[int], counts: Counts) -> None:
    counts.false_whole += job.false_steps()
    kept = before[: KEEP - 1]  # the step under way may have pushed the oldest out
    gone = [epoch for epoch in kept if epoch not in job.whole()]
    counts.lost += [f"step {epoch} was whole and is gone" for epoch in gone]


def strike_once(job: Job, strike: Callable[[], None], repair: Callable[[], None], counts: Counts) -> None:
    """A step that is written while the disk refuses; then the disk is well again."""
    job.step()
    before = job.whole()
    strike()
    results = [job.write(rank) for rank in range(RANKS)]
    told = [result.problem or next((slot.problem for slot in result.slots), "") for result in results]
    counts.points += 1
    counts.struck += any(told)
    counts.silent += [f"step {job.epoch}: {problem!r}" for problem in told if problem and "\n" in problem]
    _look(job, before, counts)
    repair()
    for rank in range(RANKS):
        job.write(rank)
    if job.whole()[:1] != [job.epoch]:
        counts.lost.append(f"step {job.epoch} is not whole on a disk that is well again")


def disks(job: Job, disk: Path, points: int) -> Counts:
    """A disk that is full, or read-only."""
    counts, filler = Counts(), disk / "filler"

    def fill() -> None:
        free = os.statvfs(disk)
        left = free.f_bavail * free.f_frsize
        filler.write_bytes(bytes(max(0, left - (counts.points % 40) * 16_384)))

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)

    for point in range(points):
        if point % 4:
            strike_once(job, fill, lambda: filler.unlink(missing_ok=True), counts)
        else:
            strike_once(job, lambda: mount("ro"), lambda: mount("rw"), counts)
    return counts


def run(points: int, seed: int = 0) -> dict[str, Counts]:
    """Kills, and, for root, disks that refuse."""
    chance, found = random.Random(seed), {"kills": Counts()}
    with ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstay-bench-", dir="/dev/shm")))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstay-bench-")))
        for name in ("kills", "disks"):
            (memory / name).mkdir()
        job = Job(memory / "kills", disk)
        longest = usual_seconds(job)
        for _ in range(points):
            kill_once(job, chance, longest, found["kills"])
        if os.geteuid() == 0 and shutil.which("mount"):
            small = disk / "small"
            stack.enter_context(small_disk(small, 8))
            found["disks"] = disks(Job(memory / "disks", small), small, max(4, points // 5))
    return found


def rows(found: dict[str, Counts]) -> list[Row]:
    words = {"kills": "SIGKILL of writers at random moments", "disks": "writes to a full or read-only disk"}
    made = []
    for name, counts in found.items():
        kinds = Counter(false=len(counts.false_whole), lost=len(counts.lost), silent=len(counts.silent))
        made.append(
            Row(
                claim=f"{words[name]}: steps that falsely claim to be whole, or are lost",
                figure=kinds["false"] + kinds["lost"] + kinds["silent"], unit="", target="0",
                holds=not any(kinds.values()), kind="live", n=counts.points,
                note=f"{counts.struck} hit a writer at work; " + "; ".join(
                    [*counts.false_whole, *counts.lost, *counts.silent][:3]),
            )
        )  # fmt: skip
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_faults")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoint_faults.json", metavar="FILE")
    parser.add_argument("--points", type=int, default=1000, help="kills; a fifth as many disk faults")
    chosen = parser.parse_args()
    publish("checkpoint_faults", rows(run(chosen.points)), chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
