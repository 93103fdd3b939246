"""A service that is sent bad input: an error response names the fault, and nothing is stored.

Each test sends real bytes to a real server and compares the number of rows of every table, and of telemetry blocks,
before and after. What is wrong with a frame's own bytes is in ``telemetry/test_frames.py``, who may do what in
``auth/test_auth.py``, and requests drawn from the OpenAPI document in ``test_api_contract.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import func, select

from mainstay.service.common.db import Base
from mainstay.service.telemetry.blocks import BlockKind

EVENT: dict[str, Any] = {
    "id": "0197f9e4-1c2d-7abc-8def-0123456789ab", "time": 1_800_000_000.0, "kind": "link_down", "node": "n1",
    "data": {},
}  # fmt: skip
JOB: dict[str, Any] = {
    "name": "demo", "state": "running", "generation": 1, "command": "train.py", "steps_total": None, "last_step": None,
    "topology": {"dp": 1, "pp": 1, "tp": 1, "world_size": 1, "ranks": []}, "started_at": 1.0, "finished_at": None,
    "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
}  # fmt: skip
ABSENT = "0197f9e4-1c2d-7abc-8def-00000000dead"
JSON = {"Content-Type": "application/json"}
FRAMES = "/v1/telemetry/frames"


@dataclass
class InputBench:
    """A service with two nodes, and clients of an admin and of a node."""

    service: Any
    admin: httpx.Client
    node: httpx.Client
    """Has the credential of n1; there is n2 too."""

    def counts(self) -> dict[str, int]:
        """Rows of every table, and telemetry blocks."""
        services = self.service.services
        with services.database.reading() as session:
            tables = {
                name: session.scalar(select(func.count()).select_from(table)) or 0
                for name, table in Base.metadata.tables.items()
            }
        blocks = list(services.blocks.read(0.0, time.time() + 10_000, kinds=list(BlockKind)))
        return tables | {"blocks": len(blocks)}

    def with_token(self, **body: Any) -> httpx.Client:
        answer = self.admin.post("/v1/auth/tokens", json={"name": "t", **body})
        assert answer.status_code == 201, answer.text
        return self.service.client(answer.json()["token"])


@contextmanager
def nothing_stored(bench: InputBench) -> Iterator[None]:
    """What happens inside leaves no row and no block, and the service as it was."""
    before = bench.counts()
    yield
    assert bench.counts() == before
    assert bench.service.services.ingest.writer.healthy()
    assert bench.admin.get("/v1/overview").status_code == 200, "the service still works"


def events(**changes: Any) -> bytes:
    """A batch of one event, with raw JSON where a change is bytes."""
    marks = {f"@{name}@": value for name, value in changes.items() if isinstance(value, bytes)}
    plain = {name: f"@{name}@" if isinstance(value, bytes) else value for name, value in changes.items()}
    text = json.dumps({"items": [EVENT | plain]}).encode()
    for mark, raw in marks.items():
        text = text.replace(b'"' + mark.encode() + b'"', raw)
    return text


GOOD = events()
