"""Ingest of frames: decode, authorize, check, store, acknowledge. Nothing of a rejected frame is kept."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fastapi.concurrency import run_in_threadpool

from mainstay.probes.bundle import MAX_SPREAD_SECONDS, decode_bundle, encode_bundle
from mainstay.probes.frame import Axis, Frame, FrameError, read_envelope
from mainstay.service.auth.tokens import NotYourRackError, Principal, Scope
from mainstay.service.common.back_pressure import LOW_SHARE, BusyError
from mainstay.service.common.clock import Clock
from mainstay.service.common.problem import ConflictError, ProblemError, UnprocessableError
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.settings import TelemetrySettings
from mainstay.service.telemetry.blocks import BlockKind, BlockStore, StoredBlock
from mainstay.service.telemetry.catalogs import CatalogIndex, CatalogScope, Compiled
from mainstay.service.telemetry.check import (
    BadFrameError,
    CheckedSamples,
    check_subject,
    highest_rank,
    time_span,
)
from mainstay.service.telemetry.frame_batch import FrameBatch
from mainstay.service.telemetry.group_check import DeviceFrame, Payload, RelayedFrames, without
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from mainstay.service.telemetry.stored_frames import StoredFrames, open_frame
from mainstay.service.telemetry.subjects import Subjects, UnknownSubjectError
from mainstay.service.telemetry.writer import Answer, GroupCommitWriter, durable

_log: Final = logging.getLogger(__name__)
_LARGE: Final = 16 * 1024
"""Payloads of jobs above this are opened and checked in a thread: the event loop has other nodes to serve. (The
progress of a large job is small on the wire and megabytes inside.)"""
_REFILL_BLOCKS: Final = 512

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
    stored: StoredFrames
    writer: GroupCommitWriter
    keep: Callable[[CheckedSamples | FrameBatch], None]
    """Puts stored frames into memory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Frames refused, by problem slug."""

    async def accept(self, principal: Principal, body: bytes) -> bool:
        """Store one frame; False when it was stored before.

        Raises:
            ProblemError: it was not stored; the problem says why.
        """
        principal.require(Scope.REPORT)
        frame = _read(body)
        compiled = self._known_devices(principal, frame) or await self._authorize(principal, frame)
        if compiled.scope is CatalogScope.DEVICES:
            return await durable(partial(self._store_devices, frame, compiled, body))
        if self.writer.pending > LOW_SHARE * self.settings.max_pending_frames:
            raise BusyError("frames of jobs", 5)  # the health of nodes comes first
        samples = await self._checked(frame, compiled)
        self._check_time(samples.start, samples.stop)
        block = _block(frame, samples.start, samples.stop, body)
        return await durable(partial(self.writer.enqueue, block, samples))

    def accept_now(self, principal: Principal, body: bytes, answer: Answer) -> bool:
        """``accept`` without waiting, for a frame about which memory has all; False, and nothing done, for others.

        Raises:
            ProblemError: as ``accept``; ``answer`` is never called.
        """
        frame = _read(body)
        compiled = self._known_devices(principal, frame)
        if compiled is not None:
            self._store_devices(frame, compiled, body, answer)
        return compiled is not None

    def _known_devices(self, principal: Principal, frame: Frame) -> Compiled | None:
        """The catalog of a node's frame, if catalog and node are in memory."""
        compiled = self.catalogs.get(frame.catalog)
        if compiled is None or compiled.scope is not CatalogScope.DEVICES or not self.subjects.has_node(frame.subject):
            return None
        principal.require_node(frame.subject)
        check_subject(frame, compiled)
        return compiled

    def _store_devices(self, frame: Frame, compiled: Compiled, body: bytes, answer: Answer) -> None:
        start, stop = time_span(frame, compiled)
        self._check_time(start, stop)

        def note(result: bool | ProblemError) -> None:
            # The node reported, even if this was a repetition. A job's progress says nothing about a node's daemon.
            if not isinstance(result, ProblemError):
                self.seen.note(frame.subject, self.clock.now())
            answer(result)

        self.writer.enqueue(_block(frame, start, stop, body), DeviceFrame(frame, compiled), note)

    async def _checked(self, frame: Frame, compiled: Compiled) -> CheckedSamples:
        """A job's frame, opened and checked: in a thread when it is large."""
        if len(frame.values) + len(frame.wide) >= _LARGE:
            return await run_in_threadpool(open_frame, frame, compiled)
        return open_frame(frame, compiled)

    async def accept_bundle(self, principal: Principal, body: bytes) -> list[tuple[str, int, ProblemError]]:
        """Store the frames of a bundle; those that were refused: subject, sequence, and why.

        Raises:
            ProblemError: nothing was stored; the problem says why.
        """
        principal.require(Scope.REPORT)
        try:
            bundle = decode_bundle(body)
            names = self.stored.layout(bytes(bundle.layout))
        except FrameError as error:
            raise BadFrameError(str(error)) from error
        compiled = await self._compiled(bundle.catalog)
        if compiled.scope is not CatalogScope.DEVICES:
            raise BadFrameError(f"a bundle holds signals of devices, not of {compiled.scope}")
        relayed = RelayedFrames(bundle, names.names, names.layout, compiled)
        refused = await self._refused_members(principal, relayed)
        found = [(relayed.names.subjects[i], bundle.sequences[i], error) for i, error in refused.items()]
        rest = relayed if not refused else without(relayed, set(refused))
        if rest is None:
            return found
        stored = encode_bundle(rest.bundle) if refused else body
        block = _bundle_block(rest, stored)
        is_new = await durable(partial(self.writer.enqueue, block, rest))
        self.seen.note_all(rest.names.subjects, self.clock.now())
        found += [(rest.names.subjects[i], rest.bundle.sequences[i], error) for i, error in rest.rejected]
        return found if is_new else found + await run_in_threadpool(self._left_out, block, rest)

    def _left_out(self, block: StoredBlock, relayed: RelayedFrames) -> list[tuple[str, int, ProblemError]]:
        """Members that the stored bundle lacks: they were refused when it first came, and that answer was lost."""
        spread = MAX_SPREAD_SECONDS
        near = self.store.read(block.start - spread, block.stop + spread, subject=block.subject, kinds=[block.kind])
        kept = next((one for one in near if one.key == block.key), None)
        if kept is None:
            return []
        names = self.stored.layout(bytes(decode_bundle(kept.body).layout)).names.subjects
        error = UnknownSubjectError("the node was not known when this bundle was stored: send its frame in another one")
        members = zip(relayed.names.subjects, relayed.bundle.sequences, strict=True)
        return [(subject, sequence, error) for subject, sequence in members if subject not in names]

    async def _refused_members(self, principal: Principal, relayed: RelayedFrames) -> dict[int, ProblemError]:
        """Members of a bundle that this sender may not write, or that lie outside the time that is kept."""
        length = (relayed.bundle.samples - 1) * relayed.bundle.dt
        if self._all_pass(principal, relayed, length):
            return {}
        refused: dict[int, ProblemError] = {}
        if unknown := [name for name in relayed.names.subjects if not self.subjects.has_node(name)]:
            await run_in_threadpool(self.subjects.find_nodes, unknown)
        for member, (subject, start) in enumerate(zip(relayed.names.subjects, relayed.bundle.starts, strict=True)):
            try:
                if not self.subjects.has_node(subject):
                    await run_in_threadpool(self.subjects.find_node, subject)
                await self._require_relayed(principal, subject)
                self._check_time(start, start + length)
            except ProblemError as error:
                refused[member] = error
        return refused

    def _all_pass(self, principal: Principal, relayed: RelayedFrames, length: float) -> bool:
        """Whether no member is refused, from memory: asking for each alone cost as much as storing its samples."""
        starts, racks = relayed.bundle.starts, self.subjects.racks(relayed.names.subjects)
        if racks is None or not all(map(principal.carries, racks)):
            return False
        try:
            self._check_time(min(starts), max(starts) + length)
        except OutOfTimeError:
            return False
        return True

    async def _require_relayed(self, principal: Principal, node: str) -> None:
        try:
            principal.require_relayed(node, self.subjects.rack(node))
        except NotYourRackError:
            await run_in_threadpool(self.subjects.find_node, node)  # its report may have come, or named another rack
            principal.require_relayed(node, self.subjects.rack(node))

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

    def _check_time(self, start: float, stop: float) -> None:
        now = self.clock.now()
        if stop > now + self.settings.max_future_seconds:
            raise OutOfTimeError(f"the frame ends {stop - now:.0f} s in the future: set the node's clock")
        if start < now - self.settings.retention_hours * 3600:
            raise OutOfTimeError(f"the frame is older than the {self.settings.retention_hours} h that are kept")

    def refill(self) -> int:
        """Fill the rings from the last minutes of blocks; how many blocks. Call before the writer starts."""
        self.subjects.find_nodes()  # one by one, as their frames come, it would take a large fleet minutes
        now, count = self.clock.now(), 0
        spans = {
            (BlockKind.TIME, BlockKind.BUNDLE): min(self.settings.ring_seconds, self.settings.refill_seconds),
            (BlockKind.STEP,): self.settings.step_refill_hours * 3600,
        }
        for kinds, seconds in spans.items():
            blocks = self.store.read(now - seconds, now + self.settings.max_future_seconds, kinds=kinds)
            while group := list(itertools.islice(blocks, _REFILL_BLOCKS)):
                count += len(self.restore(group, now))
        return count

    def restore(self, blocks: Sequence[StoredBlock], now: float) -> list[Payload]:
        """Put stored blocks into memory; what they held, without those that cannot be read again."""

        def is_needed(block: StoredBlock, compiled: Compiled) -> bool:
            return compiled.scope is not CatalogScope.PROGRESS or block.stop >= now - PROGRESS_REFILL_SECONDS

        payloads, checked = self.stored.read(blocks, is_needed)
        for samples in checked.accepted:
            self.keep(samples)
        return payloads


def _read(body: bytes) -> Frame:
    try:
        return read_envelope(body)
    except FrameError as error:
        raise BadFrameError(str(error)) from error


def _block(frame: Frame, start: float, stop: float, body: bytes) -> StoredBlock:
    kind = BlockKind.STEP if frame.axis is Axis.STEP else BlockKind.TIME
    return StoredBlock(frame.subject, kind, frame.stream, frame.sequence, start, stop, body)


def _bundle_block(relayed: RelayedFrames, body: bytes) -> StoredBlock:
    bundle = relayed.bundle
    stop = max(bundle.starts) + (bundle.samples - 1) * bundle.dt
    return StoredBlock(
        bundle.relay, BlockKind.BUNDLE, bundle.stream, bundle.sequence, min(bundle.starts), stop, body,
        members=relayed.names.subjects,
    )  # fmt: skip
