"""Frames of a running job, as its coordinator would send them: progress by time, transfers and steps by step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mainstay.probes.frame import Axis, Frame, checksum
from mainstay.probes.signals import WIDE_MISSING, Catalog, SignalSource, catalog
from mainstay.service.telemetry.catalogs import PAIR_CATALOG, STEP_END, compile_catalog
from mainstay.service.telemetry.check import CheckedSamples, check

PROGRESS = catalog(SignalSource.PROGRESS)
RANK = catalog(SignalSource.RANK)
PAIR = PAIR_CATALOG
_COMPILED = {made.digest: compile_catalog(made) for made in (PROGRESS, RANK, PAIR)}
_numbers = itertools.count(1)
Values = Mapping[str, Any]
"""Signal -> what numpy can spread over [entity, sample]."""


def make_frame(
    made: Catalog, on: Axis, t0: float, signals: Values, *, entities: Sequence[str], samples: int, **changes: Any
) -> Frame:
    shape = (len(entities), samples)
    narrow = np.full((shape[0], len(made.narrow), samples), np.nan, "<f4")
    wide = np.full((shape[0], len(made.wide), samples), WIDE_MISSING, "<i8")
    for name, value in signals.items():
        if name in made.narrow:
            narrow[:, made.narrow.index(name)] = value
        else:
            wide[:, made.wide.index(name)] = value
    v, w = narrow.tobytes(), wide.tobytes()
    fields: dict[str, Any] = {
        "version": 1, "subject": "demo-1", "axis": on, "stream": "s-1", "sequence": next(_numbers), "t0": t0,
        "dt": 1.0, "catalog": made.digest, "entities": tuple(entities), "samples": samples, "values": v, "wide": w,
        "crc32": checksum(v, w),
    }  # fmt: skip
    return Frame(**{**fields, **changes})


def progress_frame(
    t0: float, signals: Values, /, *, ranks: int | Sequence[int] = 4, samples: int = 1, **c: Any
) -> Frame:
    """Progress of ranks (0 up to a number, or those named)."""
    named = range(ranks) if isinstance(ranks, int) else ranks
    entities = c.pop("entities", tuple(str(rank) for rank in named))
    return make_frame(PROGRESS, Axis.TIME, t0, signals, entities=entities, samples=samples, **c)


def step_frame(step: int, values: Values, *, end: Any, ranks: int = 4, samples: int = 1, **c: Any) -> Frame:
    """Steps of ranks; ``end`` in Unix seconds, spread over [rank, step]."""
    entities = c.pop("entities", tuple(str(rank) for rank in range(ranks)))
    ends = {STEP_END: np.round(np.asarray(end, np.float64) * 1e9).astype(np.int64)}
    return make_frame(RANK, Axis.STEP, float(step), {**values, **ends}, entities=entities, samples=samples, **c)


def pair_frame(step: int, seconds: Any, *, pairs: Sequence[str], end: Any, samples: int = 1, **c: Any) -> Frame:
    """Transfers of pairs such as ``3>4``."""
    ends = np.round(np.asarray(end, np.float64) * 1e9).astype(np.int64)
    values = {"transfer_seconds": seconds, "transfer_bytes": 1e6, STEP_END: ends, **c.pop("values_of", {})}
    return make_frame(PAIR, Axis.STEP, float(step), values, entities=pairs, samples=samples, **c)


def checked(frame: Frame) -> CheckedSamples:
    return check(frame, _COMPILED[frame.catalog])
