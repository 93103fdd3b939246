"""Ingest of frames: decode, authorize, check, store, acknowledge. Nothing of a rejected frame is kept."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from fastapi.concurrency import run_in_threadpool

from mainstay.probes.frame import Axis, Frame, FrameError, decode
from mainstay.service.auth.tokens import Principal, Scope
from mainstay.service.common.back_pressure import LOW_SHARE, BusyError
from mainstay.service.common.clock import Clock
from mainstay.service.common.problem import ConflictError, UnprocessableError
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.settings import TelemetrySettings
from mainstay.service.telemetry.blocks import BlockStore, StoredBlock
from mainstay.service.telemetry.catalogs import CatalogIndex, CatalogScope, Compiled
from mainstay.service.telemetry.check import BadFrameError, CheckedSamples, check, check_subject, highest_rank
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from mainstay.service.telemetry.subjects import Subjects
from mainstay.service.telemetry.writer import GroupCommitWriter

_log: Final = logging.getLogger(__name__)
_LARGE: Final = 64 * 1024
"""Bodies above this are read in a thread, and what is inside them checked there when it is four times as large: the
event loop has other nodes to serve. (The progress of a large job is small on the wire and megabytes inside.)"""

PROGRESS_REFILL_SECONDS: Final = 180.0
"""Progress read back at start: what a hang detector is shown again (two minutes), and a minute for what came late. A
large job's frames take a tenth of a second each to read, and no detector needs older ones."""
_MANY: Final = 2048
"""Names of ranks or pairs above this are read in a thread too."""


class UnknownCatalogError(ConflictError):
    slug, title = "unknown-catalog", "Unknown catalog"


class OutOfTimeError(UnprocessableError):
    slug, title = "outside-retention", "Outside the time that is kept"


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """The data path of one process."""

    settings: TelemetrySettings
    clock: Clock
    catalogs: CatalogIndex
    subjects: Subjects
    ring: TelemetryRing
    steps: StepStore
    progress: ProgressStore
    pairs: PairStore
    seen: LastSeenCache
    store: BlockStore
    writer: GroupCommitWriter
    keep: Callable[[CheckedSamples], None]
    """Puts a stored frame into memory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Frames refused, by problem slug."""

    async def accept(self, principal: Principal, body: bytes) -> bool:
        """Store one frame; False when it was stored before.

        Raises:
            ProblemError: it was not stored; the problem says why.
        """
        principal.require(Scope.REPORT)
        try:
            frame = await run_in_threadpool(decode, body) if len(body) >= _LARGE else decode(body)
        except FrameError as error:
            raise BadFrameError(str(error)) from error
        compiled = await self._authorize(principal, frame)
        if compiled.scope.of_job and self.writer.pending > LOW_SHARE * self.settings.max_pending_frames:
            raise BusyError("frames of jobs", 5)  # the health of nodes comes first
        large = len(frame.values) + len(frame.wide) >= 4 * _LARGE
        samples = await run_in_threadpool(check, frame, compiled) if large else check(frame, compiled)
        self._check_time(samples)
        if compiled.scope is CatalogScope.DEVICES:
            # The node reported, even if this was a repetition. A job's progress says nothing about a node's daemon.
            self.seen.note(frame.subject, self.clock.now())
        return await self.writer.submit(_block(samples, body), samples)

    async def _authorize(self, principal: Principal, frame: Frame) -> Compiled:
        """The frame's catalog, if the sender may write its subject: a node, or a job whose ranks it names."""
        if frame.axis is Axis.STEP:
            await self._know_job(principal, frame.subject)
        compiled = await self._compiled(frame.catalog)
        if compiled.scope.of_job:
            await self._know_job(principal, frame.subject)
            check_subject(frame, compiled)
            await self._check_ranks(frame, compiled.scope)
            return compiled
        principal.require_node(frame.subject)
        check_subject(frame, compiled)
        if not self.subjects.has_node(frame.subject):
            await run_in_threadpool(self.subjects.find_node, frame.subject)
        return compiled

    async def _know_job(self, principal: Principal, job: str) -> None:
        principal.require_job(job)
        if not self.subjects.ranks(job):
            await run_in_threadpool(self.subjects.find_job, job)

    async def _check_ranks(self, frame: Frame, scope: CatalogScope) -> None:
        many = len(frame.entities) > _MANY
        highest = await run_in_threadpool(highest_rank, frame, scope) if many else highest_rank(frame, scope)
        if highest >= self.subjects.ranks(frame.subject):
            await run_in_threadpool(self.subjects.find_job, frame.subject)
        size = self.subjects.ranks(frame.subject)
        if highest >= size:
            raise BadFrameError(f"rank {highest} is not one of the {size} ranks of job {frame.subject!r}")

    async def _compiled(self, digest: str) -> Compiled:
        compiled = self.catalogs.get(digest) or await run_in_threadpool(self.catalogs.load, digest)
        if compiled is None:
            raise UnknownCatalogError(f"catalog {digest} is not known: PUT /v1/telemetry/catalogs/{digest} first")
        return compiled

    def _check_time(self, samples: CheckedSamples) -> None:
        now = self.clock.now()
        if samples.stop > now + self.settings.max_future_seconds:
            raise OutOfTimeError(f"the frame ends {samples.stop - now:.0f} s in the future: set the node's clock")
        if samples.start < now - self.settings.retention_hours * 3600:
            raise OutOfTimeError(f"the frame is older than the {self.settings.retention_hours} h that are kept")

    def refill(self) -> int:
        """Fill the rings from the last minutes of blocks; how many blocks. Call before the writer starts."""
        now, count = self.clock.now(), 0
        spans = {Axis.TIME: self.settings.ring_seconds, Axis.STEP: self.settings.step_refill_hours * 3600}
        for axis, seconds in spans.items():
            for block in self.store.read(now - seconds, now + self.settings.max_future_seconds, axis=axis):
                count += self._restore(block, now)
        return count

    def _restore(self, block: StoredBlock, now: float) -> bool:
        try:
            if block.stop < now - PROGRESS_REFILL_SECONDS and self._scope(block) is CatalogScope.PROGRESS:
                return False
            frame = decode(block.body)
            compiled = self.catalogs.load(frame.catalog)
            if compiled is None:
                return False
            self.keep(check(frame, compiled))
        except (FrameError, UnprocessableError, msgspec.MsgspecError):
            _log.exception("stored block %s cannot be read again", block.key)
            return False
        return True

    def _scope(self, block: StoredBlock) -> CatalogScope | None:
        """The scope of a frame, from its envelope alone."""
        compiled = self.catalogs.load(_envelope.decode(block.body).catalog)
        return None if compiled is None else compiled.scope


class _Envelope(msgspec.Struct):
    catalog: str


_envelope: Final = msgspec.msgpack.Decoder(_Envelope)


def _block(samples: CheckedSamples, body: bytes) -> StoredBlock:
    frame = samples.frame
    return StoredBlock(frame.subject, frame.axis, frame.stream, frame.sequence, samples.start, samples.stop, body)
