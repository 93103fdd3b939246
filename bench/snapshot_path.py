"""What a snapshot costs on its way: copy into the arena, digest, and the way to another node.

Every figure is a ratio to a memcpy of the same bytes measured in the same round: a shared machine's memory speed varies
by a factor of two within minutes, the ratios less. The note of each row names the physical limit beside it.

In-memory work is timed in processor seconds of this process, which other users' processes do not lengthen; transfers,
where several processes take part, in wall-clock seconds.

Copies are measured as ``mainstay run`` sets its workers up (``COPY_ENVIRONMENT``: large copies go past the caches) and,
for comparison, as a bare process has it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.lib_copy import copy_pieces
from bench.lib_source import ArraySource
from bench.report import Row, publish, target_file
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.records import Word
from mainstay.recovery.memory.slot_copy import COPY_ENVIRONMENT
from mainstay.recovery.memory.snapshot import SnapshotWriter

MIB = 1024 * 1024
STATE = 256 * MIB
"""Of a rank: larger than any cache."""
MOVED = 128 * MIB
"""Where several agents hold three slots of it each."""
TENSORS = 128
ROUNDS = 15
TRANSFERS = 7


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def processor_seconds_of(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


class Mix:
    """A transformer's tensors of many sizes, with Adam's moments and step counts, and an arena of one slot's use."""

    WIDTH, LAYERS, WORDS = 512, 6, 7296  # as many bytes as STATE, to a part in a hundred

    def __init__(self, directory: Path) -> None:
        width = self.WIDTH
        layer = [3 * width * width, 3 * width, width * width, width, 4 * width * width, 4 * width, 4 * width * width]
        sizes = [self.WORDS * width, *((layer + [width] * 5) * self.LAYERS)]
        arrays = {f"{kind}{i}": np.full(4 * n, 5, np.uint8) for i, n in enumerate(sizes) for kind in "pmv"}
        arrays |= {f"step{i}": np.full(4, 5, np.uint8) for i in range(len(sizes))}
        self.source = ArraySource(arrays)
        self.pieces = self.source.freeze()
        self.arena = Arena.create(directory / "mix.arena", rank=0, layout=self.source.layout, slots=2)
        self.arena.prefault()

    def copy(self) -> None:
        copy_pieces(self.source.layout, self.pieces, self.arena.slot_bytes(0))


class Bench:
    """Buffers, all touched before anything is timed."""

    def __init__(self, directory: Path, total: int) -> None:
        self.total = total
        size = total // TENSORS
        self.arrays = {f"tensor{i}": np.full(size, i, np.uint8) for i in range(TENSORS)}
        self.source = ArraySource(self.arrays)
        self.pieces = self.source.freeze()
        self.arena = Arena.create(directory / "bench.arena", rank=0, layout=self.source.layout, slots=2)
        self.arena.prefault()
        self.writer = SnapshotWriter(self.arena, self.source)
        self.a: Bytes = np.full(total, 1, np.uint8)
        self.b: Bytes = np.full(total, 2, np.uint8)
        self.epoch = 0
        self.heap = {name: np.full(array.shape, 4, np.uint8) for name, array in self.arrays.items()}
        self.mix = Mix(directory)

    def to_heap(self) -> None:
        """The limit of ``copy``: the same tensors to ordinary memory of the same shapes."""
        for name, array in self.arrays.items():
            np.copyto(self.heap[name], array)

    def copy_mix(self) -> None:
        self.mix.copy()

    def memcpy(self) -> None:
        np.copyto(self.b, self.a)

    def copy(self) -> None:
        copy_pieces(self.source.layout, self.pieces, self.arena.slot_bytes(0))

    def snapshot(self) -> None:
        self.epoch += 1
        self.writer.start(self.epoch, 1)
        self.writer.wait()

    def digest(self) -> None:
        digest(self.a)


def memory_rows(bench: Bench) -> list[Row]:
    works: dict[str, Callable[[], None]] = {
        "copy": bench.copy,
        "heap": bench.to_heap,
        "mix": bench.copy_mix,
        "snapshot": bench.snapshot,
        "digest": bench.digest,
    }
    bench.memcpy()
    for work in works.values():
        work()
    base: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            base.append(processor_seconds_of(bench.memcpy))
            taken[name].append(base[-1] / processor_seconds_of(work))
    speed = STATE / statistics.median(base) / 1e9
    against = f"memcpy {speed:.1f} GB/s"
    limit = "limit 1.0: it is a memcpy into other pages"
    return [
        _ratio(
            "copy of a rank's state into its arena",
            taken["copy"],
            0.8,
            against,
            f"{STATE // MIB} MiB in {TENSORS} tensors; {limit}",
        ),
        _ratio(
            "the same tensors into ordinary memory",
            taken["heap"],
            None,
            against,
            "the physical limit of the row above: separate tensors of this size cost this much wherever they go",
        ),
        _ratio(
            "copy of a transformer's tensors with Adam's into its arena",
            [ratio * bench.mix.source.layout.nbytes / STATE for ratio in taken["mix"]],
            0.8,
            against,
            f"{bench.mix.source.layout.nbytes // MIB} MiB in {len(bench.mix.pieces)} tensors; {limit}",
        ),
        _ratio("copy by the snapshot thread, start to commit", taken["snapshot"], 0.8, against, limit),
        _ratio(
            "the first copy without COPY_ENVIRONMENT", untuned(), None, against, "limit 0.67: cached stores read first"
        ),
        _ratio(
            "digest (xxh3_64) of a slot", taken["digest"], None, against, "limit: reading at memory speed, about 1.5"
        ),
    ]


def untuned() -> list[float]:
    """The ratios of the copy in a process whose C library keeps its own idea of what a large copy is."""
    environment = {k: v for k, v in os.environ.items() if k not in COPY_ENVIRONMENT}
    command = [sys.executable, "-c", "from bench.snapshot_path import print_copy_ratios; print_copy_ratios()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def print_copy_ratios() -> None:
    with shared_directory() as directory:
        bench = Bench(directory, STATE)
        bench.copy()
        print(*(processor_seconds_of(bench.memcpy) / processor_seconds_of(bench.copy) for _ in range(ROUNDS)))


@contextmanager
def shared_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _ratio(claim: str, ratios: list[float], target: float | None, against: str, note: str) -> Row:
    figure = statistics.median(ratios)
    spread = f"quartiles {np.quantile(ratios, 0.25):.2f} to {np.quantile(ratios, 0.75):.2f}"
    return Row(
        claim=claim,
        figure=figure,
        unit="x memcpy",
        target="-" if target is None else f">= {target}",
        holds=None if target is None else figure >= target,
        kind="live",
        baseline=against,
        n=len(ratios),
        note=f"{note}; {spread}",
    )


# Between nodes: real agents


@contextmanager
def agents(count: int, directory: Path, *options: str) -> Iterator[list[tuple[str, AgentClient]]]:
    """(endpoint, client) of ``count`` agent processes."""
    token = directory / "token"
    token.write_text("bench-token")
    processes, found = [], []
    for i in range(count):
        command = [sys.executable, "-m", "mainstay.recovery.agent", "--job", "bench", "--node", f"node-{i}"]
        command += ["--socket", str(directory / f"{i}.sock"), "--token-file", str(token), "--shm-dir", str(directory)]
        processes.append(subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True))
    try:
        for i, process in enumerate(processes):
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            client = AgentClient(directory / f"{i}.sock", job="bench", generation=1)
            found.append((ready["endpoint"], client))
        yield found
    finally:
        for _, client in found:
            client.close()
        for process in processes:
            process.terminate()
            process.communicate()


def raw_tcp(data: Bytes, out: Bytes) -> None:
    """The same bytes over one loopback connection with nothing around it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = threading.Thread(target=_send, args=(listener.getsockname(), data))
        sender.start()
        sock, _ = listener.accept()
        with sock:
            done = 0
            while done < len(out):
                done += sock.recv_into(out.data[done:])
        sender.join()


def _send(address: tuple[str, int], data: Bytes) -> None:
    with socket.create_connection(address) as sock:
        sock.sendall(data.data)


class Rank:
    """A rank on one of the agents, whose state is the bench's."""

    def __init__(self, client: AgentClient, rank: int, bench: Bench) -> None:
        self.arena = Arena.attach(Path(client.open_arena(rank, bench.source.layout).path))
        self.writer = SnapshotWriter(
            self.arena, bench.source, on_committed=lambda e, g, s: client.committed(rank, e, g, s)
        )

    def snapshot(self, epoch: int) -> None:
        self.writer.start(epoch, 1)
        self.writer.wait()


def fetch_rows(bench: Bench, directory: Path) -> list[Row]:
    ratios, of_raw, raw_speed = [], [], []
    with agents(2, directory) as (first, second):
        Rank(first[1], 0, bench).snapshot(1)
        second[1].open_arena(1, bench.source.layout)
        first[1].inventory()
        second[1].fetch(1, 1, 0, first[0])
        for _ in range(TRANSFERS):
            base = seconds_of(bench.memcpy)
            raw = seconds_of(lambda: raw_tcp(bench.a, bench.b))
            fetched = second[1].fetch(1, 1, 0, first[0]).seconds
            ratios.append(base / fetched)
            of_raw.append(raw / fetched)
            raw_speed.append(bench.total / raw / 1e9)
    tcp = f"raw loopback TCP {statistics.median(raw_speed):.1f} GB/s"
    limit = "limit: loopback TCP copies twice through the kernel; then the slot is digested once more"
    return [
        replace(_ratio("fetch of a slot from a peer agent, checked", of_raw, None, tcp, limit), unit="x raw TCP"),
        _ratio("the same against memcpy", ratios, None, tcp, limit),
    ]


def parity_rows(bench: Bench, directory: Path) -> list[Row]:
    """A group of four: an epoch encoded by all at once, then one of them rebuilt, as seconds beside a raw transfer."""
    encoded, rebuilt = [], []
    with agents(4, directory, "--parity-interval", "1") as nodes:
        group = tuple(GroupMember(node=f"node-{i}", endpoint=e, rank=i) for i, (e, _) in enumerate(nodes))
        ranks = [Rank(client, i, bench) for i, (_, client) in enumerate(nodes)]
        for _, client in nodes:
            client.configure_parity((group,), 1)
        for epoch in range(1, TRANSFERS + 2):
            raw = seconds_of(lambda: raw_tcp(bench.a, bench.b))
            for rank in ranks:
                rank.snapshot(epoch)
            encoded.append(seconds_of(partial(wait_for_parity, ranks, epoch)) / raw)
            rebuilt.append(nodes[0][1].rebuild(0, epoch, group).seconds / raw)
    return [
        _times_raw("rebuild of a lost slot, group of 4, checked", rebuilt[1:], 3),
        _times_raw("parity epoch of a group of 4, last commit to published", encoded[1:], 4),
    ]


def wait_for_parity(ranks: list[Rank], epoch: int) -> None:
    while any(rank.arena.word(Word.PARITY_EPOCH) != epoch for rank in ranks):
        time.sleep(0.002)


def _times_raw(claim: str, ratios: list[float], slots: int) -> Row:
    note = (
        f"limit here {slots}.0: {slots} slots of {MOVED // MIB} MiB cross one loopback; 1.0 where each node has a link"
    )
    return Row(
        claim=claim,
        figure=statistics.median(ratios),
        unit="x the raw TCP time of one slot",
        target="-",
        holds=None,
        kind="live",
        baseline="raw loopback TCP, one stream",
        n=len(ratios),
        note=note,
    )


def main() -> None:
    file = target_file("snapshot_path")
    if any(os.environ.get(name) != value for name, value in COPY_ENVIRONMENT.items()):  # read when a process starts
        command = [sys.executable, "-m", "bench.snapshot_path", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | COPY_ENVIRONMENT)  # noqa: S606 - ourselves
    with shared_directory() as directory:
        rows = memory_rows(Bench(directory, STATE))
        bench = Bench(directory, MOVED)
        rows += fetch_rows(bench, directory)
        rows += parity_rows(bench, directory)
    publish("snapshot_path", rows, file)


if __name__ == "__main__":
    main()
