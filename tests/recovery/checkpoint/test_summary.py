"""The steps of real directories as people see them: states, sizes, levels, chains, durability, and what they cost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import PINNED
from mainstay.recovery.checkpoint.encoding.chain_policy import MAX_LINKS
from mainstay.recovery.checkpoint.job_summary import CheckpointFacts, with_job
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile
from mainstay.recovery.checkpoint.manifest import MANIFEST, data_name
from mainstay.recovery.checkpoint.summary import (
    LISTED,
    CheckpointStep,
    RunReader,
    StepState,
    link,
    newest,
)
from tests.recovery.checkpoint.upload_place import Place


def complete(step: int, *bases: int, read: int = 100) -> CheckpointStep:
    return CheckpointStep(
        step=step, state=StepState.COMPLETE, ranks=2, disk_bytes=200, full_bytes=400, read_bytes=read, bases=bases
    )


def test_each_state_of_a_step_has_a_reason(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    job.whole(10)
    job.whole(20)
    (job.run.step(20) / MANIFEST).write_bytes(b"{")
    job.whole(30)
    (job.run.step(30) / data_name(1, 1)).unlink()
    job.whole(40, generation=1)
    save.begin_step(job.target(2, returns=((30, 2),)))
    job.write(0, 50, generation=2)
    steps = {step.step: step for step in link(RunReader(job.run).read())}
    assert {number: step.state for number, step in steps.items()} == {
        10: "complete", 20: "damaged", 30: "damaged", 40: "given_up", 50: "incomplete",
    }  # fmt: skip
    problems = [steps[number].problem for number in (10, 20, 30, 40, 50)]
    assert problems[0] == ""
    assert "is damaged" in problems[1]
    assert problems[2] == "has lost the files of ranks [1]"
    assert "the job has gone back from" in problems[3]
    assert problems[4] == "is not complete: parts of ranks [1] are missing"
    assert (steps[50].ranks, steps[50].full_bytes, steps[50].previous) == (1, None, None)


def test_sizes_are_those_of_the_files_and_of_the_state(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    manifest = job.whole(10)
    (step,) = RunReader(job.run).read()
    files = [(job.run.step(10) / data_name(rank, 1)).stat().st_size for rank in range(2)]
    assert (step.disk_bytes, step.read_bytes) == (sum(files), max(files))
    assert (step.full_bytes, step.time) == (sum(part.nbytes for part in manifest.parts), manifest.time)


def test_levels_and_pins(place: Place) -> None:
    job = place.job
    job.whole(10)
    assert place.upload() == [10]
    job.whole(20)
    (job.run.step(10) / "pinned").touch()
    first, second = RunReader(job.run).read()
    assert (first.levels, first.pinned) == (("local", "upload"), True)
    assert (second.levels, second.pinned) == (("local",), False)


def test_a_step_that_only_the_upload_level_still_holds_is_listed(place: Place) -> None:
    job = place.job
    for epoch in (10, 20):
        job.whole(epoch)
        place.upload()
    shutil.rmtree(job.run.step(10))
    first, second = with_job(RunReader(job.run).read(), CheckpointFacts(held={"a": ()}, world_size=2, read_rate=1.0))
    assert (first.levels, first.nodes, first.restore_seconds) == (("upload",), (), None)
    assert (second.levels, second.previous) == (("local", "upload"), 10)
    for epoch in (30, 40):  # two stay at the upload level
        job.whole(epoch)
        place.upload()
    shutil.rmtree(job.run.step(20))
    assert [step.step for step in RunReader(job.run).read()] == [30, 40]


def test_what_changes_in_a_step_is_seen_and_what_does_not_is_not_read_again(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    job.whole(10)
    job.write(0, 20)
    for epoch in (10, 20):
        os.utime(job.run.step(epoch), (time.time() - 60,) * 2)
    reader = RunReader(job.run)
    before = reader.read()
    (job.run.step(10) / MANIFEST).rename(job.run.path / "moved")
    os.utime(job.run.step(10), (time.time() - 60,) * 2)  # another time than before
    job.write(1, 20)
    save.commit(job.target(), 20)
    assert [step.state for step in before] == ["complete", "incomplete"]
    assert [step.state for step in reader.read()] == ["incomplete", "complete"]
    assert reader.read() == RunReader(job.run).read()
    shutil.rmtree(job.run.step(10))
    assert [step.step for step in reader.read()] == [20]


def test_a_manifest_that_is_damaged_in_place_is_seen(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(10)
    step = job.run.step(10)
    for path in (step / MANIFEST, step):
        os.utime(path, (time.time() - 60,) * 2)
    reader = RunReader(job.run)
    assert [found.state for found in reader.read()] == ["complete"]
    changed = step.stat().st_mtime_ns
    (step / MANIFEST).write_bytes(b"{")
    assert step.stat().st_mtime_ns == changed, "the directory itself has not changed"
    assert [(found.state, found.problem.split(":")[0]) for found in reader.read()] == [
        ("damaged", "manifest.json is damaged")
    ]


def test_a_step_that_is_damaged_here_is_whole_at_the_upload_level(place: Place) -> None:
    job = place.job
    job.whole(10)
    assert place.upload() == [10]
    (job.run.step(10) / PINNED).touch()
    (job.run.step(10) / data_name(0, 1)).unlink()
    (step,) = RunReader(job.run).read()
    assert (step.state, step.levels, step.pinned) == ("complete", ("upload",), True)
    assert step.problem == "in the directory: has lost the files of ranks [0]"
    assert place.complete() == [10]


def test_a_chain_says_what_needs_what() -> None:
    steps = link([complete(10), complete(20, 10), complete(30, 10, 20, read=50), complete(40), complete(25, 5)])
    found = {step.step: step for step in steps}
    assert list(found) == [10, 20, 25, 30, 40]
    assert [found[n].unreadable for n in (10, 20, 30, 40)] == [(20, 30), (30,), (), ()]
    assert [found[n].read_bytes for n in (10, 20, 30, 40)] == [100, 200, 250, 100]
    assert [found[n].previous for n in (10, 20, 30, 40)] == [None, 10, 20, 30]
    assert (found[25].state, found[25].problem) == ("incomplete", "step 5, which it is built on, is not complete")
    assert link([complete(60)], begun_at=50)[0].previous == 50


def test_a_report_has_the_newest_steps_and_the_pinned_ones() -> None:
    pinned = {3, 5}
    many = [msgspec.structs.replace(complete(n), pinned=n in pinned) for n in range(1, LISTED + 11)]
    listed = [step.step for step in newest(many)]
    assert listed == [*range(LISTED + 10, 10, -1), 5, 3]
    chain = link(complete(n, *range(n)) for n in range(MAX_LINKS))
    assert newest(chain) == chain[::-1], "the longest chain is named in full"


def parts(step: int, *of: int) -> tuple[PartFile, ...]:
    return tuple(PartFile(rank, step, 100, 1) for rank in of)


@pytest.mark.parametrize(
    ("held", "replicas", "state", "survives"),
    [
        ({"a": (0, 1), "b": (0, 1)}, (), "complete", "the loss of any nodes: they share the directory"),
        ({"a": (0, 1)}, (), "complete", "not the loss of a, if the directory is on a disk of this node"),
        ({"a": (0, 1), "b": ()}, (), "complete", "not the loss of a, if the directory is on a disk of this node"),
        ({"a": (0,), "b": (1,)}, (), "incomplete", "not the loss of any one of its 2 nodes"),
        ({"a": (0,), "b": (1,)}, ((0, 1),), "incomplete", "the loss of any 1 of its 2 nodes"),
        ({"a": (0,), "b": ()}, (), "incomplete", ""),
        ({}, (), "complete", ""),
    ],
)
def test_durability_follows_from_who_sees_which_part(
    held: dict[str, Sequence[int]], replicas: tuple[tuple[int, ...], ...], state: str, survives: str
) -> None:
    step = complete(10)
    if state == "incomplete":  # in the directory of the coordinator
        step = CheckpointStep(step=10, state=StepState.INCOMPLETE, ranks=1, disk_bytes=100)
    seen = {node: parts(10, *of) for node, of in held.items()}
    (found,) = with_job([step], CheckpointFacts(held=seen, replicas=replicas, world_size=2))
    assert found.survives == survives
    everywhere = state == "incomplete" and survives
    assert found.state == ("on_nodes" if everywhere else state)
    assert found.disk_bytes == (200 if survives or state == "complete" else 100)


@pytest.mark.parametrize(
    ("on", "groups", "parity", "replicas", "survives"),
    [
        ("abcd", [(0, 1, 2, 3)], 1, (), "the loss of any 1 of its 4 nodes, with parity on the disks"),
        ("abcd", [(0, 1, 2, 3)], 2, (), "the loss of any 2 of its 4 nodes, with parity on the disks"),
        ("abcd", [(0, 1)], 1, (), "not the loss of any one of its 4 nodes"),
        ("abcd", [(0, 1, 2, 3)], 1, ((0, 1), (2, 3)), "the loss of any 1 of its 4 nodes"),
        (
            "abcd",
            [(3, 1, 0, 2)],
            2,
            ((0, 1), (2, 3)),
            "the loss of any 2 of its 4 nodes, with parity on the disks",
        ),
        ("aabb", [(0, 2), (1, 3)], 1, (), "the loss of any 1 of its 2 nodes, with parity on the disks"),
        ("aabb", [(0, 1), (2, 3)], 1, (), "not the loss of any one of its 2 nodes"),
    ],
)
def test_parity_beside_the_parts_outlives_what_its_groups_bear(
    on: str, groups: list[tuple[int, ...]], parity: int, replicas: tuple[tuple[int, ...], ...], survives: str
) -> None:
    """``on`` has the node of each rank; what fails is a node, with all of its ranks."""
    step = CheckpointStep(step=10, state=StepState.INCOMPLETE, ranks=1, disk_bytes=100)
    held = {node: parts(10, *(rank for rank, at in enumerate(on) if at == node)) for node in on}
    rows = [(on[rank], ParityFile(rank, 10, group, parity)) for group in groups for rank in group]

    def find_survived(rows: list[tuple[str, ParityFile]]) -> str:
        here = {node: [row for at, row in rows if at == node] for node in on}
        return with_job([step], CheckpointFacts(held=held, parity=here, replicas=replicas, world_size=4))[0].survives

    assert find_survived(rows) == survives
    elsewhere = [("a" if node == "b" else "b", row) for node, row in rows[:1]]  # one moved away from its part
    assert [find_survived(rows[1:]), find_survived(elsewhere + rows[1:])] == [find_survived([])] * 2


def test_parity_of_ranks_that_the_job_no_longer_has_counts_for_nothing() -> None:
    step = CheckpointStep(step=10, state=StepState.INCOMPLETE, ranks=1, disk_bytes=100)
    held = {node: parts(10, rank) for rank, node in enumerate("abcd")}
    rows = {node: [ParityFile(rank, 10, (0, 1, 2, 3), 1)] for rank, node in enumerate("abcd")}
    (found,) = with_job([step], CheckpointFacts(held=held, parity=rows, world_size=3))
    assert found.survives == "not the loss of any one of its 4 nodes"


def test_a_job_goes_back_to_a_step_on_the_disks_of_its_nodes() -> None:
    steps = [CheckpointStep(step=n, state=StepState.INCOMPLETE, ranks=1, disk_bytes=100) for n in (10, 20)]
    held = {node: (*parts(10, rank), *parts(20, rank)) for rank, node in enumerate("ab")}
    found = with_job(steps, CheckpointFacts(held=held, world_size=2, step_seconds=1.0, read_rate=50.0))
    assert [(step.previous, step.seconds_lost, step.restore_seconds) for step in found] == [
        (None, 10.0, 2.0),
        (10, 10.0, 2.0),
    ]


def test_a_recovery_uses_no_step_of_a_quantized_run_but_the_one_that_it_continued_from() -> None:
    held = {"a": parts(10, 0), "b": parts(10, 1)}
    here = CheckpointStep(step=10, state=StepState.INCOMPLETE, ranks=1, disk_bytes=1)
    far = msgspec.structs.replace(complete(15), levels=("upload",))

    def find_served(**facts: Any) -> list[tuple[str, bool | None]]:
        steps = with_job([here, far, complete(20)], CheckpointFacts(held=held, world_size=2, **facts))
        return [(step.state, step.serves_recovery) for step in steps]

    assert find_served() == [("on_nodes", True), ("complete", False), ("complete", True)]
    (zeroth,) = with_job([complete(0)], CheckpointFacts(held=held, world_size=2, recovers_from_disk=False))
    assert not zeroth.serves_recovery, "a job that begins at 0 has continued from no step"
    quantized = [("incomplete", False), ("complete", False), ("complete", False)]
    assert find_served(recovers_from_disk=False) == quantized
    assert find_served(recovers_from_disk=False, begun_at=20) == [*quantized[:2], ("complete", True)]


def test_a_step_that_agents_have_not_seen_yet_is_in_the_same_directory() -> None:
    held = {"a": parts(10, 0, 1), "b": parts(10, 0, 1)}
    found = with_job([complete(10), complete(20)], CheckpointFacts(held=held, world_size=2))
    assert [(step.survives, step.nodes) for step in found] == [
        ("the loss of any nodes: they share the directory", ("a", "b"))
    ] * 2


def test_times_are_known_or_said_to_be_unknown() -> None:
    steps = [complete(10), complete(30, 10)]
    measured = with_job(steps, CheckpointFacts(step_seconds=0.5, read_rate=50.0))
    assert [(step.seconds_lost, step.restore_seconds) for step in measured] == [(5.0, 2.0), (10.0, 4.0)]
    assert {(step.seconds_lost, step.restore_seconds) for step in with_job(steps, CheckpointFacts())} == {(None, None)}
    (zeroth,) = with_job([complete(0)], CheckpointFacts(step_seconds=0.5))
    assert zeroth.seconds_lost == 0.0, "no training comes before it"


def test_an_empty_directory_has_no_steps(tmp_path: Path, ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    assert RunReader(job.run).read() == []
