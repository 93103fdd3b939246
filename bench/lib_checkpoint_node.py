"""One node whose ranks have snapshots in memory, and its writes to disk: by us, by torch.save, and by dcp.save."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint

from bench.lib_checkpoint_job import problem_of
from bench.lib_source import ArraySource
from mainstay.recovery.agent.checkpoint_writer import WriterProcess
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.writer import SlotOrder, WriteRequest, WriteResult
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter

dcp: Any = torch.distributed.checkpoint
"""It does not export its names to type checkers."""
MIB = 1024 * 1024
RANKS, EACH = 8, 8 * MIB
RUN, EPOCH = "run-1", 1


class Node:
    """The slots of eight ranks, and where they are written."""

    def __init__(self, memory: Path, disk: Path, nbytes: int, *, alike: int = 0) -> None:
        """``alike``: so many replicas of one state, instead of eight shards."""
        self.disk, self.memory, self.nbytes = disk, memory, nbytes
        self.writer = WriterProcess()
        self.arenas, self.states, self._sources = [], [], []
        for rank in range(alike or RANKS):
            random = np.random.default_rng(0 if alike else rank)
            count = max(1, nbytes // RANKS // EACH)
            arrays = {f"param.{i}": random.integers(0, 256, EACH, np.uint8) for i in range(count)}
            arrays["rng.torch"] = np.full(64, rank, np.uint8)
            source = ArraySource(arrays)
            self.arenas.append(Arena.create(memory / f"rank-{rank}.arena", rank=rank, layout=source.layout, slots=2))
            self._sources.append(source)
        self.step(EPOCH)
        for arena in self.arenas:
            views = arena.layout.views(arena.slot_bytes(arena.find(EPOCH).slot))
            self.states.append({name: torch.from_numpy(view) for name, view in views.items()})

    def step(self, epoch: int) -> None:
        """Every rank has a snapshot of ``epoch``."""
        for arena, source in zip(self.arenas, self._sources, strict=True):
            writer = SnapshotWriter(arena, source)
            writer.start(epoch, 1)
            writer.wait()
            writer.close()
            arena.verify(arena.find(epoch))

    def order(
        self, ranks: range, *, dp: int, copies: int = 0, rows: tuple[SlotOrder, ...] = (), epoch: int = EPOCH
    ) -> WriteRequest:
        """Write the slots of ``ranks``, and parity ``rows``; of none: make the run's directory."""
        config = DiskConfig(run=RUN, generation=1, every=1, dp=dp, pp=1, tp=1, copies=copies)
        slots = tuple(SlotOrder(arena=str(self.arenas[rank].path), rank=rank, epoch=epoch) for rank in ranks)
        directory = str(self.disk / "ours")
        return WriteRequest(
            directory=directory, job="bench", config=config, keep=RetentionPolicy(), slots=(*slots, *rows)
        )

    def write(self, ranks: int = 0, *, copies: int = 0, rows: tuple[SlotOrder, ...] = ()) -> WriteResult:
        """As an agent has it written; all ranks, or so many, with parity ``rows``."""
        every = len(self.arenas)
        self.writer.submit(self.order(range(0), dp=every, copies=copies))
        told = self.writer.submit(self.order(range(ranks or every), dp=every, copies=copies, rows=rows))
        if problem_of(told):
            raise RuntimeError(problem_of(told))
        return told

    def private_bytes(self) -> int:
        """Most private memory of the process that writes, while it writes everything once more."""
        most, done = 0, threading.Event()

        def write() -> None:
            self.clear()
            self.write()
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        (child,) = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()[-1:]
        while not done.wait(0.005):
            most = max(most, _private(int(child)))
        thread.join()
        return most

    def torch_save(self) -> None:
        for rank, state in enumerate(self.states):
            with (self.disk / f"{rank}.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())

    def dcp_save(self) -> None:
        whole = {f"{rank}.{name}": tensor for rank, state in enumerate(self.states) for name, tensor in state.items()}
        writer = dcp.FileSystemWriter(self.disk / "theirs", sync_files=True, thread_count=RANKS)
        dcp.save(whole, storage_writer=writer, no_dist=True)

    def clear(self) -> None:
        for path in self.disk.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def dcp_reads_ours(self) -> bool:
        """Whether ``dcp.load`` finds the same bits in our step."""
        step = self.disk / "ours" / RUN / f"step-{EPOCH:08d}"
        wanted = {f"rank{rank}.model.0": torch.zeros_like(state["param.0"]) for rank, state in enumerate(self.states)}
        dcp.load(wanted, storage_reader=dcp.FileSystemReader(step), no_dist=True)
        return all(torch.equal(wanted[f"rank{r}.model.0"], state["param.0"]) for r, state in enumerate(self.states))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _private(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024
