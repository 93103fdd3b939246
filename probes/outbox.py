"""Events on their way to the service: durable first, then sent at once, batched only when they come faster than that.

An event's id is made where it happened and the service keeps one of each id, so sending again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from mainstay.probes.core_types import Event
from mainstay.probes.shipper import Shipper
from mainstay.probes.spool import Entry, Spool
from mainstay.probes.transport import Backoff, Transport

_BATCH: Final = 100
"""The service takes 500 a request; events with plans inside are kilobytes."""


class EventOutbox(Shipper):
    """Where a node or a job puts what happened: ``with EventOutbox(spool, transport) as outbox: outbox.put(event)``."""

    def __init__(self, spool: Spool, transport: Transport, *, backoff: Backoff | None = None) -> None:
        # Short waits: an incident is opened by what travels here.
        super().__init__(spool, batch=_BATCH, backoff=backoff or Backoff(base=0.1, cap=2.0))
        self._transport = transport

    def put(self, event: Event) -> None:
        """Queue an event; the sending thread wakes at once.

        Raises:
            TypeError: the event's data holds something that JSON cannot carry.
            OSError: the disk refuses.
        """
        self.spool.append(msgspec.json.encode(event))

    def deliver(self, entries: Sequence[Entry]) -> None:
        body = b'{"items":[' + b",".join(entry.payload for entry in entries) + b"]}"
        self._transport.request("POST", "/events", content=body)
