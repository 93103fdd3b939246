"""Reads stored blocks again: for the memory of a process that starts or follows others, and for files of history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

from mainstay.probes.bundle import BundleLayout, decode_bundle, decode_layout
from mainstay.probes.frame import Frame, FrameError, open_payload, read_envelope
from mainstay.service.common.problem import ProblemError
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.catalogs import CatalogIndex, CatalogScope, Compiled
from mainstay.service.telemetry.check import BadFrameError, CheckedSamples, check, time_span
from mainstay.service.telemetry.frame_batch import BatchLayout
from mainstay.service.telemetry.group_check import CheckedGroup, DeviceFrame, Payload, RelayedFrames, check_group

_log: Final = logging.getLogger(__name__)
_LAYOUTS: Final = 512
Wanted = Callable[[StoredBlock, Compiled], bool]


@dataclass(frozen=True, eq=False)
class KnownLayout:
    """The names in a bundle, and where their readings go."""

    names: BundleLayout
    layout: BatchLayout


@dataclass(frozen=True)
class StoredFrames:
    """Reads blocks. Any thread may."""

    catalogs: CatalogIndex
    layout: Callable[[bytes], KnownLayout] = field(default_factory=lambda: lru_cache(_LAYOUTS)(_known_layout))
    """Layouts of bundles: a relay sends the same bytes while its nodes stay the same."""

    def read(self, blocks: Sequence[StoredBlock], wanted: Wanted) -> tuple[list[Payload], CheckedGroup]:
        """What blocks hold, and the same checked as arrays. Those that cannot be read are logged and left out.

        Args:
            blocks: some hundred; they are decoded at once.
            wanted: whether a block of frames with this catalog is read.
        """
        payloads: list[Payload] = []
        for block in blocks:
            try:
                payload = self._payload(block, wanted)
            except (ProblemError, FrameError, msgspec.MsgspecError):
                _log.exception("stored block %s cannot be read again", block.key)
                continue
            if payload is not None:
                payloads.append(payload)
        checked = check_group(payloads)
        for place, problem in checked.refused.items():
            _log.error("a stored block is refused now: %s (%s)", problem.detail, type(payloads[place]).__name__)
        return [payload for place, payload in enumerate(payloads) if place not in checked.refused], checked

    def _payload(self, block: StoredBlock, wanted: Wanted) -> Payload | None:
        if block.kind is BlockKind.BUNDLE:
            bundle = decode_bundle(block.body)
            known, made = self.layout(bytes(bundle.layout)), self.catalogs.load(bundle.catalog)
            if made is None or not wanted(block, made):
                return None
            return RelayedFrames(bundle, known.names, known.layout, made)
        frame = read_envelope(block.body)
        compiled = self.catalogs.load(frame.catalog)
        if compiled is None or not wanted(block, compiled):
            return None
        if compiled.scope is not CatalogScope.DEVICES:
            return open_frame(frame, compiled)
        time_span(frame, compiled)
        return DeviceFrame(frame, compiled)


def open_frame(frame: Frame, compiled: Compiled) -> CheckedSamples:
    """A job's frame, inflated and checked.

    Raises:
        BadFrameError: it is damaged or out of range.
    """
    try:
        return check(open_payload(frame), compiled)
    except FrameError as error:
        raise BadFrameError(str(error)) from error


def _known_layout(raw: bytes) -> KnownLayout:
    names = decode_layout(raw)
    return KnownLayout(names, BatchLayout(names.subjects, names.entities))
