"""Two coordinators report one job at the same time, through two services: the later generation stays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import text

from mainstay.service.common.db import Database
from mainstay.service.jobs import service
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.jobs.service import JobStaleGenerationError
from tests.service.conftest import wait_until
from tests.service.telemetry.test_job_frames import job_report

STARTED_AT = 1_800_000_000.0
BLOCKED = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


def store(database: Database, generation: int, then: Any = lambda: None) -> None:
    said = JobReport.model_validate(job_report(generation=generation, started_at=STARTED_AT))
    with database.session() as session:
        service.report(session, "demo-1", said, now=STARTED_AT)
        session.flush()
        then()


def blocked(database: Database) -> bool:
    with database.reading() as session:
        return bool(session.scalar(BLOCKED))


@pytest.mark.postgres
def test_a_report_that_a_later_generation_overtakes_is_refused(postgres: Database) -> None:
    store(postgres, 1)
    refused = []

    def store_late() -> None:
        try:
            store(postgres, 1)
        except JobStaleGenerationError as error:
            refused.append(error)

    late = threading.Thread(target=store_late)

    def begin_late() -> None:
        late.start()
        wait_until(lambda: blocked(postgres))

    store(postgres, 2, begin_late)
    late.join(30.0)
    assert len(refused) == 1
    with postgres.reading() as session:
        assert session.get_one(JobRow, "demo-1").generation == 2
