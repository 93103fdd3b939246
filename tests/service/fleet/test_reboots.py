"""A node that reports another boot than before has rebooted: an event, and a line of the incident's timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
Json = dict[str, Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def world(start: Any, clock: ManualClock, database_url: str, enrolled: Any) -> Any:
    """A service whose clock stands still, and a node that reported."""
    service = start(clock, database_url=database_url)
    service.node = enrolled(service, started_at=START - 100.0)
    return service


def send_report(world: Any, report: Json, **changes: Any) -> None:
    answer = world.node.put("/v1/nodes/n1", json=report | changes)
    assert answer.status_code == 200, answer.text


def reboots(world: Any) -> list[Json]:
    found: list[Json] = world.client().get("/v1/events", params={"kind": "node_rebooted"}).json()["items"]
    return found


def test_another_boot_is_an_event_with_its_time_and_the_silence_before(
    world: Any, clock: ManualClock, report: Json
) -> None:
    send_report(world, report)
    clock.advance(400.0)
    send_report(world, report, boot_id="b-2", booted_at=START + 350.0)
    (event,) = reboots(world)
    assert (event["node"], event["time"]) == ("n1", START + 400.0)
    assert event["data"] == {"boot_id": "b-2", "booted_at": START + 350.0, "away": 400.0}
    send_report(world, report, boot_id="b-2")
    assert len(reboots(world)) == 1, "the boot is known now"


@pytest.mark.parametrize("boot_id", ["b-1", "unknown", ""])
def test_the_same_boot_or_an_unknown_one_is_no_reboot(world: Any, report: Json, boot_id: str) -> None:
    send_report(world, report, boot_id=boot_id, started_at=START)
    send_report(world, report, boot_id="b-1", started_at=START + 1.0)
    assert reboots(world) == []


def test_the_timeline_of_an_open_incident_has_the_reboot(
    world: Any, clock: ManualClock, run_loops: Callable[..., None], report: Json
) -> None:
    def pass_time(seconds: int, *, heard: bool) -> None:
        for _ in range(seconds):
            clock.advance(1.0)
            if heard:
                world.services.seen.note("n1", clock.now())
            run_loops(world, "fleet-voices", "detection")

    pass_time(20, heard=True)
    pass_time(60, heard=False)
    (incident,) = world.client().get("/v1/incidents").json()["items"]
    send_report(world, report, boot_id="b-2", booted_at=clock.now() - 30.0, started_at=clock.now())
    pass_time(1, heard=True)
    timeline = world.client().get(f"/v1/incidents/{incident['id']}").json()["timeline"]
    (told,) = [entry["text"] for entry in timeline if entry["kind"] == "node_rebooted"]
    assert told.startswith("Node n1 rebooted at 2027-01-15T08:0")
    assert re.search(r"and reports again; nothing was heard from it for 6[01] s\.$", told)
    pass_time(20, heard=True)
    timeline = world.client().get(f"/v1/incidents/{incident['id']}").json()["timeline"]
    cleared = [entry["text"] for entry in timeline if entry["kind"] == "finding_cleared"]
    assert cleared == ["Node n1 rebooted and is heard again."]
