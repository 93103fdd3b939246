"""Requests to receivers: nothing holds, floods, or redirects the service, and no error shows the URL."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.notifications.outgoing_post import OutgoingPost
from mainstay.service.notifications.receivers.base import DeliveryError, HttpAnswer
from mainstay.service.settings import Settings
from tests.service.certificates import Authority
from tests.service.notifications.receivers.vendors import Answer, Received, Vendor, accept

SECRET = "/services/T0/B0/very-secret?sig=also-secret"
OpenVendor = Callable[[Callable[[Received], Answer]], Vendor]
Handle = Callable[[socket.socket], None]
Secured = Callable[[Handle], Handle]


@contextmanager
def raw_server(answer: Handle) -> Iterator[str]:
    """The URL of a server that does what it likes with a connection, which it closes in the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                with listener.accept()[0] as connection:
                    answer(connection)
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}{SECRET}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)


def refusal(url: str, **options: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        OutgoingPost(**options)(url, b"{}", {})
    assert "secret" not in str(caught.value)
    assert caught.value.again
    return caught.value


def drip(connection: socket.socket) -> None:
    """Begin a record of TLS that has 4 KiB, which is a poor line of HTTP too, and take minutes to end it."""
    connection.sendall(b"\x16\x03\x03\x10\x00")
    for _ in range(4096):
        connection.sendall(b"\x02")
        time.sleep(0.05)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Secured:
    """Put TLS before an answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("receiver.test"))

    def wrap(answer: Handle) -> Handle:
        def secure(connection: socket.socket) -> None:
            with context.wrap_socket(connection, server_side=True) as wrapped:
                answer(wrapped)

        return secure

    return wrap


def test_post_and_get(open_vendor: OpenVendor) -> None:
    vendor = open_vendor(lambda received: (202, received.method, {"Retry-After": "7"}))
    assert OutgoingPost()(f"{vendor.url}/a?b=c", b"body", {"X-A": "b"}) == HttpAnswer(202, b"POST", 7.0)
    assert (vendor.last.path, vendor.last.body, vendor.last.headers["x-a"]) == ("/a?b=c", b"body", "b")
    assert OutgoingPost()(vendor.url, None, {}) == HttpAnswer(202, b"GET", 7.0)
    assert vendor.last.path == "/"


def test_a_redirect_is_not_followed(open_vendor: OpenVendor) -> None:
    vendor = open_vendor(lambda _: (307, "", {"Location": "/another"}))
    assert OutgoingPost()(vendor.url, b"", {}).status == 307
    assert len(vendor.received) == 1


def test_a_long_answer_is_cut_off(open_vendor: OpenVendor) -> None:
    vendor = open_vendor(lambda _: (200, "x" * 1_000_000, {}))
    assert len(OutgoingPost()(vendor.url, b"", {}).body) == 64 * 1024
    assert len(OutgoingPost()(vendor.url, b"", {}, max_bytes=100_000).body) == 100_000


@pytest.mark.parametrize("where", ["http", "handshake", "https"])
def test_a_server_that_drips_costs_the_time_limit_and_no_more(
    where: str, authority: Authority, secured: Secured
) -> None:
    with raw_server(secured(drip) if where == "https" else drip) as place:
        began = time.monotonic()
        url = f"{where.replace('handshake', 'https')}://{place}"
        error = refusal(url, seconds=0.4, ca_file=authority.file)
        assert str(error) == "no answer: no whole answer within 0.4 s"
        assert time.monotonic() - began < 5


def stay_silent(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_a_server_that_is_silent() -> None:
    with raw_server(stay_silent) as place:
        assert str(refusal(f"http://{place}", seconds=0.2)) == "no answer: no whole answer within 0.2 s"


def test_malformed_headers_are_not_logged_with_the_url(caplog: pytest.LogCaptureFixture) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 20)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nno header\r\nX: y\r\n\r\nok")

    with raw_server(answer) as place, caplog.at_level(logging.DEBUG):
        OutgoingPost()(f"http://{place}", b"{}", {})
    assert "secret" not in caplog.text


def test_what_is_not_http() -> None:
    with raw_server(lambda connection: connection.sendall(f"what is {SECRET}\r\n".encode() * 9)) as place:
        error = refusal(f"http://{place}")
    assert "no answer: " in str(error)


def test_nobody_listens(free_port: Callable[[], int]) -> None:
    assert "ConnectionRefusedError" in str(refusal(f"http://127.0.0.1:{free_port()}{SECRET}"))
    assert "gaierror" in str(refusal(f"http://nothing.invalid{SECRET}"))


@pytest.mark.parametrize(
    "url", ["ftp://a/secret", "secret", "http://a:secret/", "http://u:secret@a/", "http://a/\nsecret"]
)
def test_a_url_that_is_none(url: str) -> None:
    assert "the URL must " in str(refusal(url))


def test_addresses_are_checked_when_connecting(open_vendor: OpenVendor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "metadata" in str(refusal("http://169.254.169.254/secret"))
    vendor, real = open_vendor(accept), socket.getaddrinfo
    port = vendor.url.rsplit(":", 1)[1]
    place: dict[str, str] = {"host": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **options: real(place["host"], *rest, **options))
    assert OutgoingPost()(f"http://name.test:{port}/", b"", {}).status == 200
    place["host"] = "100.64.0.1"
    error = refusal(f"http://name.test:{port}/secret")
    assert "add its network to sources.allowed_networks" in str(error)


def test_the_certificate_is_checked(authority: Authority, secured: Secured) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 20)
        connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")

    with raw_server(secured(answer)) as place:
        assert OutgoingPost(ca_file=authority.file)(f"https://{place}", b"", {}).status == 202
    with raw_server(secured(answer)) as place:
        assert "CERTIFICATE_VERIFY_FAILED" in str(refusal(f"https://{place}"))


def test_the_settings_are_used(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {
            "sources": {"allowed_networks": ["fd00::/8"]},
            "notifications": {"timeout_seconds": 3, "ca_file": tmp_path / "ca.pem"},
        }
    )
    assert OutgoingPost.from_settings(settings) == OutgoingPost(
        seconds=3, policy=AddressPolicy.from_texts(["fd00::/8"]), ca_file=tmp_path / "ca.pem"
    )
