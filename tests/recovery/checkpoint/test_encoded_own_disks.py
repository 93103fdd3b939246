"""Exact steps where each node has a disk of its own, with parity: a part needs earlier ones of the same disk only."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainstay.recovery.agent.checkpoint_parity import list_runs
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import Writer, WriteRequest
from mainstay.recovery.checkpoint_rebuild import rebuild_step
from tests.recovery.checkpoint.encoded_job import RUN, EncodedJob, slot_of

LAST = 9
KEPT = 2


class OwnDisk(EncodedJob):
    """One of two nodes, with one rank."""

    def __init__(self, home: Path, rank: int) -> None:
        home.mkdir()
        super().__init__(home, keep=KEPT)
        self.rank = rank

    def order(self, *what: object, **named: object) -> WriteRequest:
        request = super().order(*what, **named)  # type: ignore[arg-type]
        return msgspec.structs.replace(request, config=msgspec.structs.replace(request.config, parity=True))

    def train(self, first: int, last: int = LAST) -> None:
        self.write(self.order(()))
        for epoch in range(first, last + 1):
            self.write(self.order((self.step(self.rank, epoch),)))

    def is_whole(self, epoch: int) -> bool:
        part = self.run.part(epoch, self.rank, 1)
        slot = np.zeros(self.layout.nbytes, np.uint8)
        read_slot(self.run, part, self.layout, slot)
        return np.array_equal(slot, slot_of(self.layout, self.rank, epoch))


@pytest.fixture
def nodes(tmp_path: Path) -> list[OwnDisk]:
    """The second one began with a later step."""
    found = [OwnDisk(tmp_path / f"node-{rank}", rank) for rank in range(2)]
    for node, first in zip(found, (1, 4), strict=True):
        node.train(first)
    return found


def test_a_disk_keeps_what_its_parts_need(nodes: list[OwnDisk]) -> None:
    for node, first in zip(nodes, (1, 4), strict=True):
        steps = node.run.steps()
        assert steps[0] == first, "the full step at the beginning of the chain"
        assert steps[-KEPT:] == [LAST - 1, LAST]
        assert all(node.run.part(epoch, node.rank, 1).base for epoch in steps[1:])
        assert all(node.is_whole(epoch) for epoch in steps[-KEPT:])
        (listed,) = list_runs(node.directory, None)
        assert (node.rank, LAST) in {(part.rank, part.epoch) for part in listed.parts}
        node.writer = Writer()  # started again: its first step is full
        node.train(LAST + 1, LAST + 3)
        assert node.run.steps() == [LAST + 1, LAST + 2, LAST + 3], "nothing needs the others"


def test_a_step_is_complete_without_the_steps_that_its_parts_needed(nodes: list[OwnDisk], tmp_path: Path) -> None:
    """No step that a part needs has parts of both ranks."""
    whole = tmp_path / "whole"
    for node in nodes:
        shutil.copytree(node.directory, whole, dirs_exist_ok=True)
    run = RunDirectory(whole / RUN)
    assert rebuild_step(whole)[0].epoch == LAST
    assert run.manifest(LAST).bases is msgspec.UNSET
    assert nodes[0].holds(LAST, run)
    assert not list(run.step(LAST).glob("*.encoded"))
    assert rebuild_step(whole)[0] == run.manifest(LAST), "again"


def test_too_few_parts_are_not_written_anew(nodes: list[OwnDisk], tmp_path: Path) -> None:
    whole = shutil.copytree(nodes[0].directory, tmp_path / "whole")
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"lacks the parts of ranks \[1\]: no parity"):
        rebuild_step(whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before
    assert not list(whole.rglob(MANIFEST))
