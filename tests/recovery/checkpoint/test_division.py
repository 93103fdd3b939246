"""Replicas divide a step by the rates of their disks, all of them alike, however late one reads."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lib_checkpoint_job import Job, problem_of
from bench.lib_device_faults import WRITER, Process
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.division import FASTEST, TOLERANCE, rebalance, weights_of
from mainstay.recovery.checkpoint.manifest import CheckpointError, Division, division_name, part_name, write_checked
from mainstay.recovery.checkpoint.save import WriteTarget
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import WriteResult
from tests.recovery.checkpoint.faulty_disk import COMPILER, FaultyDisk

REPLICAS = 4
SLOW = (1.0, 1.0, 1.0, 4.0)
"""Seconds a byte of four disks."""


class Divided:
    """A job whose replicas divide what they write; the test chooses how long that takes."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.target = self.dividing()
        save.begin_step(self.target)

    def dividing(self) -> WriteTarget:
        config = msgspec.structs.replace(self.job.target().config, copies=1)
        return WriteTarget(self.job.directory, "job", config)

    def write(self, epoch: int, ranks: Sequence[int], pace: Sequence[float] = SLOW, generation: int = 1) -> Any:
        """The manifest, if the step is complete now."""
        for rank in ranks:
            self.job.write(rank, epoch, self.target, generation)
            part = self.job.run.part(epoch, rank, generation)
            timed = msgspec.structs.replace(part, seconds=pace[rank] * part.nbytes)
            write_checked(self.job.run.step(epoch) / part_name(rank, generation), timed)
        return save.commit(self.target, epoch)

    def weights(self, epoch: int, generation: int = 1) -> list[Any]:
        """As the parts of the step say them."""
        return [self.job.run.part(epoch, rank, generation).weights or () for rank in range(self.job.dp)]


@pytest.fixture
def divided(ranks: Callable[..., Any]) -> Divided:
    return Divided(ranks(dp=REPLICAS))


ALL = range(REPLICAS)
PROPORTIONAL = (FASTEST, FASTEST, FASTEST, FASTEST // 4)


def test_a_slow_disk_gets_less_from_the_second_step_on(divided: Divided) -> None:
    assert divided.write(1, ALL)
    assert divided.weights(1) == [()] * REPLICAS, "nothing is known yet"
    made = divided.write(2, ALL)
    assert (made.replicated, made.shares) == (True, True)
    assert divided.weights(2) == [PROPORTIONAL] * REPLICAS
    job = divided.job
    for rank in ALL:
        arena = job.arenas[rank]
        slot = np.empty(arena.layout.nbytes, np.uint8)
        read_slot(job.run, job.run.part(2, rank, 1), arena.layout, slot)
        assert slot.tobytes() == arena.slot_bytes(arena.find(2).slot)[: arena.layout.nbytes].tobytes()


def test_one_slow_write_changes_nothing_two_do(divided: Divided) -> None:
    divided.write(1, ALL, (1.0,) * REPLICAS)
    divided.write(2, ALL, SLOW)
    divided.write(3, ALL, SLOW)
    divided.write(4, ALL, SLOW)
    assert [divided.weights(epoch)[0] for epoch in (2, 3, 4)] == [(), (), PROPORTIONAL]
    divided.write(5, ALL, (1.0,) * REPLICAS)
    divided.write(6, ALL)
    assert [divided.weights(epoch)[0] for epoch in (5, 6)] == [PROPORTIONAL, ()], "the disk is well again"


def test_a_node_that_reads_late_writes_the_same_division(divided: Divided) -> None:
    """The first replicas begin step 2 while others have yet to write step 1: its rates come too late."""
    assert divided.write(1, (0, 1)) is None
    assert divided.write(2, (0, 1)) is None
    assert divided.write(1, (2, 3))
    assert divided.write(2, (2, 3)), "or the step would have shares of two divisions"
    assert divided.weights(2) == [()] * REPLICAS
    assert divided.write(3, ALL)
    assert divided.weights(3) == [PROPORTIONAL] * REPLICAS


def test_shares_of_two_divisions_are_no_step(divided: Divided) -> None:
    divided.write(1, ALL)
    assert divided.write(2, (0, 1)) is None
    (divided.job.run.step(2) / division_name(0)).unlink()
    for path in divided.job.run.step(1).glob("manifest.json"):
        path.unlink()
    assert divided.write(2, (2, 3)) is None
    assert divided.weights(2) == [PROPORTIONAL, PROPORTIONAL, (), ()]
    assert list(divided.job.run.complete()) == []


def test_a_whole_state_in_the_place_of_a_share_is_never_taken_for_it(
    divided: Divided, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last save is killed between the two files of a part."""
    divided.write(1, ALL[:-1])
    arena = divided.job.arenas[0]
    with monkeypatch.context() as patch:
        patch.setattr(save, "report_part", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save.write_part(arena, arena.find(1), divided.target, final=True)
    assert divided.write(1, ALL[-1:]) is None
    save.write_part(arena, arena.find(1), divided.target, final=True)
    assert save.commit(divided.target, 1, partial=True) is not None
    for rank in ALL:
        slot = np.empty(arena.layout.nbytes, np.uint8)
        read_slot(divided.job.run, divided.job.run.part(1, rank, 1), divided.job.arenas[rank].layout, slot)


def test_other_nodes_may_have_other_disks(divided: Divided) -> None:
    """A generation begins with equal shares, and so does another set of replicas."""
    divided.write(1, ALL)
    divided.write(2, ALL, generation=2)
    assert divided.weights(2, 2) == [()] * REPLICAS
    divided.write(3, ALL, generation=2)
    assert divided.weights(3, 2) == [PROPORTIONAL] * REPLICAS
    run = divided.job.run
    assert weights_of(run, 4, 2, (0, 1, 3)) == (FASTEST, FASTEST, FASTEST // 4), "rates are known, of the same nodes"
    assert weights_of(run, 4, 2, (0, 1, 2, 3)) == (), "the division that is there is of others"
    assert weights_of(run, 5, 2, (0, 1, 2, 5)) == (), "nothing is known of rank 5"


def test_short_writes_say_nothing(divided: Divided) -> None:
    divided.write(1, ALL, (1e-5, 1e-5, 1e-5, 1e-3))
    divided.write(2, ALL)
    assert divided.weights(2) == [()] * REPLICAS


def test_without_hard_links_shares_are_equal(divided: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    divided.write(1, ALL)
    assert divided.write(2, ALL)
    assert divided.weights(2) == [()] * REPLICAS
    assert [path.name for path in divided.job.run.step(2).glob(".shares*")] == []


def test_a_division_that_cannot_be_written_or_read_is_an_error(
    divided: Divided, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever cannot know the weights writes no share: a step without it is not complete."""

    def link(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        with pytest.raises(OSError, match="Input/output error"):
            divided.write(1, (0,))
    path = divided.job.run.step(1) / division_name(0)
    assert [*divided.job.run.step(1).iterdir()] == []
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=path.name):
        divided.write(1, (0,))
    write_checked(path, Division(ranks=tuple(ALL), weights=(0, 1, 1, 1)))
    with pytest.raises(CheckpointError, match=path.name):
        divided.write(1, (0,))
    write_checked(path, Division(ranks=tuple(ALL), weights=(1, 2)))
    assert divided.write(1, ALL), "weights of others are none: all see that"


RACE = """
import sys
from pathlib import Path
from mainstay.recovery.checkpoint import division
from mainstay.recovery.checkpoint.catalog import RunDirectory

def choose(*_):
    print("there is no division yet", flush=True)
    input()
    return int(sys.argv[2]), 1

division._choose = choose
for epoch in range(8):
    print(*division.weights_of(RunDirectory(Path(sys.argv[1])), epoch, 1, (0, 1)), flush=True)
"""


def test_processes_that_begin_a_step_together_agree(tmp_path: Path) -> None:
    """Each knows other rates: a node may have seen one more step than another."""
    with contextlib.ExitStack() as stack:
        nodes: list[Any] = []
        for number in range(2, 6):
            command = [sys.executable, "-c", RACE, str(tmp_path / "run-1"), str(number)]
            node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            nodes.append(stack.enter_context(node))
            stack.callback(node.kill)
        for _ in range(8):
            assert {node.stdout.readline() for node in nodes} == {"there is no division yet\n"}
            for node in nodes:
                node.stdin.write("\n")
                node.stdin.flush()
            assert len({node.stdout.readline() for node in nodes} - {""}) == 1
    assert [*tmp_path.glob("run-1/*/.shares-0.json.*")] == [], "no drafts are left"


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_the_share_of_a_slow_device_shrinks(tmp_path: Path) -> None:
    """Two processes that write, each to a device of its own below one directory."""
    home, memory = tmp_path / "disk", tmp_path / "memory"
    home.mkdir()
    memory.mkdir()
    job, devices = Job(memory, home, rows=4096), [FaultyDisk(home, tmp_path / "library") for _ in range(2)]
    devices[1].limit(2**20)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(contextlib.closing(Process(WRITER, one, WriteResult))) for one in devices]
        for _ in range(2):
            job.step()
            job.copies = 1
            for writer in writers:
                writer.send(job.begin_order())
                writer.receive()
            for rank, writer in enumerate(writers):
                writer.send(job.order(rank))
            assert [problem_of(writer.receive()) for writer in writers] == ["", ""]
    fast, slow = (job.run.part(2, rank, 1).nbytes for rank in range(2))
    assert job.run.manifest(2).shares is True
    assert slow < fast / 2


@given(st.lists(st.floats(1.0, 30.0), min_size=2, max_size=12))
def test_a_division_is_within_its_tolerance_and_stays(rates: list[float]) -> None:
    found = rebalance((), rates)
    weights = found or (1,) * len(rates)
    assert max(w / r for w, r in zip(weights, rates, strict=True)) / sum(weights) <= TOLERANCE / sum(rates)
    assert not found or rebalance(found, [rates[0] * 1.05, *rates[1:]]) == found


def test_divisions_by_hand() -> None:
    assert rebalance((), [1.0, 1.04, 0.97, 1.0]) == (), "noise"
    assert rebalance((), [4.0, 4.0, 4.0, 1.0]) == PROPORTIONAL
    assert rebalance(PROPORTIONAL, [4.0, 3.9, 4.1, 1.02]) == PROPORTIONAL
    assert rebalance(PROPORTIONAL, [4.0, 4.0, 4.0, 4.0]) == ()
    assert rebalance((), [1e9, 1.0]) == (FASTEST, 1)
