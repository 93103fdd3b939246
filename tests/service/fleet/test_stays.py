"""Where hardware has been: what an upgrade knows of it, and boards whose devices share a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, text

from service.fleet.models import DeviceRow, NodeRow, StayRow
from service.fleet.schemas import NodeReport
from service.fleet.service import report as keep
from service.kit import migrate
from service.kit.db import Database
from service.services import Services


@pytest.fixture
def database(empty_database_url: str) -> Iterator[Database]:
    made = Database(empty_database_url)
    yield made
    made.close()


def test_an_upgrade_takes_the_known_homes_along(database: Database) -> None:
    migrate.upgrade(database)
    with database.session() as session:
        session.add(NodeRow(name="n1", first_seen_at=5.0, state="suspect"))
        session.flush()
        for number, present in enumerate((True, False)):
            session.add(DeviceRow(
                node="n1", id=f"gpu{number}", hardware=f"serial:S{number}", index=number, kind="gpu", model="H100",
                present=present, first_seen_at=10.0, last_seen_at=20.0,
            ))  # fmt: skip
    migrate.downgrade(database, "0003")
    migrate.upgrade(database)
    migrate.drift(database)
    with database.reading() as session:
        stays = session.scalars(select(StayRow).order_by(StayRow.hardware)).all()
        assert [(s.hardware, s.node, s.device, s.first_seen_at, s.left_at) for s in stays] == [
            ("serial:S0", "n1", "gpu0", 10.0, None), ("serial:S1", "n1", "gpu1", 10.0, 20.0),
        ]  # fmt: skip
        assert session.scalar(text("SELECT count(*) FROM devices")) == 2, "the copied table of nodes took none along"
        row = session.get(NodeRow, "n1")
        assert row is not None
        assert (row.state, row.owner, row.actor, row.state_version) == ("suspect", "machine", "mainstay", 0)
        assert session.scalar(text("SELECT count(*) FROM node_transitions")) == 0
    with database.session() as session:
        session.execute(text("DELETE FROM nodes"))
        assert session.scalar(text("SELECT count(*) FROM devices")) == 0, "references are followed again"


def say(services: Services, report: dict[str, Any], now: float, node: str, *gpus: dict[str, Any]) -> None:
    said = NodeReport.model_validate(report | {"devices": [*report["devices"], *gpus]})
    with services.database.session() as session:
        keep(session, node, said, now=now)


def open_stays(services: Services) -> set[tuple[str, str, str]]:
    with services.database.reading() as session:
        rows = session.scalars(select(StayRow).where(StayRow.left_at.is_(None)))
        return {(row.hardware, row.node, row.device) for row in rows}


def test_devices_of_one_board_are_told_apart(services: Services, report, gpu) -> None:
    say(services, report, 10.0, "n1", gpu(0, serial="BOARD"), gpu(1, serial="BOARD"), gpu(2))
    assert open_stays(services) == {
        ("uuid:GPU-0", "n1", "gpu0"), ("uuid:GPU-1", "n1", "gpu1"), ("serial:S2", "n1", "gpu2"),
    }  # fmt: skip


def test_two_that_swap_slots_keep_their_own_past(services: Services, report, gpu) -> None:
    first, second = gpu(0), gpu(1)
    say(services, report, 10.0, "n1", first, second)
    say(services, report, 20.0, "n1", {**first, "id": "gpu1", "index": 1}, {**second, "id": "gpu0", "index": 0})
    assert open_stays(services) == {("serial:S0", "n1", "gpu1"), ("serial:S1", "n1", "gpu0")}
    with services.database.reading() as session:
        ended = session.scalars(select(StayRow).where(StayRow.left_at.is_not(None)))
        assert {(row.hardware, row.device, row.left_at) for row in ended} == {
            ("serial:S0", "gpu0", 20.0), ("serial:S1", "gpu1", 20.0),
        }  # fmt: skip


def test_reports_that_say_the_same_are_one_stay(services: Services, report, gpu) -> None:
    for now in (10.0, 20.0, 30.0):
        say(services, report, now, "n1", gpu(0))
    with services.database.reading() as session:
        (stay,) = session.scalars(select(StayRow))
        assert (stay.first_seen_at, stay.last_seen_at, stay.left_at) == (10.0, 30.0, None)
