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
from mainstay.service.incidents import finding_ingest, repository
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.service import Context
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from tests.fakes.clock import ManualClock

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


def test_a_network_that_fails_is_one_incident(desk: Desk) -> None:
    silent = [
        brake(n, kind=FindingKind.NODE_LOST, entity=Entity(node=f"n{n}"), severity=Severity.CRITICAL) for n in range(25)
    ]
    desk.ingest(*silent)
    (incident,) = desk.incidents()
    assert incident.title.startswith("25 of 40 nodes are silent at once: check the network")
    assert incident.node is None
