"""A device takes its past along: findings, events, verdicts and moves follow the serial number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.ids import uuid7
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import TransitionRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.validation.models import ValidationRow
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
Json = dict[str, Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


class World:
    """Two nodes, and a card that wanders between them."""

    def __init__(self, service: Any, clock: ManualClock, report: Json, gpu: Callable[..., Json]) -> None:
        self.service, self.clock, self.report, self.gpu = service, clock, report, gpu
        self.admin: httpx.Client = service.client()

    def put(self, node: str, *gpus: Json) -> None:
        self.clock.advance(100.0)
        devices = [*self.report["devices"], *gpus]
        answer = self.admin.put(f"/v1/nodes/{node}", json={**self.report, "devices": devices})
        assert answer.status_code == 200, answer.text

    def happen(self, node: str, device: str = "gpu0") -> None:
        """One of each, now."""
        self.clock.advance(100.0)
        now = self.clock.now()
        with self.service.services.database.session() as session:
            session.add(EventRow(id=uuid7(), time=now, kind="xid", node=node, device=device,
                                 data={"code": 48, "text": "DBE"}, received_at=now, judged_at=now))  # fmt: skip
            session.add(FindingRow(
                id=uuid7(), key=f"{node}/{device}/{now}", kind="xid", node=node, device=device, time=now + 1,
                severity=Severity.CRITICAL.value, detector="hardware_events", confidence=1.0, active=False,
                cleared_at=now + 2,
                        evidence={"summary": f"XID 48 on {node}", "numbers": {}, "series": []},
                        recommended_action=RecommendedAction.NONE.value,
            ))  # fmt: skip
            session.add(TransitionRow(
                id=uuid7(), node=node, version=int(now), time=now + 2, trigger="found", from_state="healthy",
                to_state="suspect", owner="system", actor="mainstay", reason="XID 48", incident=None,
            ))  # fmt: skip
            session.add(ValidationRow(
                id=uuid7(), node=node, suite="quick", state="done", verdict="fail", reason="slow", created_at=now,
                deadline_at=now, finished_at=now + 3,
            ))  # fmt: skip

    def history(self, device: str, **params: Any) -> list[Json]:
        answer = self.admin.get(f"/v1/devices/{device}/history", params=params)
        assert answer.status_code == 200, answer.text
        items: list[Json] = answer.json()["items"]
        return items

    def detail(self, device: str, **params: Any) -> Json:
        answer = self.admin.get(f"/v1/devices/{device}", params=params)
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found


@pytest.fixture
def world(start, clock, database_url, report, gpu) -> World:
    service = start(clock, database_url=database_url)
    # Minutes pass by the manual clock: a loop would record reports and timeouts of nodes.
    service.hold_still()
    return World(service, clock, report, gpu)


def kinds(items: list[Json]) -> list[tuple[str, str]]:
    return [(item["kind"], item["node"]) for item in items]


def test_the_past_follows_the_serial_number(world: World) -> None:
    card = world.gpu(0)
    world.put("n1", card)
    world.happen("n1")
    world.put("n1")
    world.happen("n1")  # an empty slot: none of ours
    world.put("n2", world.gpu(3, serial="S0", uuid="GPU-0"))
    world.happen("n2", "gpu3")
    told = ["verdict", "transition", "finding", "event", "move"]
    expected = [(kind, "n2") for kind in told] + [(kind, "n1") for kind in told]
    items = world.history("S0")
    assert kinds(items) == expected
    for name in ("serial:S0", "GPU-0", "gpu3"):
        assert world.history(name) == items
    titles = {(item["kind"], item["node"]): item["title"] for item in items}
    assert titles["move", "n2"] == "moved from n1 to n2"
    assert titles["move", "n1"] == "first seen on n1"
    assert titles["event", "n1"] == "xid 48"
    assert items[0]["severity"] == "critical"
    assert all(item["ref"] for item in items)
    detail = world.detail("S0")
    assert (detail["hardware"], detail["findings_total"], detail["findings_active"]) == ("serial:S0", 2, 0)
    assert [(home["node"], home["present"]) for home in detail["locations"]] == [("n2", True), ("n1", False)]
    assert detail["device"]["node"] == "n2"


def test_pages_are_cut_from_all_sources_together(world: World) -> None:
    world.put("n1", world.gpu(0))
    for _ in range(5):
        world.happen("n1")
    whole = world.history("S0", limit=500)
    assert len(whole) == 21
    for size in (1, 2, 3, 7, 20, 21):
        walked: list[Json] = []
        cursor: str | None = None
        while True:
            params = {"limit": size} | ({} if cursor is None else {"cursor": cursor})
            page = world.admin.get("/v1/devices/S0/history", params=params).json()
            walked += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["items"]) == size
        assert walked == whole


def test_a_card_in_the_same_slot_is_another_card(world: World) -> None:
    world.put("n1", world.gpu(0, serial="OLD", uuid="GPU-OLD"))
    world.happen("n1")
    world.put("n1", world.gpu(0, serial="NEW", uuid="GPU-NEW"))
    world.happen("n1")
    assert kinds(world.history("NEW")) == [
        (kind, "n1") for kind in ("verdict", "transition", "finding", "event", "move")
    ]
    assert len(world.history("OLD")) == 5, "no node reports it any more, and its history stays"
    assert world.detail("OLD")["locations"][0]["present"] is False
    assert world.detail("gpu0", node="n1")["device"]["serial"] == "NEW"


def test_a_card_that_returns_has_two_stays(world: World) -> None:
    for node in ("n1", "n2", "n1"):
        world.put("n1", *([world.gpu(0)] if node == "n1" else []))
        world.put("n2", *([world.gpu(0)] if node == "n2" else []))
    homes = world.detail("S0")["locations"]
    assert [(home["node"], home["present"]) for home in homes] == [("n1", True), ("n2", False), ("n1", False)]
    moves = [item["title"] for item in world.history("S0") if item["kind"] == "move"]
    assert moves == ["moved from n2 to n1", "moved from n1 to n2", "first seen on n1"]


def test_what_has_no_number_is_known_by_its_place(world: World) -> None:
    world.put("n1", world.gpu(0, serial=None, uuid=None))
    world.put("n2", world.gpu(0, serial=None, uuid=None))
    ambiguous = world.admin.get("/v1/devices/gpu0")
    assert (ambiguous.status_code, ambiguous.json()["type"]) == (409, "urn:mainstay:problem:ambiguous-device")
    assert "n1, n2" in ambiguous.json()["detail"]
    world.happen("n2")
    assert kinds(world.history("gpu0", node="n2"))[:2] == [("verdict", "n2"), ("transition", "n2")]
    assert [kind for kind, _ in kinds(world.history("gpu0", node="n1"))] == []
    assert world.detail("host", node="n1")["hardware"] is None


def test_strangers_and_bad_words(world: World, operator: Callable[..., httpx.Client]) -> None:
    for path in ("/v1/devices/nothing", "/v1/devices/nothing/history"):
        answer = world.admin.get(path)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:mainstay:problem:unknown-device")
        assert world.admin.get(path, params={"node": "a b"}).status_code == 422
    assert world.admin.get("/v1/devices/a%00b").status_code == 422
    assert world.admin.get(f"/v1/devices/{'x' * 300}").status_code == 422
    world.put("n1", world.gpu(0))
    for cursor in ("!", "WzFd", "WyJhIiwiYiJd"):
        answer = world.admin.get("/v1/devices/S0/history", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:mainstay:problem:invalid-cursor")
    assert operator(world.service, "eve", "read").get("/v1/devices/S0").status_code == 200
    assert world.service.client("").get("/v1/devices/S0").status_code == 401
