"""The arrays behind a ring: one for each second, and one for each ``SLOW_SECONDS`` of signals that change slowly.

A slow array remembers in which of its seconds each value was read, so a reader sees the value in that second alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.probes.signals import SIGNALS

SLOW_SECONDS: Final = 10
"""Period of the slow arrays. It is the period in which the node daemon reads slow signals (``Signal.period``)."""
NEVER: Final = -1
_UNREAD: Final = 255
_SPARE: Final = 4
"""Arrays kept for reuse: a new one costs page faults of its whole size."""
_CELLS: Final = 2**17
"""Values copied at a time: half a megabyte."""
Run = slice | NDArray[np.intp]
"""Indices: a slice where they are consecutive, which numpy copies many times faster."""


def as_run(indices: NDArray[np.intp]) -> Run:
    """The indices as a slice where they are consecutive."""
    if not indices.size or not (np.diff(indices) == 1).all():
        return indices
    return slice(int(indices[0]), int(indices[-1]) + 1)


def mesh(rows: Run, columns: Run) -> tuple[Run, ...]:
    """An index of [row, column] for any pair of runs."""
    if isinstance(rows, np.ndarray) and isinstance(columns, np.ndarray):
        return np.ix_(rows, columns)
    return rows, columns


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Which rows of a batch of values go to the fast arrays, and which to the slow ones."""

    fast: Run
    fast_rows: Run
    slow: Run
    slow_rows: NDArray[np.intp]


@dataclass(slots=True)
class _SlowArray:
    values: NDArray[np.float32]
    when: NDArray[np.uint8]
    """[row, column] second of each value within the period; ``_UNREAD`` where there is none."""


class Seconds:
    """Values of one source by second.

    Args:
        signals: names of the rows.
    """

    def __init__(self, signals: Sequence[str]) -> None:
        slow = np.array([SIGNALS[name].period > 1 for name in signals], bool)
        self._is_slow = slow
        self._place = np.where(slow, np.cumsum(slow), np.cumsum(~slow)) - 1
        self._fast_count, self._slow_count = int((~slow).sum()), int(slow.sum())
        self._fast: dict[int, NDArray[np.float32]] = {}
        self._slow: dict[int, _SlowArray] = {}
        self._spare: list[NDArray[np.float32]] = []
        self.head = NEVER
        self.capacity = 0
        """Columns that the ring has."""
        self.depth = 1
        """Seconds that the ring keeps."""
        self._trimmed = NEVER

    @property
    def oldest(self) -> int:
        """The oldest second that is kept."""
        return self.head - self.depth + 1

    @property
    def nbytes(self) -> int:
        slow = sum(array.values.nbytes + array.when.nbytes for array in self._slow.values())
        return sum(array.nbytes for array in (*self._fast.values(), *self._spare)) + slow

    @property
    def bytes_per_second(self) -> float:
        """Memory of one second."""
        return self.capacity * (4 * self._fast_count + 5 * self._slow_count / SLOW_SECONDS)

    def split(self, rows: NDArray[np.intp]) -> RowSplit:
        """How values whose rows are ``rows`` are stored."""
        slow = self._is_slow[rows]
        fast_at, slow_at = np.flatnonzero(~slow), np.flatnonzero(slow)
        return RowSplit(
            as_run(fast_at), as_run(self._place[rows[fast_at]]), as_run(slow_at), self._place[rows[slow_at]]
        )

    # writing

    def write(
        self, split: RowSplit, seconds: NDArray[np.int64], columns: Run, values: NDArray[np.float32], *, is_fresh: bool
    ) -> None:
        """Place [row, column] values, each column in its own second; what is missing does not replace what is known.

        Args:
            split: of the rows.
            seconds: [column] Unix second.
            columns: columns of the ring.
            values: [row, column]; NaN is missing.
            is_fresh: whether these columns have nothing in these seconds yet.
        """
        first = int(seconds[0])
        if (seconds == first).all():
            self._write_second(first, split, columns, values, is_fresh=is_fresh)
            return
        every = np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns
        for second in np.unique(seconds):
            mine = np.flatnonzero(seconds == second)
            self._write_second(int(second), split, as_run(every[mine]), values[:, mine], is_fresh=is_fresh)

    def _write_second(
        self, second: int, split: RowSplit, columns: Run, values: NDArray[np.float32], *, is_fresh: bool
    ) -> None:
        if second < self.oldest:
            return
        self.head = max(self.head, second)
        at, given = mesh(split.fast_rows, columns), values[split.fast]
        array = self._open(second)
        array[at] = given if is_fresh else np.where(np.isnan(given), array[at], given)
        if split.slow_rows.size:
            self._write_slow(second, split.slow_rows, columns, values[split.slow])

    def _write_slow(self, second: int, rows: NDArray[np.intp], columns: Run, values: NDArray[np.float32]) -> None:
        known = ~np.isnan(values)
        if not known.any():
            return
        key, offset = divmod(second, SLOW_SECONDS)
        array = self._open_slow(key)
        at = mesh(as_run(rows), columns)
        when = array.when[at]
        newer = known & ((when == _UNREAD) | (when <= offset))
        array.values[at] = np.where(newer, values, array.values[at])
        array.when[at] = np.where(newer, np.uint8(offset), when)

    def _open(self, second: int) -> NDArray[np.float32]:
        array = self._fast.get(second)
        if array is not None and array.shape[1] == self.capacity:
            return array
        fits = bool(self._spare) and self._spare[-1].shape[1] == self.capacity
        wider = self._spare.pop() if fits else np.empty((self._fast_count, self.capacity), np.float32)
        wider.fill(np.nan)
        if array is not None:
            wider[:, : array.shape[1]] = array
        self._fast[second] = wider
        return wider

    def _open_slow(self, key: int) -> _SlowArray:
        array = self._slow.get(key)
        if array is not None and array.when.shape[1] == self.capacity:
            return array
        shape = (self._slow_count, self.capacity)
        wider = _SlowArray(np.full(shape, np.nan, np.float32), np.full(shape, _UNREAD, np.uint8))
        if array is not None:
            width = array.when.shape[1]
            wider.values[:, :width], wider.when[:, :width] = array.values, array.when
        self._slow[key] = wider
        return wider

    def trim(self) -> None:
        """Forget what is older than the ring is deep."""
        oldest = self.oldest
        if oldest == self._trimmed:
            return
        self._trimmed = oldest
        for second in [second for second in self._fast if second < oldest]:
            array = self._fast.pop(second)
            if len(self._spare) < _SPARE:
                self._spare.append(array)
        for key in [key for key in self._slow if (key + 1) * SLOW_SECONDS <= oldest]:
            del self._slow[key]

    def clear_columns(self, columns: NDArray[np.intp]) -> None:
        """Forget the values of columns that are assigned to other devices."""
        for array in self._fast.values():
            array[:, columns[columns < array.shape[1]]] = np.nan
        for slow in self._slow.values():
            slow.when[:, columns[columns < slow.when.shape[1]]] = _UNREAD

    # reading

    def read(self, start: int, stop: int, rows: NDArray[np.intp], columns: Run, out: NDArray[np.float32]) -> None:
        """Place known values of seconds ``start`` up to but not including ``stop`` in ``out`` [second, row, column].

        A few rows of a large fleet at a time: what is copied on the way then stays in the processor's cache.
        """
        slow, step = self._is_slow[rows], max(1, _CELLS // max(1, out.shape[2]))
        fast_parts = self._parts(rows, np.flatnonzero(~slow), step)
        slow_parts = self._parts(rows, np.flatnonzero(slow), step)
        for second, values in zip(range(start, stop), out, strict=True):
            fast = self._fast.get(second)
            if fast is not None:
                mine, held = _within(columns, fast.shape[1])
                for at, places in fast_parts:
                    values[mesh(at, held)] = fast[mesh(places, mine)]
            key, offset = divmod(second, SLOW_SECONDS)
            array = self._slow.get(key)
            if array is not None:
                mine, held = _within(columns, array.when.shape[1])
                for at, places in slow_parts:
                    is_read = array.when[mesh(places, mine)] == offset
                    values[mesh(at, held)] = np.where(is_read, array.values[mesh(places, mine)], np.float32(np.nan))

    def _parts(self, rows: NDArray[np.intp], at: NDArray[np.intp], step: int) -> list[tuple[Run, Run]]:
        """Positions of rows and their places in the arrays, ``step`` rows at a time."""
        parts = [at[start : start + step] for start in range(0, len(at), step)]
        return [(as_run(part), as_run(self._place[rows[part]])) for part in parts]

    def last_known(self, rows: NDArray[np.intp], stop: int, reach: int) -> NDArray[np.float32]:
        """[row, column] newest values of the ``reach`` seconds before ``stop``; NaN where there is none."""
        known = np.full((len(rows), self.capacity), np.nan, np.float32)
        slow = self._is_slow[rows]
        if (~slow).any():
            known[~slow] = self._last_fast(as_run(self._place[rows[~slow]]), stop, reach)
        if slow.any():
            known[slow] = self._last_slow(self._place[rows[slow]], stop, reach)
        return known

    def _last_fast(self, rows: Run, stop: int, reach: int) -> NDArray[np.float32]:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        found = np.full((count, self.capacity), np.nan, np.float32)
        for second in range(stop - 1, stop - reach - 1, -1):
            array = self._fast.get(second)
            if array is not None:
                part = found[:, : array.shape[1]]
                np.copyto(part, array[rows], where=np.isnan(part))
        return found

    def _last_slow(self, rows: NDArray[np.intp], stop: int, reach: int) -> NDArray[np.float32]:
        found = np.full((len(rows), self.capacity), np.nan, np.float32)
        for key in range((stop - 1) // SLOW_SECONDS, (stop - reach) // SLOW_SECONDS - 1, -1):
            array = self._slow.get(key)
            if array is not None:
                when, part = array.when[rows], found[:, : array.when.shape[1]]
                second = when.astype(np.int64) + key * SLOW_SECONDS
                is_usable = (when != _UNREAD) & (second < stop) & (second >= stop - reach)
                np.copyto(part, array.values[rows], where=is_usable & np.isnan(part))
        return found


def _within(columns: Run, width: int) -> tuple[Run, Run]:
    """Those of ``columns`` that an array of ``width`` columns has, and their positions."""
    if isinstance(columns, slice):
        stop = max(columns.start, min(columns.stop, width))
        return slice(columns.start, stop), slice(0, stop - columns.start)
    if not columns.size or columns.max() < width:
        return columns, slice(0, len(columns))
    held = np.flatnonzero(columns < width)
    return columns[held], held
