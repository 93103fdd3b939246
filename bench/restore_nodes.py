"""What a restore from disk costs several nodes: bytes, seconds, and the time from a start with ``--resume`` to a step.

Four agent processes of one replica each read a step of whole parts from one device, with its pages dropped: with one
read between them, and each its own part, in turn. Then four launchers of one rank each resume a job from a step, with
agents that read while ranks start and without, in turn; the latter is the same program without the coordinator's
order. The first also from a step whose tensors two tensor-parallel ranks have saved. All as fast as the device is, and
limited to what storage gives that all nodes share, where the kernel can. ``--mib N`` sets the size of a replica.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from bench.lib_cut_step import CutStep
from bench.lib_device import forget_cached, limited_reads
from bench.lib_job import Job
from bench.lib_slots import read_slot
from bench.lib_source import ArraySource
from bench.protocol_fuzz import pid_of
from bench.report import RESULTS, Row, publish
from bench.snapshot_path import agents
from mainstay.recovery.agent.messages import Group, GroupMember, LoadDisk
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.controller.event_recording import read_recording
from mainstay.recovery.controller.state.events import RankMessageReceived
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.protocol.worker_messages import Attached, Resumed

MIB: Final = 1024 * 1024
NODES: Final = 4
EACH: Final = 8 * MIB
RUN, EPOCH = "run-1", 1
ROUNDS: Final = 5
STEPS: Final = 4
MakeOrder = Callable[[int, Group], LoadDisk]
"""Rank and group -> what its agent is asked for."""
SHARED_RATE: Final = 200_000_000
"""Bytes a second that the nodes read from shared storage between them."""
WITHOUT_PREFETCH: Final = """
from mainstay.recovery.controller.checkpointing import CheckpointManager
CheckpointManager.prefetch = lambda self: None
from mainstay.cli import main
raise SystemExit(main())
"""


def write_step(disk: Path, nbytes: int) -> Layout:
    """A step of replicas that wrote their whole state, each with random numbers of its own."""
    target = save.WriteTarget(disk, "bench", DiskConfig(run=RUN, generation=1, every=1, dp=NODES, pp=1, tp=1))
    save.begin_step(target)
    random = np.random.default_rng(0)
    arrays = {f"param.{i}": random.integers(0, 256, EACH, np.uint8) for i in range(nbytes // EACH)}
    layout = ArraySource(arrays | {"rng.torch": np.zeros(64, np.uint8)}).layout
    for rank in range(NODES):
        data = np.zeros(layout.nbytes, np.uint8)
        for name, view in layout.views(data).items():
            view[:] = arrays.get(name, np.full(64, rank, np.uint8))
        save.write_image(target, (EPOCH, rank, 1), layout, data)
    if save.commit(target, EPOCH) is None:
        raise RuntimeError("the step is not whole")
    return layout


def read_bytes(pids: Sequence[int]) -> Counter[str]:
    """That processes have read from files (``rchar``), and that the device gave for it (``read_bytes``)."""
    found = Counter[str]()
    for pid in pids:
        lines = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        found.update({name: int(value) for name, value in lines})
    return found


def whole_order(disk: Path) -> MakeOrder:
    """Of a step of replicas."""
    return lambda rank, group: LoadDisk(rank=rank, epoch=EPOCH, directory=str(disk), run=RUN, group=group)


def load(memory: Path, disk: Path, layout: Layout, make: MakeOrder, *, shared: bool) -> tuple[float, int, int]:
    """Seconds until four agents have the step, bytes that they read, and those that the device gave for it."""
    with agents(NODES, memory, "--scrub-interval", "0") as found, ThreadPoolExecutor(NODES) as pool:
        clients = [client for _, client in found]
        group: Group = tuple(
            GroupMember(node=f"node-{rank}", endpoint=endpoint, rank=rank) for rank, (endpoint, _) in enumerate(found)
        )
        pids = [pid_of(client.path) for client in clients]
        for rank, client in enumerate(clients):
            client.open_arena(rank, layout)
        forget_cached(disk)
        before, begun = read_bytes(pids), time.perf_counter()
        loading = [pool.submit(client.load, make(rank, group if shared else ())) for rank, client in enumerate(clients)]
        for future in loading:
            future.result()
        seconds, read = time.perf_counter() - begun, read_bytes(pids) - before
        return seconds, read["rchar"], read["read_bytes"]


def between_nodes(memory: Path, disk: Path, nbytes: int, storage: str) -> list[Row]:
    """Four agents: one read between them, and each its own."""
    layout = write_step(disk, nbytes)
    taken: dict[bool, list[tuple[float, int, int]]] = {True: [], False: []}
    for turn in range(2 * ROUNDS):
        shared, root = turn % 2 == 0, memory / f"turn-{turn}"
        root.mkdir()
        taken[shared].append(load(root, disk, layout, whole_order(disk), shared=shared))
        shutil.rmtree(root)
    (seconds, read, device), (own_seconds, own_read, _) = [
        [statistics.median(column) for column in zip(*taken[shared], strict=True)] for shared in (True, False)
    ]
    ratios = [own[0] / one[0] for one, own in zip(taken[True], taken[False], strict=True)]
    faster, share = statistics.median(ratios), read / layout.nbytes
    where = f"{NODES} agents with a replica of {layout.nbytes / 2**30:.2f} GiB each; {storage}"
    return [
        Row(
            claim="bytes that nodes read from disk to restore replicas", figure=round(share, 3), unit="x one replica",
            target="<= 1.05", holds=share <= 1.05, kind="live", n=ROUNDS,
            note=f"{where}; {device / layout.nbytes:.2f} x with what the kernel reads ahead",
            baseline=f"each reads its own part: {own_read / layout.nbytes:.2f} x",
        ),
        Row(
            claim="restore of replicas on several nodes", figure=round(faster, 2), unit="x as fast", target="> 1",
            holds=faster > 1.0, kind="live", n=ROUNDS,
            baseline=f"each reads its own part: {own_seconds:.2f} s, against {seconds:.2f} s",
            note=f"{where}; one machine has all ends of the encrypted transfers; "
            f"rounds: {', '.join(f'{one:.2f}' for one in ratios)}",
        ),
    ]  # fmt: skip


def in_another_shape(memory: Path, disk: Path, nbytes: int, storage: str) -> list[Row]:
    """Four agents with the whole model, of which each of two tensor-parallel ranks has saved a half."""
    random = np.random.default_rng(0)
    tensors = {f"param.{i}": random.integers(0, 256, (16, EACH // 16), np.uint8) for i in range(nbytes // EACH)}
    step = CutStep(disk, RUN, EPOCH, tensors)
    step.write()
    shares, equal = [], []
    for turn in range(ROUNDS):
        root = memory / f"shape-{turn}"
        root.mkdir()
        shares.append(load(root, disk, step.layout, step.order, shared=True)[1] / step.layout.nbytes)
        for path in root.rglob("rank-*.arena"):
            with closing(Arena.attach(path)) as arena:
                equal.append(step.same(read_slot(arena, EPOCH)))
        shutil.rmtree(root)
    share, same = statistics.median(shares), len(equal) == ROUNDS * NODES and all(equal)
    return [
        Row(
            claim="bytes that nodes read from disk to restore replicas in another shape (tp=2 to tp=1)",
            figure=round(share, 3), unit="x one replica", target="<= 1.05, tensors equal to the bit",
            holds=share <= 1.05 and same, kind="live", n=ROUNDS,
            note=f"{NODES} agents with a replica of {step.layout.nbytes / 2**30:.2f} GiB each; {storage}; tensors "
            f"{'equal' if same else 'not equal'}",
        )
    ]  # fmt: skip


class WithoutPrefetch(Job):
    """The same job, whose agents read when ranks ask."""

    def _begin(self, words: Sequence[str], environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", WITHOUT_PREFETCH, *words[2:]]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def restore_wait(recording: Path) -> float:
    """Seconds between the last rank's model and the last rank's state."""
    last = {Attached: 0.0, Resumed: 0.0}
    for recorded in read_recording(recording)[1]:
        event = recorded.event
        if isinstance(event, RankMessageReceived) and isinstance(event.message, Attached | Resumed):
            last[type(event.message)] = event.at
    return last[Resumed] - last[Attached]


def first_step(memory: Path, disk: Path, nbytes: int, storage: str) -> list[Row]:
    """From the start of the launchers until all ranks have committed a step."""
    width = max(64, int((nbytes / 12 / 24) ** 0.5) // 64 * 64)  # AdamW: three values of four bytes a parameter
    words = ["--dp", str(NODES), "--pp", "1", "--layers", "2", "--width", str(width), "--batch", "1"]
    checkpoints = disk / "checkpoints"
    options = ["--checkpoint-dir", str(checkpoints), "--standbys", "0", "--protection", "none"]
    first = Job(
        directory=memory / "first", arguments=[*words, "--steps", str(STEPS)], options=options, nodes=NODES, per_node=1
    )
    with first as job:
        job.wait(600.0)
    source = find(checkpoints)
    state = source.run.part(source.manifest.epoch, 0, source.manifest.parts[0].generation).nbytes
    options += ["--resume", source.manifest.run]
    seconds: dict[type[Job], list[float]] = {Job: [], WithoutPrefetch: []}
    waits: dict[type[Job], list[float]] = {Job: [], WithoutPrefetch: []}
    for turn in range(2 * ROUNDS):
        kind = Job if turn % 2 == 0 else WithoutPrefetch
        forget_cached(checkpoints)
        directory = memory / f"job-{turn}"
        again = kind(
            directory=directory, arguments=[*words, "--steps", "1000"], nodes=NODES, per_node=1,
            options=[*options, "--record-events", str(directory / "events")],
        )  # fmt: skip
        begun = time.perf_counter()
        with again as job:
            job.wait_step(STEPS + 1, 300.0)
            seconds[kind].append(time.perf_counter() - begun)
            for launcher in job.launchers:
                launcher.kill()  # no last save
        waits[kind].append(restore_wait(next((directory / "events").iterdir())))
        shutil.rmtree(directory)
    gains = [late - early for late, early in zip(seconds[WithoutPrefetch], seconds[Job], strict=True)]
    gain, late, early = (statistics.median(some) for some in (gains, seconds[WithoutPrefetch], seconds[Job]))
    where = f"{NODES} launchers with a replica of {state / 2**30:.2f} GiB each on one machine; {storage}"
    waited, waited_late = statistics.median(waits[Job]), statistics.median(waits[WithoutPrefetch])
    return [
        Row(
            claim="wait for the state once models are built, with agents that read while ranks start",
            figure=round(waited / waited_late, 2), unit="x the wait without", target="< 1", holds=waited < waited_late,
            kind="live", n=ROUNDS, baseline=f"agents read when ranks ask: {waited_late:.2f} s", note=where,
        ),
        Row(
            claim="time from start to a step, with agents that read while ranks start", figure=round(gain, 2),
            unit="s less", target="> 0", holds=gain > 0, kind="live", n=ROUNDS,
            baseline=f"agents read when ranks ask: {late:.2f} s, against {early:.2f} s",
            note=f"{where}; rounds: {', '.join(f'{one:.2f}' for one in gains)}",
        ),
    ]  # fmt: skip


def measure(nbytes: int, storage: str) -> list[Row]:
    rows = []
    for part in (between_nodes, in_another_shape, first_step):
        memory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
        disk = Path(tempfile.mkdtemp(prefix="mainstay-bench-"))
        try:
            rows += part(memory, disk, nbytes, storage)
        finally:
            shutil.rmtree(memory, ignore_errors=True)
            shutil.rmtree(disk, ignore_errors=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.restore_nodes")
    parser.add_argument("--json", type=Path, default=RESULTS / "restore_nodes.json", metavar="FILE")
    parser.add_argument("--mib", type=int, default=512, help="size of a replica")
    chosen = parser.parse_args()
    rows = measure(chosen.mib * MIB, "one local device, its pages dropped")
    with limited_reads(Path(tempfile.gettempdir()), SHARED_RATE) as limited:
        if limited:
            rows += measure(chosen.mib * MIB, f"storage of {SHARED_RATE / 1e6:.0f} MB/s for all nodes, pages dropped")
    publish("restore_nodes", rows, chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
