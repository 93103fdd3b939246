"""``/readyz`` names what keeps the service from its work; ``/healthz`` asks nothing."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.service import health
from mainstay.service.common import db


def ready(service: Any) -> httpx.Response:
    return service.client("").get("/readyz")


def test_a_database_that_another_process_locks_is_not_ready(service: Any) -> None:
    service.hold_still()
    path = service.services.database.url.database
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        answer = ready(service)
        assert answer.status_code == 503
        assert "another process holds its lock" in answer.json()["checks"]["database"]
        assert service.client("").get("/healthz").status_code == 200
    finally:
        other.close()
    assert ready(service).json()["checks"]["database"] == "ok"


def test_a_transaction_that_never_ends_is_not_ready(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service.hold_still()
    monkeypatch.setattr(db, "LOCKED_SECONDS", 0.05)
    with service.services.database.session() as session:
        session.connection()
        deadline = time.monotonic() + 30
        while service.services.database.lock_fault() is None:
            assert time.monotonic() < deadline
        answer = ready(service)
    assert answer.status_code == 503
    assert "has held the database" in answer.json()["checks"]["database"]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    assert health.disk_fault(tmp_path, least=1) is None
    fault = health.disk_fault(tmp_path, least=2**62)
    assert fault is not None
    assert str(tmp_path) in fault
    assert "make room" in fault


@pytest.mark.slow
def test_detection_that_does_not_come_to_an_end_is_late_and_then_not_ready(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    detection = next(loop for loop in service.app.state.loops if loop.name == "detection")
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(60.0)

    monkeypatch.setattr(detection, "turn", hang)
    detection.wake()
    assert entered.wait(30.0)
    try:
        monkeypatch.setattr(health, "LATE_TURNS", 0.0)
        answer = wait_for(service, "detection")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        monkeypatch.setattr(health, "STOPPED_TURNS", 0.0)
        answer = ready(service)
        assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
        assert "s late" in answer.json()["checks"]["detection"]
    finally:
        release.set()


def wait_for(service: Any, check: str) -> httpx.Response:
    deadline = time.monotonic() + 30
    while (answer := ready(service)).json()["checks"][check] == "ok":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return answer


def test_what_is_refused_is_told_here_and_counted_in_the_metrics(service: Any) -> None:
    service.services.pressure.shed.note("reports")
    answer = ready(service)
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    assert answer.json()["checks"]["shedding"] == "refused within the last minute: reports"
    assert 'mainstay_shed_total{what="reports"} 1.0' in service.client("").get("/metrics").text
