"""What a relay takes: frames of one node each, checked as far as that needs no database, durable before the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.frame import Axis, Frame, FrameError, check_shape, decode
from mainstay.probes.relay_problem import RelayProblemError, unavailable
from mainstay.probes.spool import Spool

COMMIT_SECONDS: Final = 0.02
"""Frames that arrive within this time share one write to the disk."""
MAX_FUTURE_SECONDS: Final = 300.0
"""As the service's default: a frame from the future is a node's wrong clock."""
MAX_PAYLOAD_BYTES: Final = 512 * 1024
"""Of a frame, uncompressed: a minute of 16 GPUs at 1 Hz. 128 such frames are the largest bundle."""
MAX_BODY_BYTES: Final = 1024 * 1024
_LARGE: Final = 64 * 1024
"""Bodies above this are read in a thread: the event loop has other nodes to serve."""


class FrameIntake:
    """Checks frames and writes them to the spool, many with one sync. Used from one event loop."""

    def __init__(self, spool: Spool, catalogs: CatalogStore, *, clock: Callable[[], float] = time.time) -> None:
        self.accepted = 0
        self._spool = spool
        self._catalogs = catalogs
        self._clock = clock
        self._waiting: list[tuple[bytes, asyncio.Future[OSError | None]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._queued = 0
        # A spool drops its oldest entries when it is full; what is acknowledged here must not be lost.
        self._limit = spool.max_bytes - spool.max_bytes // 16
        self._stored = spool.size_bytes

    def has_room(self, size: int = 0) -> bool:
        """Whether the spool takes so many bytes more."""
        if self._stored + self._queued + size > self._limit:
            self._stored = self._spool.size_bytes  # the sender may have emptied it meanwhile
        return self._stored + self._queued + size <= self._limit

    async def accept(self, node: str, body: bytes) -> None:
        """Store a frame of ``node``; on return it is durable.

        Raises:
            RelayProblemError: it was not stored.
        """
        try:
            frame = await asyncio.to_thread(decode, body) if len(body) >= _LARGE else decode(body)
            self._check(node, frame)
        except FrameError as error:
            raise RelayProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-frame", str(error)) from error
        await self._store(body)
        self.accepted += 1

    def _check(self, node: str, frame: Frame) -> None:
        if frame.subject != node or frame.axis is not Axis.TIME:
            raise RelayProblemError(HTTPStatus.FORBIDDEN, "wrong-node", f"this token may send frames of {node} only")
        catalog = self._catalogs.load(frame.catalog)
        if catalog is None:
            raise RelayProblemError(
                HTTPStatus.CONFLICT,
                "unknown-catalog",
                f"catalog {frame.catalog} is not known: PUT /v1/telemetry/catalogs/{frame.catalog} first",
            )
        check_shape(frame, narrow=len(catalog.narrow), wide=len(catalog.wide))
        if len(frame.values) + len(frame.wide) > MAX_PAYLOAD_BYTES:
            raise RelayProblemError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "frame-too-large",
                f"a relay takes frames of at most {MAX_PAYLOAD_BYTES} bytes uncompressed: send this one directly",
            )
        if any(">" in entity for entity in frame.entities):
            raise FrameError("a pair of ranks is not a device of a node")
        ahead = frame.t0 + (frame.samples - 1) * frame.dt - self._clock()
        if ahead > MAX_FUTURE_SECONDS:
            raise FrameError(f"the frame ends {ahead:.0f} s in the future: set the node's clock")

    async def _store(self, body: bytes) -> None:
        if not self.has_room(len(body)):
            raise unavailable("spool-full", "the relay's spool is full")
        done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, done))
        self._queued += len(body)
        if self._commit is None:
            self._commit = asyncio.create_task(self._write_waiting())
        if (error := await done) is not None:
            raise unavailable("disk-error", f"the relay cannot write: {error}") from error

    async def _write_waiting(self) -> None:
        await asyncio.sleep(COMMIT_SECONDS)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            error = await asyncio.to_thread(self._write, [body for body, _ in batch])
            self._queued -= sum(len(body) for body, _ in batch)
            for _, done in batch:
                if not done.done():  # the client left
                    done.set_result(error)
        self._commit = None

    def _write(self, bodies: Sequence[bytes]) -> OSError | None:
        try:
            for body in bodies:
                self._spool.append(body)
            self._spool.sync()
        except OSError as error:
            return error
        finally:
            self._stored = self._spool.size_bytes
        return None
