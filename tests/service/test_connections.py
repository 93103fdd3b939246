"""What a connection must show before the app sees a request, on real sockets: time and host name."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from mainstay.probes.transport import RetryableError, Transport
from mainstay.service.common.hosts import AllowedHosts
from mainstay.service.settings import Settings
from tests.service.server_thread import served

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    return lambda **changes: make_settings(port=0, **changes)


def read_to_end(sock: socket.socket) -> bytes:
    """Read until the peer closes, or resets the connection since bytes reached it later: what it sent is read first."""
    sock.settimeout(60)
    found = b""
    with suppress(ConnectionResetError):
        while chunk := sock.recv(4096):
            found += chunk
    return found


@pytest.mark.slow
def test_two_thousand_half_open_requests_are_closed(settings: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    with served(settings(header_timeout_seconds=2.0)) as port, ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2000)]
        for number, sock in enumerate(opened):
            if number % 2:  # the others send nothing at all
                sock.sendall(HALF)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/healthz").status_code == 200, "others are answered meanwhile"
            for sock in opened:
                assert read_to_end(sock).startswith(b"HTTP/1.1 408 ")
            assert client.get("/healthz").status_code == 200, "a kept connection is not closed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def dripping(sock: socket.socket, piece: bytes, seconds: float) -> Iterator[threading.Event]:
    """Send ``piece`` every so many seconds until the peer closes, or the event is set."""
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(seconds):
            try:
                sock.sendall(piece)
            except OSError:
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()


def test_dripping_a_header_gains_no_time_and_a_second_request_has_its_own_deadline(settings: Any) -> None:
    with (
        served(settings(header_timeout_seconds=1.0)) as port,
        socket.create_connection(("127.0.0.1", port)) as sock,
    ):
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.sendall(HALF)
        started = time.monotonic()
        with dripping(sock, b"x", 0.1):
            assert b"408" in read_to_end(sock)
        assert time.monotonic() - started < 30


POST = "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
LENGTH, CHUNKED = "Content-Length: 1000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"


def admin_token(made: Settings) -> str:
    return (made.data_dir / "admin-token").read_text().strip()


@pytest.mark.parametrize(
    ("path", "framing", "piece"),
    [
        ("/v1/events", LENGTH, b"x"),
        ("/v1/events", CHUNKED, b"1\r\nx\r\n"),
        ("/v1/telemetry/frames", LENGTH, b"x"),
        ("/v1/telemetry/bundles", CHUNKED, b"1;a=b"),
        ("/v1/events", LENGTH, b""),
        ("/v1/nowhere", LENGTH, b"x"),
    ],
)
def test_a_body_that_drips_ends_with_408(settings: Any, path: str, framing: str, piece: bytes) -> None:
    made = settings(body_timeout_seconds=1.0)
    with (
        served(made) as port,
        socket.create_connection(("127.0.0.1", port)) as sock,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        sock.sendall((POST.format(path=path, token=admin_token(made)) + framing).encode())
        started = time.monotonic()
        with dripping(sock, piece, 0.1):
            head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
        assert time.monotonic() - started < 30
        assert client.get("/healthz").status_code == 200
    if path == "/v1/nowhere":  # answered before its body came: nothing may follow
        assert head.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 408 "))
        assert b"HTTP/1.1" not in body
        return
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close" in head
    problem = json.loads(body)
    assert (problem["type"], problem["status"]) == ("urn:mainstay:problem:request-timeout", 408)
    assert "in 1 s: send 65536, or the rest" in problem["detail"]


@pytest.mark.slow
def test_three_hundred_halves_of_a_body_are_dropped(settings: Any) -> None:
    made = settings(body_timeout_seconds=2.0)
    with served(made) as port, ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]
        for sock in opened:
            sock.sendall((POST.format(path="/v1/events", token="none") + LENGTH).encode() + b"x" * 10_000)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/healthz").status_code == 200, "others are answered meanwhile"
        for sock in opened:
            assert read_to_end(sock).startswith(b"HTTP/1.1 408 ")


@pytest.mark.slow
def test_a_long_upload_at_an_honest_speed_is_not_cut(settings: Any) -> None:
    made = settings(body_timeout_seconds=2.0)
    piece, pieces = b"x" * 65_536, 50
    with served(made) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        head = POST.format(path="/v1/telemetry/frames", token=admin_token(made))
        sock.sendall(f"{head}Content-Length: {len(piece) * pieces}\r\n\r\n".encode())
        sock.settimeout(60)
        pause = threading.Event()
        for _ in range(pieces):
            pause.wait(0.1)  # 5 s in all, twenty times the least speed
            sock.sendall(piece)
        answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    assert not answer.startswith(b"HTTP/1.1 408"), answer


def test_a_client_that_waits_for_our_word_is_not_slow(settings: Any) -> None:
    """``Expect: 100-continue``: the body's time starts when the service asks for it."""
    made = settings(body_timeout_seconds=1.0)
    with served(made) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        head = POST.format(path="/v1/telemetry/frames", token=admin_token(made))
        sock.sendall(f"{head}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n".encode())
        sock.settimeout(60)
        assert sock.recv(4096).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{}")
        assert sock.recv(4096).startswith(b"HTTP/1.1 422 ")


def test_a_slow_second_request_does_not_put_an_answer_into_the_first(settings: Any) -> None:
    made = settings(header_timeout_seconds=1.0, body_timeout_seconds=1.0)
    with served(made) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        bearer = f"Host: localhost\r\nAuthorization: Bearer {admin_token(made)}\r\n\r\n"
        sock.sendall(f"GET /v1/watch HTTP/1.1\r\n{bearer}".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.sendall(HALF)
        assert b"HTTP/1.1 " not in read_to_end(sock)


def test_a_slow_answer_has_no_deadline(settings: Any) -> None:
    made = settings(header_timeout_seconds=0.2, body_timeout_seconds=0.2)
    with served(made) as port:
        headers = {"Authorization": f"Bearer {admin_token(made)}"}
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client,
            client.stream("GET", "/v1/watch") as stream,
        ):
            lines = stream.iter_lines()
            started = time.monotonic()
            while time.monotonic() - started < 0.5:  # longer than the deadline; the stream must still be there
                time.sleep(0.05)
            assert client.get("/healthz").status_code == 200
            next(lines)


# host names


@pytest.mark.parametrize(
    ("bound", "names", "host", "status"),
    [
        ("127.0.0.1", (), "localhost:8080", 200),
        ("127.0.0.1", (), "LOCALHOST.", 200),
        ("127.0.0.1", (), "[::1]:8080", 200),
        ("127.0.0.1", (), "evil.example", 400),
        ("127.0.0.1", (), "localhost.evil.example", 400),
        ("127.0.0.1", (), "192.0.2.7", 400),
        ("127.0.0.1", (), "", 400),
        ("127.0.0.1", (), "[", 400),
        ("mainstay.internal", (), "mainstay.internal", 200),
        ("0.0.0.0", (), "192.0.2.7:8080", 200),
        ("0.0.0.0", (), "[2001:db8::1]", 200),
        ("0.0.0.0", (), socket.gethostname(), 200),
        ("0.0.0.0", (), "evil.example", 400),
        ("127.0.0.1", ("mainstay.example", "*.site.example"), "Mainstay.Example:443", 200),
        ("127.0.0.1", ("*.site.example",), "a.site.example", 200),
        ("127.0.0.1", ("*.site.example",), "asite.example", 400),
        ("127.0.0.1", ("*",), "any.example", 200),
    ],
)
def test_a_request_needs_a_host_that_is_ours(bound: str, names: tuple[str, ...], host: str, status: int) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/v1/nodes", "headers": [(b"host", host.encode())]}
    asyncio.run(AllowedHosts(app, bound, names)(scope, None, send))
    assert sent[0]["status"] == status


def test_a_foreign_host_is_told_which_setting_and_costs_no_data(service) -> None:
    answer = service.client().get("/v1/nodes", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert answer.json()["type"] == "urn:mainstay:problem:wrong-host"
    assert "allowed_hosts" in answer.json()["detail"]
    transport = Transport(service.url, service.admin_token)
    with pytest.raises(RetryableError):
        transport.request("GET", "/nodes", headers={"Host": "evil.example"})
    transport.close()
