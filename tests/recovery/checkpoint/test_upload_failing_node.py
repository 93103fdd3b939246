"""The store of one node fails: the others wait, and steps become complete when it recovers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.levels import UploadLevel, open_level
from mainstay.recovery.checkpoint.retention import PENDING_UPLOADS, CompleteStep, RetentionPolicy, steps_to_keep
from mainstay.recovery.checkpoint.storage import StorageError
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import CLAIM, UPLOAD, UPLOAD_STALE_SECONDS
from tests.recovery.checkpoint.object_store import FaultProxy, another_way
from tests.recovery.checkpoint.own_disks import KEEP, OwnDisks
from tests.recovery.checkpoint.upload_place import Place

pytestmark = pytest.mark.slow


@pytest.fixture
def broken(proxy: FaultProxy) -> Iterator[FaultProxy]:
    """The same bucket, as one node reaches it: every request is refused."""
    with another_way(proxy.upstream) as other:
        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            other.fail("403", method, times=10_000)
        yield other


def test_the_others_wait_and_the_newest_step_is_complete_when_it_recovers(
    bucket: Place, ranks: Callable[..., Any], broken: FaultProxy, tmp_path: Path
) -> None:
    """What they sent meanwhile would be in vain. None of them forgets which step it has begun."""
    job = ranks(dp=1, pp=3, sharded=True, run="01997c4e-8f00-7000-8000-000000000005")
    disks = OwnDisks(Place(job, bucket.url), tmp_path)
    disks.write_all(10)
    assert disks.upload_all() == [[], [], [10]]

    def there() -> list[int]:
        with open_level(bucket.url) as level:
            return level.open_run(job.run_id).steps()

    disks.urls[2], disks.config = broken.url, {"upload_without": (2,)}
    for epoch in range(20, 130, 10):
        disks.write_all(epoch)
        for node in (0, 1):
            state = disks.run(node).step(20) / UPLOAD
            if epoch > 20:
                os.utime(state, (0.9 * UPLOAD_STALE_SECONDS, time.time() - 0.9 * UPLOAD_STALE_SECONDS))
            assert disks.upload(node) == [10] * (epoch == 20 and node == 0)
            assert time.time() - state.stat().st_mtime < 0.5 * UPLOAD_STALE_SECONDS
        assert there() == [10, 20]
        assert max(len(disks.run(node).steps()) for node in range(3)) <= KEEP.last + 2 * PENDING_UPLOADS
    with pytest.raises(StorageError):
        disks.upload(2)
    assert 20 not in disks.run(2).steps()
    disks.urls[2] = bucket.url
    assert disks.upload(2) == []  # it begins with its newest
    assert [disks.upload(node, policy=RetentionPolicy(last=1)) for node in (0, 1)] == [[], [120]]
    assert there() == [120]
    disks.place.check(tmp_path / "back", 120)


def test_there_is_a_complete_step_at_any_moment(
    bucket: Place, ranks: Callable[..., Any], broken: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one step kept. A node whose disk is slow completes an older step just as others begin with a newer one."""
    job = ranks(dp=1, pp=3, sharded=True, run="01997c4e-8f00-7000-8000-000000000007")
    disks, one = OwnDisks(Place(job, bucket.url), tmp_path), RetentionPolicy(last=1)
    disks.write_all(10)
    disks.upload_all()
    disks.urls[2], disks.config = broken.url, {"upload_without": (2,)}
    disks.write_all(20)
    assert [disks.upload(node, policy=one) for node in (0, 1)] == [[10], []]
    for node in (0, 1):
        disks.write(node, 30)
    assert [disks.upload(node, policy=one) for node in (0, 1)] == [[], []]
    disks.write(0, 40)
    delete, waits = UploadLevel._delete_step, [True]

    def delete_step(level: UploadLevel, place: str) -> None:
        if waits and place.endswith("step-00000020"):
            waits.clear()
            disks.urls[2] = bucket.url
            assert disks.upload(2, policy=one) == [20]
        delete(level, place)
        assert disks.place.complete() != []

    monkeypatch.setattr(UploadLevel, "_delete_step", delete_step)
    disks.upload(0, policy=one)
    disks.urls[2] = bucket.url
    disks.upload(2, policy=one)
    assert disks.place.complete() == [20]


def test_a_copy_goes_up_at_once_if_the_uploads_of_its_owner_fail(ranks: Callable[..., Any], tmp_path: Path) -> None:
    place = Place(ranks(dp=1, pp=2, sharded=True), str(tmp_path / "level"))
    disks = OwnDisks(place, tmp_path, upload_without=(1,))
    disks.write(0, 10)
    save.leave_upload(disks.run(0).step(10), 1, 1)
    disks.job.write(1, 10, disks.target(0))
    assert disks.upload(0) == [10]
    place.check(tmp_path / "back", 10)


def test_in_a_shared_directory_another_node_sends_what_one_cannot(bucket: Place, broken: FaultProxy) -> None:
    """It can read the bucket, but write no parts to it."""
    broken.work_again()
    broken.fail("403", "PUT", text="step-", times=10_000)
    bucket.job.whole(10)
    with open_level(broken.url, retry_seconds=1.0) as level:
        uploader = Uploader(level, bucket.request(node="other"))
        with pytest.raises(StorageError, match="403 SlowDown"):
            uploader.upload_step(bucket.job.run, 10)
    assert not list(bucket.job.run.step(10).glob(CLAIM.format("*", "*")))
    assert bucket.upload() == [10]


def test_a_node_is_said_to_fail_until_it_has_sent_something(
    bucket: Place, ranks: Callable[..., Any], broken: FaultProxy, tmp_path: Path
) -> None:
    """A look at a store that answers again is no proof, nor is one at a directory in which nothing waits."""
    job = ranks(dp=1, pp=2, sharded=True, run="01997c4e-8f00-7000-8000-000000000006")
    disks, told = OwnDisks(Place(job, bucket.url), tmp_path), list[Any]()
    disks.write(0, 10)
    with open_level(broken.url, retry_seconds=1.0) as level:
        uploader = Uploader(level, disks.place.request(directory=str(disks.run(0).path.parent)), told.append)
        with pytest.raises(StorageError) as raised:
            uploader.upload_next()
        uploader.report_changes(problem=str(raised.value))
        broken.work_again()
        broken.fail("403", "PUT", text="files-0", times=10_000)
        with pytest.raises(StorageError):
            uploader.upload_next()
        assert all(progress.problem for progress in told)
        broken.work_again()
        assert uploader.upload_next() is None
    assert (told[-1].problem, told[-1].is_uploading) == ("", False)
    assert told[-1].seconds > 0.0


def test_uploads_that_do_not_end_keep_few_steps(tmp_path: Path) -> None:
    """Each is touched again and again, and none becomes complete."""
    waiting = [CompleteStep(epoch=epoch, time=0.0, uploading=True) for epoch in range(100)]
    assert steps_to_keep(waiting, KEEP) == set(range(100 - PENDING_UPLOADS, 100))
    old = [*waiting[:90], *(CompleteStep(epoch=epoch, time=0.0) for epoch in range(90, 100))]
    assert steps_to_keep(old, KEEP) == {*range(86, 90), *range(96, 100)}
