"""SIGKILL of a real ``mainstay serve`` while frames arrive: what was acknowledged is there, once, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.ingest_kill import measure

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400)]


def check(outcome) -> None:
    assert outcome.acknowledged > 0
    assert (outcome.missing, outcome.double, outcome.changed) == (0, 0, 0), outcome


def test_three_random_points_on_sqlite(tmp_path: Path) -> None:
    check(measure(tmp_path, points=3, seed=7))


@pytest.mark.postgres
def test_two_random_points_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    check(measure(tmp_path, points=2, seed=8, database_url=postgres_url))
