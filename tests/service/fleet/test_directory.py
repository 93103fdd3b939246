"""The fleet in memory is never older than the transaction that asks it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update

from mainstay.probes.core_types import HealthState
from mainstay.probes.ids import uuid7
from mainstay.service.app import build_services, close_services
from mainstay.service.fleet import heatmap
from mainstay.service.fleet import service as fleet_service
from mainstay.service.fleet.directory import Fleet, FleetDirectory
from mainstay.service.fleet.heatmap import LayoutCache
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.transitions import TransitionActor, propose
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.stream.changes import Topic, record_change
from tests.service.conftest import wait_until

from .conftest import gpu_of

Json = dict[str, Any]


@pytest.fixture
def both(services: Services, make_settings: Callable[..., Settings], database_url: str) -> Iterator[list[Services]]:
    """Two processes' services on one database."""
    other = build_services(make_settings(database_url=database_url))
    yield [services, other]
    close_services(other)


KNOWN = NodeFacts(state=HealthState.UNKNOWN)
ALICE = TransitionActor(Owner.OPERATOR, "alice")


def fleet_of(services: Services) -> Fleet:
    with services.database.reading() as session:
        return services.fleet.current(session)


def report_nodes(services: Services, report: Json, *names: str, **changes: Any) -> None:
    said = NodeReportCreate.model_validate(report | changes)
    with services.database.session() as session:
        fleet_service.report_all(session, dict.fromkeys(names, said), now=1000.0)


def move(services: Services, name: str, trigger: NodeTrigger) -> None:
    with services.database.session() as session:
        row = session.get(NodeRow, name)
        assert row is not None
        assert propose(session, row, trigger, reason="because", now=1001.0, known=KNOWN, mover=ALICE).accepted


def test_what_one_process_commits_the_other_sees_with_its_next_look(both: list[Services], report: Json) -> None:
    here, there = both
    assert fleet_of(there).nodes == {}
    report_nodes(here, report, "b", "a", rack="r1", devices=[*report["devices"], gpu_of(0, facts={"driver": "550"})])
    seen = fleet_of(there)
    assert list(seen.nodes) == ["a", "b"], "in the order of names"
    devices = [(device.id, device.uuid, device.facts) for device in seen.nodes["a"].devices]
    assert devices == [("host", None, {}), ("gpu0", "GPU-0", {"driver": "550"})]
    assert (seen.states, seen.devices, seen.nodes["a"].rack) == ({"unknown": 2}, 4, "r1")
    move(here, "a", NodeTrigger.QUARANTINE)
    after = fleet_of(there)
    assert (after.nodes["a"].state, after.states) == ("quarantined", {"quarantined": 1, "unknown": 1})
    assert seen.nodes["a"].state == "unknown", "what was handed out does not change"
    assert after.layout == seen.layout, "a move does not change the map's layout"
    report_nodes(here, report, "a")
    assert fleet_of(there).layout > after.layout, "its GPU is gone"


def test_a_write_that_rolls_back_is_never_seen(services: Services, report: Json) -> None:
    report_nodes(services, report, "a")
    with services.database.session() as session:
        row = session.get(NodeRow, "a")
        assert row is not None
        decision = propose(session, row, NodeTrigger.QUARANTINE, reason="because", now=1001.0, known=KNOWN, mover=ALICE)
        assert decision.accepted
        assert fleet_of(services).nodes["a"].state == "unknown"
        session.rollback()
    assert fleet_of(services).nodes["a"].state == "unknown"


@pytest.fixture
def postgres(make_settings: Callable[..., Settings], databases: Any, migrated_template: str) -> Iterator[Services]:
    url = databases.make(template=migrated_template)
    services = build_services(make_settings(database_url=url))
    yield services
    close_services(services)
    databases.drop(url)


@pytest.mark.postgres
def test_a_move_counts_at_once_though_an_earlier_transaction_is_still_open(postgres: Services, report: Json) -> None:
    """Watchers hear of it only after that one has ended; an admission check must not wait for it."""
    services = postgres
    report_nodes(services, report, "early", "late")
    fleet_of(services)
    with services.database.session() as session:
        row = session.get(NodeRow, "early")
        assert row is not None
        assert propose(session, row, NodeTrigger.QUARANTINE, reason="x", now=1001.0, known=KNOWN, mover=ALICE).accepted
        session.flush()
        move(services, "late", NodeTrigger.QUARANTINE)
        states = {name: node.state for name, node in fleet_of(services).nodes.items()}
        assert states == {"early": "unknown", "late": "quarantined"}
        late = fleet_of(services).nodes["late"]
    fleet = fleet_of(services)
    assert fleet.nodes["early"].state == "quarantined"
    assert fleet.nodes["late"] is late, "it was read before, and is not read again"


@pytest.mark.postgres
def test_the_fleet_is_never_older_than_a_commit_while_writers_overlap(postgres: Services, report: Json) -> None:
    names = [f"n{number}" for number in range(8)]
    report_nodes(postgres, report, *names)

    def write(name: str) -> list[str]:
        """The cohorts that the node had in memory right after each commit, all of which must be new."""
        dice, found = random.Random(name), []
        for number in range(20):
            with postgres.database.session() as session:
                session.execute(update(NodeRow).where(NodeRow.name == name).values(cohort=f"{number}"))
                session.execute(select(func.pg_sleep(dice.random() * 0.02)))
                record_change(session, Topic.NODE, {"id": name, "reason": "test"})
                session.execute(select(func.pg_sleep(dice.random() * 0.02)))
                if dice.random() < 0.2:
                    session.rollback()
                    session.info.clear()
                    continue
            found.append((fleet_of(postgres).nodes[name].cohort, f"{number}"))
        return [seen for seen, written in found if seen != written]

    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(write, names)) == [[]] * len(names)
    with postgres.database.reading() as session:
        stored = {row.name: row.cohort for row in session.execute(select(NodeRow.name, NodeRow.cohort))}
    assert {name: node.cohort for name, node in fleet_of(postgres).nodes.items()} == stored


def test_far_behind_everything_is_read_again(services: Services, report: Json) -> None:
    report_nodes(services, report, "a")
    directory = FleetDirectory(keep_changes=2)
    with services.database.reading() as session:
        directory.current(session)
    with services.database.session() as session:  # unsaid changes: only one who reads everything finds this one
        session.execute(update(NodeRow).values(cohort="new"))
        record_change(session, Topic.JOB, {"id": "j"})
    with services.database.reading() as session:
        assert directory.current(session).nodes["a"].cohort != "new"
    with services.database.session() as session:
        for _ in range(3):
            record_change(session, Topic.JOB, {"id": "j"})
    with services.database.reading() as session:  # pruned is only what no transaction of the cluster holds back
        wait_until(lambda: directory.current(session).nodes["a"].cohort == "new")


def test_reports_that_another_process_heard_are_followed(both: list[Services], report: Json) -> None:
    here, there = both
    report_nodes(here, report, "a", "b")
    assert fleet_of(there).nodes["a"].last_seen_at == 1000.0
    fleet_service.follow_voices(here.database, {"a": 1010.0}, now=1011.0, heartbeat_timeout_seconds=1e6)
    with there.database.reading() as session:
        there.fleet.follow_reports(session)
    assert [node.last_seen_at for node in fleet_of(there).nodes.values()] == [1010.0, 1000.0]


def test_shutdown_notices_are_followed(service_anywhere: Any, report: Json) -> None:
    service = service_anywhere
    service.hold_still()
    node = service.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).is_success
    assert fleet_of(service.services).nodes["n1"].stopped_at is None
    event = {"id": uuid7(), "time": time.time(), "kind": "node_stopping", "node": "n1", "data": {"reason": "stopped"}}
    answer = node.post("/v1/events", json={"items": [event]})
    assert answer.is_success, answer.text
    assert fleet_of(service.services).nodes["n1"].stopped_at is not None


def test_a_layout_that_is_slow_to_make_is_kept_while_nodes_come(
    services: Services, report: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_nodes(services, report, "a")
    monkeypatch.setattr(heatmap, "KEPT", 1e12)
    slow, quick = LayoutCache(slow_seconds=-1.0), LayoutCache(slow_seconds=1e9)
    for names in (["a"], ["a"]):
        assert [list(cache.get(fleet_of(services)).names) for cache in (slow, quick)] == [names, names]
    report_nodes(services, report, "b")
    assert [list(cache.get(fleet_of(services)).names) for cache in (slow, quick)] == [["a"], ["a", "b"]]
    monkeypatch.setattr(slow, "_keep_until", 0.0)
    assert list(slow.get(fleet_of(services)).names) == ["a", "b"]


def test_devices_are_read_again_only_after_a_report(services: Services, report: Json) -> None:
    """In an outage, nodes change by the thousand, and each has nine devices."""
    report_nodes(services, report, "n0")
    before = fleet_of(services).nodes["n0"]
    move(services, "n0", NodeTrigger.QUARANTINE)
    moved = fleet_of(services).nodes["n0"]
    assert moved.state != before.state
    assert moved.all_devices is before.all_devices
    report_nodes(services, report, "n0", devices=[gpu_of(7)])
    assert [device.id for device in fleet_of(services).nodes["n0"].devices] == [gpu_of(7)["id"]]
