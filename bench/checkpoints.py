"""What a step on disk costs: one rank's part against ``dcp.save`` of the same tensors, and back against ``dcp.load``.

All in the same rounds, on the same file system, with fsync, and from memory that nothing else writes. Processor time is
what matters beside training: it is taken from the same core. The writer's memory is what a node pays all the time.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint

from bench.lib_source import ArraySource
from bench.report import Row, publish, target_file
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter

dcp: Any = torch.distributed.checkpoint
"""It does not export its names to type checkers."""
MIB = 1024 * 1024
TENSORS, EACH = 128, 2 * MIB
"""256 MiB in the shape of a small transformer's layers."""
ROUNDS = 7


class Bench:
    """The same state as a slot in an arena and as a state dict."""

    def __init__(self, memory: Path, disk: Path) -> None:
        random = np.random.default_rng(3)
        self.arrays = {f"param.{i}": random.integers(0, 256, EACH, np.uint8) for i in range(TENSORS)}
        self.state: dict[str, Any] = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        source = ArraySource(self.arrays)
        self.arena = Arena.create(memory / "rank-0.arena", rank=0, layout=source.layout, slots=2)
        writer = SnapshotWriter(self.arena, source)
        writer.start(1, 1)
        writer.wait()
        writer.close()
        self.record = self.arena.verify(self.arena.find(1))
        config = DiskConfig(run="run-1", generation=1, every=1, dp=1, pp=1, tp=1)
        self.ours, self.theirs = WriteTarget(disk / "ours", "bench", config), disk / "theirs"

    def write(self) -> None:
        save.begin_step(self.ours)
        save.write_part(self.arena, self.record, self.ours)
        save.commit(self.ours, 1)

    def dcp_write(self) -> None:
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(self.theirs, sync_files=True), no_dist=True)

    def read(self) -> None:
        part = self.ours.run.part(1, 0, 1)
        read_slot(self.ours.run, part, self.arena.layout, np.empty(self.arena.layout.nbytes, np.uint8))

    def dcp_read(self) -> None:
        state: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in self.state.items()}
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.theirs), no_dist=True)

    def dcp_reads_ours(self) -> bool:
        """Whether ``dcp.load`` finds the same bits in our step."""
        state: dict[str, Any] = {
            name.replace("param.", "model."): torch.zeros_like(t) for name, t in self.state.items()
        }
        dcp.load(state, storage_reader=dcp.FileSystemReader(self.ours.run.step(1)), no_dist=True)
        return all(torch.equal(state[name.replace("param.", "model.")], t) for name, t in self.state.items())

    def clear(self) -> None:
        for path in (self.ours.directory, self.theirs):
            shutil.rmtree(path, ignore_errors=True)


def took(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the wall and of processors."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(bench: Bench) -> tuple[dict[str, list[tuple[float, float]]], bool]:
    """Work -> what each round took; and whether every step of ours was read by torch to the bit."""
    works = {"write": bench.write, "dcp_write": bench.dcp_write, "read": bench.read, "dcp_read": bench.dcp_read}
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    same = True
    for turn in range(ROUNDS + 1):
        bench.clear()
        for name, work in works.items():
            spent = took(work)
            if turn:  # the first round warms caches and imports
                rounds[name].append(spent)
        same = same and bench.dcp_reads_ours()
    return rounds, same


def ratio(rounds: dict[str, list[tuple[float, float]]], theirs: str, ours: str, which: int) -> float:
    """How many times as long theirs takes; the median of the rounds."""
    return statistics.median(t[which] / o[which] for t, o in zip(rounds[theirs], rounds[ours], strict=True))


def resident(code: str) -> int:
    """Bytes that a Python process which runs ``code`` has at most."""
    script = f"{code}\nprint(*(line for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1]) * 1024


def rows(rounds: dict[str, list[tuple[float, float]]], *, same: bool) -> list[Row]:
    where = f"{TENSORS} tensors, {TENSORS * EACH // MIB} MiB, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    made = [
        Row(
            claim="our step read by dcp.load, to the bit", figure="yes" if same else "no", unit="", target="yes",
            holds=same, kind="live", n=ROUNDS + 1, note=where,
        )
    ]  # fmt: skip
    for what, ours, theirs in (("written", "write", "dcp_write"), ("read and checked", "read", "dcp_read")):
        for which, clock in ((0, "by the wall"), (1, "processor time")):
            figure = ratio(rounds, theirs, ours, which)
            seconds = statistics.median(spent[which] for spent in rounds[theirs])
            made.append(
                Row(
                    claim=f"a part {what}, with digests, {clock}", figure=round(figure, 2), unit="x as fast as dcp",
                    target=">= 1", holds=figure >= 1.0, kind="live", n=ROUNDS, note=where,
                    baseline=f"dcp without digests: {seconds:.3f} s",
                )
            )  # fmt: skip
    writer, torchs = (
        resident("import mainstay.recovery.checkpoint.writer"),
        resident("import torch.distributed.checkpoint"),
    )
    made.append(
        Row(
            claim="memory of the process that writes", figure=round(writer / MIB), unit="MiB", target="<= 100",
            holds=writer <= 100 * MIB, kind="live", baseline=f"a process with dcp imported: {torchs / MIB:.0f} MiB",
        )
    )  # fmt: skip
    return made


def main() -> int:
    file = target_file("checkpoints")
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    logging.disable(logging.WARNING)
    memory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(prefix="mainstay-bench-"))
    try:
        rounds, same = measure(Bench(memory, disk))
        publish("checkpoints", rows(rounds, same=same), file)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
