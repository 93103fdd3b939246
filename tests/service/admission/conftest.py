"""A fleet with verdicts, and the question of a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from mainstay.service.fleet.models import NodeRow
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation.models import NodeVerdictRow

Json = dict[str, Any]
GPUS = [
    {"id": f"gpu{i}", "index": i, "kind": "gpu", "model": "H100", "serial": None, "uuid": f"u{i}", "memory_bytes": 1}
    for i in range(8)
]


@pytest.fixture
def fleet(service_anywhere: Any, report: Json) -> Callable[..., None]:
    """Make nodes that are healthy and validated, or as ``changes`` say."""

    def make(
        *names: str, verdict: str | None = "pass", gpus: int = 8, state: str = "healthy", hours: float = 1
    ) -> None:
        services = service_anywhere.services
        now = services.clock.now()
        for name in names:
            devices = [*report["devices"], *({**gpu, "uuid": f"{name}-{gpu['id']}"} for gpu in GPUS[:gpus])]
            said = service_anywhere.client().put(f"/v1/nodes/{name}", json=report | {"devices": devices})
            assert said.status_code == 200, said.text
        with services.database.session() as session:
            seen = {"state": state, "last_seen_at": now}
            session.execute(update(NodeRow).where(NodeRow.name.in_(names)).values(**seen))
            for name in names:
                record_change(session, Topic.NODE, {"id": name, "reason": "test"})
            if verdict is not None:
                at = now - 3600 * hours
                session.add_all(
                    NodeVerdictRow(node=name, verdict=verdict, power=1, suite="quick", validation_id="v", at=at)
                    for name in names
                )

    return make


@pytest.fixture
def check_admission(service_anywhere: Any) -> Callable[..., Json]:
    client: httpx.Client = service_anywhere.client()

    def send(*nodes: str, **changes: Any) -> Json:
        answer = client.post("/v1/admission", json={"job": "llm", "nodes": nodes, **changes})
        assert answer.status_code == 200, answer.text
        told: Json = answer.json()
        return told

    return send


def codes(told: Json, node: str) -> list[str]:
    (found,) = (one for one in told["nodes"] if one["node"] == node)
    return [reason["code"] for reason in found["reasons"]]
