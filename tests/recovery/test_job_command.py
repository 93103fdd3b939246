"""``mainstay job`` without a service: through the state directory of the launcher that coordinates."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery import job_cli
from mainstay.recovery.job_cli import RequestOptions, migrate, reshape, save
from mainstay.recovery.job_request import JobRequest, RequestKind, read_requests, write_request
from mainstay.recovery.mesh_shape import MeshShape


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_cli, "POLL_SECONDS", 0.01)


def write(directory: Path, **changes: Any) -> None:
    ranks = [{"rank": r, "node": f"n{r}"} for r in range(2)]
    told = {"id": "demo", "state": "running", "topology": {"ranks": ranks, "standbys": {"n0": 1, "n1": 0}}, **changes}
    new = directory / "job.new"
    new.write_text(json.dumps(told))
    new.replace(directory / "job.json")


def test_a_request_is_left_and_its_answer_read(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    over = threading.Event()

    def play() -> None:
        while not over.is_set():
            for request in read_requests(tmp_path):
                answer = {"id": request.id, "state": "completed", "detail": f"{request.subject} moved", "steps_lost": 1}
                write(tmp_path, requests=[{"id": "another", "state": "rejected"}, answer])
            over.wait(0.01)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        assert migrate("demo", RequestOptions(state_dir=tmp_path), rank=1) == 0
    finally:
        over.set()
        thread.join()
    assert capsys.readouterr().out.endswith("Done: rank 1 moved; 1 step(s) are repeated.\n")


def test_a_directory_that_is_none(tmp_path: Path, capsys: Any) -> None:
    assert migrate("demo", RequestOptions(state_dir=tmp_path), rank=1) == 2
    assert "has no job.json" in capsys.readouterr().err
    (tmp_path / "job.json").write_text("{")
    assert migrate("demo", RequestOptions(state_dir=tmp_path), rank=1) == 2
    write(tmp_path)
    assert migrate("other", RequestOptions(state_dir=tmp_path), rank=1) == 2
    assert "belongs to job demo, not other" in capsys.readouterr().err


def test_requests_that_are_none_are_thrown_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_requests(tmp_path) == []
    for name, at in (("b", 1.0), ("a", 2.0)):
        write_request(tmp_path, JobRequest(id=name, kind=RequestKind.SAVE, created_at=at))
    bodies = (b"", b"{", b"\xff", b'{"id": "\xff", "kind": "save"}', b'{"id": "x", "kind": "dance"}',
              b'{"id": "x", "kind": "migrate"}', b'{"id": "x", "kind": "reshape", "dp": -1, "pp": 4}')  # fmt: skip
    for number, body in enumerate(bodies):
        (tmp_path / "requests" / f"bad-{number}.json").write_bytes(body)
    assert [found.id for found in read_requests(tmp_path)] == ["b", "a"]
    assert list((tmp_path / "requests").iterdir()) == []
    assert caplog.text.count("is no request") == len(bodies)


@pytest.mark.parametrize(
    ("kind", "about", "said"),
    [
        ("migrate", {}, "migrate names either a node or a rank"),
        ("restore", {"node": "a", "rank": 1}, "restore names either a node or a rank"),
        ("restore", {"rank": 1, "target": "b"}, "restore takes no target"),
        ("degrade", {"rank": 1}, "degrade names a node"),
        ("save", {"node": "a"}, "save names neither a node nor a rank"),
        ("save", {"dp": 2}, "save takes no shape"),
        ("save", {"tp": 2}, "save takes no shape"),
        ("reshape", {}, "dp=0 pp=0 tp=0: at least one must be above 0, and none below"),
        ("reshape", {"dp": 2, "tp": -1}, "dp=2 pp=0 tp=-1: at least one"),
        ("reshape", {"stages": (2, 1), "tp": 2}, "pipelines of unlike depth need tp=1"),
        ("reshape", {"stages": (2, 0)}, "at least one pipeline, each of at least one stage"),
    ],
)
def test_what_does_not_fit_the_kind_is_named(kind: str, about: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        JobRequest(id="x", kind=RequestKind(kind), **about)


def test_a_shape_is_checked_before_it_is_sent(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path)
    where = RequestOptions(state_dir=tmp_path, timeout=0.05)
    for about, said in [
        ({}, "dp=0 pp=0 tp=0: at least one must be above 0"),
        ({"dp": 1, "pp": 1, "stages": "2"}, "give either --dp and --pp, or --stages"),
        ({"stages": "2,x"}, "--stages '2,x' must look like 3,2"),
    ]:
        assert reshape("demo", where, **about) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"mainstay job: {said}")
    assert read_requests(tmp_path) == []
    assert reshape("demo", where, stages="2,1") == job_cli.NO_ANSWER
    (request,) = read_requests(tmp_path)
    assert (request.kind, request.stages) == (RequestKind.RESHAPE, (2, 1))
    assert reshape("demo", where, dp=1, tp=2) == job_cli.NO_ANSWER
    (request,) = read_requests(tmp_path)
    assert request.subject == "dp=1 tp=2"
    assert request.shape(MeshShape(dp=4, pp=3)) == MeshShape(dp=1, pp=3, tp=2)


def test_what_a_job_cannot_do_is_said_before_it_is_asked(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path, request_obstacles={"save": "there is no --checkpoint-dir", "restore": ""})
    assert save("demo", RequestOptions(state_dir=tmp_path)) == 2
    assert capsys.readouterr().err == "mainstay job: job demo cannot save: there is no --checkpoint-dir\n"
    assert read_requests(tmp_path) == []
