"""Frames about a job's progress and its pairs of ranks, over real HTTP: whose they may be, and what is refused."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from mainstay.probes.frame import Axis, Frame, decode, encode
from mainstay.probes.signals import Catalog, SignalSource, catalog
from mainstay.service.telemetry.blocks import BlockKind
from tests.service.run_frames import PAIR, PROGRESS, RANK, pair_frame, progress_frame, step_frame

FRAMES, BLOCKS = "/v1/telemetry/frames", "/v1/telemetry/blocks"


def job_report(ranks: int = 4, **changes: Any) -> dict[str, Any]:
    places = [
        {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": "n1", "device": None, "pid": None, "state": "running"}
        for r in range(ranks)
    ]
    return {
        "name": "demo", "state": "running", "generation": 1, "command": "train.py",
        "topology": {"dp": ranks, "pp": 1, "tp": 1, "world_size": ranks, "ranks": places},
        "protection": {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []},
        "steps_total": None, "last_step": None, "started_at": time.time() - 100, "finished_at": None, **changes,
    }  # fmt: skip


def job_client(running: Any, job: str = "demo-1") -> httpx.Client:
    """A client that speaks for one announced job."""
    made = running.client().post("/v1/auth/tokens", json={"name": job, "kind": "job", "job": job})
    assert made.status_code == 201, made.text
    client: httpx.Client = running.client(made.json()["token"])
    assert client.put(f"/v1/jobs/{job}", json=job_report()).status_code == 200
    return client


def send(client: httpx.Client, frame: Frame) -> httpx.Response:
    return client.post(FRAMES, content=encode(frame))


def stored(running: Any) -> int:
    return len(list(running.services.blocks.read(0.0, time.time() + 10_000, kinds=list(BlockKind))))


def test_progress_is_kept_once_and_is_no_beat_of_a_node(service_anywhere) -> None:
    job, now = job_client(service_anywhere), float(int(time.time()))
    frame = progress_frame(now - 2, {"progress_step": 5, "dp_completed": 2**40}, samples=2, dt=0.5)
    assert send(job, frame).status_code == 204
    again = send(job, frame)
    assert (again.status_code, again.headers["x-mainstay-duplicate"]) == (204, "1")
    assert stored(service_anywhere) == 1
    latest = service_anywhere.services.progress.latest("demo-1")
    assert latest.values["dp_completed"].tolist() == [2.0**40] * 4
    assert service_anywhere.services.seen.get("demo-1") is None
    assert service_anywhere.services.seen.get("n1") is None
    assert service_anywhere.services.ring.head(SignalSource.HOST) is None


def test_transfers_are_kept_once(service_anywhere) -> None:
    job, now = job_client(service_anywhere), time.time()
    frame = pair_frame(7, [[0.1, 0.1], [0.2, 0.2]], pairs=("0>1", "1>0"), end=[now - 2, now - 1], samples=2)
    assert [send(job, frame).status_code for _ in range(2)] == [204, 204]
    assert stored(service_anywhere) == 1
    window = service_anywhere.services.pairs.window("demo-1")
    assert (window.steps.tolist(), window.pairs) == ([7, 8], ((0, 1), (1, 0)))


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_a_restart_fills_all_stores_again(start, tmp_path, request, url: str) -> None:
    database = f"sqlite:///{tmp_path / 'again.db'}" if url == "sqlite" else request.getfixturevalue("postgres_url")
    first, now = start(database_url=database), float(int(time.time()))
    job = job_client(first)
    steps = step_frame(3, {"step_time_seconds": 0.5}, end=now - 3)
    for frame in (
        progress_frame(now - 3, {"progress_step": 3}),
        pair_frame(3, 0.1, pairs=("2>3",), end=now - 3),
        steps,
    ):
        assert send(job, frame).status_code == 204
    first.services.ingest.writer.stop()
    again = start(database_url=database).services
    assert again.progress.latest("demo-1").values["progress_step"].tolist() == [3.0] * 4
    assert again.pairs.last_step("demo-1") == 3
    assert again.steps.last_step("demo-1") == 3


def test_progress_that_nobody_would_look_at_is_not_read_back(start) -> None:
    first, now = start(), float(int(time.time()))
    job = job_client(first)
    for age in (400.0, 100.0):
        assert send(job, progress_frame(now - age, {"progress_step": int(age)})).status_code == 204
    first.services.ingest.writer.stop()
    again = start().services
    assert again.progress.oldest("demo-1") == now - 100.0
    assert again.progress.latest("demo-1").values["progress_step"].tolist() == [100.0] * 4


Spoiler = Callable[[float], Frame]
BAD: dict[str, tuple[Spoiler, int, str, str]] = {
    # what: (frame at a time, status, slug, words of the detail)
    "progress on the step axis": (
        lambda now: progress_frame(3.0, {"progress_step": 1}, axis=Axis.STEP),
        422, "invalid-frame", "progress stand on the time axis",
    ),
    "pairs on the time axis": (
        lambda now: pair_frame(int(now), 0.1, pairs=("0>1",), end=now, axis=Axis.TIME),
        422, "invalid-frame", "pairs stand on the step axis",
    ),
    "steps on the time axis": (
        lambda now: step_frame(int(now), {}, end=now, axis=Axis.TIME),
        422, "invalid-frame", "steps stand on the step axis",
    ),
    "progress of a device": (
        lambda now: progress_frame(now, {"progress_step": 1}, entities=("gpu0",)),
        422, "invalid-frame", "of a progress frame is not a rank number: 'gpu0'",
    ),
    "progress of a pair": (
        lambda now: progress_frame(now, {"progress_step": 1}, entities=("0>1",)), 422, "invalid-frame", "'0>1'",
    ),
    "progress of a rank beyond the world": (
        lambda now: progress_frame(now, {"progress_step": 1}, entities=("0", "4")),
        422, "invalid-frame", "rank 4 is not one of the 4 ranks",
    ),
    "a rank with two names": (
        lambda now: progress_frame(now, {"progress_step": 1}, entities=("1", "01")),
        422, "invalid-frame", "leading zeros",
    ),
    "a pair beyond the world": (
        lambda now: pair_frame(1, 0.1, pairs=("0>1", "1>9"), end=now),
        422, "invalid-frame", "rank 9 is not one of the 4",
    ),
    "a pair of one": (
        lambda now: pair_frame(1, 0.1, pairs=("2>2",), end=now), 422, "invalid-frame", "nothing to itself",
    ),
    "half a pair": (lambda now: pair_frame(1, 0.1, pairs=("2",), end=now), 422, "invalid-frame", "not a pair of ranks"),
    "a pair of words": (lambda now: pair_frame(1, 0.1, pairs=("a>b",), end=now), 422, "invalid-frame", "entity 'a>b'"),
    "a pair with a zero before": (
        lambda now: pair_frame(1, 0.1, pairs=("0>01",), end=now), 422, "invalid-frame", "leading zeros",
    ),
    "pairs without a place in time": (
        lambda now: pair_frame(1, 0.1, pairs=("0>1",), end=0.0, values_of={"step_end_nanoseconds": -(2**63)}),
        422, "invalid-frame", "no place in time",
    ),
    "too fine a grid": (
        lambda now: progress_frame(now, {"progress_step": 1}, dt=0.01),
        422, "invalid-frame", "dt 0.01 of a progress frame",
    ),
    "too coarse a grid": (
        lambda now: progress_frame(now, {"progress_step": 1}, dt=90.0),
        422, "invalid-frame", "dt 90.0 of a progress frame",
    ),
    "no phase": (
        lambda now: progress_frame(now, {"progress_phase": 7.0}), 422, "value-out-of-range", "progress_phase of 0",
    ),
    "half a phase": (
        lambda now: step_frame(1, {"step_phase": 0.5}, end=now), 422, "value-out-of-range", "no StepPhase",
    ),
    "an endless call": (
        lambda now: progress_frame(now, {"in_collective_seconds": np.inf}),
        422, "value-out-of-range", "in_collective_seconds",
    ),
    "fewer than no collectives": (
        lambda now: progress_frame(now, {"tp_enqueued": -1}), 422, "value-out-of-range", "tp_enqueued of 0",
    ),
    "negative seconds": (
        lambda now: pair_frame(1, -0.5, pairs=("0>1",), end=now), 422, "value-out-of-range", "transfer_seconds of 0>1",
    ),
    "short values": (
        lambda now: progress_frame(now, {}, values=b"", crc32=0), 422, "invalid-frame", "checksum",
    ),
    "the future": (
        lambda now: progress_frame(now + 1000, {"progress_step": 1}), 422, "outside-retention", "in the future",
    ),
    "the distant past": (lambda now: progress_frame(1000.0, {"progress_step": 1}), 422, "outside-retention", "older"),
    "another's job": (
        lambda now: progress_frame(now, {"progress_step": 1}, subject="demo-2"), 403, "wrong-job", "'demo-2'",
    ),
    "another's pairs": (
        lambda now: pair_frame(1, 0.1, pairs=("0>1",), end=now, subject="demo-2"), 403, "wrong-job", "'demo-2'",
    ),
}  # fmt: skip


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, str(answer.json()["type"]).removeprefix("urn:mainstay:problem:")


def test_refused_frames_say_why_and_leave_nothing(service) -> None:
    job, now = job_client(service), float(int(time.time()))
    for what, (make, status, slug, words) in BAD.items():
        answer = send(job, make(now))
        assert problem(answer) == (status, slug), (what, answer.text)
        assert words in answer.json()["detail"], (what, answer.text)
    assert stored(service) == 0
    assert service.services.progress.jobs() == ()
    assert service.services.pairs.last_step("demo-1") is None
    assert send(job, progress_frame(now, {"progress_step": 1})).status_code == 204, "the service still works"


def test_a_node_writes_no_jobs_progress_and_a_reader_nothing(service) -> None:
    now = float(int(time.time()))
    job_client(service)
    frame = progress_frame(now, {"progress_step": 1})
    assert problem(send(service.node_client("n1"), frame)) == (403, "wrong-job")
    reader = service.client().post("/v1/auth/tokens", json={"name": "r", "kind": "user", "scopes": ["read"]}).json()
    assert problem(send(service.client(reader["token"]), frame)) == (403, "scope-missing")
    unknown = send(service.client(), progress_frame(now, {"progress_step": 1}, subject="absent"))
    assert problem(unknown) == (404, "unknown-subject")
    assert stored(service) == 0


def test_a_catalog_of_several_kinds_tells_of_nothing(service) -> None:
    job, now = job_client(service), float(int(time.time()))
    mixed = Catalog(("progress_phase", "load_1m"), ())
    names = {"narrow": list(mixed.narrow), "wide": []}
    assert job.put(f"/v1/telemetry/catalogs/{mixed.digest}", json=names).status_code == 204
    values = np.zeros((4, 2, 1), "<f4").tobytes()
    frame = progress_frame(now, {}, catalog=mixed.digest, values=values, wide=b"", crc32=0)
    admin = service.client()
    service.node_client("demo-1")
    answer = admin.post(FRAMES, content=encode(_summed(frame)))
    assert problem(answer) == (422, "invalid-frame")
    assert "mixes" in answer.json()["detail"]
    assert stored(service) == 0


def _summed(frame: Frame) -> Frame:
    import msgspec

    from mainstay.probes.frame import checksum

    return msgspec.structs.replace(frame, crc32=checksum(frame.values, frame.wide))


def test_our_own_catalogs_are_known_from_the_start(service) -> None:
    client = service.client()
    for made in (PROGRESS, PAIR, RANK, catalog(SignalSource.HOST)):
        told = client.get(f"/v1/telemetry/catalogs/{made.digest}").json()
        assert (tuple(told["narrow"]), tuple(told["wide"])) == (made.narrow, made.wide)
    assert problem(client.get(f"/v1/telemetry/catalogs/{'0' * 16}")) == (404, "unknown-catalog")


def frames_in(body: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(body):
        (length,) = struct.unpack_from("<I", body, place)
        found.append(body[place + 4 : place + 4 + length])
        place += 4 + length
    assert place == len(body)
    return found


def read_all(client: httpx.Client, **query: Any) -> list[bytes]:
    found: list[bytes] = []
    while True:
        answer = client.get(BLOCKS, params=query)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/octet-stream"
        found += frames_in(answer.content)
        if "x-mainstay-next" not in answer.headers:
            return found
        query["after"] = answer.headers["x-mainstay-next"]


def test_stored_frames_come_back_as_they_came_oldest_first(service_anywhere, frames) -> None:
    job, now = job_client(service_anywhere), float(int(time.time()))
    node = service_anywhere.node_client("n1")
    sent: list[tuple[float, bytes]] = []
    for number in range(10):
        at = now - 100 + 5 * number
        sent.append((at, frames.body(number, t0=at)))
        sent.append((at + 1, encode(progress_frame(at + 1, {"progress_step": number}))))
        sent.append((at + 2, encode(step_frame(number, {"loss": 1.0}, end=at + 2))))
    for _, body in reversed(sent):
        subject = decode(body).subject
        assert (node if subject == "n1" else job).post(FRAMES, content=body).status_code == 204
    reader = service_anywhere.client()
    whole = {"start": now - 200, "stop": now + 10}
    expected = [body for _, body in sorted(sent, key=lambda pair: pair[0])]
    assert read_all(reader, **whole) == expected
    for limit in (1, 7, 30, 31):
        assert read_all(reader, **whole, limit=limit) == expected, f"in answers of {limit}"
    assert read_all(reader, **whole, subject="n1", limit=3) == [body for body in expected if b"n1" in body[:200]]
    part = read_all(reader, start=now - 60, stop=now - 55)
    assert part == [body for at, body in sorted(sent) if now - 62 < at < now - 55 and at + 1 >= now - 60]
    assert read_all(reader, start=now + 100, stop=now + 200) == []


def test_reading_blocks_is_for_readers_and_wants_sense(service) -> None:
    client = service.client()
    assert problem(service.client("").get(BLOCKS, params={"start": 0, "stop": 1})) == (401, "unauthorized")
    assert client.get(BLOCKS, params={"start": 2, "stop": 1}).status_code == 422
    assert client.get(BLOCKS, params={"start": 0}).status_code == 422
    for cursor in ("x", "", "bm90IGpzb24=", "W10=", "WzEsMiwzXQ==", "WyJhIiwiYiIsImMiLCJkIl0=", "\x00"):
        assert problem(client.get(BLOCKS, params={"start": 0, "stop": 1, "after": cursor})) == (
            422,
            "invalid-cursor",
        ), cursor
