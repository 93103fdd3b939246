"""Every kind of receiver sends every message, hostile ones too, and shows no secret."""

from __future__ import annotations

import base64
import logging
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from mainstay.service.notifications.message import Message, NotificationEvent
from mainstay.service.notifications.receivers import RECEIVERS, AnyReceiver
from mainstay.service.notifications.receivers.base import DeliveryError, ReceiverConfig
from tests.service.notifications.receivers.alert_server import alert_server
from tests.service.notifications.receivers.mail_server import PASSWORD, MailServer
from tests.service.notifications.receivers.samples import EVENTS, Courier, fiery, flood, hostile, message, trial
from tests.service.notifications.receivers.vendors import (
    ROUTING_KEY,
    SLACK_PATH,
    TEAMS_PATH,
    Vendor,
    accept,
    pagerduty,
    repeat,
    slack,
    teams,
)  # fmt: skip

REAL = {"email", "alertmanager"}
"""Kinds that a real server takes; the servers of the others are ours."""
RULES = {"webhook": accept, "slack": slack, "teams": teams, "pagerduty": pagerduty}
SECRETS = {
    "url": "/hook/a-secret-path?token=a-secret-token", "slack": SLACK_PATH, "teams": TEAMS_PATH,
    "signing": f"whsec_{base64.b64encode(b'a signing key of 24 byte').decode()}", "pagerduty": ROUTING_KEY,
    "token": "a-bearer-token", "smtp": PASSWORD,
}  # fmt: skip
_ANY: TypeAdapter[ReceiverConfig] = TypeAdapter(AnyReceiver)


def kind_of(receiver: type[ReceiverConfig]) -> str:
    (kind,) = receiver.model_fields["kind"].annotation.__args__  # type: ignore[union-attr]
    return str(kind)


def config(kind: str, base: str, courier: Courier) -> ReceiverConfig:
    """A receiver at a web server, as TOML says it."""
    for name, text in SECRETS.items():
        courier.keep(name, base + text if text.startswith("/") else text)
    keys = {
        "webhook": 'url_secret = "url"\nsigning_secret = "signing"',
        "slack": 'url_secret = "slack"',
        "teams": 'url_secret = "teams"',
        "pagerduty": f'routing_key_secret = "pagerduty"\nurl = "{base}/v2/enqueue"',
        "alertmanager": f'url = "{base}"\ntoken_secret = "token"',
    }
    return _ANY.validate_python(tomllib.loads(f'kind = "{kind}"\n{keys[kind]}'))


def mail_config(server: MailServer, courier: Courier) -> ReceiverConfig:
    courier.ca_file = server.authority.file
    fields = {"host": "127.0.0.1", "port": server.starttls, "user": "ops@mail.test", "timeout_seconds": 60}
    addresses = {"sender": "mainstay@mail.test", "recipients": ["ops@mail.test"]}
    secret = courier.keep("smtp", PASSWORD)
    return _ANY.validate_python({"kind": "email", "password_secret": secret, **fields, **addresses})


@pytest.fixture(
    params=[pytest.param(r, id=kind_of(r), marks=[pytest.mark.slow] * (kind_of(r) in REAL)) for r in RECEIVERS]
)
def receiver(
    request: pytest.FixtureRequest, open_vendor: Callable[..., Vendor], courier: Courier
) -> Iterator[ReceiverConfig]:
    """One of each kind, at a server that refuses what the vendor refuses."""
    kind = kind_of(request.param)
    if kind == "email":
        yield mail_config(request.getfixturevalue("mail"), courier)
    elif kind == "alertmanager":
        folder, hook = request.getfixturevalue("tmp_path"), open_vendor(accept)
        with alert_server(folder, request.getfixturevalue("free_port")(), hook.url) as server:
            yield config(kind, server.url, courier)
    else:
        yield config(kind, open_vendor(RULES[kind]).url, courier)


def messages() -> Iterator[Message]:
    for event in EVENTS:
        yield from (message(event), hostile(event), fiery(event), flood(event))
    yield trial()
    yield message(NotificationEvent.UPDATED, incidents=[], incidents_total=3)


def test_every_message_is_accepted(
    receiver: ReceiverConfig, courier: Courier, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for number, sent in enumerate(messages()):
            receiver.send(sent, courier.delivery(1 + number % 2, id=f"conformance-{number}"))
    assert not shown(caplog.text)


def shown(text: str) -> list[str]:
    """The secrets in a text."""
    parts = [*SECRETS.values(), *SLACK_PATH.split("/")[2:], "a-secret-path", "a-secret-token", "Zm9vYmFy"]
    parts += [SECRETS["signing"].removeprefix("whsec_"), "0f1e2d3c4b5a69788796a5b4c3d2e1f0"]
    return [part for part in parts if part in text]


WEB = [kind_of(receiver) for receiver in RECEIVERS if kind_of(receiver) != "email"]


@pytest.mark.parametrize("kind", WEB)
def test_a_server_that_repeats_the_request_is_not_quoted(
    kind: str, open_vendor: Callable[..., Vendor], courier: Courier, caplog: pytest.LogCaptureFixture
) -> None:
    vendor = open_vendor(repeat)
    made = config(kind, vendor.url, courier)
    with caplog.at_level(logging.DEBUG), pytest.raises(DeliveryError, match="answers 502: cannot reach") as caught:
        made.send(message(NotificationEvent.UPDATED), courier.delivery())
    assert caught.value.again
    assert not shown(str(caught.value))
    assert not shown(caplog.text)
    assert not shown(repr(made) + repr(courier.delivery()))


@pytest.mark.parametrize("kind", WEB)
def test_secrets_that_are_missing(kind: str, courier: Courier) -> None:
    made = config(kind, "http://127.0.0.1:1", courier)
    for path in courier.directory.iterdir():
        path.unlink()
    with pytest.raises(DeliveryError, match="cannot read the secret") as caught:
        made.send(message(), courier.delivery())
    assert caught.value.again


def test_every_kind_is_its_own() -> None:
    kinds = [kind_of(receiver) for receiver in RECEIVERS]
    assert len(set(kinds)) == len(kinds)
    assert {*RULES, *REAL} == set(kinds)
    schema: dict[str, Any] = _ANY.json_schema()
    assert sorted(schema["discriminator"]["mapping"]) == sorted(kinds)
