"""A device that fails at any call of a writer, a reader, or an uploader: no false step, none lost, one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.lib_checkpoint_job import RANKS, Counts, Job, problem_of
from bench.lib_device_faults import (
    READER_FAULTS,
    UPLOADER_FAULTS,
    WRITER,
    WRITER_FAULTS,
    Process,
    read_under,
    upload_under,
    write_under,
)
from mainstay.recovery.checkpoint.writer import WriteResult
from tests.recovery.checkpoint.faulty_disk import COMPILER, DELAY, NOT_DIRECT, Calls, FaultyDisk

pytestmark = [
    pytest.mark.slow, pytest.mark.processes, pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
]  # fmt: skip
FEW, THREE_BLOCKS = 99, 18_000
"""Rows of a part that takes one write, and of one that takes three."""


@pytest.fixture
def job(tmp_path: Path) -> Callable[[int], tuple[Job, FaultyDisk]]:
    """A job of two ranks, and the disk that it writes to."""

    def make(rows: int = FEW) -> tuple[Job, FaultyDisk]:
        home, memory = tmp_path / "disk", tmp_path / "memory"
        home.mkdir()
        memory.mkdir()
        return Job(memory, home, rows=rows), FaultyDisk(home, tmp_path)

    return make


@pytest.mark.parametrize(("under", "faults", "stride"), [
    (write_under, WRITER_FAULTS, 17), (read_under, READER_FAULTS, 5), (upload_under, UPLOADER_FAULTS, 101),
])  # fmt: skip
def test_no_call_that_fails_makes_a_false_step_or_loses_one(
    job: Callable[..., tuple[Job, FaultyDisk]], under: Callable[..., Counts], faults: Any, stride: int
) -> None:
    """``bench.checkpoint_faults`` has every call fail, not each ``stride``-th."""
    counts = under(*job(), faults, stride)
    assert counts.struck >= len(faults)
    assert (counts.false_whole, counts.lost, counts.silent) == ([], [], [])


@pytest.fixture
def processes() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(disk: FaultyDisk) -> Process:
        made.append(Process(WRITER, disk, WriteResult))
        return made[-1]

    yield make
    for process in made:
        process.close()


def test_a_device_that_takes_the_flag_of_direct_writes_and_refuses_them_is_written_through_the_cache(
    job: Callable[..., tuple[Job, FaultyDisk]], processes: Callable[..., Process]
) -> None:
    """All writes that are under way are refused; the first refusal must not make the others errors."""
    one, disk = job(THREE_BLOCKS)
    process = processes(disk)
    for turn in range(3):
        one.step()
        process.request(one.begin_order())
        disk.fail(Calls.WRITE, NOT_DIRECT)
        assert problem_of(process.request(one.order(*range(RANKS)))) == ""
        assert disk.struck or turn
        assert one.whole()[0] == one.epoch
        assert one.false_steps() == []


def test_a_slow_device_only_takes_longer(
    job: Callable[..., tuple[Job, FaultyDisk]], processes: Callable[..., Process]
) -> None:
    one, disk = job()
    process = processes(disk)
    one.step()
    process.request(one.begin_order())
    disk.fail(Calls.WRITE | Calls.SYNC, DELAY, amount=50_000)
    result = process.request(one.order(*range(RANKS)))
    assert problem_of(result) == ""
    assert result.seconds > 0.05 * disk.struck / RANKS / 2
    assert one.whole() == [one.epoch]
    assert one.false_steps() == []


@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
def test_two_writers_on_one_directory_do_no_harm(
    job: Callable[..., tuple[Job, FaultyDisk]], processes: Callable[..., Process], tmp_path: Path, run_id: str
) -> None:
    """Of two jobs, and of one: an agent was replaced while the process that wrote for it lived."""
    first, disk = job()
    second, pair = first, [processes(disk), processes(disk)]
    if run_id != first.run_id:
        (tmp_path / "other").mkdir()
        second = Job(tmp_path / "other", first.disk, rows=FEW, run_id=run_id)
    for _ in range(5):
        for one in {id(one): one for one in (first, second)}.values():
            one.step()
        told = []
        for order in (Job.begin_order, lambda one: one.order(*range(RANKS))):
            for process, one in zip(pair, (first, second), strict=True):
                process.send(order(one))
            told += [problem_of(process.receive()) for process in pair]
        assert first is second or told == [""] * 4
        for one in (first, second):
            assert one.whole()[0] == one.epoch
            assert one.false_steps() == []
