"""What rank 0 of a job under torchrun reports, and how it answers; the service here only remembers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mainstay.probes.transport import Backoff
from mainstay.recovery.job_request import RequestKind
from mainstay.recovery.sdk import job_reporter
from mainstay.recovery.sdk.job_reporter import OBSTACLE, JobReporter, find_service, topology


class Service:
    """Remembers reports, and answers each with the next of ``answers``."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.answers: list[tuple[int, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.reports.append(json.loads(body) | {"path": self.path})
                service.tokens.append(self.headers["Authorization"])
                status, answer = service.answers.pop(0) if service.answers else (200, {})
                given = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(given)))
                self.end_headers()
                self.wfile.write(given)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 60.0
        while len(self.reports) < count:
            assert time.monotonic() < deadline, self.reports
            time.sleep(0.01)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(job_reporter, "SECONDS", 0.02)
    served = Service()
    yield served
    served.close()


def report_to(service: Service, **environ: str) -> JobReporter:
    transport = find_service({"MAINSTAY_SERVICE": service.url} | environ)
    assert transport is not None
    return JobReporter(transport, "llm", topology(["a", "b"], [[1], [0]]), generation=3, step=lambda: 7)


def test_the_job_its_places_and_why_none_can_move_are_reported(service: Service, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o600)
    asked = {"id": "r1", "kind": "migrate", "node": "b", "reason": "hot"}
    service.answers = [(503, {}), (200, {"requests": [asked]})]
    reporter = report_to(service, MAINSTAY_SERVICE_TOKEN_FILE=str(token))
    assert reporter is not None
    service.until(4)
    reporter.close()
    first, last = service.reports[0], service.reports[-1]
    assert (first["path"], first["state"], first["generation"], first["last_step"]) == (
        "/v1/jobs/llm", "running", 3, 7,
    )  # fmt: skip
    assert [(rank["rank"], rank["node"]) for rank in first["topology"]["ranks"]] == [(0, "a"), (1, "b")]
    assert first["topology"]["standbys"] == {}
    assert first["request_obstacles"] == {kind.value: OBSTACLE for kind in RequestKind}
    assert first["requests"] == []
    assert set(service.tokens) == {"Bearer secret"}
    (answer,) = last["requests"]
    assert (answer["id"], answer["state"], answer["detail"]) == ("r1", "rejected", OBSTACLE)
    assert last["state"] == "finished"
    assert last["finished_at"] >= last["started_at"]


def test_a_service_that_refuses_the_job_is_not_asked_again(service: Service, caplog: Any) -> None:
    service.answers = [(422, {"title": "Invalid", "detail": "node: not a legal id"})]
    reporter = report_to(service)
    assert reporter is not None
    service.until(1)
    reporter.close()
    assert len(service.reports) == 1
    assert "the service refuses the job report: " in caplog.text
    assert "node: not a legal id" in caplog.text


def test_what_keeps_reports_away_is_logged_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_reporter, "Backoff", lambda **_: Backoff(base=0.01, cap=0.02))
    service.answers = 3 * [(403, {"title": "Forbidden", "detail": "the token is for another job"})]
    reporter = report_to(service)
    assert reporter is not None
    service.until(4)
    reporter.close()
    assert caplog.text.count("the job is not reported now: ") == 1
    assert "the token is for another job" in caplog.text


def test_without_a_service_nothing_is_sent(service: Service, tmp_path: Path, caplog: Any) -> None:
    assert find_service({}) is None
    assert not caplog.text
    missing = tmp_path / "no-file"
    configured = {"MAINSTAY_SERVICE": service.url, "MAINSTAY_SERVICE_TOKEN_FILE": str(missing)}
    assert find_service(configured) is None
    assert f"MAINSTAY_SERVICE={service.url}" in caplog.text
    assert "no-file" in caplog.text
    assert find_service({"MAINSTAY_SERVICE": "not a url"}) is None


def test_replicas_stand_beside_each_other() -> None:
    def grid(replicas: list[list[int]]) -> tuple[int, int, list[tuple[int, int]]]:
        where = topology([f"n{rank}" for rank in range(len(replicas))], replicas)
        return where["dp"], where["tp"], [(rank["dp"], rank["tp"]) for rank in where["ranks"]]

    assert grid([[1, 2], [0, 2], [0, 1]]) == (3, 1, [(0, 0), (1, 0), (2, 0)])  # DDP
    assert grid([[], []]) == (1, 2, [(0, 0), (0, 1)])  # FSDP: each rank holds its own part
    assert grid([[2], [3], [0], [1]]) == (2, 2, [(0, 0), (0, 1), (1, 0), (1, 1)])  # HSDP
    assert grid([[1], [0], []]) == (1, 3, [(0, 0), (0, 1), (0, 2)])  # no grid: none counts as a replica
