"""What parity beside checkpoints costs on disks of the nodes' own, and the loss of two of eight of them.

The files of each of eight ranks stand for a disk. All are written by the process that writes in a job, with and without
the rows of a Reed-Solomon group. Then the files of two ranks go, and the step is completed offline, beside ``cp -r`` of
what is left. ``--gib N`` sets the size of the state of all eight.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.checkpoints import ROUNDS
from bench.lib_checkpoint_node import EPOCH, RANKS, RUN, Node, seconds
from bench.lib_device import forget_cached
from bench.report import RESULTS, Row, publish
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.parity_store import ParityMember, ParityRowKey, ParityStore
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import MANIFEST, data_name, parity_names, part_name
from mainstay.recovery.checkpoint.writer import SlotOrder
from mainstay.recovery.checkpoint_rebuild import rebuild_step
from mainstay.recovery.coding import gf

LOST = (2, 5)


def encode(node: Node) -> tuple[SlotOrder, ...]:
    """Orders to write the rows of a group of all ranks, as agents have them in memory."""
    geometry, store, ranks = Geometry(RANKS, len(LOST)), ParityStore(node.memory), tuple(range(RANKS))
    slots = [arena.slot_bytes(arena.find(EPOCH).slot)[: arena.layout.nbytes] for arena in node.arenas]
    members = tuple(
        ParityMember(rank, len(slots[rank]), arena.find(EPOCH).digest, arena.layout.digest, 1)
        for rank, arena in enumerate(node.arenas)
    )
    size = geometry.stripe_bytes(max(map(len, slots)))
    layouts = {arena.layout.digest: arena.layout.to_json().decode() for arena in node.arenas}
    orders = []
    for place in ranks:
        arena, slot, rows = store.begin_row(ParityRowKey(ranks, place), len(LOST), size)
        for number, word in enumerate(geometry.rows_of(place)):
            for index, source in enumerate(geometry.data_places(word)):
                start, length = geometry.span(word, source, size, len(slots[source]))
                block, coefficient = slots[source][start : start + length], int(geometry.code.rows[number, index])
                gf.multiply_add(coefficient, block, rows[number][:length])
        store.commit(arena, slot, EPOCH, len(LOST), members)
        orders.append(SlotOrder(arena=str(arena.path), rank=place, epoch=EPOCH, generation=1, layouts=layouts))
    return tuple(orders)


def measure(memory: Path, disk: Path, nbytes: int) -> list[Row]:
    node = Node(memory, disk, nbytes)
    rows, path = encode(node), disk / "ours"
    step = RunDirectory(path / RUN).step(EPOCH)
    alone, slower, longer, same = [], [], [], True
    node.write(rows=rows)  # which maps all slots
    share = _nbytes(step, "parity-*") / _nbytes(step, "*.distcp")
    kept = {rank: (step / data_name(rank, 1)).read_bytes() for rank in LOST}
    for _ in range(ROUNDS):
        node.clear()
        alone.append(node.write().seconds)
        node.clear()
        slower.append(node.write(rows=rows).seconds / alone[-1])
        for rank in LOST:
            for name in (data_name(rank, 1), part_name(rank, 1), *parity_names(rank, 1)):
                (step / name).unlink()
        (step / MANIFEST).unlink()
        forget_cached(path)
        copied = seconds(lambda: subprocess.run(["cp", "-r", str(path), str(disk / "copy")], check=True))
        forget_cached(path)
        longer.append(seconds(lambda: rebuild_step(path)) / copied)
        same = same and all((step / data_name(rank, 1)).read_bytes() == raw for rank, raw in kept.items())
    node.writer.stop()
    where = f"{nbytes / 2**30:g} GiB of {RANKS} ranks, rs:2, load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    write, rebuild = statistics.median(slower), statistics.median(longer)
    return [
        Row(
            claim="files decoded after the loss of two of eight disks, to the bit", figure="yes" if same else "no",
            unit="", target="yes", holds=same, kind="live", n=ROUNDS, note=where,
        ),
        Row(
            claim="space of parity on local disks", figure=round(share, 3), unit="x the parts", target="<= 0.35",
            holds=share <= 0.35, kind="live", note=where, baseline="2 of 6 are 0.333; copies:3 are 2",
        ),
        Row(
            claim="write of parts and parity", figure=round(write, 2), unit="x the parts alone", target="<= 1.4",
            holds=write <= 1.4, kind="live", n=ROUNDS, baseline=f"{statistics.median(alone):.2f} s", note=where,
        ),
        Row(
            claim="two of eight disks rebuilt, all files verified", figure=round(rebuild, 2), unit="x cp -r",
            target="<= 2", holds=rebuild <= 2.0, kind="live", n=ROUNDS, note=where,
            baseline="cp -r of what is left, which checks nothing",
        ),
    ]  # fmt: skip


def _nbytes(step: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in step.glob(pattern))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_parity")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoint_parity.json", metavar="FILE")
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state of all ranks")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    memory = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
    disk = Path(tempfile.mkdtemp(prefix="mainstay-bench-"))
    try:
        publish("checkpoint_parity", measure(memory, disk, int(chosen.gib * 2**30)), chosen.json)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(disk, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
