"""A detector that by its policy only records: its findings open no incident, until the policy changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import Finding
from mainstay.probes.core_types import HealthState, Severity
from mainstay.service.app import close_services
from mainstay.service.detector_policies import service as policies
from mainstay.service.detector_policies.models import DetectorPolicyRow
from mainstay.service.detector_policies.schemas import DetectorPolicyUpdate
from mainstay.service.incidents import finding_ingest, repository
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.service import Context
from mainstay.service.settings import Settings
from tests.service.incidents.detection_bench import START, DetectionBench
from tests.service.incidents.test_finding_ingest import brake


@pytest.fixture
def bench(
    make_settings: Callable[..., Settings], report: dict[str, Any], database_url: str
) -> Iterator[DetectionBench]:
    made = DetectionBench(make_settings(database_url=database_url), report)
    made.start()
    made.enroll("n0", "n1")
    made.loop.run_once()
    yield made
    close_services(made.services)


def set_mode(bench: DetectionBench, mode: str, detector: str = "throttle") -> None:
    with bench.services.database.session() as session:
        before = session.get(DetectorPolicyRow, detector)
        update = DetectorPolicyUpdate(mode=mode, reason="x", version=0 if before is None else before.version)
        policies.update_policy(session, detector, update, actor="alice", now=bench.clock.now())


def ingest(bench: DetectionBench, *findings: Finding) -> None:
    bench.clock.advance(1.0)
    with bench.services.database.session() as session:
        finding_ingest.ingest_findings(Context(session, bench.settings, bench.clock.now()), findings)


def active(bench: DetectionBench) -> dict[str, str | None]:
    """Node → the incident of its active finding."""
    with bench.services.database.reading() as session:
        return {str(row.node): row.incident_id for row in repository.active_findings(session)}


def test_what_is_only_recorded_opens_incidents_when_the_policy_changes(bench: DetectionBench) -> None:
    set_mode(bench, "record")
    ingest(bench, brake(0), brake(1, detector="health_report"))
    (incident,) = bench.incidents()
    assert active(bench) == {"n0": None, "n1": incident.id}
    assert bench.node_state("n0") == HealthState.SUSPECT, "jobs avoid the node as before"
    ingest(bench, brake(0, time=START + 40, severity=Severity.CRITICAL))
    bench.clock.advance(2.0)
    bench.loop.run_once()
    assert active(bench)["n0"] is None

    bench.restart()
    bench.clock.advance(2.0)
    bench.loop.run_once()
    assert active(bench)["n0"] is None, "the policy outlives the process"
    bench.restart()
    set_mode(bench, "propose")
    bench.clock.advance(2.0)
    bench.loop.run_once()
    assert len(bench.incidents()) == 2
    assert active(bench)["n0"] not in {None, incident.id}


def test_a_finding_keeps_its_incident_and_does_not_open_it_again(bench: DetectionBench) -> None:
    ingest(bench, brake(0))
    (incident,) = bench.incidents()
    set_mode(bench, "record")
    ingest(bench, brake(0, time=START + 40, severity=Severity.CRITICAL))
    assert active(bench) == {"n0": incident.id}
    ingest(bench, replace(brake(0), active=False, time=START + 50))
    ingest(bench, brake(0, time=START + 60))
    assert active(bench) == {"n0": None}
    assert [(one.id, one.state) for one in bench.incidents()] == [(incident.id, "recovered")]
    with bench.services.database.reading() as session:
        assert session.query(FindingRow).count() == 2
