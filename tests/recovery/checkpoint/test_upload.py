"""Steps go up and come back: killed at any point, beside removal, and with a store that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import catalog, levels, save, upload
from mainstay.recovery.checkpoint.catalog import DOWNLOADS, PINNED, RunDirectory, remove_step
from mainstay.recovery.checkpoint.levels import fetch_parts, files_name, find_nearest, open_level
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.storage import CheckpointStorage, StorageError
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import CLAIM, UPLOAD
from tests.recovery.checkpoint.object_store import FaultProxy
from tests.recovery.checkpoint.upload_place import Place

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """SIGKILL, as far as what it leaves at both levels."""


def test_steps_go_up_newest_first_and_come_back_to_the_bit(bucket: Place, tmp_path: Path) -> None:
    for epoch in (10, 20, 30):
        bucket.job.whole(epoch)
    bucket.job.write(0, 40)
    assert bucket.upload() == [30, 20]  # of the policy's two newest; step 40 is not complete
    assert bucket.complete() == [20, 30]
    assert bucket.upload() == []
    bucket.check(tmp_path / "back", 30)
    for path in bucket.job.run.step(30).iterdir():
        if not path.name.startswith(".upload"):
            assert (
                tmp_path / "back" / bucket.job.run_id / "step-00000030" / path.name
            ).read_bytes() == path.read_bytes()
    assert (tmp_path / "back" / bucket.job.run_id / "run.g1.json").exists()


def test_only_the_files_of_one_part_are_read(place: Place, tmp_path: Path) -> None:
    place.job.whole(10)
    place.upload()
    back = RunDirectory(tmp_path / "back" / place.job.run_id)
    assert fetch_parts(tmp_path / "back", place.url, place.job.run_id, 10, [(1, 0)]) > 0
    assert sorted(path.name for path in back.step(10).iterdir()) == [".lock", "__1_1.distcp", "rank-1.g1.json"]
    assert verify_part(back, back.part(10, 1, 1)) > 0
    assert fetch_parts(tmp_path / "back", place.url, place.job.run_id, 10, [(1, 1)]) == 0  # it is here
    with pytest.raises(CheckpointError, match="does not hold rank 5"):
        fetch_parts(tmp_path / "back", place.url, place.job.run_id, 10, [(5, 0)])
    with pytest.raises(CheckpointError, match="has no complete step 11"):
        fetch_parts(tmp_path / "back", place.url, place.job.run_id, 11, [(1, 0)])


def test_a_share_is_read_with_those_of_the_other_replicas(ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Of four replicas of two stages, which write one copy: from the directory of the four that hold the stage."""
    job = ranks(dp=4, pp=2)
    target = save.WriteTarget(job.directory, "job", msgspec.structs.replace(job.target().config, copies=1))
    save.begin_step(target)
    for rank in range(8):
        job.write(rank, 10, target)
    made = save.commit(target, 10)
    assert made is not None
    assert made.shares is True
    place = Place(job, str(tmp_path / "level"))
    place.upload()
    back = RunDirectory(tmp_path / DOWNLOADS / job.run_id)
    fetch_parts(back.path.parent, place.url, job.run_id, 10, [(2, 0)])
    assert {part.rank for part in back.parts(10)} == {*made.shape.dp_peers(2), 2}
    layout = job.arenas[2].layout
    slot = np.empty(layout.nbytes, np.uint8)
    read_slot(back, back.part(10, 2, 1), layout, slot)
    assert bytes(slot) == bytes(job.arenas[2].slot_bytes(job.arenas[2].find(10).slot)[: layout.nbytes])


def test_what_a_step_refers_to_goes_up_first_and_comes_back_with_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (catalog, levels, upload):
        monkeypatch.setattr(module, "bases_of", lambda manifest: {40: [10, 30], 30: [10]}.get(manifest.epoch, []))
    for epoch in (10, 20, 30, 40):
        place.job.whole(epoch)
    put, seen = CheckpointStorage.put_bytes, []

    def put_bytes(storage: CheckpointStorage, path: str, content: bytes) -> Any:
        seen.append(path)
        return put(storage, path, content)

    monkeypatch.setattr(CheckpointStorage, "put_bytes", put_bytes)
    assert place.upload(policy=RetentionPolicy(last=1)) == [40]
    assert [path[-22:-14] for path in seen if path.endswith(MANIFEST)] == ["00000010", "00000030", "00000040"]
    place.job.run.prune(RetentionPolicy(last=1), ())
    assert place.job.run.steps() == [10, 30, 40]
    fetch_parts(tmp_path / DOWNLOADS, place.url, place.job.run_id, 40, [(1, 0)])
    back = RunDirectory(tmp_path / DOWNLOADS / place.job.run_id)
    assert [(epoch, [part.rank for part in back.parts(epoch)]) for epoch in back.steps()] == [
        (10, [1]), (30, [1]), (40, [1]),
    ]  # fmt: skip
    place.job.whole(50)
    monkeypatch.setattr(upload, "bases_of", lambda _: [45])
    assert place.upload() == []  # what it refers to is not there
    assert place.complete() == [10, 30, 40]


class MortalStorage:
    """The process dies right before or right after its n-th change of the upload level, or note beside the step."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: int) -> None:
        self._left = moment
        for name in ("put_bytes", "_put", "delete"):
            patch.setattr(CheckpointStorage, name, self._dying(getattr(CheckpointStorage, name)))
        patch.setattr(upload, "write_durably", self._dying(upload.write_durably))

    def _dying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._step()
            result = function(*arguments)
            self._step()
            return result

        return call

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


def killed_uploads(place: Place, monkeypatch: pytest.MonkeyPatch, check: Callable[[], None]) -> int:
    """Kill an upload at one moment after the other, each time a new process continues; number of moments."""
    moment = 0
    while True:
        with monkeypatch.context() as patch:
            MortalStorage(patch, moment)
            try:
                place.upload()
            except Killed:
                pass
            else:
                return moment
        check()
        moment += 1


def test_killed_at_any_moment_what_claims_to_be_complete_is_and_nothing_is_lost(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while step 20 is replaced by one of another generation, and old steps are deleted."""
    job, safe, moments = place.job, {10}, 0
    monkeypatch.setattr(upload, "FILES_AT_ONCE", 1)  # the same order in each round
    job.whole(10)
    place.upload()

    def check() -> None:
        complete = place.complete()
        assert safe <= {*complete}
        for epoch in complete:
            shutil.rmtree(tmp_path / "back", ignore_errors=True)
            place.check(tmp_path / "back", epoch)
        assert {manifest.epoch for manifest in job.run.complete()} >= safe

    job.whole(20)
    moments += killed_uploads(place, monkeypatch, check)
    assert place.complete() == [10, 20]
    job.whole(20, 2, ((10, 2),))
    moments += killed_uploads(place, monkeypatch, check)
    safe = {20}
    for epoch in (30, 40):
        job.whole(epoch, 2, ((10, 2),))
        moments += killed_uploads(place, monkeypatch, check)
        safe = {epoch - 10, epoch}
    assert moments > 60
    job.whole(50, 2, ((10, 2),))
    place.upload()  # whoever uploads a step removes what killed processes have left
    assert place.complete() == [40, 50]
    shutil.rmtree(job.directory)
    place.check(job.directory, 50)


def test_a_step_that_is_removed_or_replaced_on_its_way_leaves_none_there(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = place.job
    job.whole(10)
    put_file = CheckpointStorage.put_file

    def put(storage: CheckpointStorage, path: str, file: Path, *more: Any) -> Any:
        if file.name == "rank-0.g1.json":
            action()
        return put_file(storage, path, file, *more)

    monkeypatch.setattr(CheckpointStorage, "put_file", put)
    action: Callable[[], Any] = lambda: remove_step(job.run.step(10))  # noqa: E731
    assert place.upload() == []
    assert place.complete() == []
    job.whole(20)
    action = lambda: job.run.prune(RetentionPolicy(), ((10, 2),))  # noqa: E731 - the job goes back
    with open_level(place.url) as level, pytest.raises((CheckpointError, FileNotFoundError)):
        Uploader(level, place.request()).upload_step(job.run, 20)
    assert place.complete() == []
    action = lambda: None  # noqa: E731
    job.whole(20, 2, ((10, 2),))
    assert place.upload() == [20]
    place.check(tmp_path / "back", 20)


def test_a_step_that_the_job_has_gone_back_from_does_not_count_there(place: Place) -> None:
    job = place.job
    for epoch in (10, 20):
        job.whole(epoch)
        place.upload()
    save.begin_step(job.target(2, ((10, 2),)))
    assert place.complete() == [10, 20]  # nothing has said so yet
    assert place.upload() == []
    assert place.complete() == [10]
    assert find_nearest(job.directory.parent / "empty", place.url).manifest.epoch == 10


def test_nodes_that_share_a_directory_divide_a_step(place: Place, tmp_path: Path) -> None:
    for epoch in (10, 20):
        place.job.whole(epoch)
    claim = place.job.run.step(20) / CLAIM.format(1, 1)
    claim.write_text("other")  # it began just now
    (place.job.run.step(10) / CLAIM.format(1, 1)).touch()  # the disk refused the name: that holds up no node
    assert place.upload() == [10]
    os.utime(claim, (0, 0))  # it was killed long ago
    assert place.upload() == [20]
    place.check(tmp_path / "back", 20)


def test_removal_there_spares_what_is_pinned_or_on_its_way(place: Place) -> None:
    job = place.job
    for epoch in (10, 20, 30, 40):
        job.whole(epoch)
    (job.run.step(10) / PINNED).touch()
    place.upload(policy=RetentionPolicy(last=4))
    (job.run.step(20) / UPLOAD).unlink()  # as if another node were to begin again with it
    job.whole(50)
    place.upload(policy=RetentionPolicy(last=2))
    assert place.complete() == [10, 20, 40, 50]
    CheckpointStorage(place.url).delete([f"{job.run_id}/step-00000010/{PINNED}"])
    shutil.rmtree(job.run.step(20))
    job.whole(60)
    (
        Path(place.url) / job.run_id / "step-00000020" / "__0_1.distcp#1"
    ).touch()  # obstore's, of a process that was killed
    place.upload(policy=RetentionPolicy(last=2))
    assert place.complete() == [50, 60]
    assert not (Path(place.url) / job.run_id / "step-00000020").exists()


def test_of_an_earlier_run_only_the_newest_step_goes_up(ranks: Callable[..., Any], tmp_path: Path) -> None:
    first, second = ranks(dp=1), ranks(dp=1, run="01997c4e-8f00-7000-8000-000000000002")
    for epoch in (10, 20):
        first.whole(epoch)
    second.whole(30)
    place = Place(second, str(tmp_path / "level"))
    assert place.upload() == [30, 20]
    assert place.upload(job="another") == []
    assert place.upload(job="", policy=None) == [10]


def test_the_nearest_copy_counts(bucket: Place, proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    job, url = bucket.job, bucket.url
    job.whole(10)
    with pytest.raises(CheckpointError, match=r"s3://.* has no complete step of any run"):
        find_nearest(job.directory.parent / "empty", url)
    bucket.upload()
    assert find_nearest(job.directory, url).manifest.epoch == 10
    assert find_nearest(job.directory.parent / "empty", url).manifest.epoch == 10
    job.whole(20)
    assert find_nearest(job.directory, url).manifest.epoch == 20
    assert find_nearest(job.directory, url, before=(job.run_id, 20)).manifest.epoch == 10
    bucket.upload()
    shutil.rmtree(job.run.step(20))
    source = find_nearest(job.directory, url)
    assert (source.manifest.epoch, source.directory) == (20, job.directory / DOWNLOADS)
    proxy.fail("reset", "GET", times=10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "CheckpointStorage", lambda url: CheckpointStorage(url, retry_seconds=0.5))
        assert find_nearest(job.directory, url).manifest.epoch == 10
        assert "the newest step in" in caplog.text
        with pytest.raises(StorageError, match="Cannot list"):
            find_nearest(job.directory.parent / "empty", url)


@pytest.mark.parametrize("fault", ["torn_response", "flip_response", "reset", "503"])
def test_a_step_that_comes_back_wrong_is_refused(bucket: Place, proxy: FaultProxy, tmp_path: Path, fault: str) -> None:
    bucket.job.whole(10)
    bucket.upload()
    proxy.fail(fault, "GET", "__1_1.distcp", times=10_000)
    with open_level(bucket.url, retry_seconds=0.5) as level:
        source = level.find()
        with pytest.raises((CheckpointError, StorageError), match=r"__1_1\.distcp") as caught:
            level.fetch(tmp_path / "back", source)
    assert "\n" not in str(caught.value)
    back = RunDirectory(tmp_path / "back" / bucket.job.run_id)
    assert not list(back.complete())
    assert [path.name for path in back.step(10).iterdir() if "__1_1" in path.name] == []
    proxy.work_again()
    bucket.check(tmp_path / "back", 10)


@pytest.mark.parametrize("fault", ["500", "503", "reset", "torn_request", "flip_request"])
def test_a_store_that_fails_for_long_costs_no_step(
    bucket: Place, proxy: FaultProxy, tmp_path: Path, fault: str
) -> None:
    """One clear line, nothing that claims to be complete; when the store works again, the upload does."""
    bucket.job.whole(10)
    bucket.upload()
    bucket.job.whole(20)
    for text in ("__0_1.distcp", "files-", MANIFEST):
        proxy.fail(fault, "PUT", f"step-00000020/{text}", times=10_000)
        with pytest.raises(StorageError) as caught:
            bucket.upload()
        assert "\n" not in str(caught.value)
        assert bucket.complete() == [10]
        proxy.work_again()
    assert bucket.upload() == [20]
    bucket.check(tmp_path / "back", 20)
    bucket.check(tmp_path / "back", 10)


def test_a_full_disk_keeps_what_was_complete(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.job.whole(10)
    place.upload()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            place.check(tmp_path / "back", 10)
    assert [*(tmp_path / "back").rglob("*.distcp*")] == []
    place.job.whole(20)
    with monkeypatch.context() as patch:
        patch.setattr(upload, "write_durably", full)  # the note beside the step cannot be written
        with pytest.raises(OSError, match="No space"):
            place.upload()
    assert place.complete() == [10]
    assert place.upload() == [20]


def test_a_list_of_files_that_leads_elsewhere_is_refused(place: Place, tmp_path: Path) -> None:
    manifest = place.job.whole(10)
    place.upload()
    path = Path(place.url) / place.job.run_id / "step-00000010" / files_name(0, 1, manifest.parts[0].check)
    files = msgspec.json.decode(path.read_bytes())
    for content, words in (
        (b"{", "is damaged"),
        (b'{"\xff": {"nbytes": 1, "digest": ""}}', "is damaged"),
        (msgspec.json.encode(files | {"../x": files["__0_1.distcp"]}), "is no file"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            place.check(tmp_path / "back", 10)
