"""The frame route over real HTTP: durable before it is acknowledged, once, and nothing of a refused frame is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mainstay.probes.bundle import decode_bundle, decode_layout, encode_bundle, pack
from mainstay.probes.frame import MAX_FRAME_BYTES, Axis, Frame, checksum, encode
from mainstay.probes.signals import WIDE_MISSING, Catalog, SignalSource, catalog
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock

FRAMES = "/v1/telemetry/frames"
BUNDLES = "/v1/telemetry/bundles"


def stored(running: Any) -> list[StoredBlock]:
    return list(running.services.blocks.read(0.0, time.time() + 10_000, kinds=list(BlockKind)))


def slug(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["detail"]
    return str(problem["type"]).removeprefix("urn:mainstay:problem:")


@pytest.fixture
def node(service) -> httpx.Client:
    return service.node_client("n1")


def test_a_frame_is_durable_when_it_is_acknowledged(service_anywhere, frames) -> None:
    node = service_anywhere.node_client("n1")
    body = frames.body(1)
    answer = node.post(FRAMES, content=body)
    assert (answer.status_code, answer.content) == (204, b"")
    assert "x-mainstay-duplicate" not in answer.headers
    assert [block.body for block in stored(service_anywhere)] == [body]


def test_a_repeated_frame_is_acknowledged_and_kept_once(service_anywhere, frames) -> None:
    node = service_anywhere.node_client("n1")
    for number in (1, 2, 1, 2):
        answer = node.post(FRAMES, content=frames.body(number))
        assert answer.status_code == 204
    assert answer.headers["x-mainstay-duplicate"] == "1"
    assert [block.sequence for block in stored(service_anywhere)] == [1, 2]


def test_a_bundle_that_was_stored_without_a_member_does_not_acknowledge_that_member_later(
    service_anywhere, frames
) -> None:
    """The answer that refused it was lost, and the relay repeats the bundle when the node is known."""
    service_anywhere.node_client("n1")
    relay = service_anywhere.client()
    both = [frames.frame(1), frames.frame(1, subject="n2")]

    def send(sequence: int, members: list[Frame]) -> list[tuple[str, str]]:
        body = encode_bundle(pack(members, relay="r1", stream="s", sequence=sequence))
        answer = relay.post(BUNDLES, content=body)
        assert answer.status_code in {200, 204}, answer.text
        return [(one["subject"], one["slug"]) for one in answer.json()["rejected"]] if answer.content else []

    assert send(1, both) == [("n2", "unknown-subject")]
    service_anywhere.node_client("n2")
    assert send(1, both) == [("n2", "unknown-subject")], "it is not stored"
    assert send(2, both[1:]) == send(2, both[1:]) == []
    assert [decode_layout(decode_bundle(block.body).layout).subjects for block in stored(service_anywhere)] == [
        ("n1",), ("n2",)
    ]  # fmt: skip


def test_the_same_frame_many_times_at_once_is_kept_once(service, frames) -> None:
    node = service.node_client("n1")
    bodies = [frames.body(number) for number in range(1, 6)] * 6
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda body: node.post(FRAMES, content=body), bodies))
    assert {answer.status_code for answer in answers} == {204}
    assert sorted(block.sequence for block in stored(service)) == [1, 2, 3, 4, 5]
    assert sum("x-mainstay-duplicate" not in answer.headers for answer in answers) == 5


def test_frames_out_of_order_are_all_kept(service, node, frames) -> None:
    for number in (9, 3, 7, 1):
        assert node.post(FRAMES, content=frames.body(number)).status_code == 204
    assert sorted(block.sequence for block in stored(service)) == [1, 3, 7, 9]


def test_an_acknowledged_frame_can_be_queried_at_once(service, node, frames) -> None:
    now = int(time.time())
    node.post(FRAMES, content=frames.body(1, t0=float(now - 10)))
    query = {"node": "n1", "signal": "cpu_utilization_ratio", "from": now - 12, "to": now - 6}
    answer = node.get("/v1/telemetry/query", params=query).json()
    assert answer["t"] == [float(t) for t in range(now - 12, now - 6)]
    assert answer["series"][0]["mean"] == [None, None, 0.25, 0.25, None, None]


def test_a_restart_fills_the_ring_again(start, frames) -> None:
    now = int(time.time())
    first = start()
    first.node_client("n1").post(FRAMES, content=frames.body(1, t0=float(now - 10)))
    first.app.state.services.ingest.writer.stop()
    second = start()
    query = {"node": "n1", "signal": "cpu_utilization_ratio", "from": now - 10, "to": now - 8}
    assert second.client().get("/v1/telemetry/query", params=query).json()["series"][0]["mean"] == [0.25, 0.25]


def test_old_ranges_are_read_from_blocks_with_their_rates(service, node, frames) -> None:
    begin = (int(time.time()) - 7200) // 60 * 60
    for number in range(30):
        assert node.post(FRAMES, content=frames.body(number, t0=float(begin + 2 * number))).status_code == 204
    signals = ["cpu_utilization_ratio", "disk_read_bytes_total"]
    query = {"node": "n1", "signal": signals, "from": begin, "to": begin + 60, "points": 6}
    answer = node.get("/v1/telemetry/query", params=query).json()
    cpu, reads = answer["series"]
    assert cpu["mean"] == [0.25] * 6
    assert reads["unit"] == "B/s"
    assert reads["mean"] == [100.0] * 6


def test_an_announced_catalog_opens_the_endpoint(service, node, frames) -> None:
    made = Catalog(("load_1m",), ())
    body = frames.body(1, catalog=made.digest, values=np.ones(2, "<f4").tobytes(), wide=b"")
    refused = node.post(FRAMES, content=body)
    assert (refused.status_code, slug(refused)) == (409, "unknown-catalog")
    names = {"narrow": ["load_1m"], "wide": []}
    assert node.put(f"/v1/telemetry/catalogs/{made.digest}", json=names).status_code == 204
    assert node.put(f"/v1/telemetry/catalogs/{made.digest}", json=names).status_code == 204
    assert node.post(FRAMES, content=body).status_code == 204
    wrong = node.put(f"/v1/telemetry/catalogs/{'0' * 16}", json=names)
    assert (wrong.status_code, slug(wrong)) == (422, "invalid-catalog")


HOST = catalog(SignalSource.HOST)
CELLS = len(HOST.narrow) * 2


def spoilt(frames: Any) -> dict[str, tuple[bytes, int, str, str]]:
    """What: (body, status, slug, words of the detail)."""
    good = frames.body(1)
    return {
        "empty": (b"", 422, "invalid-frame", "not a frame"),
        "not msgpack": (b"\xc1\xc1\xc1", 422, "invalid-frame", "not a frame"),
        "truncated": (good[: len(good) // 2], 422, "invalid-frame", "truncated"),
        "trailing bytes": (good + b"x", 422, "invalid-frame", "trailing"),
        "oversized": (b"\x00" * (MAX_FRAME_BYTES + 1), 413, "frame-too-large", str(MAX_FRAME_BYTES)),
        "missing field": (msgspec.msgpack.encode({"version": 1}), 422, "invalid-frame", "subject"),
        "wrong type": (
            msgspec.msgpack.encode({**msgspec.to_builtins(frames.frame(1), builtin_types=(bytes,)), "sequence": "1"}),
            422, "invalid-frame", "sequence",
        ),
        "NaN as an id": (
            msgspec.msgpack.encode(
                {**msgspec.to_builtins(frames.frame(1), builtin_types=(bytes,)), "entities": [float("nan")]}
            ),
            422, "invalid-frame", "entities",
        ),
        "NaN as a sequence": (
            msgspec.msgpack.encode(
                {**msgspec.to_builtins(frames.frame(1), builtin_types=(bytes,)), "sequence": float("nan")}
            ),
            422, "invalid-frame", "sequence",
        ),
        "version": (frames.body(1, version=2), 422, "invalid-frame", "version 2"),
        "subject": (frames.body(1, subject="a b"), 422, "invalid-frame", "'a b'"),
        "NUL in a stream": (frames.body(1, stream="s\x00"), 422, "invalid-frame", "stream"),
        "entity": (frames.body(1, entities=("host\n",)), 422, "invalid-frame", "entity"),
        "entity twice": (
            frames.body(1, entities=("host", "host")),
            422, "invalid-frame", "twice",
        ),
        "NaN as a time": (frames.body(1, t0=float("nan")), 422, "invalid-frame", "t0=nan"),
        "infinite time": (frames.body(1, t0=float("inf")), 422, "invalid-frame", "t0=inf"),
        "zero dt": (frames.body(1, dt=0.0), 422, "invalid-frame", "dt"),
        "longer than an hour": (frames.body(1, dt=3601.0), 422, "invalid-frame", "spans"),
        "no samples": (frames.body(1, samples=0, values=b"", wide=b""), 422, "invalid-frame", "samples"),
        "short values": (frames.body(1, values=bytes(CELLS * 4 - 4)), 422, "invalid-frame", "values has"),
        "long wide": (frames.body(1, wide=bytes(8 * 1000)), 422, "invalid-frame", "wide has"),
        "damaged": (frames.body(1, crc32=1), 422, "invalid-frame", "checksum"),
        "unknown catalog": (frames.body(1, catalog="ab" * 8), 409, "unknown-catalog", "abab"),
        "infinity": (frames.with_narrow("load_1m", np.inf), 422, "value-out-of-range", "load_1m of host"),
        "minus infinity": (frames.with_narrow("load_1m", -np.inf), 422, "value-out-of-range", "load_1m of host"),
        "too high": (frames.with_narrow("cpu_utilization_ratio", 1.5), 422, "value-out-of-range", "is 1.5"),
        "too low": (frames.with_narrow("memory_used_bytes", -1), 422, "value-out-of-range", "memory_used_bytes"),
        "negative counter": (
            frames.body(1, wide=np.full((1, len(HOST.wide), 2), -5, "<i8").tobytes()),
            422, "value-out-of-range", "is -5",
        ),
        "the future": (frames.body(1, t0=time.time() + 1000), 422, "outside-retention", "in the future"),
        "the distant past": (frames.body(1, t0=1000.0), 422, "outside-retention", "older"),
        "another node": (frames.body(1, subject="n2"), 403, "wrong-node", "'n2'"),
        "another's job": (frames.body(1, subject="j", axis=Axis.STEP), 403, "wrong-job", "'j'"),
    }  # fmt: skip


def test_refused_frames_say_why_and_leave_nothing(service, frames) -> None:
    node = service.node_client("n1")
    for what, (body, status, name, words) in spoilt(frames).items():
        answer = node.post(FRAMES, content=body)
        assert answer.status_code == status, (what, answer.text)
        assert slug(answer) == name, (what, answer.text)
        assert words in answer.json()["detail"], (what, answer.text)
    assert stored(service) == []
    assert node.post(FRAMES, content=frames.body(1)).status_code == 204, "the service still works"
    refused = service.services.ingest.refused
    assert refused["invalid-frame"] > 10
    assert 'mainstay_frames_rejected_total{problem="invalid-frame"}' in node.get("/metrics").text


def test_frames_need_a_token_that_may(start, frames) -> None:
    service = start()
    body = frames.body(1)
    node = service.node_client("n1")
    admin = service.client()
    reader = admin.post("/v1/auth/tokens", json={"name": "r", "scopes": ["read"]}).json()["token"]
    join = admin.post("/v1/auth/tokens", json={"name": "j", "kind": "join"}).json()["token"]
    ending = {"name": "e", "scopes": ["admin"], "expires_in": 0.001}
    expired = admin.post("/v1/auth/tokens", json=ending).json()["token"]
    time.sleep(0.002)
    expectations = {"": 401, "nonsense": 401, "mst_node_" + "x" * 43: 401, expired: 401, reader: 403, join: 403}
    for token, status in expectations.items():
        answer = service.client(token).post(FRAMES, content=body)
        assert (answer.status_code, bool(slug(answer))) == (status, True), token
        assert (status == 401) == ("www-authenticate" in answer.headers)
    assert stored(service) == []
    assert service.services.ingest.writer.stats.stored == 0
    assert node.post(FRAMES, content=body).status_code == 204
    assert admin.post(FRAMES, content=frames.body(2)).status_code == 204, "an admin may write for a node"


def test_a_node_nobody_knows_is_refused_even_to_an_admin(service, frames) -> None:
    answer = service.client().post(FRAMES, content=frames.body(1, subject="absent"))
    assert (answer.status_code, slug(answer)) == (404, "unknown-subject")
    steps = {"axis": Axis.STEP, "entities": ("0",), "catalog": catalog(SignalSource.RANK).digest}
    answer = service.client().post(FRAMES, content=frames.body(1, subject="nojob", **steps))
    assert (answer.status_code, slug(answer)) == (404, "unknown-subject")


def test_missing_samples_are_welcome(service, node, frames) -> None:
    now = int(time.time())
    values = np.full((1, len(HOST.narrow), 2), np.nan, "<f4").tobytes()
    wide = np.full((1, len(HOST.wide), 2), WIDE_MISSING, "<i8").tobytes()
    assert node.post(FRAMES, content=frames.body(1, values=values, wide=wide, t0=float(now - 5))).status_code == 204
    query = {"node": "n1", "signal": "load_1m", "from": now - 5, "to": now - 3}
    assert node.get("/v1/telemetry/query", params=query).json()["series"][0]["mean"] == [None, None]


def test_a_body_without_a_length_is_bounded_too(service, node) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(10):
            yield bytes(1024 * 1024)

    answer = node.post(FRAMES, content=endless())
    assert (answer.status_code, slug(answer)) == (413, "frame-too-large")


@pytest.fixture(scope="module")
def fuzzed(lasting_service):
    return lasting_service, lasting_service.node_client("n1")


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(body=st.binary(max_size=300))
def test_no_bytes_harm_the_route(fuzzed, body: bytes) -> None:
    running, node = fuzzed
    answer = node.post(FRAMES, content=body)
    assert answer.status_code == 422
    assert slug(answer) == "invalid-frame"
    assert running.services.ingest.writer.stats.stored == 0


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=9),
    st.lists(st.integers(0, 9), max_size=3),
)  # fmt: skip
FIELDS = ("version", "subject", "axis", "stream", "sequence", "t0", "dt", "catalog", "entities", "samples", "crc32")


@FUZZ
@given(field=st.sampled_from((*FIELDS, "values", "wide")), junk=JUNK)
def test_no_single_bad_field_harms_the_route(fuzzed, frames, field: str, junk: Any) -> None:
    running, node = fuzzed
    good = msgspec.to_builtins(frames.frame(1), builtin_types=(bytes,))
    if good[field] == junk:
        return
    answer = node.post(FRAMES, content=msgspec.msgpack.encode({**good, field: junk}))
    if answer.status_code != 204:  # another stream name or number is a good frame
        assert 400 <= answer.status_code < 500, answer.text
        assert slug(answer)
    else:
        assert field in {"stream", "sequence", "t0", "dt"}
    assert running.services.ingest.writer.healthy()


@FUZZ
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_stored_silently(fuzzed, frames, position: int, bit: int) -> None:
    """The checksum covers the payload; a flip in the envelope is refused, or makes another well-formed envelope."""
    _, node = fuzzed
    frame = frames.frame(77, t0=float(int(time.time()) - 100))
    body = bytearray(encode(frame))
    payload = range(body.find(frame.values), body.find(frame.values) + len(frame.values))
    place = position % len(body)
    body[place] ^= 1 << bit
    answer = node.post(FRAMES, content=bytes(body))
    assert answer.status_code < 500
    if place in payload:
        assert answer.status_code == 422


def test_a_failing_disk_is_answered_and_forgiven(service, frames, monkeypatch, caplog) -> None:
    node = service.node_client("n1")
    writer = service.services.ingest.writer
    real = writer.store.append

    def fail(_blocks: object) -> list[bool]:
        raise OSError("disk full")

    monkeypatch.setattr(writer.store, "append", fail)
    answer = node.post(FRAMES, content=frames.body(1))
    assert (answer.status_code, slug(answer)) == (503, "not-durable")
    assert answer.headers["retry-after"] == "1"
    assert "disk full" in caplog.text
    monkeypatch.setattr(writer.store, "append", real)
    assert node.post(FRAMES, content=frames.body(1)).status_code == 204
    assert [block.sequence for block in stored(service)] == [1]


def test_an_acknowledgement_waits_for_its_commit_and_no_longer_than_the_interval(service, frames, monkeypatch) -> None:
    node = service.node_client("n1")
    store = service.services.blocks
    gate, real = threading.Event(), store.append

    def slow(blocks: Any) -> list[bool]:
        gate.wait(10)
        return list(real(blocks))

    monkeypatch.setattr(store, "append", slow)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(node.post, FRAMES, content=frames.body(n)) for n in (1, 2)]
        time.sleep(0.3)
        assert not any(answer.done() for answer in answers), "not durable yet: not acknowledged"
        gate.set()
        assert [answer.result().status_code for answer in answers] == [204, 204]


def test_retention_drops_whole_old_hours(start, frames) -> None:
    service = start(telemetry={"retention_hours": 2})
    node = service.node_client("n1")
    now = time.time()
    assert node.post(FRAMES, content=frames.body(1, t0=now - 60)).status_code == 204
    service.services.blocks.append([StoredBlock("n1", BlockKind.TIME, "old", 1, now - 5 * 3600, now - 5 * 3600, b"x")])
    loop = next(loop for loop in service.app.state.loops if loop.name == "telemetry-retention")
    loop.run_once()
    assert [block.stream for block in stored(service)] == ["s1"]


def test_checksum_is_over_both_halves() -> None:
    assert checksum(b"ab", b"cd") != checksum(b"cd", b"ab")
