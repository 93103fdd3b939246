"""Files of slots, and a job that goes back while they are written. In one process: the order of things is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from recovery.agent import disk
from recovery.agent.disk import DiskWriter, list_disk, read_page, slot_path
from recovery.agent.node import Node, Settings
from recovery.agent.rows import Rows
from recovery.agent.store import Store
from recovery.memory.records import Word
from recovery.memory.snapshot import ArraySource, SnapshotWriter


class Bench:
    """The store of one node with one rank, and what writes its files."""

    def __init__(self, root: Path) -> None:
        self.files = root / "checkpoints"
        memory = root / "memory"
        memory.mkdir()
        settings = Settings(job="job", node="node", token="secret", directory=memory, disk_every=10, disk_keep=4)
        self.store = Store(memory, slots=settings.slots, disk_every=settings.disk_every)
        self.array = np.zeros(5000, np.uint8)
        source = ArraySource({"t": self.array})
        self.store.open(0, source.layout)
        self.arena = self.store.arena(0)
        self.snapshots = SnapshotWriter(self.arena, source)
        self.writer = DiskWriter(Node(settings, self.store, Rows(memory)), self.files)

    def step(self, epoch: int, generation: int, value: int) -> None:
        self.array[:] = value
        self.snapshots.start(epoch, generation)
        self.snapshots.wait()

    def go_back(self, epoch: int, generation: int) -> None:
        self.store.fence(generation)
        self.store.discard_after(epoch)

    def listed(self) -> list[tuple[int, int]]:
        """(epoch, generation) of each file."""
        return sorted((entry.epoch, entry.generation) for entry in list_disk(self.files))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.snapshots.close()


def test_a_file_tells_the_generation_in_which_its_step_was_made(bench: Bench) -> None:
    bench.step(10, 1, 5)
    bench.writer.turn()
    bench.step(20, 1, 6)
    bench.writer.turn()
    bench.go_back(10, 2)
    assert bench.listed() == [(10, 1), (20, 1)]
    bench.step(20, 2, 6)  # the same bits, of another history all the same
    bench.writer.turn()
    assert bench.listed() == [(10, 1), (20, 2)]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_job_that_goes_back_while_a_file_is_written_has_its_epochs_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    bench.step(10, 1, 5)
    bench.writer.turn()
    write: Callable[..., Path] = disk.write_slot

    def interrupted(*arguments: object) -> Path:
        if when == "before":
            bench.go_back(10, 2)
        path = write(*arguments)
        if when == "behind":
            bench.go_back(10, 2)
        return path

    bench.step(20, 1, 6)
    monkeypatch.setattr(disk, "write_slot", interrupted)
    bench.writer.turn()
    monkeypatch.undo()
    assert bench.arena.word(Word.DISK_FLOOR) == 10  # what is behind is still to be written, and its slots are pinned
    bench.step(20, 2, 7)
    bench.writer.turn()
    assert bench.listed() == [(10, 1), (20, 2)]
    assert read_page(slot_path(bench.files, 0, 20)).digest == bench.arena.find(20).digest
