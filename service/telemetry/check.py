"""What a frame must satisfy beyond its envelope before anything of it is kept. Errors name signal, device and value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.core_types import StepPhase
from mainstay.probes.frame import Axis, Frame, FrameError, check_shape
from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.telemetry.catalogs import STEP_END, CatalogScope, Compiled

MAX_DEVICES: Final = 256
"""Devices of one node; more is an error, not a machine."""
MAX_SPAN_SECONDS: Final = 3600.0
"""A frame lies in its own hour or reaches into the next, never further: readers look back one hour."""
PROGRESS_PERIODS: Final = (0.1, 60.0)
"""Shortest and longest time between two samples of progress, seconds: finer is not kept, coarser reveals no hang."""
MAX_RANK_DIGITS: Final = 7
_AXIS: Final = {
    CatalogScope.DEVICES: Axis.TIME,
    CatalogScope.STEPS: Axis.STEP,
    CatalogScope.PROGRESS: Axis.TIME,
    CatalogScope.PAIRS: Axis.STEP,
}
_RANKS: Final = re.compile(r"(?:(?:0|[1-9][0-9]{0,6}),)*(?:0|[1-9][0-9]{0,6})")
_PHASES: Final = ("progress_phase", "step_phase")


class BadFrameError(UnprocessableError):
    slug, title = "invalid-frame", "Not an acceptable frame"


class ValueOutOfRangeError(UnprocessableError):
    slug, title = "value-out-of-range", "Value out of range"


@dataclass(frozen=True, slots=True)
class CheckedSamples:
    """A checked frame's tensors, and the data time it spans."""

    frame: Frame
    compiled: Compiled
    narrow: NDArray[np.float32]
    """[entity, narrow signal, time]"""
    wide: NDArray[np.int64]
    """[entity, wide signal, time]"""
    start: float
    stop: float
    """Unix seconds of the first and the last sample."""


def check(frame: Frame, compiled: Compiled) -> CheckedSamples:
    """The frame's tensors.

    Raises:
        BadFrameError: shape, span, ranks or step times do not fit.
        ValueOutOfRangeError: a value is infinite or outside its signal's limits (NaN is "missing" and passes).
    """
    made = compiled.catalog
    check_subject(frame, compiled)
    check_lengths(frame, compiled)
    entities = len(frame.entities)
    narrow = np.frombuffer(frame.values, "<f4").reshape(entities, len(made.narrow), frame.samples)
    wide = np.frombuffer(frame.wide, "<i8").reshape(entities, len(made.wide), frame.samples)
    _check_narrow(frame, compiled, narrow)
    _check_wide(frame, compiled, wide)
    _check_phases(frame, compiled, narrow)
    start, stop = _span(frame, compiled, wide)
    return CheckedSamples(frame, compiled, narrow, wide, start, stop)


def check_lengths(frame: Frame, compiled: Compiled) -> None:
    """Check that the payload has the length that its shape needs.

    Raises:
        BadFrameError: it has not; the message names the half and the bytes.
    """
    try:
        check_shape(frame, narrow=len(compiled.catalog.narrow), wide=len(compiled.catalog.wide))
    except FrameError as error:
        raise BadFrameError(str(error)) from error


def check_devices(compiled: Compiled, narrow: NDArray[np.float32], wide: NDArray[np.int64]) -> None:
    """Check [time, signal, entity] values of devices against the limits of their signals.

    Raises:
        ValueOutOfRangeError: a value is outside; ``check`` names it.
    """
    outside = (narrow < compiled.low[:, None]) | (narrow > compiled.high[:, None])
    wide_outside = (wide < compiled.wide_low[:, None]) | (wide > compiled.wide_high[:, None])
    if outside.any() or (wide_outside.any() and (wide_outside & (wide != WIDE_MISSING)).any()):
        raise ValueOutOfRangeError("a value is outside its signal's limits")


def check_subject(frame: Frame, compiled: Compiled) -> None:
    """Check that axis and entities match the scope of the catalog.

    Raises:
        BadFrameError: they are not; the message names which.
    """
    scope = compiled.scope
    if scope is CatalogScope.MIXED:
        raise BadFrameError("the catalog mixes signals of devices, ranks, progress or pairs: a frame describes one")
    if frame.axis is not _AXIS[scope]:
        raise BadFrameError(f"signals of {scope} stand on the {_AXIS[scope]} axis, not on the {frame.axis} axis")
    if scope is CatalogScope.DEVICES:
        pair = next((entity for entity in frame.entities if ">" in entity), None)
        if pair is not None:
            raise BadFrameError(f"{pair!r} is a pair of ranks, not a device of a node")


def highest_rank(frame: Frame, scope: CatalogScope) -> int:
    """The highest rank number that a job's frame names.

    Raises:
        BadFrameError: an entity is not a rank, or not a pair of two ranks.
    """
    if scope is not CatalogScope.PAIRS:
        if _RANKS.fullmatch(",".join(frame.entities)):
            return max(map(int, frame.entities))  # the usual case, sixteen thousand of them
        return max(
            _rank(entity, f"of a {'step' if scope is CatalogScope.STEPS else scope} frame") for entity in frame.entities
        )
    highest = 0
    for entity in frame.entities:
        source, mark, target = entity.partition(">")
        if not mark:
            raise BadFrameError(f"entity {entity!r} of a pair frame is not a pair of ranks such as 3>4")
        if source == target:
            raise BadFrameError(f"entity {entity!r} of a pair frame: a rank sends nothing to itself")
        highest = max(highest, _rank(source, "in a pair"), _rank(target, "in a pair"))
    return highest


def _rank(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_RANK_DIGITS):
        raise BadFrameError(f"an entity {where} is not a rank number: {text!r}")
    if text[0] == "0" and text != "0":
        raise BadFrameError(f"rank {text!r} {where}: written without leading zeros, so that no rank has two names")
    return int(text)


def _check_phases(frame: Frame, compiled: Compiled, values: NDArray[np.float32]) -> None:
    for name in _PHASES:
        if name in compiled.catalog.narrow:
            column = values[:, compiled.catalog.narrow.index(name)]
            bad = ~(np.isnan(column) | np.isin(column, [phase.value for phase in StepPhase]))
            if bad.any():
                entity, sample = (int(i) for i in np.argwhere(bad)[0])
                raise ValueOutOfRangeError(
                    f"{name} of {frame.entities[entity]} at sample {sample} is {column[entity, sample]}: no StepPhase"
                )


def _check_narrow(frame: Frame, compiled: Compiled, values: NDArray[np.float32]) -> None:
    # Comparisons with NaN are false: a missing sample passes, as it should.
    bad = (values < compiled.low[:, None]) | (values > compiled.high[:, None])
    if bad.any():
        _refuse(frame, compiled.catalog.narrow, values, bad)


def _check_wide(frame: Frame, compiled: Compiled, values: NDArray[np.int64]) -> None:
    if not values.size:
        return
    outside = (values < compiled.wide_low[:, None]) | (values > compiled.wide_high[:, None])
    bad = outside & (values != WIDE_MISSING)
    if bad.any():
        _refuse(frame, compiled.catalog.wide, values, bad)


def _refuse(frame: Frame, names: tuple[str, ...], values: NDArray[np.generic], bad: NDArray[np.bool_]) -> None:
    entity, signal, sample = (int(i) for i in np.argwhere(bad)[0])
    value = values[entity, signal, sample].item()
    raise ValueOutOfRangeError(
        f"{names[signal]} of {frame.entities[entity]} at sample {sample} is {value}: outside the signal's limits"
    )


def _span(frame: Frame, compiled: Compiled, wide: NDArray[np.int64]) -> tuple[float, float]:
    return time_span(frame, compiled) if frame.axis is Axis.TIME else _step_span(frame, compiled, wide)


def time_span(frame: Frame, compiled: Compiled) -> tuple[float, float]:
    """First and last Unix second of a frame on the time axis, from its envelope alone.

    Raises:
        BadFrameError: it has too many devices, spans too much time, or a period that its scope does not allow.
    """
    if compiled.scope is CatalogScope.DEVICES and len(frame.entities) > MAX_DEVICES:
        raise BadFrameError(f"{len(frame.entities)} devices in one node, at most {MAX_DEVICES} are allowed")
    least, most = PROGRESS_PERIODS
    if compiled.scope is CatalogScope.PROGRESS and not least <= frame.dt <= most:
        raise BadFrameError(f"dt {frame.dt} of a progress frame is not between {least} and {most} seconds")
    length = (frame.samples - 1) * frame.dt
    if length > MAX_SPAN_SECONDS:
        raise BadFrameError(f"the frame spans {length:.0f} s, at most {MAX_SPAN_SECONDS:.0f} s are allowed")
    return frame.t0, frame.t0 + length


def _step_span(frame: Frame, compiled: Compiled, wide: NDArray[np.int64]) -> tuple[float, float]:
    if not (frame.t0.is_integer() and frame.t0 < 2**53 and math.isclose(frame.dt, 1.0)):
        raise BadFrameError(f"a step frame starts at a whole step with dt 1, not t0={frame.t0}, dt={frame.dt}")
    if STEP_END not in compiled.catalog.wide:
        raise BadFrameError(f"a step frame needs the signal {STEP_END}")
    ends = wide[:, compiled.catalog.wide.index(STEP_END), :]
    known = ends[ends != WIDE_MISSING]
    if not known.size:
        raise BadFrameError(f"{STEP_END} is missing for every rank: the frame has no place in time")
    return float(known.min()) / 1e9, float(known.max()) / 1e9
