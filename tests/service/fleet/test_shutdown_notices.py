"""A node with a shutdown notice is unknown, not lost; one that is taken out of service stays so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.probes.ids import uuid7
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
Json = dict[str, Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def world(start, clock, enrolled) -> Any:
    """A service whose clock stands still, and a node that reported."""
    service = start(clock)
    service.node = enrolled(service, started_at=START - 100.0)
    return service


@pytest.fixture
def world_anywhere(start, clock, database_url, enrolled) -> Any:
    """The same on each database."""
    service = start(clock, database_url=database_url)
    service.node = enrolled(service, started_at=START - 100.0)
    return service


def send_event(world: Any, kind: str, at: float, **data: Any) -> None:
    event = {"id": uuid7(), "time": at, "kind": kind, "node": "n1", "data": data}
    answer = world.node.post("/v1/events", json={"items": [event]})
    assert answer.status_code == 200, answer.text


def read(world: Any) -> Json:
    found: Json = world.client().get("/v1/nodes/n1").json()
    return found


def pass_time(world: Any, clock: ManualClock, run_loops: Callable[..., None], seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1.0)
        run_loops(world, "fleet-voices", "detection")


def incidents(world: Any) -> list[Json]:
    found: list[Json] = world.client().get("/v1/incidents").json()["items"]
    return found


def test_a_shutdown_notice_is_no_alarm(world_anywhere, clock, run_loops) -> None:
    world = world_anywhere
    run_loops(world, "fleet-voices", "detection")
    assert read(world)["state"] == "healthy"
    for _ in range(15):
        pass_time(world, clock, run_loops, 1)
        world.services.seen.note("n1", clock.now())
    send_event(world, "node_stopping", clock.now(), reason="shutdown")
    assert (read(world)["state"], read(world)["state_reason"]) == ("unknown", "stopped in order (shutdown)")
    pass_time(world, clock, run_loops, 60)
    assert incidents(world) == []
    assert read(world)["state_reason"] == "stopped in order (shutdown)", "and its silence is no news"


def test_silence_without_a_shutdown_notice_is_one(world, clock, run_loops) -> None:
    """The same timeline without the notice: the test above could fail."""
    for _ in range(15):
        pass_time(world, clock, run_loops, 1)
        world.services.seen.note("n1", clock.now())
    pass_time(world, clock, run_loops, 60)
    assert [incident["kinds"] for incident in incidents(world)] == [["node_lost"]]


def test_what_comes_back_is_healthy_and_watched_again(world, clock, run_loops) -> None:
    send_event(world, "node_stopping", clock.now(), reason="stopped")
    pass_time(world, clock, run_loops, 30)
    send_event(world, "node_started", clock.now())
    for _ in range(15):
        world.services.seen.note("n1", clock.now())
        pass_time(world, clock, run_loops, 1)
    assert read(world)["state"] == "healthy"
    pass_time(world, clock, run_loops, 60)
    assert [incident["kinds"] for incident in incidents(world)] == [["node_lost"]]


def test_frames_alone_end_a_shutdown_notice_but_not_the_last_ones_on_their_way(world, clock, run_loops) -> None:
    send_event(world, "node_stopping", clock.now())
    clock.advance(3.0)
    world.services.seen.note("n1", clock.now())
    run_loops(world, "fleet-voices")
    assert read(world)["state"] == "unknown"
    clock.advance(10.0)
    world.services.seen.note("n1", clock.now())
    run_loops(world, "fleet-voices")
    assert read(world)["state"] == "healthy"


def test_a_shutdown_notice_out_of_a_spool_is_too_late(world, clock, run_loops) -> None:
    run_loops(world, "fleet-voices")
    send_event(world, "node_stopping", START - 200.0)
    assert read(world)["state"] == "healthy", "the daemon that reported began after it"
    send_event(world, "node_started", START + 50.0)
    send_event(world, "node_stopping", START + 40.0)
    assert read(world)["state"] == "healthy"


def test_what_is_out_of_service_stays_so(world, clock, run_loops, operator) -> None:
    alice = operator(world)
    for what, state in (("drain", "draining"), ("quarantine", "quarantined")):
        assert alice.post(f"/v1/nodes/n1:{what}", json={"reason": "x"}).json()["state"] == state
        send_event(world, "node_stopping", clock.now())
        pass_time(world, clock, run_loops, 20)
        assert read(world)["state"] == state
        send_event(world, "node_started", clock.now())
        world.services.seen.note("n1", clock.now())
        pass_time(world, clock, run_loops, 3)
        assert read(world)["state"] == state


def test_a_stranger_says_no_shutdown_notice_for_a_node(world, enrolled) -> None:
    other: httpx.Client = enrolled(world, "n2")
    event = {"id": uuid7(), "time": START, "kind": "node_stopping", "node": "n1", "data": {"reason": ["odd"]}}
    assert other.post("/v1/events", json={"items": [event]}).status_code == 403
    assert world.node.post("/v1/events", json={"items": [event]}).status_code == 200
    assert read(world)["state_reason"] == "stopped in order (stopped)"
