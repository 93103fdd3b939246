"""A node that fetches orders over HTTP and answers with made-up measurements."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from mainstay.service.validation.suites import expected_benchmarks

Json = dict[str, Any]


def results_of(suite: str, scale: float = 1.0, error: str | None = None, **changes: Any) -> Json:
    """Results of a whole suite: one rate a benchmark, 100 times ``scale``."""
    now = time.time()
    benchmarks = [
        {
            "benchmark": name, "state": "ok", "error": None, "seconds": 0.1, "device": "cpu", "digest": None,
            "metrics": [
                {"name": "rate", "unit": "B/s", "better": "higher", "values": [99 * scale, 100 * scale, 101 * scale]}
            ],
        }
        for name in expected_benchmarks(suite)
    ]  # fmt: skip
    return {
        "suite": suite,
        "started_at": now - 1,
        "finished_at": now,
        "benchmarks": benchmarks,
        "error": error,
        **changes,
    }


@pytest.fixture
def results() -> Callable[..., Json]:
    return results_of


def criteria_of(suite: str, cohort: str = "cpu", low: float = 90.0) -> list[Json]:
    return [
        {"benchmark": name, "metric": "rate", "cohort": cohort, "better": "higher", "low": low, "high": None}
        for name in expected_benchmarks(suite)
    ]


@pytest.fixture
def criteria() -> Callable[..., list[Json]]:
    return criteria_of


@dataclass
class FakeNode:
    """A node daemon's control loop, without the daemon."""

    client: httpx.Client
    name: str
    scale: float = 1.0
    done: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def orders(self, wait: float = 0.0) -> list[Json]:
        answer = self.client.get(f"/v1/nodes/{self.name}/tasks", params={"wait": wait})
        assert answer.status_code == 200, answer.text
        items: list[Json] = answer.json()["items"]
        return items

    def obey(self, order: Json, **changes: Any) -> httpx.Response:
        body = results_of(order["suite"], self.scale, **changes)
        answer = self.client.post(f"/v1/validations/{order['validation_id']}/results", json=body)
        self.done.append(order["validation_id"])
        return answer

    @contextmanager
    def working(self) -> Iterator[None]:
        def loop() -> None:
            while not self._stop.is_set():
                for order in self.orders(wait=0.5):
                    assert self.obey(order).status_code == 200

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(60)


@pytest.fixture
def enroll(report: Json) -> Callable[..., FakeNode]:
    def make(running: Any, name: str, **changes: Any) -> FakeNode:
        client = running.node_client(name)
        assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
        return FakeNode(client, name, **changes)

    return make
