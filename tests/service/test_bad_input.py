"""Bad input is answered by a problem that names the fault, stores nothing, and affects no other request.

Each test sends real bytes to a real server and compares the number of rows of every table, and of telemetry blocks,
before and after. What is wrong with a frame's own bytes is in ``telemetry/test_frames.py``, who may do what in
``auth/test_auth.py``, and requests drawn from the OpenAPI document in ``test_api_contract.py``.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import func, select

from mainstay.probes.frame import Axis
from mainstay.service.common.db import Base
from mainstay.service.fleet.models import DeviceRow
from mainstay.service.telemetry.blocks import BlockKind

PATHS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[2] / "web" / "openapi.json").read_text()
)["paths"]
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
class House:
    """A service with two nodes, and who may speak to it."""

    service: Any
    admin: httpx.Client
    node: httpx.Client
    """Speaks for n1; there is n2 too."""

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


@pytest.fixture(scope="module")
def house(lasting_service: Any) -> House:
    node = lasting_service.node_client("n1")
    lasting_service.node_client("n2")
    return House(lasting_service, lasting_service.client(), node)


@contextmanager
def nothing_stored(house: House) -> Iterator[None]:
    """What happens inside leaves no row and no block, and the service as it was."""
    before = house.counts()
    yield
    assert house.counts() == before
    assert house.service.services.ingest.writer.healthy()
    assert house.admin.get("/v1/overview").status_code == 200, "the service still works"


@pytest.fixture
def refused(house: House) -> Callable[..., str]:
    """Check one refusal; gives its detail."""

    def check(answer: httpx.Response, status: int, slug: str, *words: str) -> str:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["type"] == f"urn:mainstay:problem:{slug}", problem
        assert problem["status"] == status
        told = str(problem["detail"])
        assert all(word in told for word in words), told
        return told

    return check


def events(**changes: Any) -> bytes:
    """A batch of one event, with raw JSON where a change is bytes."""
    marks = {f"@{name}@": value for name, value in changes.items() if isinstance(value, bytes)}
    plain = {name: f"@{name}@" if isinstance(value, bytes) else value for name, value in changes.items()}
    text = json.dumps({"items": [EVENT | plain]}).encode()
    for mark, raw in marks.items():
        text = text.replace(b'"' + mark.encode() + b'"', raw)
    return text


GOOD = events()
DEEP = b"[" * 100_000

# what: (body, status, slug, words of the detail)
BODIES: dict[str, tuple[bytes, int, str, str]] = {
    "nothing": (b"", 422, "invalid", "body: Field required"),
    "truncated": (GOOD[: len(GOOD) // 2], 422, "invalid", "JSON decode error"),
    "trailing": (GOOD + b"}", 422, "invalid", "JSON decode error"),
    "not JSON": (b"\x82\xa5items\x90", 400, "invalid-request", "not UTF-8"),
    "not UTF-8": (events(kind=b'"link_down\xff"'), 400, "invalid-request", "not UTF-8: byte"),
    "not UTF-8 in a key": (b'{"\xc3(": 1}', 400, "invalid-request", "not UTF-8: byte 2"),
    "deep": (DEEP, 400, "invalid-request", "nested too deeply"),
    "deep objects": (b'{"items":' * 50_000, 400, "invalid-request", "nested too deeply"),
    "deep inside": (events(data=b'{"x":' + b"[" * 100 + b"]" * 100 + b"}"), 422, "invalid", "items.0.data"),
    "another shape": (b"[1, 2]", 422, "invalid", "body: "),
    "null": (b"null", 422, "invalid", "body: "),
    "missing field": (b'{"items": [{}]}', 422, "invalid", "items.0.id: Field required"),
    "unknown kind": (events(kind="Node in Love"), 422, "invalid", "items.0.kind"),
    "too many": (json.dumps({"items": [EVENT] * 501}).encode(), 422, "invalid", "at most 500"),
    "NaN as an id": (events(id=b"NaN"), 422, "invalid", "items.0.id: Input should be a valid string"),
    "NaN as a node": (events(node=b"NaN"), 422, "invalid", "items.0.node"),
    "an id that is none": (events(id="nan"), 422, "invalid", "items.0.id"),
    "a node that is none": (events(node="a b"), 422, "invalid", "items.0.node"),
    "NUL in a node": (events(node="n\x00"), 422, "invalid", "items.0.node"),
    "half a character in a node": (events(node="\ud800"), 422, "invalid", "items.0.node"),
    "NaN as a time": (events(time=b"NaN"), 422, "invalid", "items.0.time"),
    "infinite time": (events(time=b"Infinity"), 422, "invalid", "items.0.time"),
    "time beyond a double": (events(time=b"1e999"), 422, "invalid", "items.0.time"),
    "before 1970": (events(time=-1), 422, "invalid", "items.0.time"),
    "a text as a time": (events(time="1800000000"), 422, "invalid", "items.0.time: Value error, a number is wanted"),
    "true as a rank": (events(rank=True), 422, "invalid", "items.0.rank: Value error, a number is wanted"),
    "NaN as a rank": (events(rank=b"NaN"), 422, "invalid", "items.0.rank"),
    "half a rank": (events(rank=0.5), 422, "invalid", "items.0.rank"),
    "a rank beyond 64 bits": (events(rank=10**30), 422, "invalid", "items.0.rank"),
    "a rank of 5,000 digits": (events(rank=b"9" * 5000), 400, "invalid-request", "too many digits"),
    "NaN in data": (events(data=b'{"x": [NaN]}'), 422, "invalid", "items.0.data: Value error"),
    "infinity in data": (events(data=b'{"x": {"y": -Infinity}}'), 422, "invalid", "items.0.data: Value error"),
    "a plan that is none": (events(kind="recovery_planned", job="j", data={"id": 1}), 422, "invalid", "items.0"),
}  # fmt: skip


@pytest.mark.parametrize("what", BODIES)
def test_a_bad_body_is_named(house: House, refused: Any, what: str) -> None:
    body, status, slug, words = BODIES[what]
    with nothing_stored(house):
        refused(house.admin.post("/v1/events", content=body, headers=JSON), status, slug, words)


def test_one_bad_event_spoils_its_batch(house: House, refused: Any) -> None:
    batch = {"items": [EVENT, EVENT | {"id": "x"}]}
    with nothing_stored(house):
        refused(house.admin.post("/v1/events", json=batch), 422, "invalid", "items.1.id")


JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "a world that does not multiply": ({"topology": JOB["topology"] | {"dp": 2}}, "dp 2 x pp 1 x tp 1"),
    "true as a generation": ({"generation": True}, "generation: Value error, a number is wanted"),
    "a text as a number of steps": ({"steps_total": "10"}, "steps_total"),
    "NaN as a last step": ({"last_step": float("nan")}, "last_step"),
    "infinite end": ({"finished_at": float("inf")}, "finished_at"),
    "NUL in a name": ({"name": "a\x00"}, "NUL"),
    "half a character in a command": ({"command": ["train", "\udfff"]}, "command"),
    "a state that is no name": ({"state": "Not happy"}, "state"),
    "no slots": ({"protection": {}}, "protection.slots: Field required"),
}


@pytest.mark.parametrize("what", JOBS)
def test_a_bad_job_report_is_named(house: House, refused: Any, what: str) -> None:
    changes, words = JOBS[what]
    body = json.dumps(JOB | changes).encode()
    with nothing_stored(house):
        refused(house.admin.put("/v1/jobs/demo", content=body, headers=JSON), 422, "invalid", words)


RESULTS: dict[str, tuple[bytes, str]] = {
    "NaN": (b"NaN", "values.0"),
    "infinity": (b"-Infinity", "values.0"),
    "so much that a sum overflows": (b"1.7e308", "values.0: Input should be less than or equal to 1"),
    "a text": (b'"1"', "values.0: Value error, a number is wanted"),
    "true": (b"true", "values.0: Value error, a number is wanted"),
    "nothing": (b"null", "values.0"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_bad_measurement_is_named(house: House, refused: Any, what: str) -> None:
    """Before the validation is looked for: a judge must never see it."""
    value, words = RESULTS[what]
    metric = {"name": "m", "unit": "F", "better": "equal", "values": ["@"]}
    run = {"benchmark": "gemm", "state": "ok", "error": None, "seconds": 1.0, "device": "cpu", "metrics": [metric]}
    body = {"suite": "quick", "started_at": 1.0, "finished_at": 2.0, "benchmarks": [run]}
    content = json.dumps(body).encode().replace(b'"@"', value)
    with nothing_stored(house):
        url = f"/v1/validations/{ABSENT}/results"
        refused(house.node.post(url, content=content, headers=JSON), 422, "invalid", words)


@pytest.mark.parametrize("token", ["\ud800", "\x00", "x" * 201, ""])
def test_a_token_that_can_be_none_signs_nobody_in(house: House, refused: Any, token: str) -> None:
    with nothing_stored(house):
        body = json.dumps({"token": token}).encode()
        refused(house.service.client("").post("/v1/auth/session", content=body, headers=JSON), 422, "invalid", "token")


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "application/msgpack", "x", ""])
def test_a_wrong_content_type_is_named(house: House, refused: Any, media: str) -> None:
    with nothing_stored(house):
        answer = house.admin.post("/v1/events", content=GOOD, headers={"Content-Type": media})
        refused(answer, 415, "wrong-content-type", "application/json", media or "without a content type")


# more or less than was announced


def talk(house: House, head: str, body: bytes = b"", *, hang_up: bool = False) -> bytes:
    """Send raw bytes to the events route; everything that comes back until the other side closes."""
    place = urlsplit(house.service.url)
    lines = ["POST /v1/events HTTP/1.1", f"Host: {place.netloc}", f"Authorization: Bearer {house.service.admin_token}"]
    text = "\r\n".join([*lines, "Content-Type: application/json", "Connection: close", head, "", ""])
    with socket.create_connection((place.hostname, place.port), timeout=20) as line:
        line.sendall(text.encode() + body)
        if hang_up:
            line.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def test_a_body_shorter_than_announced_is_not_acted_upon(house: House) -> None:
    with nothing_stored(house):
        assert b"HTTP/1.1 2" not in talk(house, f"Content-Length: {len(GOOD) + 10}", GOOD, hang_up=True)


def test_a_body_longer_than_announced_is_cut(house: House) -> None:
    with nothing_stored(house):
        answer = talk(house, f"Content-Length: {len(GOOD) - 10}", GOOD)
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert b"JSON decode error" in answer


@pytest.mark.slow
def test_too_much_is_refused_when_it_is_announced_and_never_sent(house: House) -> None:
    with nothing_stored(house):
        answer = talk(house, "Content-Length: 99999999", b'{"items"')
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"urn:mainstay:problem:too-large" in answer


@pytest.mark.parametrize("length", ["-1", "nan", "1e3", "99999999999999999999999", "5, 6"])
def test_a_length_that_is_none_is_refused(house: House, length: str) -> None:
    with nothing_stored(house):
        answer = talk(house, f"Content-Length: {length}", b"{}", hang_up=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("path", ["/v1/events", FRAMES])
def test_more_than_is_allowed_in_pieces_is_refused(house: House, refused: Any, path: str) -> None:
    pieces = (b" " * 1_000_000 for _ in range(12))
    with nothing_stored(house):
        slug = "frame-too-large" if path == FRAMES else "too-large"
        refused(house.node.post(path, content=pieces, headers=JSON), 413, slug, "bytes allowed")


# frames: what is not about the fields of an envelope


FRAME_BYTES = {
    "not UTF-8": b"\x82\xa7subject\xa2\xff\xfe\xa7version\x01",
    "a key that is not UTF-8": b"\x81\xa2\xff\xfe\x01",
    "deep": b"\x81\xa8entities" + b"\x91" * 100_000,
    "JSON": GOOD,
}


@pytest.mark.parametrize("what", FRAME_BYTES)
def test_bytes_that_are_no_frame(house: House, refused: Any, what: str) -> None:
    with nothing_stored(house):
        refused(house.node.post(FRAMES, content=FRAME_BYTES[what]), 422, "invalid-frame", "not a frame")


def test_a_frame_of_a_catalog_that_nobody_announced(house: House, refused: Any, frames: Any) -> None:
    with nothing_stored(house):
        refused(house.node.post(FRAMES, content=frames.body(catalog="ab" * 8)), 409, "unknown-catalog", "abab")


def test_a_frame_with_a_wrong_checksum(house: House, refused: Any, frames: Any) -> None:
    with nothing_stored(house):
        refused(house.node.post(FRAMES, content=frames.body(crc32=7)), 422, "invalid-frame", "checksum")


def test_a_frame_of_a_job_that_nobody_knows(house: House, refused: Any, frames: Any) -> None:
    body = frames.body(subject="nojob", axis=Axis.STEP, entities=("0",))
    with nothing_stored(house):
        refused(house.admin.post(FRAMES, content=body), 404, "unknown-subject", "nojob")


# who asks


@pytest.fixture
def strangers(house: House) -> dict[str, tuple[httpx.Client, int, str]]:
    """Who: (client, status, slug) without permission to write for n1."""
    gone = house.admin.post("/v1/auth/tokens", json={"name": "gone", "scopes": ["admin"]}).json()
    assert house.admin.delete(f"/v1/auth/tokens/{gone['id']}").status_code == 204
    expired = house.with_token(scopes=["admin"], expires_in=0.001)
    time.sleep(0.002)
    make = house.service.client
    return {
        "no token": (make(""), 401, "unauthorized"),
        "no known token": (make("mst_node_" + "x" * 43), 401, "unauthorized"),
        "no ASCII": (make("", Authorization=b"Bearer \xff\xfe"), 401, "unauthorized"),
        "expired": (expired, 401, "unauthorized"),
        "revoked": (make(gone["token"]), 401, "unauthorized"),
        "a session that is none": (make("", Cookie="mainstay_session=x", **{"Sec-Fetch-Site": "same-origin"}), 401,
                                   "unauthorized"),
        "may only read": (house.with_token(scopes=["read"]), 403, "scope-missing"),
        "may only act": (house.with_token(scopes=["act"]), 403, "scope-missing"),
    }  # fmt: skip


def endpoints(frames: Any, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What n1 may write: the arguments of a request."""
    return {
        "frame": {"method": "POST", "url": FRAMES, "content": frames.body()},
        "events": {"method": "POST", "url": "/v1/events", "content": GOOD, "headers": JSON},
        "report": {"method": "PUT", "url": "/v1/nodes/n1", "json": report},
        "orders": {"method": "GET", "url": "/v1/nodes/n1/tasks"},
    }


def test_strangers_write_nothing(house: House, refused: Any, strangers: Any, frames: Any, report: Any) -> None:
    for client, status, slug in strangers.values():
        with nothing_stored(house):
            for request in endpoints(frames, report).values():
                refused(client.request(**request), status, slug)


def test_a_node_writes_for_no_other(house: House, refused: Any, frames: Any, report: Any) -> None:
    other = house.service.client(_credential_of(house, "n3"))
    with nothing_stored(house):
        for request in endpoints(frames, report).values():
            refused(other.request(**request), 403, "wrong-node", "n1")


def _credential_of(house: House, name: str) -> str:
    join = house.with_token(kind="join")
    token: str = join.post("/v1/nodes:enroll", json={"name": name}).json()["token"]
    return token


def test_a_token_of_one_job_writes_for_no_other(house: House, refused: Any, frames: Any) -> None:
    job = house.with_token(kind="job", job="mine")
    step = frames.body(subject="yours", axis=Axis.STEP, entities=("0",))
    with nothing_stored(house):
        refused(job.put("/v1/jobs/yours", json=JOB), 403, "wrong-job", "yours")
        refused(
            job.post("/v1/events", content=events(job="yours", kind="process_exit"), headers=JSON),
            403,
            "wrong-job",
            "yours",
        )
        refused(job.post(FRAMES, content=step), 403, "wrong-job", "yours")


def test_hardware_events_come_from_the_node_itself(house: House, refused: Any) -> None:
    """One XID from a job's token could otherwise drain any node."""
    xid = events(kind="xid", job="mine", node="n1")
    clients = [house.with_token(kind="job", job="mine"), house.with_token(kind="job", any_job=True)]
    with nothing_stored(house):
        for client in clients:
            refused(client.post("/v1/events", content=xid, headers=JSON), 403, "wrong-node")


def test_hardware_events_of_an_invented_node_refuse_the_batch(house: House, refused: Any) -> None:
    with nothing_stored(house):
        sent = house.admin.post("/v1/events", content=events(kind="xid", job=None, node="invented"), headers=JSON)
        refused(sent, 404, "unknown-node", "invented")


# what is not there


UNKNOWN: dict[str, tuple[str, str, Any, str]] = {
    "job": ("GET", "/v1/jobs/absent", None, "unknown-job"),
    "steps of a job": ("GET", "/v1/jobs/absent/steps", None, "unknown-job"),
    "recoveries of a job": ("GET", "/v1/jobs/absent/recoveries", None, "unknown-job"),
    "incident": ("GET", f"/v1/incidents/{ABSENT}", None, "unknown-incident"),
    "incident to close": ("POST", f"/v1/incidents/{ABSENT}:close", {"reason": "r"}, "unknown-incident"),
    "incident to acknowledge": ("POST", f"/v1/incidents/{ABSENT}:acknowledge", {"reason": "r"}, "unknown-incident"),
    "plan": ("GET", f"/v1/recovery-plans/{ABSENT}", None, "unknown-plan"),
    "node": ("GET", "/v1/nodes/absent", None, "unknown-node"),
    "orders of a node": ("GET", "/v1/nodes/absent/tasks?wait=20", None, "unknown-node"),
    "telemetry of a node": ("GET", "/v1/telemetry/query?node=absent&signal=load_1m", None, "unknown-node"),
    "node to validate": ("POST", "/v1/validations", {"node": "absent", "suite": "quick"}, "unknown-node"),
    "node to sweep": ("POST", "/v1/sweeps", {"name": "s", "suite": "quick", "nodes": ["absent"]}, "unknown-node"),
    "validation": ("GET", f"/v1/validations/{ABSENT}", None, "unknown-validation"),
    "results of a validation": (
        "POST", f"/v1/validations/{ABSENT}/results",
        {"suite": "quick", "started_at": 1, "finished_at": 2, "benchmarks": []}, "unknown-validation",
    ),
    "sweep": ("GET", f"/v1/sweeps/{ABSENT}", None, "unknown-sweep"),
    "sweep to change": ("PATCH", f"/v1/sweeps/{ABSENT}", {"version": 1, "enabled": False}, "unknown-sweep"),
    "sweep to run": ("POST", f"/v1/sweeps/{ABSENT}:run", None, "unknown-sweep"),
    "sweep to forget": ("DELETE", f"/v1/sweeps/{ABSENT}", None, "unknown-sweep"),
    "token to revoke": ("DELETE", f"/v1/auth/tokens/{ABSENT}", None, "unknown-token"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_there_is_named(house: House, refused: Any, what: str) -> None:
    method, path, body, slug = UNKNOWN[what]
    name = "absent" if "absent" in f"{path}{body}" else ABSENT
    with nothing_stored(house):
        refused(house.admin.request(method, path, json=body, headers={"Idempotency-Key": what}), 404, slug, name)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/a%00b", "/v1/jobs/%ff", "/v1/nodes/..%2F..", "/v1/incidents/a%20b", "/v1/x"]
)
def test_paths_that_lead_nowhere(house: House, path: str) -> None:
    with nothing_stored(house):
        answer = house.admin.get(path)
        assert answer.status_code in {404, 422}
        assert answer.headers["content-type"] == "application/problem+json"


# lists and queries


LISTS = [path for path, found in PATHS.items()
         if any(parameter["name"] == "cursor" for parameter in found.get("get", {}).get("parameters", ()))]  # fmt: skip


def a_list(house: House, path: str) -> str:
    """A path of a list that is there."""
    if "{id}" in path:
        assert house.admin.put("/v1/jobs/lasting", json=JOB | {"state": "finished", "finished_at": 2.0}).is_success
    if "{device}" in path:
        device = DeviceRow(
            node="n1", id="lasting", index=0, kind="gpu", model="", present=True, first_seen_at=1.0, last_seen_at=1.0
        )
        with house.service.services.database.session() as session:
            session.merge(device)
    return path.replace("{id}", "lasting").replace("{device}", "lasting").replace("{name}", "n1")


@pytest.mark.parametrize("path", LISTS)
def test_a_bad_page_of_any_list_is_named(house: House, refused: Any, path: str) -> None:
    url = a_list(house, path)
    with nothing_stored(house):
        for cursor in ("x", "%00", "%ff", "W251bGxd", "bnVsbA", "A" * 500):
            refused(house.admin.get(f"{url}?cursor={cursor}"), 422, "invalid-cursor", "cursor")
        refused(house.admin.get(f"{url}?cursor={'A' * 501}"), 422, "invalid", "query.cursor")
        for limit in ("0", "-1", "501", "9" * 30, "1.5", "nan", "many", ""):
            refused(house.admin.get(f"{url}?limit={limit}"), 422, "invalid", "query.limit")


QUERIES = {
    "/v1/telemetry/query?node=n1": "query.signal",
    "/v1/telemetry/query?signal=load_1m": "query.node",
    "/v1/telemetry/query?node=n1&signal=happiness": "happiness",
    "/v1/telemetry/query?node=n1&signal=load_1m&from=nan": "query.from",
    "/v1/telemetry/query?node=n1&signal=load_1m&to=inf": "query.to",
    "/v1/telemetry/query?node=n1&signal=load_1m&to=1e999": "query.to",
    "/v1/telemetry/query?node=n1&signal=load_1m&from=2&to=1": "from must be earlier",
    "/v1/telemetry/query?node=n1&signal=load_1m&points=0": "query.points",
    "/v1/telemetry/query?node=n1&signal=load_1m&points=4001": "query.points",
    "/v1/events?since=-1": "query.since",
    "/v1/events?since=nan": "query.since",
    "/v1/events?kind=love": "query.kind",
    "/v1/nodes?state=happy": "query.state",
    "/v1/nodes?q=%00": "query.q",
    "/v1/incidents?node=a%20b": "query.node",
    "/v1/nodes/n1/tasks?wait=26": "query.wait",
    "/v1/nodes/n1/tasks?wait=nan": "query.wait",
    "/v1/fleet/heatmap?signal=happiness": "happiness",
    "/v1/watch?topics=love": "love",
}


@pytest.mark.parametrize("url", QUERIES)
def test_a_bad_query_is_named(house: House, url: str) -> None:
    with nothing_stored(house):
        answer = house.admin.get(url)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert QUERIES[url] in answer.json()["detail"]


def wrong_method(path: str) -> str:
    """One that the path has not, nor the thing whose verb it is: ``PATCH x:run`` is about a thing called ``x:run``."""
    taken = {*PATHS[path], *PATHS.get(path.rpartition(":")[0], ())}
    return next(method for method in ("PATCH", "PUT", "DELETE") if method.lower() not in taken)


@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_method_is_told_the_right_ones(house: House, refused: Any, path: str) -> None:
    with nothing_stored(house):
        wrong = wrong_method(path)
        answer = house.admin.request(wrong, path.replace("{", "").replace("}", ""), json={})
        refused(answer, 405, "method-not-allowed", wrong)
        assert {method.upper() for method in PATHS[path]} <= set(answer.headers["allow"].split(", "))


def test_the_good_ones_are_good(service: Any, frames: Any, report: Any) -> None:
    """Or else the refusals above would prove nothing."""
    house = House(service, service.client(), service.node_client("n1"))
    before = house.counts()
    for request in endpoints(frames, report).values():
        answer = house.node.request(**request)
        assert answer.is_success, answer.text
    assert house.admin.put("/v1/jobs/demo", json=JOB).status_code == 200
    after = house.counts()
    for table in ("blocks", "events", "devices", "jobs"):
        assert after[table] == before[table] + 1, "and the counts see what is stored"


@pytest.mark.parametrize("better", ["higher", "lower", "equal"])
def test_the_largest_measurements_are_judged(service: Any, report: Any, better: str) -> None:
    admin, node = service.client(), service.node_client("n1")
    assert node.put("/v1/nodes/n1", json=report).is_success
    metric = {"name": "m", "unit": "F", "better": better, "values": [1e150, 1e150, -1e150, 5e-324]}
    run = {"benchmark": "gemm", "state": "ok", "error": None, "seconds": 1.0, "device": "cpu", "metrics": [metric]}
    body = {"suite": "quick", "started_at": 1.0, "finished_at": 2.0, "benchmarks": [run]}
    for _ in range(7):
        ordered = admin.post("/v1/validations", json={"node": "n1", "suite": "quick"}).json()["id"]
        answer = node.post(f"/v1/validations/{ordered}/results", json=body)
        assert answer.status_code == 200, answer.text
        assert admin.post("/v1/criteria:learn", json={}).status_code == 200
