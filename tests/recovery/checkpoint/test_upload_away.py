"""Nodes with a disk each; the ranks of one are away for some steps, which are complete on the disk of the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.manifest import StepEncoding
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.writer import Writer
from mainstay.recovery.memory.records import NO_EPOCH
from tests.recovery.checkpoint.encoded_job import EncodedJob
from tests.recovery.checkpoint.upload_place import Place

KEEP = RetentionPolicy(last=2, pending=4)


class Nodes:
    """Two nodes of a job of two replicas, in directories of their own or in one."""

    def __init__(
        self, home: Path, encoding: StepEncoding, keep: RetentionPolicy = KEEP, *, shared: bool = False
    ) -> None:
        self.job = EncodedJob(home, encoding=encoding)
        self.place = Place(self.job, str(home / "level"))
        self.directories = [home / ("disk" if shared else f"disk-{node}") for node in range(2)]
        self._writers, self._keep = [Writer(), Writer()], keep

    def run(self, node: int) -> RunDirectory:
        return RunDirectory(self.directories[node] / self.job.run_id)

    def write(self, node: int, epoch: int, generation: int, **changes: Any) -> None:
        order = self.job.order((), generation)
        config = msgspec.structs.replace(order.config, **changes)
        order = msgspec.structs.replace(order, directory=str(self.directories[node]), config=config, keep=self._keep)
        self.job.writer = self._writers[node]
        self.job.write(order)
        self.job.write(msgspec.structs.replace(order, slots=(self.job.step(node, epoch, generation),)))

    def upload(self, node: int) -> list[int]:
        request = self.place.request(directory=str(self.directories[node]), node=f"n{node}")
        with open_level(self.place.url) as level:
            uploader = Uploader(level, request)
            return [found[1] for found in iter(uploader.upload_next, None)]


@pytest.mark.parametrize("encoding", ["exact", "full"])
def test_when_the_ranks_are_back_steps_go_up_again(encoding: StepEncoding, tmp_path: Path) -> None:
    """Each restores from the upload level alone, and no disk fills."""
    nodes = Nodes(tmp_path, encoding)
    for node in (0, 1):
        nodes.write(node, 1, 1)
    for epoch in range(2, 6):
        nodes.write(0, epoch, 2, away=(1,))
        assert nodes.run(0).part(epoch, 0, 2).is_encoded == (encoding == "exact" and epoch > 2)
    assert nodes.upload(0)[0] == 5
    for epoch in range(6, 13):
        for node in (0, 1):
            nodes.write(node, epoch, 3)
        assert [nodes.upload(node) for node in (0, 1, 0)] == [[], [epoch], [epoch]]
        assert nodes.place.complete()[-1] == epoch
    assert nodes.place.complete() == [11, 12]
    assert [epoch for epoch in nodes.run(0).steps() if epoch > 5] == [11, 12]
    for directory in nodes.directories:
        shutil.rmtree(directory)
    for epoch in (11, 12):
        nodes.place.check(tmp_path / "back", epoch)
        assert nodes.job.holds(epoch, RunDirectory(tmp_path / "back" / nodes.job.run_id))


def test_without_an_upload_a_disk_keeps_what_is_complete_and_the_newest_parts(tmp_path: Path) -> None:
    nodes, keep = Nodes(tmp_path, "full"), RetentionPolicy(last=2)
    for epoch in (1, 2, 3):
        nodes.write(0, epoch, 1, away=(1,))
    for epoch in range(4, 9):
        nodes.write(0, epoch, 2)
        nodes.run(0).prune(keep, ())
    assert nodes.run(0).steps() == [2, 3, 7, 8]


def test_a_disk_keeps_the_steps_that_all_nodes_have_or_shall_have(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "full", RetentionPolicy(last=1, every_hours=1.0))
    for epoch in range(1, 9):
        nodes.write(0, epoch, 1, common=(2, 5))
    assert nodes.run(0).steps() == [2, 5, 8]
    nodes.write(0, 9, 1, common=(5, 11))
    assert nodes.run(0).steps() == [5, 9]


def test_what_the_newest_step_on_all_disks_refers_to_stays(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "exact", RetentionPolicy(last=1))
    for epoch in range(1, 4):
        nodes.write(0, epoch, 1, parity=True)
    assert [nodes.run(0).part(epoch, 0, 1).is_encoded for epoch in (1, 2)] == [False, True]
    for epoch in range(4, 13):
        nodes.write(0, epoch, 1, parity=True, common=(2, NO_EPOCH))
    assert {1, 2, 12} <= {*nodes.run(0).steps()}


def test_in_a_shared_directory_a_chain_begins_again_with_all_ranks(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "exact", shared=True)
    for epoch in (1, 2):
        nodes.write(0, epoch, 1, away=(1,))
    for epoch in (3, 4, 5):
        for node in (0, 1):
            nodes.write(node, epoch, 2)
        assert nodes.run(0).part(epoch, 0, 2).is_encoded == (epoch > 3)
    assert nodes.upload(0)[0] == 5
    nodes.place.check(tmp_path / "back", 5)
    assert nodes.job.holds(5, RunDirectory(tmp_path / "back" / nodes.job.run_id))
