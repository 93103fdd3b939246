"""Sends the messages of the outbox: at least once, in the order of each group, with growing pauses after failures.

Each receiver has a thread of its own while it is sent to, so that a slow one does not delay the others. An attempt is
counted before it is made: one that may have arrived without an answer is repeated and marked as a repeat.
"""

from __future__ import annotations

import contextvars
import logging
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from mainstay.service.cluster.leases import LeaseLostError
from mainstay.service.notifications import config, outbox, repository
from mainstay.service.notifications.message import Message
from mainstay.service.notifications.models import DeliveryState, NotificationRow
from mainstay.service.notifications.outgoing_post import OutgoingPost
from mainstay.service.notifications.receivers.base import Delivery, DeliveryError, ReceiverConfig
from mainstay.service.notifications.secrets import SecretDirectory
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)
_RECEIVERS: Final = 8
"""Receivers that are sent to at the same time."""
_BATCH: Final = 200
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0
_TURN_SECONDS: Final = 0.5
"""How long a turn waits for its receivers; those that take longer end beside the next turns."""


def pause(attempts: int) -> float:
    """Seconds until the next attempt after ``attempts`` failed: 1, 2, 4, … 300."""
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempts - 1, 20)))


@dataclass
class Sender:
    """One term of the process that sends."""

    services: Services
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_RECEIVERS, "notify"), init=False)
    running: dict[str, Future[None]] = field(default_factory=dict, init=False)
    """Receiver → its attempts of the last turn."""

    def __post_init__(self) -> None:
        settings = self.services.settings
        self._post = OutgoingPost.from_settings(settings)
        self._secrets = SecretDirectory(settings.secrets_dir)

    def run_once(self) -> None:
        """Start what is due; messages of a receiver that is being sent to wait."""
        self.running = {name: future for name, future in self.running.items() if not future.done()}
        with self.services.database.reading() as session:
            rows = repository.due(session, self.services.clock.now(), self.running, _BATCH)
            due = defaultdict[str, list[str]](list)
            for row in rows:
                due[row.receiver].append(row.id)
            known = config.current(session) if rows else None
        receivers = {} if known is None else known.receivers
        for name, ids in due.items():
            context = contextvars.copy_context()  # it carries the fence of the lease
            self.running[name] = self._pool.submit(context.run, self._send_all, receivers.get(name), ids)
        wait(self.running.values(), timeout=_TURN_SECONDS)

    def close(self) -> None:
        """Wait for the attempts that are being made."""
        self._pool.shutdown()

    def _send_all(self, receiver: ReceiverConfig | None, ids: Sequence[str]) -> None:
        for message_id in ids:
            try:
                if not self._send(receiver, message_id):
                    return  # the others would wait for it as well
            except (LeaseLostError, SQLAlchemyError) as error:
                _log.warning("notification %s is sent again: %s", message_id, error)
                return

    def _send(self, receiver: ReceiverConfig | None, message_id: str) -> bool:
        """One attempt; false if the receiver does not answer or wants fewer messages."""
        now, settings = self.services.clock.now(), self.services.settings.notifications
        with self.services.database.session() as session:
            row = session.get(NotificationRow, message_id)
            if row is None or not outbox.claim(session, row, retry_at=now + _next(row) + settings.timeout_seconds):
                return True
            message, attempt = Message.model_validate(row.message), row.attempts
        fault = self._attempt(receiver, message, message_id, attempt)
        with self.services.database.session() as session:
            row = session.get_one(NotificationRow, message_id)
            now = self.services.clock.now()
            if fault is None:
                outbox.end(session, row, DeliveryState.DELIVERED, error="", now=now)
            elif fault.again and now < row.created_at + settings.give_up_hours * 3600:
                due_at = now + max(pause(attempt), fault.after_seconds or 0.0)
                outbox.postpone(session, row, error=str(fault), due_at=due_at)
            else:
                outbox.end(session, row, DeliveryState.FAILED, error=str(fault), now=now)
                _log.error("notification %s to %s is given up: %s", message_id, row.receiver, fault)
        return fault is None or not fault.again

    def _attempt(
        self, receiver: ReceiverConfig | None, message: Message, message_id: str, attempt: int
    ) -> DeliveryError | None:
        now = self.services.clock.now()
        delivery = Delivery(
            id=message_id, attempt=attempt, now=now, post=self._post, secret=self._secrets.read,
            policy=self._post.policy, ca_file=self._post.ca_file,
        )  # fmt: skip
        if receiver is None:
            return DeliveryError("the configuration has no such receiver any more", again=False)
        try:
            receiver.send(message, delivery)
        except DeliveryError as error:
            return error
        return None


def _next(row: NotificationRow) -> float:
    return pause(row.attempts + 1)
