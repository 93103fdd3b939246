"""Any HTTP endpoint: the message as JSON, signed as Standard Webhooks 1.0.0 describes.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, Literal, Self

from pydantic import model_validator

from mainstay.service.notifications.message import Message
from mainstay.service.notifications.receivers.base import (
    JSON,
    Delivery,
    DeliveryError,
    HttpUrl,
    ReceiverConfig,
    SecretName,
    encode,
    request,
)

_BASE64_PREFIX: Final = "whsec_"


class Webhook(ReceiverConfig):
    """POSTs messages to ``url``, or to the URL in the secret ``url_secret``."""

    kind: Literal["webhook"]
    url: HttpUrl | None = None
    url_secret: SecretName | None = None
    signing_secret: SecretName | None = None
    """Key of the signature: base64 after ``whsec_``, or any other text as it is. Without one, nothing is signed."""

    @model_validator(mode="after")
    def _check_one_url(self) -> Self:
        if (self.url is None) is (self.url_secret is None):
            raise ValueError("a webhook has either url or url_secret")
        return self

    def send(self, message: Message, delivery: Delivery) -> None:
        """POST the message with ``id`` and ``attempt``."""
        url = self.url or delivery.secret(self.url_secret or "")
        body = encode(
            {**message.model_dump(mode="json", exclude={"body"}), "id": delivery.id, "attempt": delivery.attempt}
        )
        stamp = str(int(delivery.now))
        headers = {**JSON, "webhook-id": delivery.id, "webhook-timestamp": stamp}
        if self.signing_secret is None:
            request(delivery, url, body, headers=headers)
            return
        secret = delivery.secret(self.signing_secret)
        mac = hmac.digest(_key(secret, self.signing_secret), f"{delivery.id}.{stamp}.".encode() + body, hashlib.sha256)
        headers["webhook-signature"] = f"v1,{base64.b64encode(mac).decode()}"
        request(delivery, url, body, headers=headers, secrets=[secret, secret.removeprefix(_BASE64_PREFIX)])


def _key(secret: str, name: str) -> bytes:
    if not secret.startswith(_BASE64_PREFIX):
        return secret.encode()
    text = secret.removeprefix(_BASE64_PREFIX)
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        reason = f"the secret {name} is not base64 after {_BASE64_PREFIX}"
        raise DeliveryError(reason, again=True) from None
