"""What checkpoints cost, in ratios to the device and to torch in the same rounds, on the same file system.

One node of eight ranks writes its state with fsync through the process that writes in a job, from memory that nothing
else writes: beside ``fio`` with ``O_DIRECT``, ``torch.save``, and ``dcp.save`` with as many threads. Four replicas read
theirs back. A job trains beside its own checkpoints, and a loop of products beside more than a job has.
``--gib N`` sets the size of the state.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint

from bench.lib_checkpoint_job import problem_of
from bench.lib_checkpoint_node import EPOCH, MIB, RANKS, RUN, Node, seconds
from bench.lib_checkpoint_training import in_a_job, in_a_loop
from bench.lib_device import dd_rate, forget_cached, tool, write_rate
from bench.lib_device_faults import WRITER, Process
from bench.lib_source import ArraySource
from bench.report import RESULTS, Row, publish
from mainstay.recovery.agent.checkpoint_reader import CheckpointReader
from mainstay.recovery.agent.messages import LoadDisk
from mainstay.recovery.agent.node import AgentNode, AgentSettings
from mainstay.recovery.agent.parity_store import ParityStore
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import MEMORY_BYTES, WriteResult
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.snapshot import SnapshotWriter
from tests.recovery.checkpoint.faulty_disk import COMPILER, FaultyDisk

dcp: Any = torch.distributed.checkpoint
"""It does not export its names to type checkers."""
DCP_SAVE = f"x dcp.save with {RANKS} threads"
REPLICAS, ROUNDS = 4, 5
DEVICE = 8 * MIB
"""Bytes per second of a simulated device: eight of them write for four seconds."""


def writing(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    """Eight shards of one node: against the device just before and after, ``torch.save``, and ``dcp.save``."""
    node = Node(memory, disk, nbytes)
    where = f"{nbytes / 2**30:g} GiB in {RANKS} shards, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    for _ in (True, False):  # which maps all slots, and measures whether files go past the page cache
        node.clear()
        node.write()

    def ours(ranks: int = RANKS) -> float:
        node.clear()
        return nbytes * ranks / RANKS / node.write(ranks).seconds

    def theirs(work: Callable[[], None]) -> float:
        node.clear()
        return nbytes / seconds(work)

    def device(files: int = 1) -> float:
        node.clear()
        return write_rate(disk, nbytes, files)

    ratios: dict[str, list[float]] = {}
    most: list[float] = []
    before = device()
    for _ in range(ROUNDS):
        rate = ours()
        after = device()
        ratios.setdefault(f"of {tool()}'s rate", []).append(2 * rate / (before + after))
        ratios.setdefault("x torch.save", []).append(rate / theirs(node.torch_save))
        ratios.setdefault(DCP_SAVE, []).append(rate / (saved := theirs(node.dcp_save)))
        most.append(max(after, device(RANKS)) / saved)
        for ranks in (2, 4):
            before, split, after = device(), ours(ranks), device()
            ratios.setdefault(f"of {tool()}'s rate, with {ranks} of the shards", []).append(
                2 * split / (before + after)
            )
        before = after
    node.clear()
    node.write()
    same = node.dcp_reads_ours()
    peak = node.private_bytes() - _start_bytes()
    node.writer.stop()
    least = {"x torch.save": 3.0, DCP_SAVE: 1.5, f"of {tool()}'s rate": 0.85}
    limit = f"; {tool()}, with one file or {RANKS} at once, whichever is faster: {statistics.median(most):.2f}"
    return [
        Row(
            claim="our step read by dcp.load, to the bit", figure="yes" if same else "no", unit="", target="yes",
            holds=same, kind="live", note=where,
        ),
        *(
            Row(
                claim="a node's checkpoint written, with digests and fsync", figure=round(statistics.median(found), 2),
                unit=unit, target=f">= {least.get(unit, 0.9):g}", kind="live", n=ROUNDS,
                holds=statistics.median(found) >= least.get(unit, 0.9),
                note=f"{where}; rounds: {', '.join(f'{one:.2f}' for one in found)}{limit if unit == DCP_SAVE else ''}",
            )
            for unit, found in ratios.items()
        ),
        Row(
            claim="memory of writing beside the mapped slots", figure=round(peak / MIB), unit="MiB",
            target=f"<= {MEMORY_BYTES // MIB}", holds=peak <= MEMORY_BYTES, kind="live",
            note="most private memory of the process while it writes, less that of an idle one",
        ),
    ]  # fmt: skip


def copying(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    """How much sooner a step would be on disk if its write began with the copy into the slots, and not after it."""
    node = Node(memory, disk, nbytes)
    sources = [ArraySource({name: t.numpy().copy() for name, t in state.items()}) for state in node.states]
    writers = [SnapshotWriter(arena, source) for arena, source in zip(node.arenas, sources, strict=True)]

    def copy() -> None:
        for writer in writers:
            writer.start(EPOCH, 1)
        for writer in writers:
            writer.wait()

    def verify() -> None:
        for arena in node.arenas:
            arena.verify(arena.find(EPOCH))

    copy()  # which touches the other slots
    shares: dict[str, list[float]] = {}
    writes = []
    for _ in range(ROUNDS):
        copied, verified = seconds(copy), seconds(verify)
        node.clear()
        written = node.write().seconds
        writes.append(written)
        shares.setdefault("copy of a state into its slots", []).append(100 * copied / written)
        shares.setdefault("digest of the slots before they are written", []).append(100 * verified / written)
    for writer in writers:
        writer.close()
    node.writer.stop()
    where = f"{nbytes / 2**30:g} GiB in {RANKS} shards on {os.cpu_count()} cores"
    took = f"written in {statistics.median(writes):.1f} s"
    return [
        Row(
            claim=claim, figure=round(statistics.median(found), 1), unit="% of the time of its write",
            target="<= 10" if "copy" in claim else "", kind="live", n=ROUNDS,
            holds=statistics.median(found) <= 10.0 if "copy" in claim else None,
            note=f"{where}, {took}; rounds: {', '.join(f'{one:.1f}' for one in found)}",
        )
        for claim, found in shares.items()
    ]  # fmt: skip


def _start_bytes() -> int:
    """Private memory of a process that has written nothing yet."""
    script = "import mainstay.recovery.checkpoint.writer\nprint(open('/proc/self/status').read())"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return int(told.split("RssAnon:")[1].split()[0]) * 1024


def restoring(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    """Four replicas of one node, from one device: with one read between them, and each its own."""
    node = Node(memory, disk, nbytes, alike=REPLICAS)
    node.write()
    node.writer.stop()
    run_path = disk / "ours"
    together, alone, read, each = [], [], 0, node.arenas[0].layout.nbytes
    for turn in range(ROUNDS):
        root = memory / f"restore-{turn}"
        root.mkdir()
        store = ArenaStore(root, slots=2, disk_every=1)
        for arena in node.arenas:
            store.open(arena.header.rank, arena.layout)
            store.arena(arena.header.rank).data[:] = 0  # touched, as the agent does before ranks start
        tls = job_tls("secret", "bench", Authority.SNAPSHOTS)
        settings = AgentSettings(job="bench", node="n", tls=tls, directory=root, disk_every=1)
        agent = AgentNode(settings, store, ParityStore(root))
        counts: list[int] = []
        meter: Any = agent.meter
        meter.add_transfer = lambda _, n, __, counts=counts: counts.append(n)
        reader = CheckpointReader(agent)
        outs = [np.full(each, 1, np.uint8) for _ in node.arenas]  # touched, as slots are; zeros are not
        forget_cached(run_path)
        alone.append(seconds(lambda outs=outs: _each_its_own(node, outs)))  # type: ignore[misc]
        forget_cached(run_path)
        orders = [LoadDisk(rank=rank, epoch=EPOCH, directory=str(run_path), run=RUN) for rank in range(REPLICAS)]
        together.append(seconds(lambda r=reader, o=orders: _at_once(lambda one: r.load(one, 1, RUN), o)))  # type: ignore[misc]
        read = sum(counts)
        shutil.rmtree(root)
    faster = statistics.median(alone) / statistics.median(together)
    where = f"{REPLICAS} replicas of {each / 2**30:.2f} GiB, page cache dropped"
    return [
        Row(
            claim="bytes read by the replicas of a node", figure=round(read / each, 3), unit="x one replica",
            target="<= 1.05", holds=read <= 1.05 * each, kind="live", n=ROUNDS, note=where,
        ),
        Row(
            claim="restore of the replicas of a node", figure=round(faster, 2), unit="x as fast", target=">= 2.5",
            holds=faster >= 2.5, kind="live", n=ROUNDS, note=where,
            baseline=f"each reads its own part, all at once: {statistics.median(alone):.2f} s",
        ),
    ]  # fmt: skip


def _each_its_own(node: Node, outs: list[np.ndarray[Any, Any]]) -> None:
    run = RunDirectory(node.disk / "ours" / RUN)

    def read(rank: int) -> None:
        read_slot(run, run.part(EPOCH, rank, 1), node.arenas[rank].layout, outs[rank])

    _at_once(read, range(len(outs)))


def _at_once(work: Callable[[Any], object], every: Iterable[object]) -> None:
    """As ranks ask: each in a process of its own."""
    with ThreadPoolExecutor(REPLICAS) as pool:
        list(pool.map(work, every))


def dividing(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    """One to eight nodes divide a state that they hold alike; each writes to a device of a fixed rate."""
    if COMPILER is None:
        return []
    del disk
    (memory / "device").mkdir()
    node = Node(memory, memory / "device", nbytes, alike=RANKS)
    note = f"{node.arenas[0].layout.nbytes / 2**30:g} GiB, processes whose writes wait for their turn on a device"
    made = []
    for rates in ((1.0,), (1.0,) * 2, (1.0,) * 4, (1.0,) * 8, (1.0, 1.0, 1.0, 0.25)):
        equal, nodes = len(set(rates)) == 1, len(rates)
        found, devices = _divided(node, [rate * DEVICE for rate in rates], steps=1 if equal else ROUNDS)
        first, figure = found[0], statistics.median(found if equal else found[1:])
        each = " with a device each" if equal else f" with devices of {':'.join(f'{rate:g}' for rate in rates)}"
        steps = "" if equal else f"; step 1, in equal shares: {first:.2f}; median of steps 2 to {ROUNDS}"
        made.append(
            Row(
                claim=f"a checkpoint divided among {nodes} nodes{each}", figure=round(figure, 2),
                unit="of the devices' rate", target=">= 0.9", holds=figure >= 0.9, kind="simulated", n=len(found),
                baseline=f"{' + '.join(f'{rate / MIB:.0f}' for rate in devices)} MiB/s, as dd writes to each",
                note=f"{note} of a fixed rate{steps}",
            )
        )  # fmt: skip
    return made


def _divided(node: Node, limits: list[float], steps: int) -> tuple[list[float], list[float]]:
    """Rate of each step, as a ratio to all devices together; bytes per second of each device."""
    size, nodes, found = node.arenas[0].layout.nbytes, len(limits), []
    node.clear()
    with contextlib.ExitStack() as stack:
        devices = [FaultyDisk(node.disk, node.memory / "library") for _ in limits]
        writers = [stack.enter_context(contextlib.closing(Process(WRITER, one, WriteResult))) for one in devices]
        rates = []
        for device, writer, limit in zip(devices, writers, limits, strict=True):
            device.limit(limit)
            rates.append(dd_rate(node.disk / "device-test", size // 32, device.process_environment()))
            writer.request(node.order(range(0), dp=nodes, copies=1))
        for epoch in range(EPOCH, EPOCH + steps):
            node.step(epoch)
            begun = time.perf_counter()
            for rank, writer in enumerate(writers):
                writer.send(node.order(range(rank, rank + 1), dp=nodes, copies=1, epoch=epoch))
            problems = [problem_of(writer.receive()) for writer in writers]
            found.append(size / (time.perf_counter() - begun) / sum(rates))
            if any(problems) or not RunDirectory(node.disk / "ours" / RUN).manifest(epoch):
                raise RuntimeError("; ".join(problems))
    return found, rates


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoints.json", metavar="FILE")
    parser.add_argument("--gib", type=float, default=4.0, help="size of a node's state")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    logging.disable(logging.WARNING)
    nbytes, rows = int(chosen.gib * 2**30), []
    for part, size in (
        (writing, nbytes),
        (copying, nbytes),
        (restoring, nbytes),
        (in_a_job, nbytes // 16),
        (in_a_loop, nbytes // 16),
        (dividing, nbytes // 2),
    ):
        memory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
        disk = Path(tempfile.mkdtemp(prefix="mainstay-bench-"))
        try:
            rows += part(memory, disk, size)
        finally:
            shutil.rmtree(memory, ignore_errors=True)
            shutil.rmtree(disk, ignore_errors=True)
    publish("checkpoints", rows, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
