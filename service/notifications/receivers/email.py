"""Email through an SMTP server."""

from __future__ import annotations

import base64
import hashlib
import re
import smtplib
import socket
import ssl
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from html import escape
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from mainstay.service.common.outgoing import RefusedAddressError, TimeLimit, connect
from mainstay.service.notifications.message import IncidentSummary, Message, facts, plain_text
from mainstay.service.notifications.receivers.base import Delivery, DeliveryError, ReceiverConfig, SecretName, hide
from mainstay.service.notifications.receivers.texts import marked_headline, repeat_note

_SUBJECT, _TITLE = 200, 1000
"""Longest texts, in characters."""


def _check_address(address: str) -> str:
    Address(addr_spec=address)
    return address


MailAddress = Annotated[str, Field(pattern=r"^[!-~]{1,64}@[A-Za-z0-9.-]{1,190}$"), AfterValidator(_check_address)]
Replies = dict[str, tuple[int, bytes]]
"""Recipient → why the server refuses it."""


class Email(ReceiverConfig):
    """Sends messages to the addresses ``recipients``."""

    kind: Literal["email"]
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,253}$")]
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    user: Annotated[str, Field(pattern=r"^[ -~]{1,200}$")] | None = None
    password_secret: SecretName | None = None
    sender: MailAddress
    recipients: Annotated[tuple[MailAddress, ...], Field(min_length=1, max_length=100)]
    timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 20.0

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.user is None) is not (self.password_secret is None):
            raise ValueError("user and password_secret go together")
        if self.user is not None and self.tls == "none":
            raise ValueError("a password is not sent without TLS: set tls to starttls or implicit")
        return self

    def send(self, message: Message, delivery: Delivery) -> None:
        """Hand the message to the server; a recipient that it refuses fails the delivery."""
        password = delivery.secret(self.password_secret) if self.password_secret else ""
        if not password.isascii():  # smtplib could not encode it
            raise DeliveryError(f"the secret {self.password_secret} must be ASCII", again=True)
        secrets = _forms(self.user or "", password)
        try:
            refused = self._hand_over(_compose(self, message, delivery), delivery, password)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
        except smtplib.SMTPResponseException as error:
            reason = f"answers {_reply(error.smtp_code, error.smtp_error)}"
            raise DeliveryError(hide(reason, secrets), again=error.smtp_code < 500) from None
        except smtplib.SMTPServerDisconnected as error:
            raise DeliveryError(f"no answer: {error}", again=True) from None
        except smtplib.SMTPException as error:  # the server lacks STARTTLS, or a way to sign in
            raise DeliveryError(hide(str(error), secrets), again=False) from None
        except (OSError, RefusedAddressError) as error:
            raise DeliveryError(f"no answer: {type(error).__name__}: {error}", again=True) from None
        if refused:
            raise _refusal(refused, len(self.recipients))

    def _hand_over(self, mail: EmailMessage, delivery: Delivery, password: str) -> Replies:
        """What the server refused of a mail that it took for other recipients."""
        context = ssl.create_default_context()
        if delivery.ca_file is not None:
            context.load_verify_locations(delivery.ca_file)
        with TimeLimit(self.timeout_seconds) as limit, _Connection(self, delivery, limit, context) as smtp:
            if self.tls == "starttls":
                smtp.starttls(context=context)
            if self.user is not None:
                smtp.login(self.user, password)
            return smtp.send_message(mail)


class _Connection(smtplib.SMTP):
    """To an address that the policy allows; encrypted from its first byte where TLS is implicit."""

    def __init__(self, config: Email, delivery: Delivery, limit: TimeLimit, context: ssl.SSLContext) -> None:
        self._policy, self._limit = delivery.policy, limit
        self._implicit = context if config.tls == "implicit" else None
        # Named after the sender's domain: to find the name of this machine may take a resolver minutes.
        super().__init__(config.host, config.port, local_hostname=_domain(config.sender))

    def _get_socket(self, host: str, port: int, _timeout: float) -> socket.socket:
        sock = connect(host, port, self._policy, self._limit)
        return self._implicit.wrap_socket(sock, server_hostname=host) if self._implicit else sock


def _forms(user: str, password: str) -> list[str]:
    """The password as it is, and as SMTP carries it."""
    carried = (password, f"\0{user}\0{password}")
    return [password, *(base64.b64encode(text.encode()).decode() for text in carried if password)]


def _refusal(refused: Replies, recipients: int) -> DeliveryError:
    address, (code, text) = next(iter(refused.items()))
    again = any(reply[0] < 500 for reply in refused.values())
    reason = f"refuses {len(refused)} of {recipients} recipients, such as {address}: {_reply(code, text)}"
    return DeliveryError(reason, again=again)


def _reply(code: int, text: bytes | str) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"{code} {' '.join(shown.split())[:200]}"


def _compose(config: Email, message: Message, delivery: Delivery) -> EmailMessage:
    mail = EmailMessage(policy=SMTP)
    mail["Subject"] = marked_headline(message, delivery, _SUBJECT)
    mail["From"] = Address("Mainstay", addr_spec=config.sender)
    mail["To"] = [Address(addr_spec=recipient) for recipient in config.recipients]
    mail["Date"] = datetime.fromtimestamp(message.created_at, UTC)
    # The same for all attempts, so that servers and mail clients recognize a repeat.
    mail["Message-ID"] = f"<{re.sub('[^A-Za-z0-9.-]', '-', delivery.id)}@{_domain(config.sender)}>"
    # No mail has this ID: clients show mails that refer to the same one as a thread. A longer line would be encoded.
    thread = f"<{hashlib.sha256(message.group.encode()).hexdigest()[:32]}@mainstay>"
    mail["In-Reply-To"] = mail["References"] = thread
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Mainstay-Attempt"] = str(delivery.attempt)
    mail.set_content(plain_text(message) + "\n\n" + repeat_note(delivery), cte="quoted-printable")
    mail.add_alternative(_html(message, delivery), subtype="html", cte="quoted-printable")
    return mail


def _domain(address: str) -> str:
    return address.rpartition("@")[2]


def _html(message: Message, delivery: Delivery) -> str:
    parts = [f"<h3>{escape(marked_headline(message, delivery, _TITLE))}</h3>", *map(_html_incident, message.incidents)]
    if message.body is not None:
        parts.append(message.body.html)
    if others := message.incidents_total - len(message.incidents):
        parts.append(f"<p>{others} more</p>")
    links = [_html_link("Open in Mainstay", message.url)]
    if message.acknowledge_url:
        links.append(_html_link("Acknowledge", message.acknowledge_url))
    return "\n".join([*parts, f"<p>{' · '.join(links)}</p>"])


def _html_incident(incident: IncidentSummary) -> str:
    lines = [f"<b>{escape(label)}:</b> {escape(text)}" for label, text in facts(incident)]
    return "<p>" + "<br>\n".join([_html_link(incident.title, incident.url), *lines]) + "</p>"


def _html_link(text: str, url: str) -> str:
    return f'<a href="{escape(url)}">{escape(text)}</a>'
