"""What a relay takes from whom, and what it answers when it does not."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import shutil
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.lib_receiver import Receiver
from mainstay.probes import relay_intake
from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.frame import Axis, Frame, encode
from mainstay.probes.relay_app import PATIENCE_SECONDS, RelayApp
from mainstay.probes.relay_credentials import FRESH_SECONDS, OUTAGE_SECONDS, RETRY_SECONDS, NodeCredentials
from mainstay.probes.relay_intake import FrameIntake
from mainstay.probes.relay_sender import BundleSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from tests.fakes.clock import ManualClock
from tests.probes.relay_frames import CATALOG, frame

Reply = tuple[int, dict[str, str], bytes]
FRAMES = "/v1/telemetry/frames"
CATALOG_PATH = f"/v1/telemetry/catalogs/{CATALOG.digest}"


class Relay:
    """A relay's parts without a socket and without a running sender."""

    def __init__(self, service: Receiver, directory: Path) -> None:
        self.clock, self.wall = ManualClock(0.0), ManualClock(1000.0)
        self.transport = Transport(service.url, "relay-token", read_s=5.0)
        self.spool = Spool(directory, 16 * 1024 * 1024)
        self.catalogs = CatalogStore(directory)
        self.catalogs.store(CATALOG)
        self.intake = FrameIntake(self.spool, self.catalogs, clock=self.wall.now)
        self.credentials = NodeCredentials(self.transport, clock=self.clock.now)
        self.sender = BundleSender(
            self.spool, self.transport, self.catalogs, relay="r1", gather=0, on_refused=self.credentials.forget
        )
        self.app = RelayApp(self.credentials, self.intake, self.sender, self.catalogs)

    def run(self, *requests: Coroutine[Any, Any, Reply]) -> list[Reply]:
        """Answers of requests that come at once."""

        async def together() -> list[Reply]:
            return list(await asyncio.gather(*requests))

        return asyncio.run(together())

    async def request(self, method: str, path: str, body: bytes = b"", token: str | None = "token-a") -> Reply:
        sent: list[Any] = []
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        parts = [body[k : k + 65536] for k in range(0, len(body), 65536)] or [b""]
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages[-1]["more_body"] = False

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        start, rest = sent
        return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, rest["body"]

    def post(self, sent: Frame | bytes, token: str | None = "token-a") -> Reply:
        body = sent if isinstance(sent, bytes) else encode(sent)
        return self.run(self.request("POST", FRAMES, body, token))[0]

    def get(self, path: str) -> Reply:
        return self.run(self.request("GET", path, token=None))[0]


@pytest.fixture
def service() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.token = "relay-token"
    receiver.node_tokens = {"token-a": "a", "token-b": "b"}
    with receiver:
        yield receiver


@pytest.fixture
def relay(service: Receiver, tmp_path: Path) -> Iterator[Relay]:
    made = Relay(service, tmp_path / "frames")
    yield made
    made.spool.close()
    made.transport.close()


def slug(answer: Reply) -> str:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json"
    document = json.loads(body)
    assert document["status"] == status
    return str(document["type"]).removeprefix("urn:mainstay:problem:")


def test_a_frame_is_on_disk_before_it_is_acknowledged(relay: Relay, tmp_path: Path) -> None:
    body = encode(frame("a"))
    assert relay.post(body) == (204, {"content-length": "0"}, b"")
    shutil.copytree(relay.spool.directory, tmp_path / "copy")
    with Spool(tmp_path / "copy") as again:
        assert [entry.payload for entry in again.peek(9)] == [body]


@pytest.mark.slow
def test_frames_that_arrive_together_share_one_write(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = FrameIntake._write
    monkeypatch.setattr(
        FrameIntake, "_write", lambda self, bodies: (writes.append(len(bodies)), write(self, bodies))[1]
    )
    monkeypatch.setattr(relay_intake, "COMMIT_SECONDS", 1.0)
    relay.post(frame("a"))
    answers = relay.run(*(relay.request("POST", FRAMES, encode(frame("a", k))) for k in range(2, 50)))
    assert {status for status, _, _ in answers} == {204}
    assert writes == [1, 48]
    assert relay.intake.accepted == len(relay.spool) == 49


@pytest.mark.parametrize(
    ("sent", "status", "problem"),
    [
        (b"noise", 422, "invalid-frame"),
        (frame("b"), 403, "wrong-node"),
        (frame("a", axis=Axis.STEP), 403, "wrong-node"),
        (frame("a", catalog="0" * 16), 409, "unknown-catalog"),
        (frame("a", values=b"12345678"), 422, "invalid-frame"),
        (frame("a", entities=("3>4",)), 422, "invalid-frame"),
        (frame("a", t0=1301.0), 422, "invalid-frame"),
        (frame("a", samples=50_000, values=bytes(200_000), wide=bytes(400_000)), 413, "frame-too-large"),
        (bytes(relay_intake.MAX_BODY_BYTES + 1), 413, "frame-too-large"),
    ],
)
def test_a_frame_that_would_be_refused_later_is_refused_now(
    relay: Relay, sent: Frame | bytes, status: int, problem: str
) -> None:
    answer = relay.post(sent)
    assert (answer[0], slug(answer)) == (status, problem)
    assert len(relay.spool) == 0
    assert f'requests_refused_total{{reason="{problem}"}} 1' in relay.get("/metrics")[2].decode()


@pytest.mark.parametrize("token", [None, "", "unknown", "relay-token", "mst_\xe9"])
def test_only_a_nodes_credential_sends(relay: Relay, service: Receiver, token: str | None) -> None:
    asked: list[str] = []
    service.answer = lambda _m, path, _b: asked.append(path)
    for _ in range(2):
        answer = relay.post(frame("a"), token)
        assert (answer[0], slug(answer)) == (401, "unauthorized")
    assert asked == (["/v1/auth/me"] if token else []), "a refused token is not asked about each time"


def test_the_service_is_asked_once_a_token(relay: Relay, service: Receiver) -> None:
    asked: list[str] = []
    service.answer = lambda _m, path, _b: asked.append(path)
    answers = relay.run(*(relay.request("POST", FRAMES, encode(frame("a", k))) for k in range(1, 20)))
    assert {status for status, _, _ in answers} == {204}
    assert asked == ["/v1/auth/me", "/v1/auth/me"], "who the node is, and which racks this relay serves"


def test_a_revoked_token_is_noticed(relay: Relay, service: Receiver) -> None:
    assert relay.post(frame("a"))[0] == 204
    del service.node_tokens["token-a"]
    relay.clock.advance(FRESH_SECONDS - 1)
    assert relay.post(frame("a", 2))[0] == 204
    relay.clock.advance(1)
    first, last = relay.run(_settled(relay))[0], relay.post(frame("a", 4))
    assert first[0] == 204, "the old answer holds while the service is asked"
    assert slug(last) == "unauthorized"


async def _settled(relay: Relay) -> Reply:
    """One request, and the time that the question to the service takes."""
    answer = await relay.request("POST", FRAMES, encode(frame("a", 3)))
    await asyncio.gather(*relay.credentials._asking.values())
    return answer


def test_while_the_service_is_away_known_tokens_hold_and_others_wait(relay: Relay, service: Receiver) -> None:
    assert relay.post(frame("a"))[0] == 204
    service.away()
    relay.clock.advance(OUTAGE_SECONDS - 1)
    assert relay.run(_settled(relay))[0][0] == 204
    unknown = relay.post(frame("b"), "token-b")
    assert (unknown[0], slug(unknown), unknown[1]["retry-after"]) == (503, "unchecked-token", "2")
    relay.clock.advance(1)
    assert slug(relay.post(frame("a", 3))) == "unchecked-token", "a day is enough"
    service.start()
    assert relay.post(frame("b"), "token-b")[0] == 204


def test_a_full_spool_sends_nodes_away_until_it_is_emptied(relay: Relay) -> None:
    rng, sent = random.Random(1), 0

    def post() -> Reply:
        values, wide = rng.randbytes(100_000), rng.randbytes(200_000)  # nothing that shrinks
        return relay.post(frame("a", sent + 1, samples=25_000, dt=0.01, values=values, wide=wide))

    while (answer := post())[0] == 204:
        sent += 1
        assert sent < 100
    assert (answer[0], slug(answer), answer[1]["retry-after"]) == (503, "spool-full", "2")
    assert len(relay.spool) == sent > 40
    assert relay.spool.dropped == 0
    relay.spool.ack(sent)
    assert relay.get("/readyz")[0] == 200
    assert post()[0] == 204


def test_a_disk_that_refuses_is_said(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(relay.spool, "sync", refuse)
    for _ in range(3):
        answer = relay.post(frame("a"))
        assert (answer[0], slug(answer)) == (503, "disk-error")
    monkeypatch.undo()
    for sequence in (2, 3):
        assert relay.post(frame("a", sequence))[0] == 204
    assert caplog.messages == [
        "frames are refused, nodes send them directly: the relay cannot write: [Errno 28] no space left",
        "frames are stored again; 3 were refused",
    ]


def test_a_relay_that_is_cut_off_for_long_sends_nodes_away(relay: Relay) -> None:
    relay.sender.cut_off_since = time.monotonic() - PATIENCE_SECONDS + 30
    assert relay.post(frame("a"))[0] == 204
    relay.sender.cut_off_since = time.monotonic() - PATIENCE_SECONDS - 1
    assert slug(relay.post(frame("a", 2))) == "cut-off"
    assert slug(relay.get("/readyz")) == "cut-off"
    assert relay.get("/healthz")[0] == 200
    relay.sender.cut_off_since = None
    assert relay.post(frame("a", 2))[0] == 204


def test_a_node_of_another_rack_is_sent_away_until_it_moves(relay: Relay, service: Receiver) -> None:
    service.racks["a"] = "rack-2"
    answer = relay.post(frame("a"))
    assert (answer[0], slug(answer)) == (403, "wrong-rack")
    assert "node a is in rack 'rack-2', this relay serves rack-1" in answer[2].decode()
    assert relay.post(frame("b"), "token-b")[0] == 204
    del service.racks["a"]
    assert slug(relay.post(frame("a"))) == "wrong-rack", "asked again after a while"
    relay.clock.advance(RETRY_SECONDS)
    assert relay.post(frame("a"))[0] == 204


def test_a_node_whose_frames_the_service_refuses_is_asked_about_again(relay: Relay, service: Receiver) -> None:
    assert relay.post(frame("a"))[0] == 204
    service.racks["a"] = "rack-2"
    assert relay.post(frame("a", 2))[0] == 204
    relay.credentials.forget("a")
    assert slug(relay.post(frame("a", 3))) == "wrong-rack"


def test_a_catalog_is_kept_for_later_processes(relay: Relay) -> None:
    other = Catalog(("load_1m",), ("oom_kills_total",))
    path = f"/v1/telemetry/catalogs/{other.digest}"
    assert slug(relay.post(frame("a", catalog=other.digest))) == "unknown-catalog"
    assert relay.run(relay.request("PUT", path, msgspec.json.encode(other)))[0][0] == 204
    assert relay.post(frame("a", catalog=other.digest))[0] == 204
    assert CatalogStore(relay.spool.directory).load(other.digest) == other


@pytest.mark.parametrize(
    ("path", "body", "token", "problem"),
    [
        (CATALOG_PATH, b"{}", "token-a", "invalid-catalog"),
        (CATALOG_PATH, b'{"narrow":["load_1m"]}', "token-a", "invalid-catalog"),
        (CATALOG_PATH, b"[", "token-a", "invalid-catalog"),
        (CATALOG_PATH, b"{}", "unknown", "unauthorized"),
        (CATALOG_PATH, bytes(100_000), "token-a", "frame-too-large"),
        ("/v1/telemetry/catalogs/../../x", b"{}", "token-a", "invalid-catalog"),
    ],
)
def test_a_catalog_that_is_none_is_refused(relay: Relay, path: str, body: bytes, token: str, problem: str) -> None:
    assert slug(relay.run(relay.request("PUT", path, body, token))[0]) == problem


def test_metrics_say_what_waits_and_for_how_long(relay: Relay) -> None:
    empty = relay.get("/metrics")[2].decode()
    assert "mainstay_relay_oldest_frame_age_seconds 0.0\n" in empty
    relay.wall.time = time.time()
    relay.post(frame("a", t0=time.time() - 100))
    relay.sender.refused["wrong-rack"] = 3
    status, headers, body = relay.get("/metrics")
    values = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert values["mainstay_relay_frames_accepted_total"] == values["mainstay_relay_spool_entries"] == "1"
    assert 100 <= float(values["mainstay_relay_oldest_frame_age_seconds"]) < 160
    assert int(values["mainstay_relay_spool_bytes"]) > len(encode(frame("a")))
    assert values['mainstay_relay_frames_refused_total{reason="wrong-rack"}'] == "3"
