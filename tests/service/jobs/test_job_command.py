"""``mainstay job`` against a service, with a thread that plays the job's coordinator: told in plain words."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery import job_cli
from mainstay.recovery.job_cli import RequestOptions, migrate, restore, save

Json = dict[str, Any]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_cli, "POLL_SECONDS", 0.01)


@pytest.fixture
def job(service: Any, report_job: Callable[..., Json]) -> Callable[..., Json]:
    """Reports job demo: ranks 0 and 1 on n1, 2 and 3 on n2, one standby on n2 and two on n3."""

    def report(results: Any = (), standbys: Any = None, **changes: Any) -> Json:
        body = report_job(**changes)
        for place in body["topology"]["ranks"]:
            place["node"] = "n1" if place["rank"] < 2 else "n2"
        body["topology"]["standbys"] = {"n1": 0, "n2": 1, "n3": 2} if standbys is None else standbys
        answer = service.client().put("/v1/jobs/demo", json={**body, "requests": list(results)})
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        return told

    return report


@pytest.fixture
def where(service: Any, tmp_path: Path) -> RequestOptions:
    file = tmp_path / "token"
    file.write_text(service.admin_token + "\n")
    return RequestOptions(service=service.url, token_file=file)


@contextmanager
def coordinator(job: Callable[..., Json], *answers: Json) -> Iterator[list[Json]]:
    """Hears one request, and says ``answers`` one after the other."""
    heard: list[Json] = []
    over = threading.Event()

    def play() -> None:
        while not over.is_set() and not heard:
            heard.extend(job()["requests"])
        for answer in answers if heard else ():
            job(results=[{"id": heard[0]["id"], **answer}])
            over.wait(0.1)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield heard
    finally:
        over.set()
        thread.join()


def test_it_is_followed_until_it_is_done(job: Any, where: RequestOptions, capsys: Any) -> None:
    job()
    done = {"state": "completed", "detail": "ranks [0, 1] moved", "seconds": 0.4, "steps_lost": 0}
    with coordinator(job, {"state": "accepted", "detail": "rank 0 to n3, rank 1 to n3"}, done) as heard:
        options = dataclasses.replace(where, reason="its fan is broken")
        assert migrate("demo", options, node="n1", target="n3") == 0
    (request,) = heard
    told = {name: request[name] for name in ("kind", "node", "rank", "target", "reason", "finding")}
    assert told == {
        "kind": "migrate", "node": "n1", "rank": None, "target": "n3", "reason": "its fan is broken", "finding": None
    }  # fmt: skip
    lines = [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Asking job demo for migrate of node n1 to n3."
    assert lines[-1] == "Done: ranks [0, 1] moved; training paused for 0.4 s; 0 step(s) are repeated."


@pytest.mark.parametrize(
    ("state", "after"),
    [("rejected", "Nothing has changed."), ("failed", "Every rank is where it was")],
)
def test_what_the_job_does_not_do_is_said(job: Any, where: RequestOptions, capsys: Any, state: str, after: str) -> None:
    job()
    with coordinator(job, {"state": state, "detail": "ranks [3] are not protected"}):
        assert migrate("demo", where, rank=3) == job_cli.REJECTED
    told = capsys.readouterr().out
    assert f"{state.capitalize()}: ranks [3] are not protected. {after}" in told


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (("other", {"rank": 1}), "there is no job other; running now: demo"),
        (("demo", {"rank": 4}), "job demo has no rank 4: its ranks are 0 to 3"),
        (("demo", {"rank": -1}), "job demo has no rank -1"),
        (("demo", {"node": "n9"}), "job demo has no node n9: its nodes are n1, n2, n3"),
        (("demo", {"rank": 0, "target": "n1"}), "rank 0 is on n1 already"),
        (("demo", {"rank": 0, "target": "n9"}), "job demo has no node n9: it runs on n1, n2, n3"),
        (("demo", {"node": "n1", "target": "n2"}), "2 warm standby(s) on n2 are needed and 1 are ready"),
        (("demo", {}), "give either --rank R, or --node NAME"),
        (("demo", {"rank": 0, "node": "n1"}), "give either --rank R, or --node NAME"),
    ],
)
def test_what_cannot_work_is_said_before_anybody_is_asked(
    job: Any, where: RequestOptions, capsys: Any, case: tuple[str, Json], said: str
) -> None:
    name, asked = case
    job()
    assert migrate(name, where, **asked) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert job()["requests"] == []


def test_no_standby_says_what_there_is(job: Any, where: RequestOptions, capsys: Any) -> None:
    job(standbys={"n1": 3, "n2": 0})
    assert migrate("demo", where, node="n1") == 2
    told = capsys.readouterr().err
    assert "2 warm standby(s) on other nodes are needed and 0 are ready (standbys now: 3 on n1)" in told


def test_a_job_that_is_over_has_nothing_to_move(job: Any, where: RequestOptions, capsys: Any) -> None:
    job(state="finished", finished_at=2e9)
    assert migrate("demo", where, rank=0) == 2
    assert "job demo is finished: it takes no request" in capsys.readouterr().err


def test_nobody_answers_in_time(job: Any, where: RequestOptions, capsys: Any) -> None:
    job(state="recovering")
    assert migrate("demo", dataclasses.replace(where, timeout=0.05), rank=0) == job_cli.NO_ANSWER
    told = capsys.readouterr()
    assert "It recovers from a failure just now" in told.out
    assert "the job has not answered; request" in told.err
    (waiting,) = job()["requests"]
    assert waiting["id"] in told.err


def test_a_service_that_is_not_there_or_says_no(service: Any, job: Any, capsys: Any, tmp_path: Path) -> None:
    job()
    assert migrate("demo", RequestOptions(service=service.url, token="nonsense"), rank=0) == job_cli.NO_SERVICE
    assert migrate("demo", RequestOptions(service="http://127.0.0.1:9", token="t"), rank=0) == job_cli.NO_SERVICE
    assert migrate("demo", RequestOptions(service=service.url, token_file=tmp_path / "none"), rank=0) == 2
    assert migrate("demo", RequestOptions(service=service.url), rank=0) == 2
    assert migrate("demo", RequestOptions(), rank=0) == 2
    assert migrate("demo", RequestOptions(service=service.url, token="t", reason=" "), rank=0) == 2
    assert capsys.readouterr().err.count("\n") == 6


def test_other_kinds_reach_the_job_as_well(job: Any, where: RequestOptions, capsys: Any) -> None:
    job()
    done = {"state": "completed", "detail": "step 12 is on disk", "seconds": 0.0, "step": 12}
    with coordinator(job, done) as heard:
        assert save("demo", dataclasses.replace(where, as_json=True)) == 0
    assert (heard[0]["kind"], heard[0]["node"], heard[0]["rank"]) == ("save", None, None)
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["step"]) == ("completed", 12)
    with coordinator(job, {"state": "completed", "detail": "ranks [2] are restored on n2", "seconds": 0.7}) as heard:
        assert restore("demo", where, rank=2) == 0
    assert (heard[0]["kind"], heard[0]["rank"]) == ("restore", 2)
    assert "Done: ranks [2] are restored on n2; training paused for 0.7 s." in capsys.readouterr().out


def test_what_the_job_says_it_cannot_do_is_not_sent(job: Any, where: RequestOptions, capsys: Any) -> None:
    job(request_obstacles={"save": "there is no --checkpoint-dir"})
    assert save("demo", where) == 2
    assert "job demo cannot save: there is no --checkpoint-dir" in capsys.readouterr().err
