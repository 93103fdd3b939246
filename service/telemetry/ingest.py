"""From bytes to durable: decode, authorise, check, store, acknowledge. Nothing of a refused frame is kept."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from fastapi.concurrency import run_in_threadpool

from probes.frame import Axis, Frame, FrameError, decode
from service.auth.tokens import Principal, Scope
from service.fleet.seen import Seen
from service.kit.clock import Clock
from service.kit.problem import ConflictError, UnprocessableError
from service.settings import TelemetrySettings
from service.telemetry.blocks import Block, BlockStore
from service.telemetry.catalogues import CatalogueIndex, Compiled, Told
from service.telemetry.check import BadFrameError, Samples, check, check_subject, highest_rank
from service.telemetry.pairs import PairStore
from service.telemetry.progress import ProgressStore
from service.telemetry.ring import Ring
from service.telemetry.steps import StepStore
from service.telemetry.subjects import Subjects
from service.telemetry.writer import GroupWriter

_log: Final = logging.getLogger(__name__)
_LARGE: Final = 64 * 1024
"""Bodies above this are read in a thread, and what is inside them checked there when it is four times as large: the
event loop has other nodes to serve. (The progress of a large job is small on the wire and megabytes inside.)"""

PROGRESS_REFILL_SECONDS: Final = 180.0
"""Progress read back at start: what a hang detector is shown again (two minutes), and a minute for what came late. A
large job's frames take a tenth of a second each to read, and older ones nobody would look at."""
_MANY: Final = 2048
"""Names of ranks or pairs above this are read in a thread too."""


class UnknownCatalogueError(ConflictError):
    slug, title = "unknown-catalogue", "Unknown catalogue"


class OutOfTimeError(UnprocessableError):
    slug, title = "out-of-time", "Outside the time that is kept"


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """The data path of one process."""

    settings: TelemetrySettings
    clock: Clock
    catalogues: CatalogueIndex
    subjects: Subjects
    ring: Ring
    steps: StepStore
    progress: ProgressStore
    pairs: PairStore
    seen: Seen
    store: BlockStore
    writer: GroupWriter
    keep: Callable[[Samples], None]
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
        compiled = await self._authorise(principal, frame)
        large = len(frame.values) + len(frame.wide) >= 4 * _LARGE
        samples = await run_in_threadpool(check, frame, compiled) if large else check(frame, compiled)
        self._check_time(samples)
        if compiled.told is Told.DEVICES:
            # The node spoke, whether or not this was a repetition. A job's progress says nothing of a node's daemon.
            self.seen.note(frame.subject, self.clock.now())
        return await self.writer.submit(_block(samples, body), samples)

    async def _authorise(self, principal: Principal, frame: Frame) -> Compiled:
        """The frame's catalogue, if the sender may write its subject: a node, or a job whose ranks it names."""
        if frame.axis is Axis.STEP:
            await self._know_job(principal, frame.subject)
        compiled = await self._compiled(frame.catalogue)
        if compiled.told.of_job:
            await self._know_job(principal, frame.subject)
            check_subject(frame, compiled)
            await self._check_ranks(frame, compiled.told)
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

    async def _check_ranks(self, frame: Frame, told: Told) -> None:
        many = len(frame.entities) > _MANY
        highest = await run_in_threadpool(highest_rank, frame, told) if many else highest_rank(frame, told)
        if highest >= self.subjects.ranks(frame.subject):
            await run_in_threadpool(self.subjects.find_job, frame.subject)
        size = self.subjects.ranks(frame.subject)
        if highest >= size:
            raise BadFrameError(f"rank {highest} is not one of the {size} ranks of job {frame.subject!r}")

    async def _compiled(self, digest: str) -> Compiled:
        compiled = self.catalogues.get(digest) or await run_in_threadpool(self.catalogues.load, digest)
        if compiled is None:
            raise UnknownCatalogueError(f"catalogue {digest} is not known: PUT /v1/telemetry/catalogues/{digest} first")
        return compiled

    def _check_time(self, samples: Samples) -> None:
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

    def _restore(self, block: Block, now: float) -> bool:
        try:
            if block.stop < now - PROGRESS_REFILL_SECONDS and self._told(block) is Told.PROGRESS:
                return False
            frame = decode(block.body)
            compiled = self.catalogues.load(frame.catalogue)
            if compiled is None:
                return False
            self.keep(check(frame, compiled))
        except (FrameError, UnprocessableError, msgspec.MsgspecError):
            _log.exception("stored block %s cannot be read again", block.key)
            return False
        return True

    def _told(self, block: Block) -> Told | None:
        """What a frame tells of, from its envelope alone."""
        compiled = self.catalogues.load(_envelope.decode(block.body).catalogue)
        return None if compiled is None else compiled.told


class _Envelope(msgspec.Struct):
    catalogue: str


_envelope: Final = msgspec.msgpack.Decoder(_Envelope)


def _block(samples: Samples, body: bytes) -> Block:
    frame = samples.frame
    return Block(frame.subject, frame.axis, frame.stream, frame.sequence, samples.start, samples.stop, body)
