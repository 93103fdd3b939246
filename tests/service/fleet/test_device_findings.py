"""Which devices of the map a finding is about, now and at a past time, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.service.incidents import finding_ingest
from mainstay.service.incidents.node_suspicion import suspect_devices
from mainstay.service.incidents.service import Context
from mainstay.service.services import Services
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
HOT = Finding(
    kind=FindingKind.POWER_BRAKE,
    entity=Entity(node="n1", device="gpu1"),
    time=START,
    severity=Severity.WARNING,
    detector="throttle",
    confidence=0.9,
    evidence=Evidence(summary="The brake is on."),
    recommended_action=RecommendedAction.MONITOR,
)
LOST = replace(HOT, kind=FindingKind.XID, severity=Severity.CRITICAL, detector="xid")


class Map:
    """Two nodes of a host and two GPUs; findings are stored a minute after what they say."""

    def __init__(self, service: Any, clock: ManualClock, devices: list[dict[str, Any]], report: dict[str, Any]) -> None:
        self.service, self.clock, self.admin = service, clock, service.client()
        for name in ("n1", "n2"):
            said = {**report, "devices": [*report["devices"], *devices]}
            assert self.admin.put(f"/v1/nodes/{name}", json=said).status_code == 200
        layout = self.admin.get("/v1/fleet/heatmap-layout").json()
        names = [(node, device) for node in layout["nodes"] for device in layout["shapes"][0]]
        self.version, self.slots = layout["version"], names

    def ingest(self, *findings: Finding) -> None:
        self.clock.advance(60.0)
        with self.service.services.database.session() as session:
            finding_ingest.ingest_findings(Context(session, self.service.settings, self.clock.now()), findings)

    def shown(self, at: float | None = None) -> dict[tuple[str, str], tuple[str, str]]:
        answer = self.admin.get("/v1/fleet/device-findings", params={} if at is None else {"at": at})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["layout"] == self.version
        values = zip(told["severities"], told["kinds"], strict=True)
        return dict(zip([self.slots[slot] for slot in told["slots"]], values, strict=True))

    def states(self) -> list[str]:
        return [self.admin.get(f"/v1/nodes/{name}").json()["state"] for name in ("n1", "n2")]


@pytest.fixture
def world(
    start: Callable[..., Any], database_url: str, report: dict[str, Any], gpu: Callable[..., dict[str, Any]]
) -> Map:
    clock = ManualClock(START)
    service = start(clock, database_url=database_url, retention={"days": 2})
    service.hold_still()
    return Map(service, clock, [gpu(0), gpu(1)], report)


def test_only_the_device_that_a_finding_is_about_until_it_clears(world: Map) -> None:
    assert world.shown() == {}
    world.ingest(HOT)
    assert world.shown() == {("n1", "gpu1"): ("warning", "power_brake")}
    assert world.states()[0] == "suspect"
    world.ingest(LOST, replace(HOT, time=START + 60))
    assert world.shown() == {("n1", "gpu1"): ("critical", "xid")}, "the most severe"
    world.ingest(replace(LOST, active=False, time=START + 120))
    assert world.shown() == {("n1", "gpu1"): ("warning", "power_brake")}
    world.ingest(replace(HOT, active=False, time=START + 180))
    assert world.shown() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"entity": Entity(node="n1")},
        {"entity": Entity(node="n1", device="host")},
        {"entity": Entity(node="n1", device="nic:mlx5_0:1")},
        {"entity": Entity(node="gone", device="gpu1")},
        {"severity": Severity.INFO},
        {"recommended_action": RecommendedAction.RESTART_JOB},
        {"kind": FindingKind.STRAGGLER, "entity": Entity(node="n1", device="gpu1", job="j", rank=3)},
    ],
    ids=["node", "host", "no slot", "no node", "information", "of the job", "no cause"],
)
def test_what_says_nothing_of_a_device_marks_none(world: Map, changes: dict[str, Any]) -> None:
    world.ingest(replace(HOT, **changes))
    assert world.shown() == {}


def test_a_past_time_has_the_findings_that_held_then(world: Map) -> None:
    world.ingest(replace(HOT, time=START + 10))
    world.ingest(replace(LOST, entity=Entity(node="n2", device="gpu0"), time=START + 50))
    world.ingest(replace(HOT, time=START + 100), replace(LOST, entity=Entity(node="n2", device="gpu0"), active=False,
                                                      time=START + 150))  # fmt: skip
    hot, lost = {("n1", "gpu1"): ("warning", "power_brake")}, {("n2", "gpu0"): ("critical", "xid")}
    assert world.shown() == hot
    assert world.shown(START + 9) == {}
    assert world.shown(START + 10) == hot, "when it began, not when it was last stated"
    assert world.shown(START + 50) == hot | lost
    assert world.shown(START + 149) == hot | lost
    assert world.shown(START + 150) == hot
    assert world.shown(START - 1) == world.shown(world.clock.now() + 1) == {}, "no history, and the future"
    assert world.admin.get("/v1/fleet/device-findings", params={"at": "noon"}).status_code == 422


@pytest.mark.parametrize("at", [None, START])
def test_indexes_find_them(services: Services, at: float | None) -> None:
    asked: list[tuple[str, Any]] = []
    engine = services.database.engine
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL chooses by the size of its tables")
    event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, given, *_: asked.append((sql, given)))
    with services.database.reading() as session:
        assert suspect_devices(session, at) == {}
        found = [(sql, given) for sql, given in asked if "FROM findings" in sql]
        told = [session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all() for sql, given in found]
    indexes = ["ix_findings_active_time", "ix_findings_device_cleared"]
    plans = [" ".join(str(row[-1]) for row in plan) for plan in told]
    assert len(plans) == (1 if at is None else 2)
    assert all(f"USING INDEX {index}" in plan for plan, index in zip(plans, indexes, strict=False)), plans
