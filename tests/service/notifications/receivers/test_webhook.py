"""The webhook, with the signature of Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from mainstay.service.notifications.receivers import webhook
from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.receivers.webhook import Webhook
from tests.service.notifications.receivers.samples import Courier, message
from tests.service.notifications.receivers.vendors import Answer, Received, Vendor, accept

OpenVendor = Callable[[Callable[[Received], Answer]], Vendor]
# The example of the reference implementations of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SIGNED = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_body_is_the_message_with_its_id_and_attempt(open_vendor: OpenVendor, courier: Courier) -> None:
    vendor, sent = open_vendor(accept), message()
    made = Webhook(kind="webhook", url_secret=courier.keep("hook", f"{vendor.url}/hook?token=abc"))
    made.send(sent, courier.delivery(2, id="m1"))
    assert vendor.last.path == "/hook?token=abc"
    assert vendor.last.json == {**sent.model_dump(mode="json", exclude={"body"}), "id": "m1", "attempt": 2}
    assert vendor.last.headers["content-type"] == "application/json"
    assert vendor.last.headers["webhook-id"] == "m1"
    assert "webhook-signature" not in vendor.last.headers


def test_the_signature_is_that_of_the_reference_implementations(
    open_vendor: OpenVendor, courier: Courier, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = open_vendor(accept)
    message_id, seconds, body = SIGNED
    monkeypatch.setattr(webhook, "encode", lambda _: body)
    made = Webhook(kind="webhook", url=vendor.url, signing_secret=courier.keep("key", SECRET))
    made.send(message(), courier.delivery(id=message_id, now=seconds + 0.9))
    assert vendor.last.body == body
    assert vendor.last.headers["webhook-timestamp"] == str(seconds)
    assert vendor.last.headers["webhook-signature"] == SIGNATURE


def test_a_key_that_is_no_base64(open_vendor: OpenVendor, courier: Courier) -> None:
    vendor = open_vendor(accept)
    made = Webhook(kind="webhook", url=vendor.url, signing_secret=courier.keep("key", "plain text"))
    made.send(message(), courier.delivery(id="m1", now=7.0))
    mac = hmac.new(b"plain text", b"m1.7." + vendor.last.body, hashlib.sha256)
    assert vendor.last.headers["webhook-signature"] == f"v1,{base64.b64encode(mac.digest()).decode()}"
    courier.keep("key", "whsec_%%%")
    with pytest.raises(DeliveryError, match="secret key is not base64 after whsec_") as caught:
        made.send(message(), courier.delivery())
    assert caught.value.again


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"url": "https://a.example", "url_secret": "b"}, {"url": "a.example"}, {"url": "https://u:p@a.example"},
        {"url": "http://169.254.169.254/"}, {"url_secret": "../b"}, {"url": "http://a.example:x"}, {"signing": "b"},
    ],
)  # fmt: skip
def test_configurations_that_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Webhook.model_validate({"kind": "webhook", **changes})
