"""The local directory is gone, or never was here: a later start continues from an S3 bucket, to the same bits."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lib_job import ANY_SHAPE
from mainstay.recovery.checkpoint.catalog import DOWNLOADS, find, runs
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.storage import StorageError
from tests.fork_server.processes import Warm
from tests.recovery.checkpoint.object_store import FaultProxy, another_way, s3_server
from tests.recovery.checkpoint.upload_place import until
from tests.scenarios.pace import FEW, paced
from tests.scenarios.whole_model import parameters

pytestmark = [
    pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("control"),
]  # fmt: skip

SMALL = ["--seed", "11", "--width", "32", "--layers", "2", "--batch", "2", *FEW]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3_server() as proxy:
        yield proxy


def newest(url: str) -> int:
    """The newest complete step there; 0: none."""
    try:
        with open_level(url) as level:
            return level.find().manifest.epoch
    except (CheckpointError, StorageError):
        return 0


def saved(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_two_nodes_continue_from_the_bucket(warm: Warm, tmp_path: Path, bucket: FaultProxy) -> None:
    """The store throttles meanwhile."""
    words, checkpoints = ["--steps", "14", "--dp", "2", "--pp", "1", *SMALL], tmp_path / "checkpoints"
    options = ["--checkpoint-interval", "3", "--checkpoint-dir", str(checkpoints), "--checkpoint-upload", bucket.url]
    bucket.fail("503", "PUT", times=3)
    slow = ["--faults", "sleep:rank=0,ms=80"]
    with warm.job(directory=tmp_path / "first", arguments=[*words, *slow], per_node=1, options=options) as first:
        first.wait_step(7)
        for launcher in reversed(first.launchers):
            launcher.send_signal(signal.SIGTERM)
        assert first.wait(60.0) == [143, 143], first.tail()
    stopped_at = find(checkpoints).manifest.epoch
    until(lambda: newest(bucket.url) == stopped_at)  # the processes that upload outlive the job
    assert bucket.count == 3
    shutil.rmtree(checkpoints)
    more = [*words, "--save", str(tmp_path / "saved")]
    second = warm.job(
        directory=tmp_path / "second", arguments=more, per_node=1, options=[*options, "--resume", "latest"]
    )
    with second:
        assert second.wait() == [0, 0], second.tail()
    warm.run_plain(tmp_path / "plain", [*words, "--save", str(tmp_path / "undisturbed")], ranks=2)
    assert saved(tmp_path / "saved") == saved(tmp_path / "undisturbed")
    (started,) = second.events("job_started")
    assert started["data"]["run"] == find(checkpoints).manifest.run
    until(lambda: newest(bucket.url) == 14)


def test_nodes_with_a_disk_each_continue_from_the_bucket(warm: Warm, tmp_path: Path, bucket: FaultProxy) -> None:
    """No disk ever holds a complete step, and all are lost."""
    words = ["--steps", "60", "--dp", "1", "--pp", "2", *SMALL]
    disks = [tmp_path / f"disk-{number}" for number in range(2)]
    own = {number: ["--checkpoint-dir", str(disk)] for number, disk in enumerate(disks)}
    options = ["--checkpoint-interval", "3", "--checkpoint-upload", bucket.url]
    slow = paced(tmp_path / "first", 400)
    first = warm.job(directory=tmp_path / "first", arguments=[*words, *slow], per_node=1, options=options, own=own)
    with first:
        first.until(lambda: newest(bucket.url) > 0, 120.0, "a step in the bucket")  # while training continues
        for launcher in reversed(first.launchers):
            launcher.send_signal(signal.SIGTERM)
        assert first.wait(60.0) == [143, 143], first.tail()
    saves = [run.steps()[-1] for disk in disks for run in runs(disk)]
    assert saves[0] == saves[1]
    assert not [step for disk in disks for run in runs(disk) for step in run.complete()]
    until(lambda: newest(bucket.url) == saves[0])  # the processes that upload outlive the job
    for disk in disks:
        shutil.rmtree(disk)
    more = [*words, "--save", str(tmp_path / "saved")]
    options = [*options, "--resume", "latest"]
    with warm.job(directory=tmp_path / "second", arguments=more, per_node=1, options=options, own=own) as second:
        assert second.wait() == [0, 0], second.tail()
    assert f"resuming after step {saves[0]} of run" in second.log(0).read_text()
    warm.run_plain(tmp_path / "plain", [*words, "--save", str(tmp_path / "undisturbed")], ranks=2)
    assert saved(tmp_path / "saved") == saved(tmp_path / "undisturbed")
    until(lambda: newest(bucket.url) == 60)


def test_one_node_of_three_is_refused_by_the_store_for_a_while(warm: Warm, tmp_path: Path, bucket: FaultProxy) -> None:
    """Its credentials have expired, say. The job does not wait for it, and says which node it is."""
    words = ["--steps", "4000", "--dp", "1", "--pp", "3", *SMALL, "--layers", "3"]
    words += paced(tmp_path / "job", 200)
    with another_way(bucket.upstream) as refused:
        urls = [bucket.url, bucket.url, refused.url]
        own = {
            number: ["--checkpoint-dir", str(tmp_path / f"disk-{number}"), "--checkpoint-upload", url]
            for number, url in enumerate(urls)
        }
        options = ["--checkpoint-interval", "3"]
        job = warm.job(directory=tmp_path / "job", nodes=3, arguments=words, per_node=1, options=options, own=own)

        def begun() -> list[int]:
            with open_level(bucket.url) as level:
                return level.open_run(level.run_ids()[0]).steps()

        def on_disk() -> int:
            return runs(tmp_path / "disk-0")[0].steps()[-1]

        with job:
            job.until(lambda: newest(bucket.url) > 0, 120.0, "a step in the bucket")
            for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
                refused.fail("403", method, times=100_000)
            said = "checkpoint upload: node node-2 fails, training continues: Cannot"
            job.until(lambda: said in job.log(0).read_text(), 120.0, "its beginning in the log")
            last, since = newest(bucket.url), on_disk()
            job.until(lambda: on_disk() > since + 9, 120.0, "later steps on disk")
            assert newest(bucket.url) == last
            assert len([epoch for epoch in begun() if epoch > last]) <= 1, "the others send nothing in vain"
            refused.work_again()
            job.until(lambda: newest(bucket.url) > since, 120.0, "a newer complete step")
            job.until(lambda: "node node-2 works again" in job.log(0).read_text(), 120.0, "its end in the log")


def test_another_number_of_stages_continues_from_the_bucket(warm: Warm, tmp_path: Path, bucket: FaultProxy) -> None:
    def train(name: str, steps: int, shape: tuple[int, int], *options: str) -> dict[str, bytes]:
        words = ["--steps", str(steps), "--width", "32", "--save", str(tmp_path / name / "saved")]
        shaped = ["--dp", str(shape[0]), "--pp", str(shape[1]), *options]
        one = {"nodes": 1, "per_node": shape[0] * shape[1], "options": shaped}
        with warm.job(directory=tmp_path / name / "job", script=ANY_SHAPE, arguments=words, **one) as job:
            assert job.wait() == [0], job.tail()
        return parameters(tmp_path / name / "saved")

    disk = ["--checkpoint-interval", "1000", "--checkpoint-upload", bucket.url, "--checkpoint-dir"]
    train("first", 5, (2, 1), *disk, str(tmp_path / "one"))
    until(lambda: newest(bucket.url) == 5)
    resumed = train("second", 10, (1, 2), *disk, str(tmp_path / "two"), "--resume", "auto")
    assert resumed == train("undisturbed", 10, (2, 1))
    assert (tmp_path / "two" / DOWNLOADS).is_dir()
    assert [path.name for path in (tmp_path / "two" / DOWNLOADS).iterdir()] == [
        path.name for path in (tmp_path / "one").iterdir()
    ]
