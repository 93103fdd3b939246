"""Neighboring releases understand each other: this one is held to the wire format and schema of every one before."""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bench.lib_receiver import Receiver
from mainstay import __version__
from mainstay.probes.frame import Frame, decode
from mainstay.probes.identity import describe_node
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.samplers.host import HostConfig
from mainstay.probes.signals import Catalog, SignalSource, catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from tests.fakes.clock import ManualClock
from tests.service.common import schema
from tests.wire_format import FIXTURES, JOB, NODE, START, openapi_digest

RELEASES = sorted(path.name for path in FIXTURES.glob("wire-*"))
DOCUMENT = Path(__file__).resolve().parents[2] / "web" / "openapi.json"
OPEN = {"data", "facts", "standbys", "topology_past"}
"""Objects whose keys are data: a further one would be no unknown field."""


def load(release: str, name: str) -> Any:
    return json.loads((FIXTURES / release / f"{name}.json").read_text())


def newer(value: Any) -> Any:
    """The same as a later release might send it: every object has one more field, at the end and of another type."""
    if isinstance(value, list):
        return [newer(item) for item in value]
    if not isinstance(value, dict):
        return value
    grown = {key: item if key in OPEN else newer(item) for key, item in value.items()}
    return {**grown, "field_of_a_later_release": {"deep": [1, None, "x"]}}


def same(value: Any) -> Any:
    return value


def test_this_release_has_its_fixture() -> None:
    assert f"wire-{__version__}" in RELEASES, "run python -m tests.wire_format and commit what it writes"


def put_all(service: Any, release: str, change: Callable[[Any], Any]) -> tuple[httpx.Client, httpx.Client]:
    """Enroll a node and a job as that release would; their clients."""
    admin = service.client()
    join = admin.post("/v1/auth/tokens", json={"name": "j", "kind": "join"}).json()["token"]
    enrolled = service.client(join).post("/v1/nodes:enroll", json=change({"name": NODE}))
    assert enrolled.status_code == 201, enrolled.text
    node = service.client(enrolled.json()["token"])
    answer = node.put(f"/v1/nodes/{NODE}", json=change(load(release, "node_report")))
    assert answer.status_code == 200, answer.text
    job = service.client(admin.post("/v1/auth/tokens", json={"name": "j", "kind": "job", "job": JOB}).json()["token"])
    answer = job.put(f"/v1/jobs/{JOB}", json=change(load(release, "job_report")))
    assert answer.status_code == 200, answer.text
    return node, job


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("change", [same, newer])
def test_reports_events_and_frames_of_a_release_are_accepted(start, release: str, change: Callable[[Any], Any]) -> None:
    service = start(ManualClock(START))
    node, job = put_all(service, release, change)
    sent = load(release, "events")
    for client, events in ((node, sent["of_node"]), (job, sent["of_job"])):
        answer = client.post("/v1/events", json=change({"items": events}))
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"accepted": len(events), "duplicates": 0, "set_aside": 0}
    for name, frame in load(release, "frames").items():
        client = node if name in {"devices", "gpus"} else job
        assert client.put(f"/v1/telemetry/catalogs/{frame['digest']}", json=change(frame["catalog"])).is_success
        body = base64.b64decode(frame["body"])
        if change is newer:
            body = msgspec.msgpack.encode(newer(msgspec.msgpack.decode(body)))
        answer = client.post("/v1/telemetry/frames", content=body, headers={"Content-Type": "application/msgpack"})
        assert answer.status_code == 204, (name, answer.text)
    assert {d["id"] for d in node.get("/v1/devices").json()["items"]} == {"host", "gpu-0", "nic:eth0"}
    stored = service.client().get("/v1/events").json()["items"]
    assert {event["id"] for event in stored} == {event["id"] for group in sent.values() for event in group}


def test_kinds_of_a_later_release_are_set_aside_one_by_one(start) -> None:
    release = RELEASES[-1]
    service = start(ManualClock(START))
    node, _ = put_all(service, release, same)
    events = load(release, "events")["of_node"]
    later = [
        {**event, "id": event["id"][:-1] + "f", "kind": "quantum_flip", "node": {"new": "form"}} for event in events
    ]
    mixed = [later[0], events[0], later[1], *events[1:], later[2]]
    answer = node.post("/v1/events", json={"items": mixed})
    assert answer.json() == {"accepted": 3, "duplicates": 0, "set_aside": 3}
    report = load(release, "node_report")
    report["devices"].append({"id": "dpu-0", "kind": "dpu", "cores": 16})
    assert node.put(f"/v1/nodes/{NODE}", json=report).status_code == 200
    assert {d["id"] for d in node.get("/v1/devices").json()["items"]} == {"host", "gpu-0", "nic:eth0"}


def test_a_job_in_a_state_of_a_later_release_is_kept_and_unknown(start) -> None:
    service = start(ManualClock(START))
    _, job = put_all(service, RELEASES[-1], same)
    admin = service.client()
    asked = [
        admin.post(f"/v1/jobs/{JOB}/requests", json={"kind": "migrate", "node": name, "reason": "noise"}).json()["id"]
        for name in (NODE, "node-2")
    ]
    report = load(RELEASES[-1], "job_report")
    report |= {"state": "hibernating", "generation": 7, "last_step": 41}
    report["topology"]["ranks"][0]["state"] = "thawing"
    report["requests"] = [
        {"id": asked[0], "state": "put_off_till_spring", "detail": {"new": "form"}},
        {"id": asked[1], "state": "rejected", "detail": "no standby"},
    ]
    answer = job.put(f"/v1/jobs/{JOB}", json=report)
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "unknown"
    found = admin.get(f"/v1/jobs/{JOB}").json()
    assert (found["state"], found["generation"], found["last_step"]) == ("unknown", 7, 41)
    states = [place["state"] for place in found["topology"]["ranks"]]
    assert states == ["unknown", *["running"] * (len(states) - 1)]
    assert [one["id"] for one in admin.get("/v1/jobs", params={"state": "unknown"}).json()["items"]] == [JOB]
    assert [one["id"] for one in admin.get("/v1/jobs", params={"state": "running"}).json()["items"]] == []
    requests = admin.get(f"/v1/jobs/{JOB}/requests").json()["items"]
    assert {one["id"]: one["state"] for one in requests} == {asked[0]: "pending", asked[1]: "rejected"}
    names = {"job": JOB}
    assert admin.get("/v1/nodes", params=names).json()["items"], "it may still hold its nodes"
    report |= {"state": "evaporated", "finished_at": START}
    assert job.put(f"/v1/jobs/{JOB}", json=report).json()["state"] == "unknown"
    assert admin.get("/v1/nodes", params=names).json()["items"] == [], "it ended, however"
    assert admin.get(f"/v1/jobs/{JOB}/requests").json()["items"][-1]["state"] == "rejected"
    report |= {"state": "running", "finished_at": None, "generation": 8}
    assert job.put(f"/v1/jobs/{JOB}", json=report).json()["state"] == "running"


@pytest.mark.parametrize("state", ["", "Not Well Formed", 7, None, ["running"]])
def test_a_state_that_is_not_well_formed_is_still_refused(start, state: object) -> None:
    service = start(ManualClock(START))
    _, job = put_all(service, RELEASES[-1], same)
    assert job.put(f"/v1/jobs/{JOB}", json=load(RELEASES[-1], "job_report") | {"state": state}).status_code == 422


def test_signals_of_a_later_release_leave_the_others_in_their_places(start, frames) -> None:
    """The node of a later release measures one thing more, in the middle of its tensors."""
    service = start()
    node = service.node_client("n1")
    known = frames.catalog
    half = len(known.narrow) // 2
    later = Catalog(
        (*known.narrow[:half], "signal_of_a_later_release", *known.narrow[half:]),
        ("counter_of_a_later_release_total", *known.wide),
    )
    put = node.put(
        f"/v1/telemetry/catalogs/{later.digest}", json={"narrow": list(later.narrow), "wide": list(later.wide)}
    )
    assert put.status_code == 204, put.text
    frames.catalog = later
    body = frames.with_narrow("load_1m", 7.5)
    now = int(time.time())
    body = frames.body(1, t0=float(now - 4), values=decode(body).values)
    answer = node.post("/v1/telemetry/frames", content=body, headers={"Content-Type": "application/msgpack"})
    assert answer.status_code == 204, answer.text
    query = {"node": "n1", "signal": ["load_1m", "memory_used_bytes"]}
    series = {line["signal"]: line for line in node.get("/v1/telemetry/query", params=query).json()["series"]}
    assert max(v for v in series["load_1m"]["high"] if v is not None) == 7.5
    assert max(v for v in series["memory_used_bytes"]["high"] if v is not None) == 0.25


def test_a_frame_of_a_later_version_is_refused_by_its_number() -> None:
    body = base64.b64decode(load(RELEASES[-1], "frames")["devices"]["body"])
    fields = msgspec.msgpack.decode(body) | {"version": 2}
    with pytest.raises(ValueError, match="frame version 2, this service reads 1"):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("release", RELEASES)
def test_frames_mean_what_they_meant(release: str) -> None:
    for frame in load(release, "frames").values():
        found = decode(base64.b64decode(frame["body"]))
        assert isinstance(found, Frame)
        assert (found.catalog, found.stream, found.sequence) == (
            frame["digest"], f"{found.subject}-{frame['digest']}", 1,
        )  # fmt: skip
        assert Catalog(tuple(frame["catalog"]["narrow"]), tuple(frame["catalog"]["wide"])).digest == frame["digest"]


# the other way: this node, another service


@pytest.mark.processes
@pytest.mark.parametrize("release", RELEASES)
def test_a_node_takes_tasks_of_an_older_and_of_a_later_service(release: str, tmp_path: Path) -> None:
    """What it cannot read, it leaves; what comes behind that is carried out."""
    good = {"suite": "quick", "benchmarks": [{"benchmark": "gemm", "state": "ok"}]}
    validator = ValidationProcess((sys.executable, "-c", f"import json; print(json.dumps({good!r}))"))
    order = load(release, "tasks")["items"][0] | {"deadline_at": time.time() + 60}
    receiver = Receiver().start()
    with Spool(tmp_path) as spool:
        transport = Transport(receiver.url, "t")
        results = ResultOutbox(spool, transport)
        control = TaskLoop("node-1", transport, validator, results)
        with results:
            control.start()
            devices = HostConfig().build().devices()
            control.report(describe_node(devices, catalog(SignalSource.HOST), cohort=None, started_at=1.0))
            receiver.orders = [
                {"id": "l1", "kind": "reshape_the_fabric", "deadline_at": {"not": "a number"}},
                {"id": "l2", "kind": "pair", "role": "referee"},
                {"id": "l3", "kind": "validate", "suite": {"of": "another form"}},
                newer(order),
            ]
            receiver.wait(lambda r: order["validation_id"] in r.results)
            control.stop()
    assert receiver.results[order["validation_id"]]["benchmarks"] == good["benchmarks"]
    receiver.away()


# documents


@pytest.mark.parametrize("release", RELEASES)
def test_requests_need_no_more_and_answers_hold_no_less(release: str) -> None:
    now = openapi_digest(json.loads(DOCUMENT.read_text()))
    for operation, then in load(release, "openapi").items():
        assert operation in now, f"{operation} is gone"
        found = now[operation]
        for part in ("parameters", "required"):
            assert set(found[part]) <= set(then[part]), f"{operation} needs more {part} than {release} sends"
        for status, fields in then["answers"].items():
            assert set(fields) <= set(found["answers"].get(status, ())), f"{operation} answers {status} with less"


@pytest.mark.parametrize("release", RELEASES)
def test_a_database_of_a_release_is_brought_up_to_date_with_what_is_in_it(release: str, tmp_path: Path) -> None:
    path = tmp_path / "then.db"
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / release / "schema.sql").read_text())
    connection.execute(
        "INSERT INTO tokens (id, digest, prefix, kind, name, scopes, created_at)"
        " VALUES ('t1', 'd', 'mst_user_abc', 'user', 'kept', '[\"read\"]', 1.0)"
    )
    connection.commit()
    connection.close()
    database = Database(f"sqlite:///{path}")
    assert not migrate.unknown_revisions(database)
    migrate.upgrade(database)
    schema.drift(database)
    with database.reading() as session:
        assert session.connection().exec_driver_sql("SELECT name FROM tokens").scalars().all() == ["kept"]
    database.close()
