"""Mail to a real SMTP server, and to servers that misbehave."""

from __future__ import annotations

import base64
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from mainstay.service.common.outgoing import AddressPolicy
from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.receivers.email import Email
from tests.service.notifications.receivers.mail_server import PASSWORD, MailServer
from tests.service.notifications.receivers.samples import Courier, hostile, message

slow = pytest.mark.slow


def receiver(mail: MailServer, courier: Courier, **changes: Any) -> Email:
    courier.ca_file = mail.authority.file
    fields: dict[str, Any] = {
        "kind": "email", "host": "127.0.0.1", "port": mail.starttls, "user": "ops@mail.test",
        "password_secret": courier.keep("smtp", PASSWORD), "sender": "mainstay@mail.test",
        "recipients": ["ops@mail.test"], "timeout_seconds": 60,
    }  # fmt: skip
    return Email(**{**fields, **changes})


def refusal(made: Email, courier: Courier) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        made.send(message(), courier.delivery())
    return caught.value


@slow
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_a_mail_arrives(mail: MailServer, courier: Courier, tls: str) -> None:
    port = mail.starttls if tls == "starttls" else mail.implicit
    made = receiver(mail, courier, tls=tls, port=port, recipients=["ops@mail.test", "oncall@mail.test"])
    made.send(message(), courier.delivery(id=f"sent-by-{tls}"))
    first, _ = mail.find(f"<sent-by-{tls}@mail.test>", 2)
    assert first["Subject"] == "[critical] GPU 3 of n1 fell off the bus"
    assert first["To"] == "ops@mail.test, oncall@mail.test"
    assert first["From"] == "Mainstay <mainstay@mail.test>"
    assert "TLS" in first["Received"]
    assert first["X-Mainstay-Attempt"] == "1"
    plain, html = (first.get_body([kind]) for kind in ("plain", "html"))
    assert plain is not None and html is not None  # noqa: PT018
    assert "Where: node n1 · GPU 3 (serial S-1) · rack r4" in plain.get_content()
    assert '<a href="https://mainstay.example/incidents/1">Open in Mainstay</a>' in html.get_content()


@slow
def test_a_mail_arrives_without_tls_and_login(mail: MailServer, courier: Courier) -> None:
    made = receiver(mail, courier, tls="none", port=mail.plain, user=None, password_secret=None)
    made.send(message(), courier.delivery(id="plainly"))
    assert "plain text" in mail.find("<plainly@mail.test>")[0]["Received"]


@slow
def test_mails_of_a_group_are_a_thread_and_a_repeat_is_recognizable(mail: MailServer, courier: Courier) -> None:
    made = receiver(mail, courier, sender=f"mainstay@{'long.' * 20}mail.test")
    made.send(message(), courier.delivery(id="opened"))
    for attempt in (1, 2):
        made.send(message(NotificationEvent.RESOLVED), courier.delivery(attempt, id="resolved"))
    (opened,) = mail.find(f"<opened@{'long.' * 20}mail.test>")
    first, second = sorted(
        mail.find(f"<resolved@{'long.' * 20}mail.test>", 2), key=lambda found: str(found["X-Mainstay-Attempt"])
    )
    assert opened["References"] == first["References"] == second["In-Reply-To"]
    assert str(opened["References"]).startswith("<")
    assert first["Subject"] == "[critical] Resolved: GPU 3 of n1 fell off the bus"
    assert second["Subject"] == "[critical] Resolved: GPU 3 of n1 fell off the bus (may be a repeat)"
    body = second.get_body(["plain"])
    assert body is not None
    assert "(may be a repeat)" in body.get_content()


@slow
def test_no_header_comes_out_of_a_title(mail: MailServer, courier: Courier) -> None:
    receiver(mail, courier).send(hostile(NotificationEvent.OPENED), courier.delivery(id="hostile"))
    (found,) = mail.find("<hostile@mail.test>")
    assert found["Bcc"] is None
    assert not found.defects
    assert len(found["Subject"]) <= 200
    html = found.get_body(["html"])
    assert html is not None
    assert "<script>" not in html.get_content()
    assert "&lt;script&gt;" in html.get_content()


@slow
@pytest.mark.parametrize(
    ("recipients", "again", "reason"),
    [
        (["busy@mail.test"], True, "answers 451 .*try again later"),
        (["strict@mail.test"], False, "answers 554 .*looks like spam"),
        (["unknown@mail.test"], False, "refuses 1 of 1 recipients, such as unknown@mail.test: 550"),
        (["ops@mail.test", "unknown@mail.test"], False, "refuses 1 of 2 recipients, such as unknown@mail.test: 550"),
    ],
)
def test_refusals_of_the_server(
    mail: MailServer, courier: Courier, recipients: list[str], reason: str, *, again: bool
) -> None:
    error = refusal(receiver(mail, courier, recipients=recipients), courier)
    assert error.again is again
    with pytest.raises(DeliveryError, match=reason):
        raise error


@slow
def test_a_wrong_password_is_not_shown(mail: MailServer, courier: Courier) -> None:
    made = receiver(mail, courier, password_secret=courier.keep("wrong", "wrong-secret-password"))
    error = refusal(made, courier)
    assert not error.again
    assert "535" in str(error)
    assert "wrong-secret-password" not in str(error)


@slow
def test_a_server_without_a_trusted_certificate_gets_nothing(mail: MailServer, courier: Courier) -> None:
    for tls, port in (("starttls", mail.starttls), ("implicit", mail.implicit)):
        made = receiver(mail, courier, tls=tls, port=port)
        courier.ca_file = None
        error = refusal(made, courier)
        assert "certificate" in str(error)
        assert error.again


@slow
def test_tls_to_a_port_without_it_ends(mail: MailServer, courier: Courier) -> None:
    error = refusal(receiver(mail, courier, tls="implicit", port=mail.plain, timeout_seconds=5), courier)
    assert error.again


# Servers that misbehave


@contextmanager
def smtp_server(*replies: str, pause: float = 0.0) -> Iterator[int]:
    """The port of a server that gives one reply to each line; then it ends the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for number, reply in enumerate(replies):
                line = self.rfile.readline() if number else b""
                for letter in reply.replace("LINE", line.decode().strip()) + "\r\n":
                    self.wfile.write(letter.encode())
                    time.sleep(pause)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def bare(port: int = 25, **changes: Any) -> Email:
    fields: dict[str, Any] = {
        "kind": "email", "host": "127.0.0.1", "port": port, "tls": "none", "sender": "mainstay@mail.test",
        "recipients": ["ops@mail.test"], "timeout_seconds": 5,
    }  # fmt: skip
    return Email(**{**fields, **changes})


@pytest.mark.parametrize(
    ("replies", "again", "reason"),
    [
        (["421 too busy"], True, "answers 421 too busy"),
        (["554 go away"], False, "answers 554 go away"),
        (["220 hello", "250 yes", "550 not you"], False, "answers 550 not you"),
        (["220 hello", "250 yes", "250 ok", "452 full"], True, "refuses 1 of 1 recipients.*452 full"),
        (["220 hello", "250 yes"], True, "no answer"),
        (["nonsense"], True, "answers -1"),
    ],
)
def test_replies(courier: Courier, replies: list[str], reason: str, *, again: bool) -> None:
    with smtp_server(*replies) as port:
        error = refusal(bare(port), courier)
    with pytest.raises(DeliveryError, match=reason):
        raise error
    assert error.again is again


def test_a_server_without_starttls_gets_no_password(courier: Courier) -> None:
    login: dict[str, Any] = {"tls": "starttls", "user": "ops", "password_secret": courier.keep("smtp", PASSWORD)}
    with smtp_server("220 hello", "250 nothing to offer") as port:
        error = refusal(bare(port, **login), courier)
    assert "STARTTLS" in str(error)
    assert not error.again


def test_a_server_that_repeats_the_password_is_not_quoted(courier: Courier, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows STARTTLS, without the certificate that an echo of it would need."""
    monkeypatch.setattr("smtplib.SMTP.starttls", lambda *_args, **_options: None)
    login: dict[str, Any] = {"tls": "starttls", "user": "ops", "password_secret": courier.keep("smtp", PASSWORD)}
    with smtp_server("220 hello", "250-hello\r\n250 AUTH PLAIN", "535 what is LINE and " + PASSWORD) as port:
        error = refusal(bare(port, **login), courier)
    assert str(error) == "answers 535 what is AUTH PLAIN *** and ***"
    assert base64.b64encode(f"\0ops\0{PASSWORD}".encode()).decode() not in str(error)


def test_a_slow_server_costs_the_time_limit_and_no_more(courier: Courier) -> None:
    with smtp_server("220 " + "x" * 10_000, pause=0.05) as port:
        began = time.monotonic()
        error = refusal(bare(port, timeout_seconds=0.5), courier)
    assert error.again
    assert time.monotonic() - began < 5


def test_addresses_are_checked_when_connecting(courier: Courier) -> None:
    for host in ("169.254.169.254", "fe80::1"):
        error = refusal(bare(25, host=host), courier)
        assert "RefusedAddressError" in str(error)
        assert error.again
    with socket.create_server(("127.0.0.1", 0)) as sock:
        refused = courier.delivery(policy=_Closed())
        with pytest.raises(DeliveryError, match="closed for this test"):
            bare(sock.getsockname()[1]).send(message(), refused)


class _Closed(AddressPolicy):
    def check(self, text: str) -> None:
        raise OSError(f"{text} is closed for this test")


def test_a_password_that_smtp_cannot_carry(courier: Courier) -> None:
    login: dict[str, Any] = {"tls": "starttls", "user": "ops", "password_secret": courier.keep("smtp", "pässword")}
    error = refusal(bare(25, **login), courier)
    assert str(error) == "the secret smtp must be ASCII"


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 0}, {"port": 65536}, {"recipients": []}, {"recipients": ["ops"]}, {"sender": "a@b\nBcc: c@d"},
        {"recipients": ["a..b@mail.test"]}, {"recipients": ["a@mail.test, b@mail.test"]}, {"host": "mail test"},
        {"user": "ops"}, {"password_secret": "smtp"}, {"user": "ops", "password_secret": "smtp"},
        {"password_secret": "../smtp"}, {"tls": "maybe"}, {"password": "here"},
    ],
)  # fmt: skip
def test_configurations_that_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        bare(**changes)
