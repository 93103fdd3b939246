"""A job with an embedding table, whose checkpoint writer runs here and encodes steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.lib_source import ArraySource
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.load import part_file
from mainstay.recovery.checkpoint.manifest import DiskConfig, Manifest, Return, StepEncoding
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.writer import SlotOrder, Writer, WriteRequest
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.snapshot import SnapshotWriter

RUN = "01997c4e-8f00-7000-8000-000000000003"
ROWS = 500


def arrays(rank: int, epoch: int) -> dict[str, np.ndarray]:
    """Each epoch touches a twentieth of the rows; replicas hold the same, but for random numbers."""
    table = np.random.default_rng(1).normal(0, 1, (ROWS, 16)).astype(np.float32)
    moments = np.zeros((ROWS, 16), np.float32)
    for number in range(1, epoch + 1):
        random = np.random.default_rng([2, number])
        rows = random.choice(ROWS, ROWS // 20, replace=False)
        table[rows] += random.normal(0, 0.01, (len(rows), 16)).astype(np.float32)
        moments[rows] = number
    return {
        "param.table": table,
        "param.bias": np.random.default_rng([3, epoch]).normal(0, 1, 16).astype(np.float32),
        "optim.table.exp_avg": moments,
        "optim.table.step": np.array(epoch, np.float32),
        "rng.torch": np.random.default_rng([rank, epoch]).integers(0, 256, 64).astype(np.uint8),
    }


def slot_of(layout: Layout, rank: int, epoch: int) -> Bytes:
    """The slot of a step."""
    slot = np.zeros(layout.nbytes, np.uint8)
    for name, view in layout.views(slot).items():
        view[...] = arrays(rank, epoch)[name]
    return slot


class EncodedJob:
    """``dp`` ranks of one node, and the writer of this node."""

    def __init__(self, home: Path, *, dp: int = 2, keep: int = 2, encoding: StepEncoding = "exact") -> None:
        self.encoding = encoding
        self.directory, self.run_id, self.dp, self.keep = home / "checkpoints", RUN, dp, keep
        self._memory = home / "memory"
        self._memory.mkdir(exist_ok=True)
        self._arenas: dict[int, Arena] = {}
        self.layout = ArraySource(arrays(0, 0)).layout
        self.writer = Writer()

    @property
    def run(self) -> RunDirectory:
        return RunDirectory(self.directory / self.run_id)

    def step(self, rank: int, epoch: int, generation: int = 1) -> SlotOrder:
        """Commit a step in memory."""
        source, path = ArraySource(arrays(rank, epoch)), self._memory / f"rank-{rank}.arena"
        if rank not in self._arenas:
            self._arenas[rank] = Arena.create(path, rank=rank, layout=source.layout, slots=3)
        snapshots = SnapshotWriter(self._arenas[rank], source)
        snapshots.start(epoch, generation)
        snapshots.wait()
        snapshots.close()
        self._arenas[rank].verify(self._arenas[rank].find(epoch))
        return SlotOrder(arena=str(path), rank=rank, epoch=epoch)

    def order(
        self, slots: tuple[SlotOrder, ...], generation: int = 1, returns: tuple[Return, ...] = (), *,
        final: bool = False,
    ) -> WriteRequest:  # fmt: skip
        config = DiskConfig(
            run=self.run_id, generation=generation, every=1, dp=self.dp, pp=1, tp=1, returns=returns,
            encoding=self.encoding,
        )  # fmt: skip
        keep = RetentionPolicy(last=self.keep)
        return WriteRequest(
            directory=str(self.directory), job="job", config=config, keep=keep, slots=slots, final=final
        )

    def write(self, order: WriteRequest) -> None:
        result = self.writer.carry_out(order)
        assert [result.problem, *(slot.problem for slot in result.slots)] == [""] * (1 + len(order.slots))

    def whole(self, epoch: int, generation: int = 1, returns: tuple[Return, ...] = ()) -> Manifest:
        """Write a step of all ranks."""
        self.write(self.order((), generation, returns))
        slots = tuple(self.step(rank, epoch, generation) for rank in range(self.dp))
        self.write(self.order(slots, generation, returns))
        return self.run.manifest(epoch)

    def read(self, epoch: int, rank: int = 0, run: RunDirectory | None = None) -> Bytes:
        """The slot of the complete step."""
        where = run or self.run
        (generation,) = (part.generation for part in where.manifest(epoch).parts if part.rank == rank)
        part, slot = where.part(epoch, rank, generation), np.zeros(self.layout.nbytes, np.uint8)
        with part_file(where, part) as read:
            for entry, spec in zip(part.tensors, self.layout.tensors, strict=True):
                read(entry, slot[spec.offset : spec.offset + spec.nbytes])
        return slot

    def holds(self, epoch: int, run: RunDirectory | None = None) -> bool:
        """Whether the step restores the same bits on all ranks."""
        slots = [(self.read(epoch, rank, run), slot_of(self.layout, rank, epoch)) for rank in range(self.dp)]
        return all(np.array_equal(found, wanted) for found, wanted in slots)


def kill_at(job: EncodedJob, moment: int, epoch: int, *, final: bool = False) -> bool:
    """Write a step in a process that ends at a call of the file system; whether it got to its end."""
    child = os.fork()
    if not child:
        try:
            left = moment
            job.writer._threads = ThreadPoolExecutor(1)  # threads stay behind in a fork

            def dying(function: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os._exit(9)
                    return function(*arguments, **named)

                return call

            for owner, name in ((os, "fsync"), (os, "replace"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
                setattr(owner, name, dying(getattr(owner, name)))
            job.write(job.order(tuple(job.step(rank, epoch) for rank in range(job.dp)), final=final))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0
