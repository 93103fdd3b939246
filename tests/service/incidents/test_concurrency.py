"""The life cycle in the database: any sequence walks along the table, and of concurrent changes exactly one wins."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import func, select

from mainstay.service.app import build_services, close_services
from mainstay.service.common import migrate
from mainstay.service.common.db import Database, WriteSession
from mainstay.service.incidents import repository
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.lifecycle import LIVE, TRANSITIONS, IncidentState, IncidentTrigger
from mainstay.service.incidents.models import IncidentRow, TimelineRow
from mainstay.service.incidents.opening import open_incident
from mainstay.service.services import Services
from mainstay.service.settings import Settings

SETTINGS = Settings(data_dir=Path("unused"))


def opened(session: WriteSession, now: float = 1000.0) -> IncidentRow:
    return open_incident(
        incidents.Context(session, SETTINGS, now), kinds=["process_exit"], severity="critical", job="demo", node="n1",
        device=None, ranks=[1], title="Rank 1 died.", summary="Rank 1 died.",
    )  # fmt: skip


@cache
def _tables() -> bytes:
    """A database with every table and nothing in it: made once, not for every life."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        database = Database(f"sqlite:///{file}")
        migrate.upgrade(database)
        database.close()
        return file.read_bytes()


class Lives(RuleBasedStateMachine):
    """One incident in a real database, pushed around by proposals; some act on what they read too long ago."""

    @initialize()
    def create_database(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "lives.db"
        file.write_bytes(_tables())
        self.database = Database(f"sqlite:///{file}")
        self.now = 1000.0
        self.proposals = 0
        self.stale: IncidentRow | None = None
        with self.database.session() as session:
            self.id = opened(session, self.now).id
        self.before = self.row()

    def row(self) -> IncidentRow:
        with self.database.reading() as session:
            return incidents.require(session, self.id)

    @rule(trigger=st.sampled_from(IncidentTrigger), reason=st.sampled_from(["", "because"]), late=st.floats(0, 50))
    def propose(self, trigger: IncidentTrigger, reason: str, late: float) -> None:
        self.now += 1.0
        self.proposals += 1
        self.before = self.row()
        with self.database.session() as session:
            row = incidents.require(session, self.id)
            context = incidents.Context(session, SETTINGS, self.now)
            decision = incidents.propose(context, row, trigger, at=self.now - late, text="x", reason=reason)
        after = self.row()
        if decision.accepted:
            assert TRANSITIONS[IncidentState(self.before.state), trigger].to == after.state
            assert after.version == self.before.version + 1
        else:
            assert (after.state, after.version) == (self.before.state, self.before.version)

    @rule()
    def read_for_later(self) -> None:
        self.stale = self.row()

    @precondition(lambda self: self.stale is not None)
    @rule()
    def change_what_was_read_before(self) -> None:
        """Compare-and-set: only who has seen the latest version may write."""
        stale, self.stale = self.stale, None
        assert stale is not None
        current = self.row().version
        try:
            with self.database.session() as session:
                row = incidents.require(session, self.id)
                session.expunge(row)
                session.add(stale)
                incidents.amend(session, stale, summary="written")
        except incidents.IncidentChangedError:
            assert stale.version != current
        else:
            assert self.row().version == current + 1

    @invariant()
    def the_row_is_consistent(self) -> None:
        if not hasattr(self, "id"):
            return
        row = self.row()
        state = IncidentState(row.state)
        assert (row.closed_at is not None) == (state is IncidentState.CLOSED)
        if state is IncidentState.CLOSED:
            assert (row.due_at, row.needs_operator) == (None, False)
        elif not row.needs_operator and state in LIVE:
            assert row.due_at is not None, "no deadline would check it again"
        for stamp in (row.recovering_at, row.recovered_at, row.verified_at, row.closed_at):
            assert stamp is None or stamp >= row.opened_at
        with self.database.reading() as session:
            assert session.scalar(select(func.count()).select_from(TimelineRow)) == 1 + self.proposals

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
            self.folder.cleanup()


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Services]:
    made = build_services(make_settings(database_url=database_url))
    yield made
    close_services(made)


def test_of_concurrent_transitions_exactly_one_wins(services: Services) -> None:
    """All read the same open incident before the first one writes."""
    with services.database.session() as session:
        incident = opened(session).id
    barrier = threading.Barrier(5)
    outcomes: list[str] = []

    def close(number: int) -> None:
        with services.database.reading() as session:
            seen = incidents.require(session, incident)
        barrier.wait()
        try:
            with services.database.session() as session:
                session.add(seen)
                context = incidents.Context(session, SETTINGS, 2000.0)
                incidents.propose(context, seen, IncidentTrigger.CLOSED_BY_OPERATOR, text="x", reason=f"{number}")
            outcomes.append("won")
        except incidents.IncidentChangedError:
            outcomes.append("lost")

    threads = [threading.Thread(target=close, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["lost"] * 4 + ["won"]
    with services.database.reading() as session:
        row = incidents.require(session, incident)
        assert (row.state, row.version) == ("closed", 2)
        kinds = [entry.kind for entry in repository.timeline_of(session, incident)]
    assert kinds == ["opened", "closed_by_operator"], "who lost left nothing behind"


def test_one_active_finding_a_key(services: Services) -> None:
    from sqlalchemy.exc import IntegrityError

    from mainstay.service.incidents.models import FindingRow

    def finding(number: int, *, active: bool) -> Any:
        return FindingRow(
            id=f"f{number}", key="xid:node=n1", kind="xid", node="n1", time=1.0, severity="warning",
            detector="hardware_events",
            confidence=1.0, evidence={}, active=active,
        )  # fmt: skip

    with services.database.session() as session:
        session.add_all([finding(1, active=True), finding(2, active=False), finding(3, active=False)])
    with pytest.raises(IntegrityError), services.database.session() as session:
        session.add(finding(4, active=True))
