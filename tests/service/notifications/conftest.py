"""Incidents and the planner of messages, without a server: time is moved, and the turn is called by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from mainstay.service.app import build_services, close_services
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.lifecycle import IncidentTrigger
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.notifications import config
from mainstay.service.notifications.message import Message
from mainstay.service.notifications.models import NotificationRow
from mainstay.service.notifications.planner import Planner
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.stream import changes
from tests.fakes.clock import ManualClock
from tests.service.conftest import wait_until

START = 1_800_000_000.0


@dataclass
class PlannerBench:
    """One service whose incidents a test opens and ends."""

    services: Services
    clock: ManualClock
    planner: Planner = field(init=False)

    def __post_init__(self) -> None:
        self.planner = Planner(self.services)

    def configure(self, text: str) -> None:
        with self.services.database.session() as session:
            newest = config.repository.newest_config(session)
            replaces = 0 if newest is None else newest.version
            config.store(session, text, replaces=replaces, actor="ops", now=self.clock.now())

    def add_node(self, name: str, rack: str = "", cohort: str = "") -> None:
        with self.services.database.session() as session:
            session.add(NodeRow(name=name, rack=rack, cohort=cohort, first_seen_at=START))
            session.flush()
            session.add(
                DeviceRow(
                    node=name, id="gpu3", index=3, kind="gpu", model="H100", serial=f"S-{name}", present=True,
                    first_seen_at=START, last_seen_at=START,
                )
            )  # fmt: skip

    def open(self, title: str = "XID 79", *, severity: str = "critical", **fields: Any) -> str:
        values: dict[str, Any] = {"kinds": ["xid"], "job": None, "node": None, "device": None, "ranks": []}
        with self.services.database.session() as session:
            context = incidents.Context(session, self.services.settings, self.clock.now())
            row = open_incident(context, severity=severity, title=title, summary=title, **values | fields)
            return row.id

    def propose(self, incident: str, trigger: IncidentTrigger, **fields: Any) -> None:
        with self.services.database.session() as session:
            context = incidents.Context(session, self.services.settings, self.clock.now())
            row = incidents.require(session, incident)
            decision = incidents.propose(context, row, trigger, text=trigger.value, **fields)
            assert decision.accepted, decision.reason

    def change(self, incident: str, **values: Any) -> None:
        """What another finding does to it."""
        with self.services.database.session() as session:
            row = incidents.require(session, incident)
            incidents.amend(session, row, **values)
            incidents.add_timeline_entry(session, row, time=self.clock.now(), kind="relapsed", text="more of it")

    def acknowledge(self, incident: str) -> None:
        with self.services.database.session() as session:
            context = incidents.Context(session, self.services.settings, self.clock.now())
            row = incidents.require(session, incident)
            incidents.decide_by_hand(
                context, row, IncidentTrigger.ACKNOWLEDGED, text="Acknowledged.", reason="mine", actor="ada"
            )

    def end(self, incident: str) -> None:
        with self.services.database.session() as session:
            context = incidents.Context(session, self.services.settings, self.clock.now())
            row = incidents.require(session, incident)
            incidents.decide_by_hand(
                context, row, IncidentTrigger.CLOSED_BY_OPERATOR, text="Closed.", reason="over", actor="ada"
            )

    def settle(self) -> None:
        """Wait for transactions of other tests on the same PostgreSQL, which hold back all changes."""
        wait_until(lambda: self._delay() == 0.0)

    def _delay(self) -> float:
        with self.services.database.reading() as session:
            return changes.delay(session, math.inf)

    def run(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Let time pass, plan, and return (receiver, event) of what is new in the outbox."""
        before = len(self.rows())
        self.settle()
        self.clock.advance(seconds)
        self.planner.run_once()
        return [(row.receiver, row.event) for row in self.rows()[before:]]

    def rows(self) -> list[NotificationRow]:
        with self.services.database.reading() as session:
            rows = list(session.scalars(select(NotificationRow).order_by(NotificationRow.id)))
            session.expunge_all()
            return rows

    def message(self) -> Message:
        """The newest one."""
        return Message.model_validate(self.rows()[-1].message)

    def incident(self, incident: str) -> IncidentRow:
        with self.services.database.reading() as session:
            row = incidents.require(session, incident)
            session.expunge(row)
            return row


@pytest.fixture
def bench(tmp_path: Path, database_url: str) -> Iterator[PlannerBench]:
    clock = ManualClock(START)
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path / "data", "database_url": database_url,
            "notifications": {"dashboard_url": "https://mainstay.example/"},
        }
    )  # fmt: skip
    services = build_services(settings, clock)
    yield PlannerBench(services, clock)
    close_services(services)
