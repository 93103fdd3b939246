"""What is committed reaches every watcher once and in order, across processes and across reconnections."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.stream.position import Position


class Stream:
    """Reads one event stream in the background of a test."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self) -> dict[str, str]:
        """The next event; comments are skipped."""
        event: dict[str, str] = {}
        for line in self._lines:
            if not line and ("data" in event):
                return event
            name, _, value = line.partition(":")
            if name:
                event[name] = value.lstrip()
        raise EOFError


@contextmanager
def watching(client: httpx.Client, topics: str = "node", **headers: str) -> Iterator[Stream]:
    with client.stream("GET", "/v1/watch", params={"topics": topics}, headers=headers, timeout=60) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


def wait_for_watchers(service: Any, count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while service.services.hub.watchers < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def change(service: Any, number: int, topic: Topic = Topic.NODE) -> None:
    with service.services.database.session() as session:
        record_change(session, topic, {"id": f"n{number}"})


def test_changes_arrive_in_order(service_anywhere) -> None:
    with watching(service_anywhere.client()) as stream:
        wait_for_watchers(service_anywhere)
        for number in range(5):
            change(service_anywhere, number)
        events = [stream.next() for _ in range(5)]
    assert [json.loads(event["data"])["id"] for event in events] == [f"n{i}" for i in range(5)]
    assert [event["event"] for event in events] == ["node"] * 5
    ids = [Position.parse(event["id"]) for event in events]
    assert ids == sorted(ids)


def test_only_asked_for_topics_arrive(service) -> None:
    with watching(service.client(), "job, incident") as stream:
        wait_for_watchers(service)
        change(service, 1, Topic.NODE)
        change(service, 2, Topic.JOB)
        assert json.loads(stream.next()["data"]) == {"id": "n2"}


def test_a_reconnection_misses_nothing(service_anywhere) -> None:
    client = service_anywhere.client()
    with watching(client) as stream:
        wait_for_watchers(service_anywhere)
        change(service_anywhere, 0)
        last = stream.next()["id"]
    for number in range(1, 4):
        change(service_anywhere, number)
    with watching(client, **{"Last-Event-ID": last}) as stream:
        seen = [json.loads(stream.next()["data"])["id"] for _ in range(3)]
        change(service_anywhere, 4)
        seen.append(json.loads(stream.next()["data"])["id"])
    assert seen == ["n1", "n2", "n3", "n4"]


def test_too_long_away_is_told_to_read_again(start) -> None:
    service = start(stream={"keep_changes": 1000})
    change(service, 0)
    with service.services.database.session() as session:
        for _ in range(1100):
            record_change(session, Topic.NODE, {"id": "x"})
    next(loop for loop in service.app.state.loops if loop.name == "prune").run_once()
    with watching(service.client(), **{"Last-Event-ID": "1"}) as stream:
        assert stream.next()["event"] == "reset"
    with watching(service.client(), **{"Last-Event-ID": "999999999"}) as stream:
        assert stream.next()["event"] == "reset", "another database than the one that gave the id"


def test_a_change_made_by_another_process_arrives(start) -> None:
    first, second = start(), start()
    with watching(first.client()) as stream:
        wait_for_watchers(first)
        change(second, 7)
        assert json.loads(stream.next()["data"]) == {"id": "n7"}


def test_what_is_rolled_back_is_not_told(service) -> None:
    def fail() -> None:
        with service.services.database.session() as session:
            record_change(session, Topic.NODE, {"id": "ghost"})
            raise RuntimeError("no")

    with watching(service.client()) as stream:
        wait_for_watchers(service)
        with pytest.raises(RuntimeError):
            fail()
        change(service, 1)
        assert json.loads(stream.next()["data"]) == {"id": "n1"}


def test_the_telemetry_tick_comes_once_a_second_and_is_not_resumed(service) -> None:
    with watching(service.client(), "telemetry") as stream:
        event = stream.next()
    assert event["event"] == "telemetry"
    assert "id" not in event
    assert {"time", "frames", "samples"} <= set(json.loads(event["data"]))


def test_a_stream_ends_and_says_when_to_return(start) -> None:
    service = start(stream={"max_lifetime_seconds": 0.5, "keep_alive": 0.1})
    with service.client().stream("GET", "/v1/watch", params={"topics": "job"}) as response:
        text = response.read().decode()
    assert text.startswith("retry: 1000\n")
    assert ": keep-alive\n\n" in text
    assert service.services.hub.watchers == 0


def test_a_stopping_service_ends_its_streams(service) -> None:
    with service.client().stream("GET", "/v1/watch", params={"topics": "job"}) as response:
        wait_for_watchers(service)
        service.services.hub.close()
        started = time.monotonic()
        response.read()
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("topics", ["", "nothing", "node,nothing", "node;drop"])
def test_unknown_topics_are_refused(lasting_service, topics: str) -> None:
    answer = lasting_service.client().get("/v1/watch", params={"topics": topics})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("last", ["x", "-1", "1-", "1-2-3", "1.5", "9" * 30])
def test_a_strange_last_event_id_is_refused(lasting_service, last: str) -> None:
    assert lasting_service.client().get("/v1/watch", headers={"Last-Event-ID": last}).status_code == 422


def test_watching_needs_a_token(service) -> None:
    assert service.client("").get("/v1/watch").status_code == 401


def test_there_is_an_end_to_how_many_watch(start) -> None:
    service = start(stream={"max_watchers": 1})
    with watching(service.client()):
        wait_for_watchers(service)
        assert service.client().get("/v1/watch").status_code == 503
