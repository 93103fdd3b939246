"""What a connection must show before the app sees a request, on real sockets: time, host name, and certificate."""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.probes.identity import enroll
from mainstay.probes.transport import RetryableError, TlsFiles, Transport
from mainstay.service.app import create_app
from mainstay.service.common.hosts import AllowedHosts
from mainstay.service.server import bind, make_server
from mainstay.service.settings import Settings
from tests.service.certificates import Authority

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@contextmanager
def served(settings: Settings) -> Iterator[int]:
    """The command's own server, in a thread; its port."""
    sock = bind(settings)
    app = create_app(settings)
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    return lambda **changes: make_settings(port=0, **changes)


def read_to_end(sock: socket.socket) -> bytes:
    sock.settimeout(60)
    found = b""
    while chunk := sock.recv(4096):
        found += chunk
    return found


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


def test_dripping_a_header_gains_no_time_and_a_second_request_has_its_own_deadline(settings: Any) -> None:
    with (
        served(settings(header_timeout_seconds=1.0)) as port,
        socket.create_connection(("127.0.0.1", port)) as sock,
    ):
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.sendall(HALF)
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.1):
                try:
                    sock.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        started = time.monotonic()
        assert b"408" in read_to_end(sock)
        assert time.monotonic() - started < 30
        ended.set()
        thread.join()


def test_a_slow_answer_has_no_deadline(settings: Any) -> None:
    with served(settings(header_timeout_seconds=0.2)) as port:
        token = (Path(settings().data_dir) / "admin-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
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


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def replace_with(target: Path, source: Path) -> None:
    scratch = target.with_suffix(".new")
    shutil.copyfile(source, scratch)
    scratch.replace(target)


def common_name(port: int, authority: Authority) -> str:
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        return str(dict(part[0] for part in sock.getpeercert()["subject"])["commonName"])  # type: ignore[index,misc]


def test_a_changed_certificate_is_loaded_while_connections_go_on(
    settings: Any, authority: Authority, tmp_path: Path, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority.issue("old"), authority.issue("new")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for target, source in zip((certificate, key), old, strict=True):
        replace_with(target, source)
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        served(settings(tls_certificate=certificate, tls_key=key)) as port,
        httpx.Client(base_url=f"https://localhost:{port}", verify=context) as kept,
    ):
        assert common_name(port, authority) == "old"
        assert kept.get("/healthz").status_code == 200
        replace_with(certificate, new[0])  # without its key yet: no pair
        eventually(lambda: "the old one stays" in caplog.text)
        assert common_name(port, authority) == "old"
        replace_with(key, new[1])
        eventually(lambda: common_name(port, authority) == "new")
        assert kept.get("/healthz").status_code == 200


@pytest.fixture
def demanding(settings: Any, authority: Authority) -> Iterator[tuple[str, str, Authority]]:
    """A service that wants certificates of nodes: its URL and the administrator's token."""
    certificate, key = authority.issue("service")
    made = settings(tls_certificate=certificate, tls_key=key, tls_client_ca=authority.file)
    with served(made) as port:
        yield f"https://localhost:{port}", (made.data_dir / "admin-token").read_text().strip(), authority


def files(authority: Authority, name: str | None = None, **more: str) -> TlsFiles:
    return TlsFiles(authority.file, *(authority.issue(name, **more) if name else (None, None)))


def test_a_node_needs_a_certificate_of_its_own_name(demanding: Any, tmp_path: Path, report: Any) -> None:
    url, admin_token, authority = demanding
    admin = Transport(url, admin_token, tls=files(authority))
    join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
    with pytest.raises(RetryableError, match="shows none"):
        enroll(url, "n1", join, tmp_path, files(authority))
    with pytest.raises(RetryableError, match="one for localhost, n2"):
        enroll(url, "n1", join, tmp_path, files(authority, "n2"))
    secret = enroll(url, "n1", join, tmp_path, files(authority, "n1"))
    for tls, accepted in (
        (files(authority, "n1"), True),
        (files(authority, "x", common="n1"), True),
        (files(authority, "n2"), False),
        (files(authority), False),
    ):
        node = Transport(url, secret, tls=tls)
        if accepted:
            node.request("PUT", "/nodes/n1", report)
        else:
            with pytest.raises(RetryableError, match="client certificate") as caught:
                node.request("PUT", "/nodes/n1", report)
            assert (caught.value.status, caught.value.slug) == (403, "wrong-certificate")
        node.close()
    assert admin.json("GET", "/nodes/n1")["name"] == "n1", "people and jobs need none"
    admin.close()


def test_a_relay_needs_a_certificate_of_the_name_of_its_token(demanding: Any, tmp_path: Path) -> None:
    url, admin_token, authority = demanding
    admin = Transport(url, admin_token, tls=files(authority))
    secret = admin.json("POST", "/auth/tokens", {"name": "relay-1", "kind": "relay", "racks": ["r1"]})["token"]
    relay = Transport(url, secret, tls=files(authority, "relay-1"))
    relay.request("GET", "/nodes")
    other = Transport(url, secret, tls=files(authority, "relay-2"))
    with pytest.raises(RetryableError, match="client certificate"):
        other.request("GET", "/nodes")
    join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
    node = Transport(url, enroll(url, "n1", join, tmp_path, files(authority, "n1")), tls=files(authority, "relay-1"))
    assert node.json("GET", "/auth/me")["subject"] == "n1", "a relay may ask whose a node's token is"
    with pytest.raises(RetryableError, match="client certificate"):
        node.request("GET", "/nodes/n1")
    for transport in (node, admin, relay, other):
        transport.close()


def test_a_certificate_of_another_authority_gets_no_connection(demanding: Any, tmp_path: Path) -> None:
    url, admin_token, authority = demanding
    foreign = Authority(tmp_path / "foreign").issue("n1")
    transport = Transport(url, admin_token, tls=TlsFiles(authority.file, *foreign))
    with pytest.raises(RetryableError):
        transport.request("GET", "/nodes")
    transport.close()


def test_a_client_trusts_only_the_named_authority_and_reads_the_environment(
    demanding: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, admin_token, authority = demanding
    with pytest.raises(RetryableError, match=r"(?i)certificate"):
        Transport(url, admin_token).request("GET", "/nodes")
    monkeypatch.setenv("MAINSTAY_CA_FILE", str(authority.file))
    Transport(url, admin_token).request("GET", "/nodes")
    monkeypatch.setenv("MAINSTAY_CA_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(ValueError, match=r"missing\.pem is not a file"):
        Transport(url)
    with pytest.raises(ValueError, match="both"):
        Transport(url, tls=TlsFiles(client_certificate=authority.file))
