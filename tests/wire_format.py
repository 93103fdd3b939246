"""What this release puts on the wire and into its database, as files that later releases are held to.

``python -m tests.wire_format`` writes ``tests/fixtures/wire-VERSION``, once a release.
``tests/service/test_wire_format.py`` holds every later release to each of them.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from mainstay import __version__
from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.signals import Catalog, SignalSource, catalog
from mainstay.service.app import create_app
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.settings import Settings
from mainstay.service.telemetry.catalogs import PAIR_CATALOG

FIXTURES = Path(__file__).parent / "fixtures"
START = 1_800_000_000.0
"""When all of it happened, Unix seconds; the clock of the service that reads it stands there."""
NODE, JOB = "wire-node", "wire-job"
METHODS = ("get", "put", "post", "patch", "delete")


def frame(subject: str, axis: Axis, made: Catalog, entities: tuple[str, ...], samples: int) -> dict[str, Any]:
    """A frame in which every narrow signal is 1, and every wide one a time near ``START``."""
    import numpy as np

    cells = len(entities) * samples
    values = np.ones(cells * len(made.narrow), "<f4").tobytes()
    wide = np.full(cells * len(made.wide), int((START - 2) * 1e9), "<i8").tobytes()
    t0 = START - 2 if axis is Axis.TIME else 10.0
    body = encode(
        Frame(
            version=1, subject=subject, axis=axis, stream=f"{subject}-{made.digest}", sequence=1, t0=t0, dt=1.0,
            catalog=made.digest, entities=entities, samples=samples, values=values, wide=wide,
            crc32=checksum(values, wide),
        )
    )  # fmt: skip
    return {
        "catalog": {"narrow": list(made.narrow), "wide": list(made.wide)},
        "digest": made.digest,
        "body": base64.b64encode(body).decode(),
    }


def frames() -> dict[str, Any]:
    return {
        "devices": frame(NODE, Axis.TIME, catalog(SignalSource.HOST), ("host",), 2),
        "gpus": frame(NODE, Axis.TIME, catalog(SignalSource.GPU), ("gpu-0", "gpu-1"), 2),
        "steps": frame(JOB, Axis.STEP, catalog(SignalSource.RANK), ("0", "1"), 1),
        "progress": frame(JOB, Axis.TIME, catalog(SignalSource.PROGRESS), ("0", "1"), 1),
        "pairs": frame(JOB, Axis.STEP, PAIR_CATALOG, ("0>1", "1>0"), 1),
    }


def node_report() -> dict[str, Any]:
    made = catalog(SignalSource.HOST)
    none = {"serial": None, "uuid": None, "memory_bytes": None}
    return {
        "hostname": "wire", "os": "Debian 12", "kernel": "6.1", "version": __version__, "boot_id": "b-1",
        "cohort": "cpu", "cpu_count": 2, "memory_bytes": 2**33, "started_at": START - 60, "booted_at": START - 90,
        "rack": "r1", "switches": ["leaf-1", "spine-1"], "power_domain": "pdu-1",
        "catalog": {"narrow": list(made.narrow), "wide": list(made.wide)},
        "devices": [
            {"id": "host", "index": 0, "kind": "host", "model": "EPYC", "facts": {"driver": "1"}, **none},
            {"id": "gpu-0", "index": 0, "kind": "gpu", "model": "H100", "facts": {}, **none},
            {"id": "nic:eth0", "index": 0, "kind": "nic", "model": "CX7", "facts": {}, **none},
        ],
    }  # fmt: skip


def events() -> dict[str, Any]:
    def event(number: int, kind: str, **fields: Any) -> dict[str, Any]:
        return {"id": f"0197f9e4-1c2d-7abc-8def-{number:012x}", "time": START - 1, "kind": kind, "data": {}, **fields}

    return {
        "of_node": [
            event(1, "node_started", node=NODE, data={"uptime": 30.0, "boot_id": "b-1"}),
            event(2, "xid", node=NODE, device="gpu-0", data={"code": 43, "source": "kernel", "text": "Xid 43"}),
            event(3, "kernel_fault", node=NODE, data={"fault": "oom", "severity": "info", "text": "oom"}),
        ],
        "of_job": [
            event(4, "job_started", job=JOB, generation=1),
            event(5, "process_exit", job=JOB, node=NODE, rank=0, generation=1, data={"pid": 7, "exit_code": 1}),
            event(6, "job_finished", job=JOB, generation=1),
        ],
    }


def job_report() -> dict[str, Any]:
    ranks = [
        {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": NODE, "device": None, "pid": 7, "state": "running"}
        for r in range(2)
    ]
    return {
        "name": JOB, "state": "running", "generation": 1, "command": ["python", "train.py"],
        "topology": {"dp": 2, "pp": 1, "tp": 1, "world_size": 2, "ranks": ranks, "standbys": {NODE: 1}},
        "protection": {
            "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": [1, 2],
        },
        "steps_total": 10, "last_step": 1, "started_at": START - 30, "finished_at": None, "requests": [],
    }  # fmt: skip


def tasks() -> dict[str, Any]:
    """What ``GET /v1/nodes/{name}/tasks`` answers."""
    pair = {
        "kind": "pair", "benchmark": "tcp", "role": "listen", "peer": "n2", "address": "127.0.0.1", "port": 4000,
        "sizes": [1024], "nic": "", "gpu": "", "seconds": 1.0, "deadline_at": START + 60,
    }  # fmt: skip
    return {
        "items": [
            {"id": "t1", "kind": "validate", "validation_id": "t1", "suite": "quick", "deadline_at": START + 60},
            {"id": "t1", "kind": "cancel", "validation_id": "t1", "reason": "by an operator"},
            {"id": "t2", "validation_id": "t2", **pair},
        ]
    }


def openapi_digest(document: dict[str, Any]) -> dict[str, Any]:
    """Of every operation: what a request must hold, and what its answer always holds."""
    found: dict[str, Any] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                found[f"{method.upper()} {path}"] = _operation(document, item[method])
    return found


def _operation(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    parameters = [p["name"] for p in operation.get("parameters", ()) if p.get("required")]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    answers = {
        status: sorted(_fields(document, schema, "properties"))
        for status, answer in operation["responses"].items()
        if status.startswith("2")
        and (schema := answer.get("content", {}).get("application/json", {}).get("schema")) is not None
    }
    required = sorted(_fields(document, body, "required")) if body else []
    return {"parameters": sorted(parameters), "required": required, "answers": answers}


def _fields(document: dict[str, Any], schema: dict[str, Any], which: str, path: str = "", depth: int = 6) -> set[str]:
    """Dotted names of what an object holds or must hold, through references and lists."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    found: set[str] = set()
    if depth == 0:
        return found
    if "items" in schema and isinstance(schema["items"], dict):
        found |= _fields(document, schema["items"], which, f"{path}[]", depth - 1)
    names = schema.get(which, ())
    for name, inner in schema.get("properties", {}).items():
        if name in names:
            here = f"{path}.{name}" if path else name
            found |= {here} | _fields(document, inner, which, here, depth - 1)
    return found


def database_schema(directory: Path) -> str:
    """The schema of SQLite as statements, with its revision."""
    database = Database(f"sqlite:///{directory / 'wire.db'}")
    migrate.upgrade(database)
    database.close()
    connection = sqlite3.connect(directory / "wire.db")
    try:
        return "\n".join(connection.iterdump()) + "\n"
    finally:
        connection.close()


def write(directory: Path) -> None:
    directory.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        document = create_app(Settings(data_dir=Path(scratch))).openapi()
        (directory / "schema.sql").write_text(database_schema(Path(scratch)))
    contents = {
        "frames": frames(), "node_report": node_report(), "events": events(), "job_report": job_report(),
        "tasks": tasks(), "openapi": openapi_digest(document),
    }  # fmt: skip
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    target = FIXTURES / f"wire-{__version__}"
    if target.exists():
        sys.exit(f"{target} exists: a release that is out does not change; for one that is not, remove it first")
    write(target)
