"""Nodes with a disk each upload their parts of a step: killed at any point, at the same time, and apart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.manifest import MANIFEST
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.storage import CheckpointStorage, StorageError
from mainstay.recovery.checkpoint.summary import CheckpointLevel, RunReader, StepState
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import CLAIM, UPLOAD
from tests.recovery.checkpoint.object_store import FaultProxy
from tests.recovery.checkpoint.own_disks import OwnDisks
from tests.recovery.checkpoint.test_upload import Killed, MortalStorage
from tests.recovery.checkpoint.upload_place import Place

pytestmark = pytest.mark.slow


@pytest.fixture
def disks(ranks: Callable[..., Any], tmp_path: Path) -> OwnDisks:
    """Two nodes with a stage each, and a directory as their upload level."""
    return OwnDisks(Place(ranks(dp=1, pp=2, sharded=True), str(tmp_path / "level")), tmp_path)


def test_the_node_that_sends_the_last_part_makes_the_step_complete(
    bucket: Place, ranks: Callable[..., Any], tmp_path: Path
) -> None:
    """Then all disks are lost."""
    job = ranks(dp=2, pp=2, sharded=True, run="01997c4e-8f00-7000-8000-000000000003")
    disks = OwnDisks(Place(job, bucket.url), tmp_path)
    disks.write_all(10)
    assert disks.upload_all() == [[], [], [], [10]]
    assert disks.upload_all()[:3] == [[10], [10], [10]]  # they learn it
    assert [disks.upload(node) for node in range(4)] == [[]] * 4
    for node in range(4):
        shutil.rmtree(disks.run(node).path)
    disks.place.check(tmp_path / "back", 10)
    back = RunDirectory(tmp_path / "back" / job.run_id)
    for rank, arena in job.arenas.items():
        slot = np.empty(arena.layout.nbytes, np.uint8)
        read_slot(back, back.part(10, rank, 1), arena.layout, slot)
        assert bytes(slot) == bytes(arena.slot_bytes(arena.find(10).slot)[: arena.layout.nbytes])


def test_a_store_that_fails_for_one_node_costs_no_step(
    bucket: Place, ranks: Callable[..., Any], proxy: FaultProxy, tmp_path: Path
) -> None:
    job = ranks(dp=1, pp=2, sharded=True, run="01997c4e-8f00-7000-8000-000000000004")
    disks = OwnDisks(Place(job, bucket.url), tmp_path)
    disks.write_all(10)
    disks.upload(0)
    for text in ("__1_1.distcp", "rank-1.g1.json", "files-1.g1", MANIFEST):
        for fault in ("503", "flip_request", "torn_request"):
            proxy.fail(fault, "PUT", f"step-00000010/{text}", times=10_000)
            with pytest.raises(StorageError):
                disks.upload(1)
            assert disks.place.complete() == []
            proxy.work_again()
    assert disks.upload(1) == [10]
    disks.place.check(tmp_path / "back", 10)


def test_killed_at_any_moment_no_step_is_complete_that_is_not(
    disks: OwnDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while a step is replaced by one of another generation, and old ones are deleted."""
    safe, moments = set[int](), 0

    def check() -> None:
        complete = disks.place.complete()
        assert safe <= {*complete}
        for epoch in complete:
            shutil.rmtree(tmp_path / "back", ignore_errors=True)
            disks.place.check(tmp_path / "back", epoch)
            assert len({generation for _, generation in disks.parts(epoch)}) == 1

    def kill_at_all_moments(node: int) -> int:
        moment = 0
        while True:
            with monkeypatch.context() as patch:
                MortalStorage(patch, moment)
                try:
                    disks.upload(node)
                except Killed:
                    pass
                else:
                    return moment
            check()
            moment += 1

    monkeypatch.setattr("mainstay.recovery.checkpoint.upload.FILES_AT_ONCE", 1)
    for epoch, generation, returns in (10, 1, ()), (20, 1, ()), (20, 2, ((10, 2),)), (30, 2, ((10, 2),)):
        disks.write_all(epoch, generation, returns)
        safe -= {20} if generation == 2 and epoch == 20 else set()  # the job has gone back from it
        moments += kill_at_all_moments(0) + kill_at_all_moments(1)
        check()
        assert disks.place.complete()[-1] == epoch
        assert disks.parts(epoch) == [(0, generation), (1, generation)]
        safe = {*disks.place.complete()}
        disks.upload(0)
    assert moments > 60
    disks.write_all(40, 2, ((10, 2),))
    disks.upload_all()
    assert disks.place.complete() == [30, 40]  # whoever makes a step complete removes what killed processes have left


def test_two_nodes_that_find_all_parts_at_once_are_harmless(
    disks: OwnDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks.write_all(10)
    put, other = CheckpointStorage.put_bytes, [True]

    def put_bytes(storage: CheckpointStorage, path: str, content: bytes) -> Any:
        if path.endswith(MANIFEST) and other:
            other.clear()
            assert disks.upload(0) == [10]
        return put(storage, path, content)

    disks.upload(0)
    monkeypatch.setattr(CheckpointStorage, "put_bytes", put_bytes)
    assert disks.upload(1) == [10]
    disks.place.check(tmp_path / "back", 10)


def test_a_step_that_faster_nodes_have_removed_does_not_come_back(
    disks: OwnDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks.write_all(10)
    disks.upload(0)
    put = CheckpointStorage.put_bytes

    def put_bytes(storage: CheckpointStorage, path: str, content: bytes) -> Any:
        if path.endswith(MANIFEST):
            storage.delete_below(path.removesuffix(f"/{MANIFEST}"))
        return put(storage, path, content)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStorage, "put_bytes", put_bytes)
        assert disks.upload(1) == []
    assert disks.place.complete() == []
    assert disks.upload_all() == [[], [10]]


def test_parts_of_two_generations_never_meet(disks: OwnDisks, tmp_path: Path) -> None:
    """The job goes back from step 20 to step 10, and makes step 20 again."""
    returns = ((10, 2),)
    disks.write_all(10)
    disks.upload_all()
    disks.write(0, 20)
    disks.upload(0)
    disks.write(1, 20, 2, returns)
    assert disks.upload(1) == []
    assert disks.place.complete() == [10]
    disks.write(0, 20, 2, returns)
    run = Path(disks.place.url) / disks.job.run_id / "run.g2.json"
    hidden = run.rename(run.with_suffix(".hidden"))
    with open_level(disks.place.url) as level:
        there, _ = level.parts(disks.job.run_id, 20)
        assert level.commit(disks.job.run_id, 20, {**there, (0, 2): "0" * 16}, partial=False) is None
    hidden.rename(run)
    assert disks.upload(0) == [20]
    assert disks.parts(20) == [(0, 2), (1, 2)]
    disks.place.check(tmp_path / "back", 20)


def test_nodes_take_the_same_step(disks: OwnDisks) -> None:
    """However far apart they are, and however many steps come meanwhile."""
    disks.write_all(10)
    assert disks.upload(0) == []
    for epoch in (20, 30):
        disks.write_all(epoch)
    assert disks.upload(0) == []  # node 1 still has to send step 10
    assert disks.run(0).upload_state(30) is None
    assert disks.upload(1) == [10]
    assert disks.run(1).upload_state(30) is not None  # it has begun with the newest
    assert disks.upload(0) == [30]  # which node 0 takes too
    assert disks.upload(1) == [30]
    for epoch in (40, 50):
        disks.write_all(epoch)
    with open_level(disks.place.url) as level:
        uploader = Uploader(level, disks.place.request(directory=str(disks.run(0).path.parent), node="n0"))
        assert uploader.upload_next() is None
        assert disks.run(0).upload_state(50) is not None
        requests: list[str] = []
        children = level.storage.children
        level.storage.children = lambda *path: requests.append("list") or children(*path)  # type: ignore[method-assign, func-returns-value]
        assert uploader.upload_next() is None
        assert requests == []  # it has looked just now
    disks.write(1, 60)
    assert disks.upload(1) == [50]  # step 60 is newer, but node 0 has begun with this one
    disks.write(0, 60)
    assert disks.upload(0) == [60]


def test_a_node_waits_for_no_step_of_an_earlier_generation(disks: OwnDisks) -> None:
    disks.write_all(10)
    assert disks.upload(0) == []
    disks.write(0, 20, 2, ((10, 2),))
    assert disks.upload(0) == []
    assert disks.run(0).upload_state(20) is not None
    disks.write(1, 20, 2, ((10, 2),))
    assert disks.upload(1) == [20]
    assert disks.upload(1) == []  # step 10 is older: nothing waits for it


def test_when_the_job_has_ended_all_that_others_have_begun_goes_up(disks: OwnDisks) -> None:
    disks.write_all(10)
    disks.write(0, 20)
    assert disks.upload(0, final=True) == []
    assert disks.upload(1, final=True) == []  # step 20 would be the newest, but this node has none
    assert disks.upload(0, final=True) == [10]
    disks.write(1, 20)
    assert disks.upload(1, job="") == [20]  # as ``mainstay checkpoint upload``


def test_steps_go_up_as_far_apart_as_the_coordinator_says(disks: OwnDisks) -> None:
    disks.config = {"upload_every": 20}
    for epoch in (10, 20, 30, 40):
        disks.write_all(epoch)
        disks.upload_all()
        disks.upload_all()
    assert disks.place.complete() == [10, 30]
    assert disks.upload(0, final=True) == []
    assert disks.upload(1, final=True) == [40]


def test_ranks_that_are_away_are_not_waited_for(ranks: Callable[..., Any], tmp_path: Path) -> None:
    disks = OwnDisks(Place(ranks(dp=3), str(tmp_path / "level")), tmp_path)
    disks.write_all(10)
    assert [disks.upload(node) for node in (0, 1)] == [[], []]
    disks.config = {"away": (2,)}
    for node in (0, 1):
        disks.write(node, 20, 2)
    assert [disks.upload(node) for node in (0, 1)] == [[10], [20]]  # as of steps in a shared directory
    assert disks.parts(20) == [(0, 2), (1, 2)]


def test_at_the_end_one_replica_is_enough_and_all_count_that_come(ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Each directory has a complete step of its own then."""
    disks = OwnDisks(Place(ranks(dp=3), str(tmp_path / "level")), tmp_path)
    for node in range(3):
        disks.write(node, 10, final=True)
    assert disks.upload(1, final=True) == [10]
    assert disks.parts(10) == [(1, 1)]
    assert [disks.upload(node, final=True) for node in (0, 2)] == [[10], [10]]
    assert disks.parts(10) == [(0, 1), (1, 1), (2, 1)]
    disks.place.check(tmp_path / "back", 10)


def test_at_the_end_a_replica_stands_for_a_lost_node(ranks: Callable[..., Any], tmp_path: Path) -> None:
    disks = OwnDisks(Place(ranks(dp=2, pp=2), str(tmp_path / "level")), tmp_path)
    disks.write_all(10)
    nodes = (0, 1, 2)  # of which 0 and 2, or 0 and 1, hold one stage
    assert [disks.upload(node) for node in nodes] == [[], [], []]
    assert disks.upload(0, final=True) == [10]
    assert len(disks.parts(10)) == 3
    assert disks.upload(3) == [10]
    assert len(disks.parts(10)) == 4
    disks.place.check(tmp_path / "back", 10)


def test_a_copy_goes_up_only_if_its_owner_does_not_send_it(disks: OwnDisks) -> None:
    target, run = disks.target(0), disks.run(0)
    disks.write(0, 10)
    save.leave_upload(run.step(10), 1, 1)
    disks.job.write(1, 10, target)
    assert disks.upload(0) == []
    with open_level(disks.place.url) as level:
        assert level.parts(disks.job.run_id, 10)[0].keys() == {(0, 1)}
    os.utime(run.step(10) / CLAIM.format(1, 1), (0, 0))
    assert disks.upload(0) == [10]


def test_parts_stay_until_their_step_or_a_newer_one_is_complete_there(disks: OwnDisks) -> None:
    for epoch in range(10, 100, 10):
        disks.write_all(epoch)
    assert disks.run(0).steps() == [60, 70, 80, 90]  # the newest 4 that wait
    disks.upload_all()
    disks.upload(0)
    disks.write(0, 100)
    assert disks.run(0).steps() == [90, 100]
    assert RunDirectory(disks.run(1).path).steps() == [60, 70, 80, 90]


def test_a_step_that_is_complete_there_is_listed_as_such(disks: OwnDisks) -> None:
    disks.write_all(10)
    assert [step.state for step in RunReader(disks.run(0)).read()] == [StepState.INCOMPLETE]
    disks.upload_all()
    disks.upload(0)
    (step,) = RunReader(disks.run(0)).read()
    assert (step.state, step.levels, step.ranks) == (StepState.COMPLETE, (CheckpointLevel.UPLOAD,), 2)
    (disks.run(0).step(10) / UPLOAD).unlink()  # it was given up since
    assert [step.state for step in RunReader(disks.run(0)).read()] == [StepState.INCOMPLETE]


def test_shares_that_differ_are_reported(ranks: Callable[..., Any], tmp_path: Path) -> None:
    job = ranks(dp=2, sharded=True)  # no replicas, but the coordinator takes them for some
    disks = OwnDisks(Place(job, str(tmp_path / "level")), tmp_path, copies=1)
    disks.write_all(10)
    assert disks.upload(0) == []
    with pytest.raises(StorageError, match="use --checkpoint-replicas 0"):
        disks.upload(1)
    assert disks.place.complete() == []


def test_steps_beyond_the_policy_are_deleted(disks: OwnDisks) -> None:
    for epoch in (10, 20, 30):
        disks.write_all(epoch)
        disks.upload_all()
        disks.upload(0)
    assert disks.place.complete() == [20, 30]
    disks.write_all(40)
    disks.upload(0, policy=RetentionPolicy(last=1))
    disks.upload(1, policy=RetentionPolicy(last=1))
    assert disks.place.complete() == [40]
    there = Path(disks.place.url) / disks.job.run_id
    assert sorted(path.name for path in there.iterdir() if path.is_dir()) == ["step-00000040"]
    assert msgspec.json.decode((disks.run(1).path / ".uploaded.json").read_bytes())[0]["step"] == 40


def test_nodes_that_hold_the_same_part_do_not_disturb_one_another(
    disks: OwnDisks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal tensors, but other descriptions: one is replaced by no other once a manifest refers to it."""
    disks.write_all(10)
    disks.job.write(1, 10, disks.target(0))
    assert disks.run(0).part(10, 1, 1).check != disks.run(1).part(10, 1, 1).check
    put_file, other = CheckpointStorage.put_file, [True]

    def put(storage: CheckpointStorage, path: str, file: Path, *more: Any) -> Any:
        if file == disks.run(1).step(10) / "rank-1.g1.json" and other:
            other.clear()
            assert disks.upload(0) == [10]
        return put_file(storage, path, file, *more)

    monkeypatch.setattr(CheckpointStorage, "put_file", put)
    assert disks.upload(1) == [10]
    disks.place.check(tmp_path / "back", 10)
