"""Findings into rows and incidents: two witnesses, information that becomes more severe, one cause of many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import correlation_view, finding_ingest, repository
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.service import Context
from mainstay.service.jobs import service as jobs
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from tests.fakes.clock import ManualClock
from tests.service.incidents.conftest import job_report

START = 1_800_000_000.0


class Desk:
    """A service without a server, into which findings are handed."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.clock = settings, ManualClock(START)
        self.services: Services = build_services(settings, self.clock)

    def enroll(self, count: int, per_rack: int) -> None:
        with self.services.database.session() as session:
            for i in range(count):
                session.add(
                    NodeRow(
                        name=f"n{i}", rack=f"r{i // per_rack}", cohort="pod", first_seen_at=START, last_seen_at=START
                    )
                )

    def ingest(self, *findings: Finding) -> None:
        self.clock.advance(1.0)
        with self.services.database.session() as session:
            context = Context(session, self.settings, self.clock.now())
            finding_ingest.ingest_findings(context, findings)

    def incidents(self) -> list[IncidentRow]:
        with self.services.database.reading() as session:
            return repository.live(session)

    def active(self) -> list[FindingRow]:
        with self.services.database.reading() as session:
            return repository.active_findings(session)


@pytest.fixture
def desk(make_settings: Callable[..., Settings]) -> Iterator[Desk]:
    made = Desk(make_settings())
    made.enroll(40, per_rack=16)
    yield made
    close_services(made.services)


def brake(node: int = 0, time: float = START, **changes: Any) -> Finding:
    made = Finding(
        kind=FindingKind.POWER_BRAKE,
        entity=Entity(node=f"n{node}", device="GPU-0"),
        time=time,
        severity=Severity.WARNING,
        detector="throttle",
        confidence=0.9,
        evidence=Evidence(summary=f"The brake of n{node} is on."),
        recommended_action=RecommendedAction.MONITOR,
    )
    return replace(made, **changes)


def test_information_that_becomes_more_severe_opens_an_incident_with_the_same_row(desk: Desk) -> None:
    desk.ingest(brake(severity=Severity.INFO))
    assert not desk.incidents()
    (before,) = desk.active()
    desk.ingest(brake(time=START + 5))
    (incident,) = desk.incidents()
    (row,) = desk.active()
    assert (row.id, row.incident_id, row.severity) == (before.id, incident.id, "warning")


def test_a_finding_that_becomes_more_severe_raises_its_incident(desk: Desk) -> None:
    desk.ingest(brake())
    desk.ingest(brake(time=START + 1800, severity=Severity.CRITICAL, recommended_action=RecommendedAction.INSPECT_NODE))
    (incident,) = desk.incidents()
    (row,) = desk.active()
    assert (incident.severity, row.recommended_action) == ("critical", "inspect_node")
    with desk.services.database.reading() as session:
        assert [e.text for e in repository.timeline_of(session, incident.id)][-1].startswith("More severe:")
    desk.ingest(brake(time=START + 1900))
    assert [row.severity for row in desk.active()] == ["warning"], "milder is written, too"


def test_one_witness_does_not_clear_what_another_holds(desk: Desk) -> None:
    other = brake(detector="health_report", time=START + 40)
    desk.ingest(brake())
    desk.ingest(other)
    assert len(desk.incidents()) == 1
    assert len(desk.active()) == 2
    desk.ingest(replace(other, active=False, time=START + 50))
    assert [row.detector for row in desk.active()] == ["throttle"]
    assert [i.state for i in desk.incidents()] == ["open"]
    desk.ingest(brake(active=False, time=START + 60))
    assert [i.state for i in desk.incidents()] == ["recovered"]


def test_a_row_of_an_earlier_version_is_renewed_and_cleared(desk: Desk) -> None:
    desk.ingest(brake())
    with desk.services.database.session() as session:
        (row,) = repository.active_findings(session)
        row.key = brake().about
    desk.ingest(brake(active=False, time=START + 9))
    assert not desk.active()


def test_a_brake_of_a_rack_is_one_incident_however_it_comes(desk: Desk) -> None:
    for node in range(5):
        desk.ingest(brake(node, time=START + node))
    (incident,) = desk.incidents()
    assert incident.title.startswith("5 nodes of rack r0: ")
    assert len(desk.active()) == 5
    desk.ingest(brake(20, time=START + 6))
    assert len(desk.incidents()) == 2, "another rack has its own story"


def test_the_site_says_how_many_nodes_share_a_fault(desk: Desk) -> None:
    desk.settings.incidents.shared_fault_nodes = 6
    for node in range(5):
        desk.ingest(brake(node, time=START + node))
    assert len(desk.incidents()) == 5, "each node has its own"


def lost(node: int, time: float = START) -> Finding:
    entity = Entity(node=f"n{node}")
    return brake(node, time, kind=FindingKind.NODE_LOST, entity=entity, severity=Severity.CRITICAL)


def feed(desk: Desk, nodes: range, domain: str, *, rack: str = "") -> None:
    """Name the power domain of nodes, each in its own rack and under its own switch."""
    with desk.services.database.session() as session:
        for i in nodes:
            row = session.get(NodeRow, f"n{i}") or NodeRow(name=f"n{i}", cohort="pod", first_seen_at=START)
            row.rack, row.switches, row.power_domain = rack or f"r-{i}", [f"leaf-{i}", "spine-1"], domain
            session.add(row)


@pytest.fixture
def desk_anywhere(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Desk]:
    """With SQLite and with PostgreSQL."""
    made = Desk(make_settings(database_url=database_url))
    yield made
    close_services(made.services)


def test_a_power_domain_that_fails_is_one_incident_that_names_it(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    desk.enroll(40, per_rack=16)
    feed(desk, range(8), "pdu-7")
    feed(desk, range(8, 16), "")
    desk.ingest(*(lost(node, START + node) for node in (0, 2, 4, 6)), *(lost(node, START) for node in (9, 11, 13)))
    together, *apart = sorted(desk.incidents(), key=lambda incident: -len(incident.title))
    assert together.title == "4 nodes of power domain pdu-7: The brake of n0 is on."
    assert sorted(incident.node for incident in apart) == ["n11", "n13", "n9"], "of unknown domains"
    desk.ingest(lost(7, START + 3600))
    assert len(desk.incidents()) == 4, "it joins what holds already"


def test_three_nodes_of_a_large_power_domain_are_chance(desk: Desk) -> None:
    feed(desk, range(16), "busway-1")
    desk.ingest(*map(lost, range(3)))
    assert len(desk.incidents()) == 3
    desk.ingest(lost(3))
    (incident,) = desk.incidents()
    assert incident.title.startswith("4 nodes of power domain busway-1: ")


def test_the_smaller_of_rack_and_power_domain_is_named(desk: Desk) -> None:
    feed(desk, range(8), "pdu-a", rack="r0")
    feed(desk, range(8, 16), "pdu-b", rack="r0")
    desk.ingest(*map(lost, range(5)))
    (incident,) = desk.incidents()
    assert incident.title.startswith("5 nodes of power domain pdu-a: ")
    desk.ingest(lost(9))
    (incident,) = desk.incidents()
    assert incident.title.startswith("6 nodes of rack r0: ")


def test_a_power_domain_is_named_beyond_the_findings_that_are_looked_at(desk: Desk) -> None:
    many = correlation_view.WIDE + 100
    feed(desk, range(many), "ups-1")
    feed(desk, range(many, 3 * many), "ups-2")
    desk.ingest(*map(lost, range(many - 1)))
    desk.ingest(lost(many - 1))
    (incident,) = desk.incidents()
    assert incident.title.startswith(f"{many} nodes of power domain ups-1: ")


def test_a_network_that_fails_is_one_incident(desk: Desk) -> None:
    desk.ingest(*map(lost, range(25)))
    (incident,) = desk.incidents()
    assert incident.title.startswith("25 of 40 nodes are silent at once: check the network")
    assert incident.node is None


def test_two_slow_nodes_of_a_rack_are_one_incident_if_the_job_has_many_racks(desk_anywhere: Desk) -> None:
    desk = desk_anywhere
    desk.enroll(160, per_rack=2)
    ranks = [
        {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": f"n{r}", "device": None, "pid": 1, "state": "running"}
        for r in range(158)
    ]
    body = job_report(started_at=START, last_step=None) | {
        "topology": {"dp": 158, "pp": 1, "tp": 1, "world_size": 158, "ranks": ranks}
    }
    with desk.services.database.session() as session:
        jobs.report(session, "demo", JobReport.model_validate(body), now=START)

    def slow(node: int) -> Finding:
        return brake(node, kind=FindingKind.STRAGGLER, entity=Entity(job="demo", rank=node, node=f"n{node}"))

    desk.ingest(slow(4))
    assert [incident.node for incident in desk.incidents()] == ["n4"]
    desk.ingest(slow(5))
    (incident,) = desk.incidents()
    assert incident.title == "2 nodes of rack r2: The brake of n4 is on."
    desk.ingest(slow(9))
    assert len(desk.incidents()) == 2, "alone in its rack"
