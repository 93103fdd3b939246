"""State of many entities in a few arrays, and the order statistics over them.

Invariant: every array's last axis is as long as ``entities`` and in its order; a newcomer starts at the field's fill
value, one that left is forgotten, and one that stayed keeps its numbers at its new place. Where entities only
leave, the others close up in place: hundreds of megabytes of state are not allocated again for one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from mainstay.detectors.finding import Entity

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution per unit of its median absolute deviation."""


_LONG = 512
"""From here on selection wins over a sort of all lines at once."""
_FEW_GAPS = 16
"""Up to so many gaps are closed by moving what lies between them; more by gathering line by line."""


def places(before: tuple[Entity, ...], now: tuple[Entity, ...]) -> npt.NDArray[np.intp]:
    """Where each of ``now`` stood in ``before`` (which holds no entity twice); -1 = newcomer.

    Whoever stayed is usually the same object, which costs a tenth of comparing names.

    Raises:
        ValueError: an entity stands twice.
    """
    rows = dict(zip(map(id, before), range(len(before)), strict=True))
    take = np.fromiter(map(rows.get, map(id, now), repeat(-1)), np.intp, len(now))
    stood = np.bincount(take[take >= 0], minlength=len(before))
    new = np.flatnonzero(take < 0).tolist()
    if new:
        named = {before[row]: row for row in np.flatnonzero(stood == 0).tolist()}
        take[new] = [named.get(now[row], -1) for row in new]
        stood = np.bincount(take[take >= 0], minlength=len(before))
    # A newcomer may equal another one, or one that stayed as another object.
    if (stood > 1).any() or ((take < 0).any() and len(set(now)) != len(now)):
        count = Counter(now)
        twice = next(entity for entity in now if count[entity] > 1)
        raise ValueError(f"entity {twice.key} stands twice")
    return take


class EntityState:
    """Named arrays ``[*lead, entity]`` that grow and shrink with the fleet."""

    def __init__(self) -> None:
        self.entities: tuple[Entity, ...] = ()
        self._fills: dict[str, Any] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def field(
        self, name: str, fill: float | bool, dtype: npt.DTypeLike = np.float64, lead: tuple[int, ...] = ()
    ) -> EntityState:
        """Declare an array; newcomers start at ``fill``."""
        self._fills[name] = fill
        self._arrays[name] = np.full((*lead, 0), fill, dtype)
        return self

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.NDArray[Any]) -> None:
        self._arrays[name][...] = value

    def recall(self, before: EntityState, entities: Collection[Entity] = ()) -> None:
        """Take over the numbers of some entities, which both know, from another state with the same fields.

        Raises:
            ValueError: a field is missing there or has another shape; the message names it.
        """
        mask = np.fromiter((entity in entities for entity in self.entities), np.bool_, len(self.entities))
        take = places(before.entities, self.entities)[mask]
        for name, mine in self._arrays.items():
            theirs = before._arrays.get(name)
            if theirs is None or theirs.shape[:-1] != mine.shape[:-1] or theirs.shape[-1] != len(before.entities):
                raise ValueError(f"what was learned has no field {name} of shape {mine.shape[:-1]}")
            mine[..., mask] = theirs[..., take]

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All fields by name, not copied."""
        return dict(self._arrays)

    @classmethod
    def stored(cls, entities: tuple[Entity, ...], arrays: Mapping[str, npt.NDArray[Any]]) -> EntityState:
        """What was stored of some entities, only to ``recall`` from."""
        state = cls()
        state.entities, state._arrays = entities, dict(arrays)
        return state

    @property
    def nbytes(self) -> int:
        return sum((array if array.base is None else array.base).nbytes for array in self._arrays.values())

    def follows(self, entities: tuple[Entity, ...]) -> bool:
        return self.entities is entities or self.entities == entities

    def align(self, entities: tuple[Entity, ...]) -> None:
        """Follow a new list of entities.

        Raises:
            ValueError: an entity stands twice.
        """
        self.move(entities, places(self.entities, entities))

    def move(self, entities: tuple[Entity, ...], take: npt.NDArray[np.intp]) -> None:
        """Follow a new list of entities whose former rows are known (see ``places``).

        An array taken from here before is no longer valid afterwards.
        """
        only_left = bool((np.diff(take, prepend=-1) > 0).all())
        for name, old in self._arrays.items():
            store = old if old.base is None else old.base
            if only_left and 2 * len(take) >= store.shape[-1]:
                self._arrays[name] = _close_up(old, take)
            else:
                self._arrays[name] = _rearranged(old, take, self._fills[name])
        self.entities = entities


def _rearranged(old: npt.NDArray[Any], take: npt.NDArray[np.intp], fill: float | bool) -> npt.NDArray[Any]:
    known = take >= 0
    new = np.full((*old.shape[:-1], len(take)), fill, old.dtype)
    new[..., known] = old[..., take[known]]
    return new


def _close_up(old: npt.NDArray[Any], take: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """The same array without those that left, in the same memory, line by line; ``take`` rises."""
    starts = np.flatnonzero(np.diff(take, prepend=-1) != 1).tolist()  # who stands before the first gap stays there
    runs = [(to, stop, int(take[to])) for to, stop in pairwise([*starts, len(take)])]
    for lead in np.ndindex(old.shape[:-1]):
        line = old[lead]
        if len(runs) > _FEW_GAPS:
            line[: len(take)] = line[take]
            continue
        for to, stop, source in runs:  # in one dimension numpy moves overlapping memory in order, without a copy
            line[to:stop] = line[source : source + stop - to]
    return old[..., : len(take)]


def append_rows(memory: npt.NDArray[Any], now: npt.NDArray[Any], where: npt.NDArray[np.bool_]) -> None:
    """Append to the memory [T, E] of some rows: what is missing takes no place."""
    memory[:-1, where] = memory[1:, where]
    memory[-1, where] = now[where]


def median(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Median over the last axis without its NaN; NaN where nothing is there. Never warns."""
    if x.shape[-1] == 0:
        return np.full(x.shape[:-1], np.nan)
    if x.shape[-1] > _LONG:
        middles = [_middle(line) for line in x.reshape(-1, x.shape[-1])]
        return np.array(middles, np.float64).reshape(x.shape[:-1])
    size = x.shape[-1]
    ordered = np.sort(x.astype(np.float64, copy=False), axis=-1)  # NaN sorts last, so an empty row begins with one
    last = ordered[..., -1]
    if (last == last).all():  # noqa: PLR0124 - cheaper than isnan: true unless NaN
        return _between(ordered[..., (size - 1) // 2], ordered[..., size // 2])
    flat = ordered.reshape(-1, size)
    count, rows = np.count_nonzero(flat == flat, axis=-1), np.arange(len(flat))  # noqa: PLR0124 - likewise
    # in an empty row the place -1 is the last one, which is NaN
    return _between(flat[rows, (count - 1) // 2], flat[rows, np.minimum(count // 2, size - 1)]).reshape(x.shape[:-1])


def _between(low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(low + (high - low) / 2)


def _middle(line: npt.NDArray[Any]) -> float:
    """The same of one long line: selecting is many times cheaper than sorting."""
    known = line[line == line].astype(np.float64, copy=False)  # noqa: PLR0124 - not NaN
    if not len(known):
        return float("nan")
    low, high = (len(known) - 1) // 2, len(known) // 2
    known = np.partition(known, (low, high))
    return float(known[low] + (known[high] - known[low]) / 2)


def robust_sigma(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """1.4826 x median absolute deviation over the last axis; NaN where nothing is there."""
    spread: npt.NDArray[np.float64] = NORMAL_MAD * median(np.abs(x - median(x)[..., None]))
    return spread
