"""Frames that the HTTP protocol answers without the app, and all that it leaves to the app, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
import pytest

from mainstay.service import server
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockKind
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore
from mainstay.service.telemetry.frame_protocol import FrameProtocol
from mainstay.service.telemetry.route import FRAMES, FrameGateway
from tests.service.server_thread import served


def request(token: str, body: bytes, *more: str, framing: str | None = None, version: str = "1.1") -> bytes:
    length = f"Content-Length: {len(body)}" if framing is None else framing
    lines = [f"POST {FRAMES} HTTP/{version}", "Host: localhost", f"Authorization: Bearer {token}", length, *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """A client that sends bytes and reads one answer at a time."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(60)
        self._read = b""

    def send(self, data: bytes) -> Connection:
        self.sock.sendall(data)
        return self

    def answer(self) -> bytes:
        """The next answer without its date."""
        head = self._until(lambda read: read.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in read else 0)
        lines = head.split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")]
        body = self._until(lambda read: sum(sizes) if len(read) >= sum(sizes) else 0) if sum(sizes) else b""
        assert any(line.startswith(b"date: ") for line in lines)
        return b"\r\n".join(line for line in lines if not line.startswith(b"date: ")) + body

    def _until(self, length: Callable[[bytes], int]) -> bytes:
        while not (end := length(self._read)):
            chunk = self.sock.recv(65_536)
            assert chunk, f"the connection ended after {self._read!r}"
            self._read += chunk
        found, self._read = self._read[:end], self._read[end:]
        return found

    def rest(self) -> bytes:
        """All that comes until the service closes."""
        while chunk := self.sock.recv(65_536):
            self._read += chunk
        return self._read

    def is_closed(self) -> bool:
        """Wait until the service closes."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


STORED = b"HTTP/1.1 204 No Content\r\n\r\n"
REPEATED = b"HTTP/1.1 204 No Content\r\nx-mainstay-duplicate: 1\r\n\r\n"


@dataclass
class Node:
    """Node n1, whose token the service remembers."""

    service: Any
    token: str
    frames: Any
    _stack: ExitStack

    def connect(self) -> Connection:
        port = httpx.URL(self.service.url).port
        assert port is not None
        return self._stack.enter_context(Connection(port))

    def frame(self, number: int, *lines: str, **changes: Any) -> bytes:
        return request(self.token, self.frames.body(number, **changes), *lines)

    def stored(self) -> list[int]:
        """Sequence numbers."""
        blocks = self.service.services.blocks.read(0.0, time.time() + 10_000, kinds=list(BlockKind))
        return sorted(block.sequence for block in blocks)


@pytest.fixture
def node(service: Any, frames: Any) -> Iterator[Node]:
    client = service.node_client("n1")
    assert client.post(FRAMES, content=frames.body(1)).status_code == 204
    with ExitStack() as stack:
        yield Node(service, client.headers["authorization"].partition(" ")[2], frames, stack)


@pytest.fixture
def through_app(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests that reached the app."""
    paths: list[str] = []
    real = FrameGateway.__call__

    async def call(self: FrameGateway, scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope.get("path", ""))
        await real(self, scope, receive, send)

    monkeypatch.setattr(FrameGateway, "__call__", call)
    return paths


@dataclass
class Hold:
    """Commits wait for ``gate``; ``reached`` is set when one does."""

    gate: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    hold, real = Hold(), SqliteBlockStore.append

    def append(self: SqliteBlockStore, blocks: Any) -> list[bool]:
        hold.reached.set()
        hold.gate.wait(60)
        return real(self, blocks)

    monkeypatch.setattr(SqliteBlockStore, "append", append)
    try:
        yield hold
    finally:
        hold.gate.set()


def test_a_frame_of_a_known_node_does_not_reach_the_app(node, through_app) -> None:
    connection = node.connect()
    seen = node.service.services.seen.get("n1")
    for number in (2, 3):
        assert connection.send(node.frame(number)).answer() == STORED
    assert connection.send(node.frame(2)).answer() == REPEATED
    assert through_app == [], (
        "uvicorn no longer starts requests by HttpToolsProtocol._start_asgi_task: see FrameProtocol"
    )
    assert node.stored() == [1, 2, 3]
    assert node.service.services.seen.get("n1") > seen
    assert node.service.services.ingest.writer.stats.duplicates == 1


def test_both_ways_answer_the_same_bytes(node, through_app, monkeypatch) -> None:
    def answers(number: int) -> list[bytes]:
        found = [node.connect().send(node.frame(number)).answer() for _ in range(2)]
        return [*found, node.connect().send(node.frame(number, "Connection: close")).answer()]

    direct = answers(2)
    assert through_app == []
    monkeypatch.setattr(FrameProtocol, "_identify", lambda *_: None)
    assert answers(3) == direct
    assert through_app == [FRAMES] * 3


def test_a_body_in_pieces(node, through_app) -> None:
    connection, whole = node.connect(), node.frame(2)
    for start in range(0, len(whole), 100):
        connection.send(whole[start : start + 100])
    assert connection.answer() == STORED
    assert through_app == []


REFUSED: dict[str, tuple[int, Callable[[str, Any], bytes]]] = {
    "wrong token": (401, lambda _, frames: request("mst_node_" + "x" * 43, frames.body(2))),
    "no token": (401, lambda token, frames: request(token, frames.body(2)).replace(b"Authorization", b"X-Other")),
    "another scheme": (401, lambda token, frames: request(token, frames.body(2)).replace(b"Bearer", b"Basic")),
    "wrong node": (403, lambda token, frames: request(token, frames.body(2, subject="n2"))),
    "unknown catalog": (409, lambda token, frames: request(token, frames.body(2, catalog="ab" * 8))),
    "not a frame": (422, lambda token, _: request(token, b"nonsense")),
    "no body": (422, lambda token, _: request(token, b"")),
    "damaged": (422, lambda token, frames: request(token, frames.body(2, crc32=1))),
    "out of range": (422, lambda token, frames: request(token, frames.with_narrow("load_1m", -1.0, 2))),
    "too old": (422, lambda token, frames: request(token, frames.body(2, t0=1000.0))),
    "too large": (413, lambda token, _: request(token, bytes(9 * 2**20))),
    "two tokens": (401, lambda token, frames: request("x", frames.body(2), f"Authorization: Bearer {token}")),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_every_refusal_is_the_apps_byte_for_byte(node, monkeypatch, what: str) -> None:
    status, make = REFUSED[what]
    data, counts = make(node.token, node.frames), node.service.services.ingest.refused
    before = counts.total()
    direct = node.connect().send(data).answer()
    assert counts.total() == before + 1
    monkeypatch.setattr(FrameProtocol, "_identify", lambda *_: None)
    assert node.connect().send(data).answer() == direct
    assert direct.startswith(b"HTTP/1.1 %d " % status), direct
    assert node.stored() == [1]


@pytest.mark.parametrize("setting", ["max_pending", "store"])
def test_a_frame_that_cannot_be_stored_is_refused_as_by_the_app(node, monkeypatch, setting: str) -> None:
    def fail(*_: object) -> list[bool]:
        raise OSError("disk full")

    writer, data = node.service.services.ingest.writer, node.frame(2)
    if setting == "store":
        monkeypatch.setattr(SqliteBlockStore, "append", fail)
    else:
        monkeypatch.setattr(writer, "max_pending", 0)
    direct = node.connect().send(data).answer()
    monkeypatch.setattr(FrameProtocol, "_identify", lambda *_: None)
    assert node.connect().send(data).answer() == direct
    assert direct.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in direct
    assert node.service.services.pressure.shed.totals["frames"] == 2
    assert writer.pending == 0


def test_what_is_not_plain_goes_to_the_app_and_is_stored(node, through_app) -> None:
    chunk = b"%x\r\n%b\r\n0\r\n\r\n"
    body = node.frames.body(3)
    waits = node.connect().send(
        request(node.token, b"", "Expect: 100-continue", framing=f"Content-Length: {len(body)}")
    )
    assert waits.sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert waits.send(body).answer() == STORED
    body = node.frames.body(4)
    chunked = request(node.token, chunk % (len(body), body), framing="Transfer-Encoding: chunked")
    assert node.connect().send(chunked).answer() == STORED
    body = node.frames.body(5)
    assert node.connect().send(request(node.token, body, "X-Twice: 1", "X-Twice: 2")).answer() == STORED
    assert through_app == [FRAMES] * 3


def test_a_client_that_does_not_read_its_answers_has_to_wait(node, through_app, monkeypatch, eventually) -> None:
    protocols, real = list[FrameProtocol](), FrameProtocol.connection_made

    def connection_made(self: FrameProtocol, transport: Any) -> None:
        real(self, transport)
        self.pause_writing()  # as a transport does whose buffer is full
        protocols.append(self)

    monkeypatch.setattr(FrameProtocol, "connection_made", connection_made)
    connection = node.connect().send(node.frame(2))
    eventually(lambda: node.stored() == [1, 2])
    protocols[0].loop.call_soon_threadsafe(protocols[0].resume_writing)
    assert connection.answer() == STORED
    assert through_app == [FRAMES]


def test_an_old_client_is_answered_and_disconnected(node, through_app) -> None:
    connection = node.connect().send(request(node.token, node.frames.body(2), version="1.0"))
    assert connection.answer() == STORED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert connection.is_closed()
    assert through_app == []


def test_pipelined_requests_are_answered_in_order(node, monkeypatch) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    whole = [
        node.frame(2), node.frame(3), health, request(node.token, b"nonsense"),
        node.frame(2), node.frame(4, crc32=1), health, node.frame(5),
    ]  # fmt: skip
    with held(monkeypatch) as hold:
        connection = node.connect().send(b"".join(whole))
        hold.gate.set()
        statuses = [int(connection.answer().split()[1]) for _ in whole]
    assert statuses == [204, 204, 200, 422, 204, 422, 200, 204]
    assert node.stored() == [1, 2, 3, 5]


def test_a_client_that_leaves_before_the_commit(node, monkeypatch, eventually, caplog) -> None:
    writer = node.service.services.ingest.writer
    with held(monkeypatch) as hold:
        leaving = [node.connect().send(node.frame(2))]
        eventually(lambda: writer.pending == 1)
        leaving.append(node.connect().send(node.frame(3) + node.frame(4)))
        eventually(lambda: writer.pending == 2)
        leaving.append(node.connect().send(node.frame(5)[:-1]))
        staying = node.connect().send(node.frame(2))
        for connection in leaving:
            connection.sock.close()
        hold.gate.set()
        assert staying.answer() == REPEATED
    eventually(lambda: writer.pending == 0)
    assert {2, 3} <= set(node.stored())
    assert node.connect().send(node.frame(6)).answer() == STORED
    assert not [
        record for record in caplog.records if record.name.startswith(("uvicorn", "mainstay.service.telemetry"))
    ]


def test_each_frame_of_a_connection_is_its_own_senders(node) -> None:
    connection, admin = node.connect(), node.service.admin_token
    whole = node.frame(2), request("wrong", node.frames.body(3)), request(admin, node.frames.body(4)), node.frame(5)
    statuses = [int(connection.send(one).answer().split()[1]) for one in whole]
    assert statuses == [204, 401, 204, 204]
    other = node.connect().send(request(admin, node.frames.body(6)))
    assert other.answer() == STORED
    assert other.send(node.frame(7, subject="n2")).answer().startswith(b"HTTP/1.1 403 "), "no longer the admin"
    assert node.stored() == [1, 2, 4, 5, 6]


def test_a_revoked_token_is_refused_at_once(node) -> None:
    connection = node.connect()
    assert connection.send(node.frame(2)).answer() == STORED
    admin = node.service.client()
    row = next(row for row in admin.get("/v1/auth/tokens").json()["items"] if row["node"] == "n1")
    assert admin.delete(f"/v1/auth/tokens/{row['id']}").status_code == 204
    assert connection.send(node.frame(3)).answer().startswith(b"HTTP/1.1 401 ")


def test_a_token_that_expires_is_refused_at_once(node, monkeypatch) -> None:
    admin = node.service.client()
    made = admin.post("/v1/auth/tokens", json={"name": "e", "scopes": ["admin"], "expires_in": 3600}).json()["token"]
    connection = node.connect()
    assert connection.send(request(made, node.frames.body(2))).answer() == STORED
    now = time.time() + 3601
    monkeypatch.setattr(node.service.services.clock.__class__, "now", lambda _: now)
    assert connection.send(request(made, node.frames.body(3))).answer().startswith(b"HTTP/1.1 401 ")


@pytest.fixture
def started(make_settings: Any, frames: Any) -> Iterator[Callable[..., tuple[Connection, str]]]:
    """The command's own server: a connection over which the token's first frame went, and the token."""
    with ExitStack() as stack:

        def start(closing: ExitStack | None = None, **changes: Any) -> tuple[Connection, str]:
            made: Settings = make_settings(port=0, **changes)
            port = (closing or stack).enter_context(served(made))
            token = (made.data_dir / "admin-token").read_text().strip()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}) as c:
                join = c.post("/v1/auth/tokens", json={"name": "j", "kind": "join"}).json()["token"]
                c.post("/v1/nodes:enroll", json={"name": "n1"}, headers={"Authorization": f"Bearer {join}"})
            connection = stack.enter_context(Connection(port))
            assert connection.send(request(token, frames.body(1))).answer() == STORED
            return connection, token

        yield start


def test_a_frame_in_flight_is_answered_when_the_service_stops(
    started, frames, monkeypatch, through_app, eventually
) -> None:
    closing = ExitStack()
    connection, token = started(closing)
    through_app.clear()
    with ThreadPoolExecutor(1) as pool, held(monkeypatch) as hold:
        connection.send(request(token, frames.body(2)))
        assert hold.reached.wait(60)
        stopped = pool.submit(closing.close)
        eventually(lambda: is_refused(connection.sock.getpeername()[1]))
        hold.gate.set()
        assert connection.answer() == STORED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert connection.is_closed()
        stopped.result(60)
    assert FRAMES not in through_app


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_slow_header_and_a_slow_body_end_with_408(started, frames) -> None:
    first, token = started(header_timeout_seconds=0.5, body_timeout_seconds=0.5)
    whole = request(token, frames.body(2))
    for part in (whole[:60], whole[:-1]):
        with Connection(first.sock.getpeername()[1]) as connection:
            assert connection.send(request(token, frames.body(1))).answer() == REPEATED
            assert connection.send(part).rest().startswith(b"HTTP/1.1 408 ")
    assert first.send(whole).answer() == STORED, "a connection that waits between frames has no deadline"


def test_a_connection_without_another_frame_is_closed_in_time(started, monkeypatch) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_SECONDS", 1)
    connection, _ = started()
    assert connection.rest() == b""
