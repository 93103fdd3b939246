"""Catalogs compiled for the hot path: limits of every signal, and the position of each one in the rings."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from mainstay.probes.core_types import HOST_DEVICE, NIC_PREFIX
from mainstay.probes.signals import SIGNALS, Catalog, Signal, SignalKind, SignalSource, catalog, names
from mainstay.service.common.db import Database, WriteSession
from mainstay.service.telemetry.models import CatalogRow

_F32_MAX: Final = float(np.finfo(np.float32).max)
_I64_MAX: Final = 2**63 - 1
RING_SOURCES: Final = (SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)
STEP_END: Final = "step_end_nanoseconds"
"""Every frame on the step axis carries it: its place in time."""


class CatalogScope(StrEnum):
    """What frames of a catalog describe; it determines their subject, axis and entities."""

    DEVICES = "devices"  # of a node, by time
    STEPS = "steps"  # of a job's ranks
    PROGRESS = "progress"  # of a job's ranks, by time
    PAIRS = "pairs"  # of a job's pairs of ranks, by step
    MIXED = "mixed"  # nothing that could be placed

    @property
    def of_job(self) -> bool:
        return self in {CatalogScope.STEPS, CatalogScope.PROGRESS, CatalogScope.PAIRS}


def catalog_scope(made: Catalog) -> CatalogScope:
    """Return the scope by the sources of its signals; the end of a step belongs to ranks and to pairs."""
    known = [n for n in (*made.narrow, *made.wide) if n in SIGNALS]
    if not known:
        return CatalogScope.MIXED
    sources = {SIGNALS[n].source for n in known if n != STEP_END}
    if sources <= {SignalSource.RANK}:
        return CatalogScope.STEPS
    if sources == {SignalSource.PROGRESS} and STEP_END not in made.wide:
        return CatalogScope.PROGRESS
    if sources == {SignalSource.PAIR}:
        return CatalogScope.PAIRS
    return CatalogScope.DEVICES if sources <= set(RING_SOURCES) and STEP_END not in made.wide else CatalogScope.MIXED


PAIR_CATALOG: Final = Catalog(names(SignalSource.PAIR, wide=False), (STEP_END,))
"""What frames about pairs of ranks carry."""


def ring_signals(source: SignalSource) -> tuple[str, ...]:
    """Rows of a source's ring: its narrow signals, then its wide ones (as rates)."""
    return names(source, wide=False) + names(source, wide=True)


def source_of(entity: str) -> SignalSource:
    """A node's own signals stand under the pseudo-device ``host``, ports under ``nic:…``; all else is a GPU."""
    if entity == HOST_DEVICE:
        return SignalSource.HOST
    return SignalSource.NIC if entity.startswith(NIC_PREFIX) else SignalSource.GPU


@dataclass(frozen=True, eq=False)
class RingPlacement:
    """Which signals of a catalog belong to one ring, and to which of its rows."""

    narrow: NDArray[np.intp]
    narrow_rows: NDArray[np.intp]
    wide: NDArray[np.intp]
    wide_counters: NDArray[np.intp]
    """Index among the ring's counters; its row is the number of narrow rows plus this."""


@dataclass(frozen=True)
class Compiled:
    """A catalog with everything that checking and placing a frame needs."""

    catalog: Catalog
    scope: CatalogScope
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    wide_low: NDArray[np.int64]
    wide_high: NDArray[np.int64]
    placements: dict[SignalSource, RingPlacement]


def compile_catalog(made: Catalog) -> Compiled:
    narrow = [SIGNALS.get(n) or _newer(n, wide=False) for n in made.narrow]
    wide = [SIGNALS.get(n) or _newer(n, wide=True) for n in made.wide]
    return Compiled(
        catalog=made,
        scope=catalog_scope(made),
        # An open limit becomes the largest finite number: the same two comparisons then refuse infinity as well.
        low=np.array([max(s.low, -_F32_MAX) for s in narrow], np.float32),
        high=np.array([min(s.high, _F32_MAX) for s in narrow], np.float32),
        wide_low=np.array([int(max(s.low, -_I64_MAX)) for s in wide], np.int64),
        wide_high=np.array([_I64_MAX if s.high > _I64_MAX else int(s.high) for s in wide], np.int64),
        placements={source: _place(source, narrow, wide) for source in SignalSource},
    )


def _newer(name: str, *, wide: bool) -> Signal:
    """A signal of a newer version: any value passes, and no ring has a row for it."""
    return Signal(name, "1", SignalKind.GAUGE, SignalSource.HOST, wide=wide, low=-math.inf)


def _place(source: SignalSource, narrow: list[Signal], wide: list[Signal]) -> RingPlacement:
    rows = {name: row for row, name in enumerate(names(source, wide=False))}
    counters = {name: row for row, name in enumerate(names(source, wide=True))}
    mine = [(i, rows[s.name]) for i, s in enumerate(narrow) if s.name in rows]
    mine_wide = [(i, counters[s.name]) for i, s in enumerate(wide) if s.name in counters]
    pairs, wide_pairs = np.array(mine, np.intp).reshape(-1, 2), np.array(mine_wide, np.intp).reshape(-1, 2)
    return RingPlacement(pairs[:, 0], pairs[:, 1], wide_pairs[:, 0], wide_pairs[:, 1])


@dataclass
class CatalogIndex:
    """Digest → compiled catalog. Built-in ones are known from the start; others are announced and stored."""

    database: Database
    _known: dict[str, Compiled] = field(default_factory=dict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        host, gpu, nic = RING_SOURCES
        of_nodes = ((host,), (gpu,), (host, gpu), (host, nic), (host, gpu, nic))
        ours = [catalog(*sources) for sources in (*of_nodes, (SignalSource.RANK,), (SignalSource.PROGRESS,))]
        for made in (*ours, PAIR_CATALOG):
            self._known[made.digest] = compile_catalog(made)

    def get(self, digest: str) -> Compiled | None:
        """From memory only: never blocks."""
        return self._known.get(digest)

    def load(self, digest: str) -> Compiled | None:
        """From memory, else from the database (another process may have been told)."""
        known = self._known.get(digest)
        if known is not None:
            return known
        with self.database.reading() as session:
            row = session.scalar(select(CatalogRow).where(CatalogRow.digest == digest))
        if row is None:
            return None
        return self._keep(Catalog(tuple(row.narrow), tuple(row.wide)))

    def store_catalog(self, session: WriteSession, made: Catalog, now: float) -> None:
        """Store an announced catalog; harmless when it is known."""
        if session.get(CatalogRow, made.digest) is None:
            row = CatalogRow(digest=made.digest, narrow=list(made.narrow), wide=list(made.wide), created_at=now)
            session.add(row)
            session.flush()

    def _keep(self, made: Catalog) -> Compiled:
        compiled = compile_catalog(made)
        with self._lock:
            self._known[made.digest] = compiled
        return compiled
