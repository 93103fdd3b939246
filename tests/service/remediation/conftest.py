"""A fleet in a database, without a server: findings are given, time is moved, and the loop's turn is called by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from mainstay.detectors.finding import Entity, FindingKind
from mainstay.probes.core_types import RecommendedAction, Severity, Verdict
from mainstay.probes.ids import uuid7
from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.incidents.service import Context
from mainstay.service.jobs import service as jobs
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.remediation import reconcile
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import ValidationRow, ValidationState
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
Json = dict[str, Any]


@dataclass
class Fleet:
    """Nodes, findings and jobs of one service."""

    services: Services
    clock: ManualClock
    said: Json
    homes: Json = field(default_factory=dict)

    def enroll(self, *names: str, rack: str = "", serial: str | None = None, booted_at: float | None = None) -> None:
        device = {
            "id": "gpu0", "index": 0, "kind": "gpu", "model": "H100", "uuid": None, "memory_bytes": None,
        }  # fmt: skip
        for name in names:
            gpu = {**device, "serial": serial or f"S-{name}"}
            said = self.said | {"rack": rack, "devices": [*self.said["devices"], gpu], "booted_at": booted_at}
            with self.services.database.session() as session:
                report(session, name, NodeReportCreate.model_validate(said), now=self.clock.now())
                row = session.get(NodeRow, name)
                assert row is not None
                if row.state == "unknown":
                    row.state = "healthy"

    def report_nodes(self) -> None:
        """Every node speaks now."""
        with self.services.database.session() as session:
            for row in session.scalars(select(NodeRow)):
                row.last_seen_at = self.clock.now()

    def incident(self, title: str = "It is broken.") -> str:
        with self.services.database.session() as session:
            row = open_incident(
                Context(session, self.services.settings, self.clock.now()), kinds=["xid"], severity="critical",
                job=None, node=None, device=None, ranks=[], title=title, summary=title,
            )  # fmt: skip
            return row.id

    def find(self, node: str, incident: str | None = None, **changes: Any) -> str:
        """A certain finding that wants the node reset, in an incident of its own unless said; the incident's id."""
        incident = incident or self.incident()
        values: Json = {
            "kind": FindingKind.XID.value, "severity": Severity.CRITICAL.value,
            "recommended_action": RecommendedAction.RESET_GPU.value,
            "confidence": 0.99, "device": "gpu0", "detector": "hardware_events", "active": True,
            "evidence": {"summary": f"XID 79 on {node}.", "numbers": {}, "series": []}, "time": self.clock.now(),
        }  # fmt: skip
        values |= changes
        entity = Entity(node=node, device=values["device"])
        key = f"{values['kind']}:{entity.key}"
        with self.services.database.session() as session:
            session.add(FindingRow(id=uuid7(), key=key, node=node, incident_id=incident, **values))
        return incident

    def clear(self, node: str) -> None:
        with self.services.database.session() as session:
            for row in session.scalars(select(FindingRow).where(FindingRow.node == node)):
                row.active, row.cleared_at = False, self.clock.now()

    def run_job(
        self,
        *nodes: str,
        dp: int = 1,
        state: str = "running",
        standbys: dict[str, int] | None = None,
        devices: tuple[str, ...] = (),
        results: Sequence[Json] = (),
        obstacles: dict[str, str] | None = None,
    ) -> None:
        """Report the job; ``devices`` by rank."""
        ranks = [
            {"rank": r, "dp": r % dp, "pp": 0, "tp": r // dp, "node": nodes[r % len(nodes)],
             "device": devices[r] if devices else None, "pid": 1, "state": "running"}
            for r in range(max(dp, len(nodes)))
        ]  # fmt: skip
        tp = len(ranks) // dp
        body = {
            "name": "demo", "state": state, "generation": 1, "command": "train.py",
            "topology": {"dp": dp, "pp": 1, "tp": tp, "world_size": dp * tp, "ranks": ranks, "standbys": standbys},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []
            },
            "steps_total": None, "last_step": None, "started_at": START - 60, "finished_at": None,
            "requests": list(results), "request_obstacles": obstacles,
        }  # fmt: skip
        with self.services.database.session() as session:
            jobs.report(session, "demo", JobReport.model_validate(body), now=self.clock.now())

    def run_loops(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        reconcile.reconcile(self.services)

    def all(self) -> list[RemediationRow]:
        with self.services.database.reading() as session:
            return list(session.scalars(select(RemediationRow).order_by(RemediationRow.created_at, RemediationRow.id)))

    def latest_remediation(self, node: str) -> RemediationRow:
        """The newest of a node."""
        return [row for row in self.all() if row.node == node][-1]

    def states(self) -> dict[str, str]:
        return {row.node: row.state for row in self.all()}

    def node(self, name: str) -> NodeRow:
        with self.services.database.reading() as session:
            row = session.get(NodeRow, name)
            assert row is not None
            return row

    def incident_row(self, incident: str) -> IncidentRow:
        with self.services.database.reading() as session:
            return incidents.require(session, incident)

    def end_validation(self, node: str, verdict: Verdict) -> None:
        """The ordered check of a node ends with a verdict."""
        with self.services.database.session() as session:
            statement = select(ValidationRow).where(
                ValidationRow.node == node, ValidationRow.state == ValidationState.QUEUED.value
            )
            row = session.scalars(statement).one()
            row.state, row.verdict, row.finished_at = ValidationState.DONE.value, verdict.value, self.clock.now()
            row.reason = "as the test says"
            validations._end(session, row, now=self.clock.now(), settings=self.services.settings)


@pytest.fixture
def fleet_of(make_settings: Callable[..., Settings], report: Json) -> Iterator[Callable[..., Fleet]]:
    """A fleet with changed settings of remediation."""
    made: list[Services] = []

    def make(database_url: str | None = None, **changes: Any) -> Fleet:
        where = {} if database_url is None else {"database_url": database_url}
        clock = ManualClock(START)
        services = build_services(make_settings(remediation=changes, **where), clock)
        made.append(services)
        return Fleet(services, clock, report)

    yield make
    for services in made:
        close_services(services)
