"""Bodies and frames that are malformed, out of range, or not as long as announced."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from mainstay.probes.frame import Axis
from tests.service.bad_input.input_bench import (
    ABSENT,
    EVENT,
    FRAMES,
    GOOD,
    JOB,
    JSON,
    InputBench,
    events,
    nothing_stored,
)
from tests.service.problems import assert_problem

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
def test_a_bad_body_is_named(bench: InputBench, what: str) -> None:
    body, status, slug, words = BODIES[what]
    with nothing_stored(bench):
        assert_problem(bench.admin.post("/v1/events", content=body, headers=JSON), status, slug, words)


def test_one_bad_event_refuses_its_batch(bench: InputBench) -> None:
    batch = {"items": [EVENT, EVENT | {"id": "x"}]}
    with nothing_stored(bench):
        assert_problem(bench.admin.post("/v1/events", json=batch), 422, "invalid", "items.1.id")


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
def test_a_bad_job_report_is_named(bench: InputBench, what: str) -> None:
    changes, words = JOBS[what]
    body = json.dumps(JOB | changes).encode()
    with nothing_stored(bench):
        assert_problem(bench.admin.put("/v1/jobs/demo", content=body, headers=JSON), 422, "invalid", words)


RESULTS: dict[str, tuple[bytes, str]] = {
    "NaN": (b"NaN", "values.0"),
    "infinity": (b"-Infinity", "values.0"),
    "so much that a sum overflows": (b"1.7e308", "values.0: Input should be less than or equal to 1"),
    "a text": (b'"1"', "values.0: Value error, a number is wanted"),
    "true": (b"true", "values.0: Value error, a number is wanted"),
    "nothing": (b"null", "values.0"),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_bad_measurement_is_named(bench: InputBench, what: str) -> None:
    """Before the validation is looked for: a comparison must never see it."""
    value, words = RESULTS[what]
    metric = {"name": "m", "unit": "F", "better": "equal", "values": ["@"]}
    run = {"benchmark": "gemm", "state": "ok", "error": None, "seconds": 1.0, "device": "cpu", "metrics": [metric]}
    body = {"suite": "quick", "started_at": 1.0, "finished_at": 2.0, "benchmarks": [run]}
    content = json.dumps(body).encode().replace(b'"@"', value)
    with nothing_stored(bench):
        url = f"/v1/validations/{ABSENT}/results"
        assert_problem(bench.node.post(url, content=content, headers=JSON), 422, "invalid", words)


@pytest.mark.parametrize("token", ["\ud800", "\x00", "x" * 201, ""])
def test_an_impossible_token_signs_nobody_in(bench: InputBench, token: str) -> None:
    with nothing_stored(bench):
        body = json.dumps({"token": token}).encode()
        assert_problem(
            bench.service.client("").post("/v1/auth/session", content=body, headers=JSON), 422, "invalid", "token"
        )


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "application/msgpack", "x", ""])
def test_a_wrong_content_type_is_named(bench: InputBench, media: str) -> None:
    with nothing_stored(bench):
        answer = bench.admin.post("/v1/events", content=GOOD, headers={"Content-Type": media})
        assert_problem(answer, 415, "wrong-content-type", "application/json", media or "without a content type")


# more or less than was announced


def talk(bench: InputBench, head: str, body: bytes = b"", *, hang_up: bool = False) -> bytes:
    """Send raw bytes to the events route; everything that comes back until the other side closes."""
    place = urlsplit(bench.service.url)
    lines = ["POST /v1/events HTTP/1.1", f"Host: {place.netloc}", f"Authorization: Bearer {bench.service.admin_token}"]
    text = "\r\n".join([*lines, "Content-Type: application/json", "Connection: close", head, "", ""])
    with socket.create_connection((place.hostname, place.port), timeout=20) as line:
        line.sendall(text.encode() + body)
        if hang_up:
            line.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def test_a_body_shorter_than_announced_is_not_acted_upon(bench: InputBench) -> None:
    with nothing_stored(bench):
        assert b"HTTP/1.1 2" not in talk(bench, f"Content-Length: {len(GOOD) + 10}", GOOD, hang_up=True)


def test_a_body_longer_than_announced_is_cut(bench: InputBench) -> None:
    with nothing_stored(bench):
        answer = talk(bench, f"Content-Length: {len(GOOD) - 10}", GOOD)
        assert answer.startswith(b"HTTP/1.1 422 ")
        assert b"JSON decode error" in answer


@pytest.mark.slow
def test_too_much_is_refused_when_it_is_announced_and_never_sent(bench: InputBench) -> None:
    with nothing_stored(bench):
        answer = talk(bench, "Content-Length: 99999999", b'{"items"')
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"urn:mainstay:problem:too-large" in answer


@pytest.mark.parametrize("length", ["-1", "nan", "1e3", "99999999999999999999999", "5, 6"])
def test_a_length_that_is_none_is_refused(bench: InputBench, length: str) -> None:
    with nothing_stored(bench):
        answer = talk(bench, f"Content-Length: {length}", b"{}", hang_up=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("path", ["/v1/events", FRAMES])
def test_more_than_is_allowed_in_pieces_is_refused(bench: InputBench, path: str) -> None:
    pieces = (b" " * 1_000_000 for _ in range(12))
    with nothing_stored(bench):
        slug = "frame-too-large" if path == FRAMES else "too-large"
        assert_problem(bench.node.post(path, content=pieces, headers=JSON), 413, slug, "bytes allowed")


# frames: what is not about the fields of an envelope


FRAME_BYTES = {
    "not UTF-8": b"\x82\xa7subject\xa2\xff\xfe\xa7version\x01",
    "a key that is not UTF-8": b"\x81\xa2\xff\xfe\x01",
    "deep": b"\x81\xa8entities" + b"\x91" * 100_000,
    "JSON": GOOD,
}


@pytest.mark.parametrize("what", FRAME_BYTES)
def test_bytes_that_are_no_frame(bench: InputBench, what: str) -> None:
    with nothing_stored(bench):
        assert_problem(bench.node.post(FRAMES, content=FRAME_BYTES[what]), 422, "invalid-frame", "not a frame")


def test_a_frame_of_a_catalog_that_nobody_announced(bench: InputBench, frames: Any) -> None:
    with nothing_stored(bench):
        assert_problem(bench.node.post(FRAMES, content=frames.body(catalog="ab" * 8)), 409, "unknown-catalog", "abab")


def test_a_frame_with_a_wrong_checksum(bench: InputBench, frames: Any) -> None:
    with nothing_stored(bench):
        assert_problem(bench.node.post(FRAMES, content=frames.body(crc32=7)), 422, "invalid-frame", "checksum")


def test_a_frame_of_a_job_that_nobody_knows(bench: InputBench, frames: Any) -> None:
    body = frames.body(subject="nojob", axis=Axis.STEP, entities=("0",))
    with nothing_stored(bench):
        assert_problem(bench.admin.post(FRAMES, content=body), 404, "unknown-subject", "nojob")


@pytest.mark.parametrize("better", ["higher", "lower", "equal"])
def test_the_largest_measurements_are_compared(service: Any, report: Any, better: str) -> None:
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
