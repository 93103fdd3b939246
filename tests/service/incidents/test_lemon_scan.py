"""The slow look at stored incidents: a node that fails again and again becomes a finding, once, and can be redeemed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.ids import uuid7
from mainstay.service.app import LOOPS, build_services, close_services
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import lemon_scan, repository
from mainstay.service.incidents.lemon_scan import LemonScan
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.settings import Settings
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
DAY = 86_400.0


class Past:
    """A service with 40 nodes, watched for 60 days, and failures as the test wants them."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.clock = settings, ManualClock(START)
        self.services = build_services(settings, self.clock)
        self.lemons = LemonScan(self.services)
        with self.services.database.session() as session:
            for i in range(40):
                seen = START - 60 * DAY
                session.add(NodeRow(name=f"n{i}", cohort="pod", first_seen_at=seen, last_seen_at=START))

    def fail(self, *nodes: str, days_ago: float, kind: FindingKind = FindingKind.GPU_LOST, **changes: object) -> None:
        """One closed incident that struck these nodes."""
        incident = uuid7()
        time = START - days_ago * DAY
        with self.services.database.session() as session:
            session.add(
                IncidentRow(
                    id=incident, title="x", summary="x", state="closed", version=1, severity="warning",
                    needs_operator=False, opened_at=time, updated_at=time, ranks=[], kinds=[],
                )
            )  # fmt: skip
            session.flush()
            for node in nodes:
                values = {
                    "id": uuid7(), "key": uuid7(), "kind": kind.value, "node": node, "device": "GPU-3", "time": time,
                    "severity": "warning", "detector": "hardware_events", "confidence": 1.0,
                    "evidence": {"summary": "x"}, "active": False, "cleared_at": time,
                    "recommended_action": "reset_gpu", "incident_id": incident,
                }  # fmt: skip
                session.add(FindingRow(**values | changes))

    def scan(self) -> list[FindingRow]:
        self.clock.advance(3600)
        self.lemons.run_once()
        with self.services.database.reading() as session:
            return [row for row in repository.active_findings(session) if row.kind == FindingKind.LEMON_NODE]


@pytest.fixture
def past(make_settings: Callable[..., Settings]) -> Iterator[Past]:
    made = Past(make_settings())
    for i in range(12):
        made.fail(f"n{i}", days_ago=4.0 * i)
    yield made
    close_services(made.services)


def test_a_node_that_fails_again_and_again_becomes_an_incident_once(past: Past) -> None:
    assert past.scan() == []
    for i in range(12):
        past.fail("n30", days_ago=3.0 + i)
    (row,) = past.scan()
    assert (row.node, row.severity, row.recommended_action) == ("n30", "warning", "monitor")
    assert "failed 12 times in 60.1 days (12 of them on GPU-3)" in row.evidence["summary"]
    assert row.incident_id is not None
    assert [again.id for again in past.scan()] == [row.id]


@pytest.mark.parametrize("kind", [FindingKind.FAULT_LOCALIZED, FindingKind.MEMORY_BIT_FLIPS, FindingKind.XID])
def test_what_speaks_of_machinery_makes_a_lemon(past: Past, kind: FindingKind) -> None:
    for i in range(12):
        past.fail("n30", days_ago=3.0 + i, kind=kind)
        past.fail("n31", days_ago=3.0 + i, kind=FindingKind.DATA_STALL)
    assert [row.node for row in past.scan()] == ["n30"]


def test_the_site_says_how_many_nodes_share_a_fault(past: Past) -> None:
    past.services.settings.incidents.shared_fault_nodes = 4
    for i in range(12):
        past.fail("n30", "n31", "n32", days_ago=3.0 + i)
    assert {row.node for row in past.scan()} == {"n30", "n31", "n32"}


def test_what_struck_many_nodes_or_was_the_jobs_own_fault_does_not_count(past: Past) -> None:
    for i in range(12):
        past.fail("n30", "n31", "n32", days_ago=3.0 + i)
        past.fail("n33", days_ago=3.0 + i, kind=FindingKind.XID, recommended_action=RecommendedAction.RESTART_JOB.value)
        past.fail("n34", days_ago=3.0 + i, kind=FindingKind.PROCESS_EXIT)
        past.fail("n35", days_ago=3.0 + i, severity=Severity.INFO.value)
        past.fail("n36", days_ago=100.0 + i)
    assert past.scan() == []


def test_a_lemon_that_was_taken_back_needs_a_further_failure(past: Past) -> None:
    for i in range(12):
        past.fail("n30", days_ago=3.0 + i)
    (row,) = past.scan()
    with past.services.database.session() as session:
        assert row.incident_id is not None
        repository.deactivate(session, row.incident_id, past.clock.now())
    assert past.scan() == []
    past.fail("n30", days_ago=-1.0)
    past.clock.advance(DAY)
    assert [r.node for r in past.scan()] == ["n30"]


def test_a_lemon_is_redeemed_by_time(past: Past) -> None:
    for i in range(12):
        past.fail("n30", days_ago=3.0 + i)
    assert len(past.scan()) == 1
    past.clock.advance(95 * DAY)
    assert past.scan() == []


def test_the_loop_is_registered() -> None:
    assert lemon_scan.make_loops in LOOPS
