"""SIGKILL of a real ``mainstay serve`` while frames arrive: what was acknowledged is there, once, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.ingest_kill import measure
from tests.fork_server.processes import Launched, Warm

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400)]


def check(outcome) -> None:
    assert outcome.acknowledged > 0
    assert (outcome.missing, outcome.double, outcome.changed) == (0, 0, 0), outcome


@pytest.fixture
def launch(warm_service: Warm) -> Any:
    return lambda command, environment, log: Launched(warm_service.path, command[1:], environment, log)


def test_three_random_points_on_sqlite(tmp_path: Path, launch: Any) -> None:
    check(measure(tmp_path, points=3, seed=7, launch=launch))


@pytest.mark.postgres
def test_two_random_points_on_postgresql(tmp_path: Path, postgres_url: str, launch: Any) -> None:
    check(measure(tmp_path, points=2, seed=8, database_url=postgres_url, launch=launch))
