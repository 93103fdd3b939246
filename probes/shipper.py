"""What empties a spool: one thread that delivers entries in order and deletes only what was acknowledged.

A spool is drained head first. *Retryable* keeps the head and waits, a little longer each time; *Rejected* sets the head
aside and continues, so one bad entry never holds up the good ones behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.frame import FRAME_VERSION, Axis, Frame, checksum, decode, encode
from mainstay.probes.frame_route import FrameRoute
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Entry, Spool
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport

log = logging.getLogger(__name__)

_RESYNC_S: Final = 1.0
"""While the service is away, what is appended becomes durable at least this often."""


class Shipper(ABC):
    """A thread that drains ``spool`` through ``deliver``; a context manager: it delivers while the block lasts.

    ``gather`` seconds pass after the first entry, unless there are ``batch`` entries.
    """

    def __init__(self, spool: Spool, *, batch: int = 1, gather: float = 0.0, backoff: Backoff | None = None) -> None:
        self.spool = spool
        self.delivered = 0
        self.trouble = ""
        """Why nothing is being delivered just now; empty while all is well."""
        self._batch = batch
        self._gather = gather
        self._kept: list[Entry] = []
        self._backoff = backoff or Backoff()
        self._singly = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ship-{spool.directory.name}", daemon=True)

    @abstractmethod
    def deliver(self, entries: Sequence[Entry]) -> None:
        """Deliver the oldest entries, at most ``batch``; on return they are durable at the other end.

        Raises:
            RetryableError: it gets the same entries again.
            RejectedError: a batch is tried again entry by entry; a single entry is set aside.
        """

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self, timeout: float = 3.0) -> bool:
        """Drain for at most ``timeout`` seconds, then end the thread; True when nothing was left behind.

        What is left stays in the spool for the next start.
        """
        deadline = time.monotonic() + timeout
        drained = not self._thread.is_alive() or self.spool.wait_empty(timeout)
        self._stopping.set()
        self.spool.wake()
        if self._thread.is_alive():
            self._thread.join(max(0.1, deadline - time.monotonic()))
        return drained and len(self.spool) == 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self.spool.wait(60.0) and not self._stopping.is_set():
                if self._gather and not self._kept and len(self.spool) < self._batch:
                    self._stopping.wait(self._gather)
                self._once()

    def _once(self) -> None:
        try:
            entries = self._kept or self.spool.peek(1 if self._singly else self._batch)
            self._kept = entries
            if entries:
                self._hand_over(entries)
            else:  # the bound took them meanwhile, or the disk returns something else than was written
                self._stopping.wait(_RESYNC_S)
        except RetryableError as error:
            self._pause(str(error), error.retry_after)
        except OSError as error:
            self._pause(str(error), 0.0)

    def _hand_over(self, entries: list[Entry]) -> None:
        try:
            self.deliver(entries)
        except RejectedError as error:
            self._kept = []
            if len(entries) > 1:
                self._singly = len(entries)
                return
            self.spool.reject(entries[0], str(error))
        else:
            self.delivered += len(entries)
            self._kept = []
            self.spool.ack(entries[-1].sequence)
        self._singly = max(0, self._singly - 1)
        self._recovered()

    def _recovered(self) -> None:
        self._backoff.reset()
        if self.trouble:
            log.warning("%s: delivering again, %d entries waiting", self.spool.directory.name, len(self.spool))
            self.trouble = ""

    def _pause(self, reason: str, at_least: float) -> None:
        if not self.trouble:
            log.warning(
                "%s: %s; keeping %d entries and trying again", self.spool.directory.name, reason, len(self.spool)
            )
        self.trouble = reason
        until = time.monotonic() + max(self._backoff.next(), at_least)
        while (left := until - time.monotonic()) > 0 and not self._stopping.wait(min(left, _RESYNC_S)):
            self._resync()

    def _resync(self) -> None:
        try:
            self.spool.sync()
        except OSError:
            log.exception("%s: the disk refuses to sync", self.spool.directory.name)


class FrameSender(Shipper):
    """Frames, spooled and delivered in order: ``with FrameSender(spool, transport) as sender: sender.put(...)``.

    Used by the node daemon (time axis) and by the coordinator of a job (step axis). The spool numbers the frames, so
    a frame's ``stream`` and ``sequence`` are always the spool's.
    """

    def __init__(self, spool: Spool, transport: Transport | FrameRoute, *, backoff: Backoff | None = None) -> None:
        super().__init__(spool, backoff=backoff)
        self._transport = transport
        self._catalogs = CatalogStore(spool.directory)

    def put(
        self,
        *,
        subject: str,
        axis: Axis,
        t0: float,
        dt: float,
        catalog: Catalog,
        entities: tuple[str, ...],
        samples: int,
        values: bytes,
        wide: bytes = b"",
    ) -> int:
        """Queue one frame (see ``mainstay.probes.frame`` for shapes) and return its sequence number.

        Raises:
            ValueError: the frame is larger than the spool takes.
            OSError: the disk refuses.
        """
        self._catalogs.store(catalog)

        def body(sequence: int) -> bytes:
            return encode(
                Frame(
                    version=FRAME_VERSION, subject=subject, axis=axis, stream=self.spool.stream, sequence=sequence,
                    t0=t0, dt=dt, catalog=catalog.digest, entities=entities, samples=samples,
                    crc32=checksum(values, wide), values=values, wide=wide,
                )
            )  # fmt: skip

        return self.spool.append(body)

    def deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._send(entry.payload)

    def _send(self, body: bytes) -> None:
        self._catalogs.send_announced(
            lambda: self._transport.send_frame(body), self._transport.put_catalog, lambda: decode(body).catalog
        )
