"""Kills a snapshot writer again and again and says what it left behind. A program, run by ``test_crash.py``.

``python crash_rounds.py ARENA ROUNDS SEED any|single``: in each round a forked child takes snapshots without a pause
(every byte of the state of epoch e is ``e % 251``), is killed at a random moment, and the arena is examined. One JSON
line a round.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from bench.lib_source import ArraySource
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.slots import SlotChoice
from mainstay.recovery.memory.snapshot import SnapshotWriter

SIZES = {"a": 5_000_000, "b": 3_000_000, "c": 7}


class SingleSlot(Arena):
    """The control: what everybody does who has one buffer."""

    def choose(self) -> SlotChoice:
        return SlotChoice(0, None)


def train(path: Path, kind: type[Arena], ready: int) -> None:
    arena = kind.attach(path)
    arrays = {name: np.zeros(size, np.uint8) for name, size in SIZES.items()}
    writer = SnapshotWriter(arena, ArraySource(arrays))
    newest = arena.newest()
    epoch = 0 if newest is None else newest.epoch
    while True:
        epoch += 1
        for array in arrays.values():
            array.fill(epoch % 251)
        writer.start(epoch, 1)
        writer.wait()
        os.write(ready, b"x")


def examine(path: Path, last: int) -> dict[str, object]:
    """What a newcomer finds: committed epochs, and whether any of them is torn."""
    arena = Arena.attach(path)
    committed, torn = [], 0
    for record in arena.records():
        if not record.committed:
            continue
        try:
            arena.check(arena.verify(record))
        except ArenaError:
            torn += 1
        torn += not (arena.slot_bytes(record.slot)[: SIZES["a"]] == record.epoch % 251).all()
        committed.append(record.epoch)
    arena.close()
    return {
        "committed": committed,
        "torn": int(torn),
        "lost": not committed,
        "invalid": len(committed) < 2,
        "last": last,
    }


def one_round(path: Path, kind: type[Arena], chance: random.Random) -> dict[str, object]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        train(path, kind, writing)
    os.close(writing)
    done = len(os.read(reading, 1))
    time.sleep(chance.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := len(os.read(reading, 4096)):
        done += more
    os.close(reading)
    return examine(path, done)


def main() -> None:
    path, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kind = SingleSlot if sys.argv[4] == "single" else Arena
    layout = Layout.build({name: ("uint8", (size,)) for name, size in SIZES.items()})
    Arena.create(path, rank=0, layout=layout, slots=2).close()
    chance = random.Random(seed)
    for _ in range(rounds):
        print(json.dumps(one_round(path, kind, chance)), flush=True)


main()
