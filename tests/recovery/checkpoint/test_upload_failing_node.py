"""The store of one node fails: the others continue, and steps become complete when it recovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.retention import PENDING_UPLOADS, CompleteStep, RetentionPolicy, steps_to_keep
from mainstay.recovery.checkpoint.storage import StorageError
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import CLAIM
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


def test_the_others_go_on_and_the_newest_step_is_complete_when_it_recovers(
    bucket: Place, ranks: Callable[..., Any], broken: FaultProxy, tmp_path: Path
) -> None:
    job = ranks(dp=1, pp=3, sharded=True, run="01997c4e-8f00-7000-8000-000000000005")
    disks = OwnDisks(Place(job, bucket.url), tmp_path)
    disks.write_all(10)
    assert disks.upload_all() == [[], [], [10]]

    def there() -> list[int]:
        with open_level(bucket.url) as level:
            return level.open_run(job.run_id).steps()

    disks.urls[2] = broken.url
    for epoch in (20, 30):
        disks.write_all(epoch)
        assert [disks.upload(node, policy=RetentionPolicy(last=1)) for node in (0, 1)] == [[10] * (epoch == 20), []]
        with pytest.raises(StorageError, match="403"):
            disks.upload(2)
    assert there() == [10, 20], "they wait until the coordinator says that the node fails"
    disks.config = {"upload_without": (2,)}
    for epoch in range(40, 130, 10):
        disks.write_all(epoch)
        begun = there()[-1]
        assert disks.upload(0) == []
        assert there()[-1] == epoch
        disks.write(0, epoch + 5)
        assert disks.upload(0) == []
        assert there()[-1] == epoch, "node 1 works: it is waited for"
        assert disks.upload(1) == []
        assert there() == [10, begun, epoch], "what is complete stays; of what is not, the newest two"
        with pytest.raises(StorageError):
            disks.upload(2)
    assert len(disks.run(2).steps()) <= KEEP.last + 2 * PENDING_UPLOADS
    disks.urls[2], newest = bucket.url, there()[-1]
    assert disks.upload(2, policy=RetentionPolicy(last=1)) == [newest]
    assert disks.place.complete() == [newest]
    disks.place.check(tmp_path / "back", newest)


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
        with pytest.raises(StorageError, match="privileges"):
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
