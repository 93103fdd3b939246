"""The process that uploads: killed, ended by its agent, and in trouble with its store."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from mainstay.recovery.agent.checkpoint_upload import CheckpointUpload
from mainstay.recovery.agent.errors import FailureKind
from mainstay.recovery.agent.messages import AgentFailure, Fetched, LoadDisk
from mainstay.recovery.agent.node import AgentConnection, AgentSettings
from mainstay.recovery.agent.service import AgentService
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint import upload
from mainstay.recovery.checkpoint.catalog import PINNED
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.save import WriteTarget, begin_step
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import UploadProgress, UploadRequest
from mainstay.recovery.job_certificates import Authority, job_tls
from tests.recovery.checkpoint.object_store import FaultProxy
from tests.recovery.checkpoint.upload_place import Place, until

pytestmark = pytest.mark.slow


def start(request: UploadRequest) -> subprocess.Popen[bytes]:
    code = "import sys; sys.modules['torch'] = None; from mainstay.recovery.checkpoint.upload import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(request) + b"\n")
    process.stdin.flush()
    return process


def test_the_process_is_killed_and_the_next_one_ends_when_all_is_there(bucket: Place, tmp_path: Path) -> None:
    """Without torch; with a rate at which the first one is killed on its way."""
    bucket.job.whole(10)
    process = start(bucket.request(rate=2000.0))
    until(lambda: bucket.job.run.upload_state(10) is not None)
    process.kill()
    process.communicate()
    assert bucket.complete() == []
    process = start(bucket.request())
    until(lambda: bucket.complete() == [10])
    bucket.job.whole(20)
    out, _ = process.communicate(timeout=60.0)  # stdin ends: what is complete goes up first
    assert process.returncode == 0
    told = [msgspec.json.decode(line, type=UploadProgress) for line in out.splitlines()]
    assert not any(progress.problem for progress in told)
    assert told[-1].seconds > 0.0
    assert not told[-1].is_uploading
    assert bucket.complete() == [10, 20]
    bucket.check(tmp_path / "back", 20)


def test_a_step_goes_up_when_enough_epochs_lie_between_and_the_last_one_always(place: Place) -> None:
    job = place.job
    target = job.target()
    sparse = WriteTarget(job.directory, "job", msgspec.structs.replace(target.config, upload_every=30))
    for epoch in (10, 20, 30, 40, 50, 60):
        job.whole(epoch)
        begin_step(sparse)
        place.upload()
    assert place.complete() == [10, 40]
    (job.run.step(60) / PINNED).touch()
    assert place.upload() == [60]
    process = start(place.request())
    job.whole(70)
    begin_step(sparse)
    process.communicate(timeout=60.0)  # stdin ends: so does the job
    assert process.returncode == 0
    assert place.complete() == [60, 70]


def test_a_problem_is_reported_and_forgotten_when_it_has_passed(
    bucket: Place, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(upload, "LOOK_SECONDS", 0.05)
    bucket.job.whole(10)
    proxy.fail("503", "PUT", times=10_000)
    told: list[UploadProgress] = []
    ended = threading.Event()
    with open_level(bucket.url, retry_seconds=0.2) as level:
        uploader = Uploader(level, bucket.request(), told.append)
        thread = threading.Thread(target=upload.follow, args=(uploader, ended))
        thread.start()
        until(lambda: any(progress.problem for progress in told))
        assert "Cannot write" in told[-1].problem
        proxy.work_again()
        until(lambda: told[-1].problem == "" and not told[-1].is_uploading)
        ended.set()
        thread.join(60.0)
    assert bucket.complete() == [10]


def test_the_agent_starts_it_again_and_lets_it_finish(place: Place, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    store = ArenaStore(tmp_path / "memory", slots=3, disk_every=10)
    thread = CheckpointUpload(store, place.request())
    thread.start()
    until(lambda: thread.process is not None)
    first = thread.process
    assert first is not None
    place.job.whole(10)
    until(lambda: place.complete() == [10])
    first.kill()
    until(lambda: "exit code -9" in store.degraded.get("checkpoint upload", ""))
    assert time.time() - 60.0 < thread.progress.since <= time.time()
    until(lambda: thread.process is not first)
    until(lambda: not store.degraded)
    assert thread.progress.since == 0.0
    last = thread.process
    assert last is not None
    place.job.whole(20)
    thread.stop()
    assert last.wait(60.0) == 0
    assert place.complete() == [10, 20]


def test_a_place_that_cannot_be_opened_is_reported(place: Place, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "file").touch()
    store = ArenaStore(tmp_path / "memory", slots=3, disk_every=10)
    thread = CheckpointUpload(store, place.request(url=str(tmp_path / "file" / "below")))
    thread.start()
    until(lambda: "Not a directory" in store.degraded.get("checkpoint upload", ""))
    thread.stop()
    assert thread.process is not None
    assert thread.process.wait(60.0) == 1


def agent(place: Place, directory: Path) -> AgentService:
    """Of a node whose ``directory`` is its memory."""
    directory.mkdir()
    tls = job_tls("secret", "job", Authority.SNAPSHOTS)
    return AgentService(
        AgentSettings(job="job", node="n", tls=tls, directory=directory, upload=place.request(), disk_every=10)
    )


def test_an_agent_whose_part_is_damaged_or_missing_reads_it_from_the_upload_level(place: Place, tmp_path: Path) -> None:
    job, service = place.job, agent(place, tmp_path / "memory")
    job.whole(10)
    place.upload()
    source = job.arenas[1]
    service.store.open(1, source.layout)
    expected = bytes(source.slot_bytes(source.find(10).slot)[: source.layout.nbytes])
    path = job.run.step(10) / job.run.part(10, 1, 1).file
    caller = AgentConnection(socket.socket(), 5, encrypts=False)
    request = LoadDisk(rank=1, epoch=10, directory=str(job.directory), run=job.run_id, generation=1)
    for spoil in (lambda: path.write_bytes(bytes(path.stat().st_size)), path.unlink):
        spoil()
        assert isinstance(service.answer(request, caller), Fetched)
        arena = service.store.arena(1)
        assert bytes(arena.slot_bytes(arena.find(10).slot)[: source.layout.nbytes]) == expected
        assert verify_part(job.run, job.run.part(10, 1, 1)) > 0
    path.unlink()
    (there,) = (Path(place.url) / job.run_id / "step-00000010").glob(f"{path.name}.*")
    there.write_bytes(b"short")
    answer = service.answer(request, caller)
    assert isinstance(answer, AgentFailure)
    assert path.name in answer.reason
    caller.sock.close()


@pytest.mark.parametrize(
    ("here", "there", "kind"),
    [
        ("damaged", "missing", FailureKind.DAMAGED),
        ("damaged", "damaged", FailureKind.DAMAGED),
        ("missing", "damaged", FailureKind.DAMAGED),
        ("missing", "missing", FailureKind.NO_SUCH_SLOT),
        ("damaged", "unreadable", FailureKind.NO_SUCH_SLOT),
    ],
)
def test_an_agent_says_whether_both_copies_are_damaged(
    place: Place, tmp_path: Path, here: str, there: str, kind: FailureKind
) -> None:
    """``--resume`` passes over a step then; not if a disk or a store refuses to read."""
    job, service = place.job, agent(place, tmp_path / "memory")
    job.whole(10)
    local = job.run.step(10) / job.run.part(10, 1, 1).file
    if there != "missing":
        place.upload()
        (remote,) = (Path(place.url) / job.run_id / "step-00000010").glob(f"{local.name}.*")
    service.store.open(1, job.arenas[1].layout)
    if here == "damaged":
        local.write_bytes(bytes(local.stat().st_size))
    else:
        local.unlink()
    if there == "damaged":
        remote.write_bytes(bytes(remote.stat().st_size))
    elif there == "unreadable":
        remote.unlink()
        remote.mkdir()
    caller = AgentConnection(socket.socket(), 5, encrypts=False)
    answer = service.answer(
        LoadDisk(rank=1, epoch=10, directory=str(job.directory), run=job.run_id, generation=1), caller
    )
    assert isinstance(answer, AgentFailure)
    assert answer.kind is kind
    caller.sock.close()
