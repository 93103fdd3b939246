"""Checks what a group commit is about to store: frames of devices as batches, bundles as they came.

It runs in the writer's thread, before anything is stored. A bad frame is refused alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mainstay.probes.bundle import Bundle, BundleLayout, decode_layout, encode_bundle, pack, read_tensors, unpack
from mainstay.probes.frame import Frame, FrameError, open_payload
from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.common.problem import ProblemError, UnprocessableError
from mainstay.service.telemetry.catalogs import Compiled
from mainstay.service.telemetry.check import BadFrameError, CheckedSamples, ValueOutOfRangeError, check, check_devices
from mainstay.service.telemetry.frame_batch import FRAMES, BatchLayout, FrameBatch, join


@dataclass(frozen=True, slots=True)
class DeviceFrame:
    """A frame of devices whose envelope was checked; its payload still travels as it came."""

    frame: Frame
    compiled: Compiled


@dataclass(slots=True, eq=False)
class RelayedFrames:
    """A bundle whose envelope was checked and whose senders may write it."""

    bundle: Bundle
    names: BundleLayout
    layout: BatchLayout
    compiled: Compiled
    rejected: list[tuple[int, ProblemError]] = field(default_factory=list)
    """Members that were refused, and why."""


Payload = CheckedSamples | DeviceFrame | RelayedFrames


@dataclass(slots=True)
class CheckedGroup:
    """What a check found."""

    batches: list[FrameBatch] = field(default_factory=list)
    samples: dict[int, CheckedSamples] = field(default_factory=dict)
    """Frames of jobs, by their place in the group."""
    refused: dict[int, ProblemError] = field(default_factory=dict)
    """By their place in the group."""
    bodies: dict[int, bytes] = field(default_factory=dict)
    """New bodies of bundles that lost members."""

    @property
    def cells(self) -> int:
        """Readings, present or missing."""
        return sum(one.narrow.size + one.wide.size for one in self.accepted)

    @property
    def accepted(self) -> list[CheckedSamples | FrameBatch]:
        """What goes into memory."""
        return [*self.batches, *self.samples.values()]


def check_group(payloads: Sequence[Payload]) -> CheckedGroup:
    """Check payloads together; each that is refused gets its reason, and the others are as arrays."""
    group = CheckedGroup()
    alike: dict[tuple[str, float, int], list[int]] = defaultdict(list)
    for place, payload in enumerate(payloads):
        if isinstance(payload, CheckedSamples):
            group.samples[place] = payload
        elif isinstance(payload, RelayedFrames):
            _check_bundle(group, place, payload)
        else:
            alike[payload.frame.catalog, payload.frame.dt, payload.frame.samples].append(place)
    for places in alike.values():
        for start in range(0, len(places), FRAMES):
            _check_frames(group, payloads, places[start : start + FRAMES])
    return group


def _check_frames(group: CheckedGroup, payloads: Sequence[Payload], places: Sequence[int]) -> None:
    opened: dict[int, DeviceFrame] = {}
    for place in places:
        payload = payloads[place]
        assert isinstance(payload, DeviceFrame)
        try:
            opened[place] = DeviceFrame(open_payload(payload.frame), payload.compiled)
        except FrameError as error:
            group.refused[place] = BadFrameError(str(error))
    try:
        _join(group, opened)
    except UnprocessableError:
        for place, one in list(opened.items()):
            try:
                check(one.frame, one.compiled)
            except UnprocessableError as error:
                group.refused[place] = error
                del opened[place]
        _join(group, opened)


def _join(group: CheckedGroup, opened: dict[int, DeviceFrame]) -> None:
    if opened:
        frames = [one.frame for one in opened.values()]
        group.batches.append(join(frames, next(iter(opened.values())).compiled))


def _check_bundle(group: CheckedGroup, place: int, relayed: RelayedFrames) -> None:
    try:
        batch = batch_of(relayed)
    except UnprocessableError as error:
        group.refused[place] = error
        return
    bad = _outside(batch)
    if not bad:
        group.batches.append(batch)
        return
    relayed.rejected += [(member, ValueOutOfRangeError("a value is outside its signal's limits")) for member in bad]
    rest = without(relayed, set(bad))
    if rest is None:
        group.refused[place] = ValueOutOfRangeError("every member has a value outside its signal's limits")
        return
    group.bodies[place] = encode_bundle(rest.bundle)
    group.batches.append(batch_of(rest))


def batch_of(relayed: RelayedFrames) -> FrameBatch:
    """The arrays of a decoded bundle.

    Raises:
        BadFrameError: layout, tensors, and catalog do not fit together.
    """
    made = relayed.compiled.catalog
    try:
        narrow, wide = read_tensors(relayed.bundle, relayed.names, narrow=len(made.narrow), wide=len(made.wide))
    except FrameError as error:
        raise BadFrameError(str(error)) from error
    starts = np.array(relayed.bundle.starts)
    return FrameBatch(relayed.compiled, relayed.layout, starts, relayed.bundle.dt, narrow, wide)


def _outside(batch: FrameBatch) -> list[int]:
    """Frames with a value outside the limits of its signal."""
    try:
        check_devices(batch.compiled, batch.narrow, batch.wide)
    except ValueOutOfRangeError:
        compiled = batch.compiled
        bad = ((batch.narrow < compiled.low[:, None]) | (batch.narrow > compiled.high[:, None])).any(axis=(0, 1))
        wide = (batch.wide < compiled.wide_low[:, None]) | (batch.wide > compiled.wide_high[:, None])
        bad |= (wide & (batch.wide != WIDE_MISSING)).any(axis=(0, 1))
        return sorted(set(np.repeat(np.arange(len(batch.starts)), batch.layout.sizes)[bad].tolist()))
    return []


def without(relayed: RelayedFrames, members: set[int]) -> RelayedFrames | None:
    """The bundle without some of its members; None when nothing is left."""
    bundle = relayed.bundle
    frames = [frame for member, frame in enumerate(unpack(bundle, relayed.names)) if member not in members]
    if not frames:
        return None
    rest = pack(frames, relay=bundle.relay, stream=bundle.stream, sequence=bundle.sequence)
    names = decode_layout(rest.layout)
    return RelayedFrames(rest, names, BatchLayout(names.subjects, names.entities), relayed.compiled)
