"""Where hardware has been, and boards whose devices share a number."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from mainstay.service.fleet.models import DeviceLocationRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as keep
from mainstay.service.services import Services


def report_gpus(services: Services, report: dict[str, Any], now: float, node: str, *gpus: dict[str, Any]) -> None:
    said = NodeReportCreate.model_validate(report | {"devices": [*report["devices"], *gpus]})
    with services.database.session() as session:
        keep(session, node, said, now=now)


def open_stays(services: Services) -> set[tuple[str, str, str]]:
    with services.database.reading() as session:
        rows = session.scalars(select(DeviceLocationRow).where(DeviceLocationRow.left_at.is_(None)))
        return {(row.hardware, row.node, row.device) for row in rows}


def test_devices_of_one_board_are_told_apart(services: Services, report, gpu) -> None:
    report_gpus(services, report, 10.0, "n1", gpu(0, serial="BOARD"), gpu(1, serial="BOARD"), gpu(2))
    assert open_stays(services) == {
        ("uuid:GPU-0", "n1", "gpu0"), ("uuid:GPU-1", "n1", "gpu1"), ("serial:S2", "n1", "gpu2"),
    }  # fmt: skip


def test_two_that_swap_slots_keep_their_own_past(services: Services, report, gpu) -> None:
    first, second = gpu(0), gpu(1)
    report_gpus(services, report, 10.0, "n1", first, second)
    report_gpus(services, report, 20.0, "n1", {**first, "id": "gpu1", "index": 1}, {**second, "id": "gpu0", "index": 0})
    assert open_stays(services) == {("serial:S0", "n1", "gpu1"), ("serial:S1", "n1", "gpu0")}
    with services.database.reading() as session:
        ended = session.scalars(select(DeviceLocationRow).where(DeviceLocationRow.left_at.is_not(None)))
        assert {(row.hardware, row.device, row.left_at) for row in ended} == {
            ("serial:S0", "gpu0", 20.0), ("serial:S1", "gpu1", 20.0),
        }  # fmt: skip


def test_reports_that_say_the_same_are_one_stay(services: Services, report, gpu) -> None:
    for now in (10.0, 20.0, 30.0):
        report_gpus(services, report, now, "n1", gpu(0))
    with services.database.reading() as session:
        (stay,) = session.scalars(select(DeviceLocationRow))
        assert (stay.first_seen_at, stay.last_seen_at, stay.left_at) == (10.0, 30.0, None)
