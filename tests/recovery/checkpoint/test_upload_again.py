"""Steps that were written again after their upload, go to another place, or cannot be read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.storage import CheckpointStorage
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadProgress
from mainstay.recovery.checkpoint.writer import Writer
from tests.recovery.checkpoint.commands import call
from tests.recovery.checkpoint.encoded_job import EncodedJob
from tests.recovery.checkpoint.own_disks import OwnDisks
from tests.recovery.checkpoint.test_upload import Killed, MortalStorage
from tests.recovery.checkpoint.upload_place import Place

pytestmark = pytest.mark.slow


def test_the_exact_last_step_replaces_the_quantized_one_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment, a step is complete there."""
    job = EncodedJob(tmp_path, encoding="8bit")
    place = Place(job, str(tmp_path / "level"))
    job.whole(1)
    assert place.upload() == [1]
    job.write(job.order(tuple(job.step(rank, 1) for rank in range(2)), final=True))
    monkeypatch.setattr("mainstay.recovery.checkpoint.upload.FILES_AT_ONCE", 1)
    for moment in range(100):
        with monkeypatch.context() as patch:
            MortalStorage(patch, moment)
            try:
                assert place.upload(policy=RetentionPolicy(last=1)) == [1]
            except Killed:
                place.check(tmp_path / f"back-{moment}", 1)
            else:
                break
    assert moment > 5
    place.check(tmp_path / "back", 1)
    back = RunDirectory(tmp_path / "back" / job.run_id)
    assert back.manifest(1).quantized is msgspec.UNSET
    assert job.holds(1, back)
    assert place.upload() == []


def test_likewise_from_disks_of_the_nodes_own(tmp_path: Path) -> None:
    job = EncodedJob(tmp_path, encoding="8bit")
    place, disks = Place(job, str(tmp_path / "level")), [tmp_path / "disk-0", tmp_path / "disk-1"]
    writers = [Writer(), Writer()]

    def write_and_upload(*, final: bool) -> list[list[int]]:
        uploaded = []
        for rank, disk in enumerate(disks):
            job.writer = writers[rank]
            order = msgspec.structs.replace(job.order((job.step(rank, 1),), final=final), directory=str(disk))
            job.write(msgspec.structs.replace(order, slots=()))
            job.write(order)
        for rank, disk in [*enumerate(disks), (0, disks[0])]:
            with open_level(place.url) as level:
                uploader = Uploader(level, place.request(directory=str(disk), node=f"n{rank}"))
                found = iter(lambda uploader=uploader: uploader.upload_next(final=final), None)  # type: ignore[misc]
                uploaded.append([epoch for _, epoch in found])
        return uploaded

    assert write_and_upload(final=False) == [[], [1], [1]]
    write_and_upload(final=True)
    place.check(tmp_path / "back", 1)
    assert job.holds(1, RunDirectory(tmp_path / "back" / job.run_id))


def test_a_step_that_is_at_one_place_goes_up_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it is built on."""
    job = EncodedJob(tmp_path)
    for epoch in (1, 2, 3):
        job.whole(epoch)
    assert Place(job, str(tmp_path / "level")).upload(policy=RetentionPolicy(last=1)) == [3]
    other = Place(job, str(tmp_path / "other"))
    code, said, _ = call(capsys, "upload", str(job.directory), other.url)
    assert (code, "step 3 of run" in said) == (0, True)
    assert other.complete() == [1, 2, 3]
    other.check(tmp_path / "back", 3)
    assert "no more steps are complete" in call(capsys, "upload", str(job.directory), other.url)[1]


@pytest.mark.parametrize("killed", [False, True])
def test_a_part_that_is_written_again_on_its_way_does_not_count_as_it_was(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """A share becomes a whole state in the last save, under the same name. ``killed``: before that is reported."""
    job, put_file, told, written = place.job, CheckpointStorage.put_file, list[UploadProgress](), list[str]()
    shares = save.WriteTarget(job.directory, "job", msgspec.structs.replace(job.target().config, copies=1))
    save.begin_step(shares)
    for rank in range(2):
        job.write(rank, 10, shares)

    def write_again() -> None:
        save.write_part(job.arenas[0], job.arenas[0].find(10), shares, final=True)

    def put(storage: CheckpointStorage, path: str, file: Path, *more: Any) -> Any:
        if file.name == "__0_1.distcp" and not written:
            written.append(path)
            with contextlib.suppress(Killed):
                write_again()
        return put_file(storage, path, file, *more)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStorage, "put_file", put)
        if killed:
            patch.setattr(save, "report_part", die)
        with open_level(place.url) as level:
            uploader = Uploader(level, place.request(), told.append)
            assert uploader.upload_next(final=True) == (None if killed else (job.run_id, 10))
    problems = [progress.problem for progress in told if progress.problem]
    assert not problems, "a part that was replaced is not damaged"
    if killed:
        assert place.complete() == []
        write_again()
        assert place.upload() == [10]
    place.check(tmp_path / "back", 10)


@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_cannot_be_read_is_named_and_passed_over(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], own: bool
) -> None:
    """On a disk of a node's own too, where the others have begun with it."""
    job = ranks(dp=1, pp=2, sharded=True)
    disks, told = OwnDisks(Place(job, str(tmp_path / "level")), tmp_path), list[UploadProgress]()
    for epoch in (10, 20):
        job.whole(epoch)
        disks.write_all(epoch)
        if own:
            disks.upload(0)
    damaged, healthy = (10, 20) if own else (20, 10)
    run = disks.run(1) if own else job.run
    file = run.step(damaged) / "__1_1.distcp"
    file.write_bytes(file.read_bytes()[:-3])
    with open_level(disks.place.url) as level:
        uploader = Uploader(level, disks.place.request(directory=str(run.path.parent), node="n1"), told.append)
        assert uploader.upload_next() == (None if own else (job.run_id, healthy))
    assert any(f"step {damaged} is passed over: {file} has" in progress.problem for progress in told)
    code, _, error = call(capsys, "upload", str(run.path.parent), disks.place.url)
    assert (code, f"step {damaged} is passed over" in error) == (2, True)
    if own:
        assert disks.upload(0) == [healthy]
    assert disks.place.complete() == [healthy]
    disks.place.check(tmp_path / "back", healthy)
