"""``mainstay migrate`` against a service, with a thread that plays the job's coordinator: told in plain words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery import migrate_cli
from mainstay.recovery.migrate_cli import JobAddress, migrate

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_cli, "POLL_SECONDS", 0.01)


@pytest.fixture
def job(service: Any, report_job: Callable[..., Json]) -> Callable[..., Json]:
    """Reports job demo: ranks 0 and 1 on n1, 2 and 3 on n2, one standby on n2 and two on n3."""

    def report(advice: Any = (), standbys: Any = None, **changes: Any) -> Json:
        body = report_job(**changes)
        for place in body["topology"]["ranks"]:
            place["node"] = "n1" if place["rank"] < 2 else "n2"
        body["topology"]["standbys"] = {"n1": 0, "n2": 1, "n3": 2} if standbys is None else standbys
        answer = service.client().put("/v1/jobs/demo", json={**body, "migration_requests": list(advice)})
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        return told

    return report


@pytest.fixture
def where(service: Any, tmp_path: Path) -> JobAddress:
    file = tmp_path / "token"
    file.write_text(service.admin_token + "\n")
    return JobAddress(service=service.url, token_file=file)


@contextmanager
def coordinator(job: Callable[..., Json], *answers: Json) -> Iterator[list[Json]]:
    """Hears one advice, and says ``answers`` one after the other."""
    heard: list[Json] = []
    over = threading.Event()

    def play() -> None:
        while not over.is_set() and not heard:
            heard.extend(job()["migration_requests"])
        for answer in answers if heard else ():
            job(advice=[{"id": heard[0]["id"], **answer}])
            over.wait(0.1)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()


def test_it_is_followed_until_it_is_done(job: Any, where: JobAddress, capsys: Any) -> None:
    job()
    done = {"state": "completed", "detail": "ranks [0, 1] moved", "seconds": 0.4, "steps_lost": 0}
    with coordinator(job, {"state": "accepted", "detail": "rank 0 to n3, rank 1 to n3"}, done) as heard:
        assert migrate("demo", where, node="n1", target="n3", reason="its fan is broken") == 0
    (advice,) = heard
    told = {name: advice[name] for name in ("node", "rank", "target", "reason", "finding")}
    assert told == {"node": "n1", "rank": None, "target": "n3", "reason": "its fan is broken", "finding": None}
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Asking job demo to move its ranks on n1 to n3."
    assert lines[-1] == "Done: ranks [0, 1] moved; 0 step(s) are repeated."


@pytest.mark.parametrize(
    ("state", "after"),
    [("rejected", "Every rank stays where it was"), ("failed", "The ranks are where they were")],
)
def test_what_the_job_does_not_do_is_said(job: Any, where: JobAddress, capsys: Any, state: str, after: str) -> None:
    job()
    with coordinator(job, {"state": state, "detail": "ranks [3] are not protected"}):
        assert migrate("demo", where, rank=3) == migrate_cli.NOT_MOVED
    told = capsys.readouterr().out
    assert f"{state.capitalize()}: ranks [3] are not protected. {after}" in told


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (("other", {"rank": 1}), "there is no job other; running now: demo"),
        (("demo", {"rank": 4}), "job demo has no rank 4: its ranks are 0 to 3"),
        (("demo", {"rank": -1}), "job demo has no rank -1"),
        (("demo", {"node": "n9"}), "job demo has no rank on node n9: its ranks are on n1, n2"),
        (("demo", {"rank": 0, "target": "n1"}), "rank 0 is on n1 already"),
        (("demo", {"rank": 0, "target": "n9"}), "job demo has no node n9: it runs on n1, n2, n3"),
        (("demo", {"node": "n1", "target": "n2"}), "2 warm standby(s) on n2 are needed and 1 are ready"),
        (("demo", {}), "give either --rank R, or --node NAME"),
        (("demo", {"rank": 0, "node": "n1"}), "give either --rank R, or --node NAME"),
        (("demo", {"rank": 0, "reason": " "}), "--reason must not be empty"),
    ],
)
def test_what_cannot_work_is_said_before_anybody_is_asked(
    job: Any, where: JobAddress, capsys: Any, case: tuple[str, Json], said: str
) -> None:
    name, asked = case
    job()
    assert migrate(name, where, **asked) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert job()["migration_requests"] == []


def test_no_standby_says_what_there_is(job: Any, where: JobAddress, capsys: Any) -> None:
    job(standbys={"n1": 3, "n2": 0})
    assert migrate("demo", where, node="n1") == 2
    told = capsys.readouterr().err
    assert "2 warm standby(s) on other nodes are needed and 0 are ready (standbys now: 3 on n1)" in told


def test_a_job_that_is_over_has_nothing_to_move(job: Any, where: JobAddress, capsys: Any) -> None:
    job(state="finished", finished_at=2e9)
    assert migrate("demo", where, rank=0) == 2
    assert "job demo is finished: no rank can move" in capsys.readouterr().err


def test_nobody_answers_in_time(job: Any, where: JobAddress, capsys: Any) -> None:
    job(state="recovering")
    assert migrate("demo", where, rank=0, timeout=0.05) == migrate_cli.NO_ANSWER
    told = capsys.readouterr()
    assert "It recovers from a failure just now" in told.out
    assert "the job has not answered; request" in told.err
    (waiting,) = job()["migration_requests"]
    assert waiting["id"] in told.err


def test_a_service_that_is_not_there_or_says_no(service: Any, job: Any, capsys: Any, tmp_path: Path) -> None:
    job()
    assert migrate("demo", JobAddress(service=service.url, token="nonsense"), rank=0) == migrate_cli.NO_SERVICE
    assert migrate("demo", JobAddress(service="http://127.0.0.1:9", token="t"), rank=0) == migrate_cli.NO_SERVICE
    assert migrate("demo", JobAddress(service=service.url, token_file=tmp_path / "none"), rank=0) == 2
    assert migrate("demo", JobAddress(service=service.url), rank=0) == 2
    assert migrate("demo", JobAddress(), rank=0) == 2
    assert capsys.readouterr().err.count("\n") == 5
