"""State of many entities in a few arrays, and the order statistics over them.

Invariant: every array's last axis is as long as ``entities`` and in its order; a newcomer starts at the field's fill
value, one that left is forgotten, and one that stayed keeps its numbers whatever its new place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detectors.finding import Entity

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution per unit of its median absolute deviation."""


_LONG = 512
"""From here on selection wins over a sort of all lines at once."""


class Rows:
    """Named arrays ``[*lead, entity]`` that grow and shrink with the fleet."""

    def __init__(self) -> None:
        self.entities: tuple[Entity, ...] = ()
        self._fills: dict[str, Any] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def field(
        self, name: str, fill: float | bool, dtype: npt.DTypeLike = np.float64, lead: tuple[int, ...] = ()
    ) -> Rows:
        """Declare an array; newcomers start at ``fill``."""
        self._fills[name] = fill
        self._arrays[name] = np.full((*lead, 0), fill, dtype)
        return self

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __setitem__(self, name: str, value: npt.NDArray[Any]) -> None:
        self._arrays[name][...] = value

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

    def follows(self, entities: tuple[Entity, ...]) -> bool:
        return self.entities is entities or self.entities == entities

    def align(self, entities: tuple[Entity, ...]) -> None:
        """Follow a new list of entities.

        Raises:
            ValueError: an entity stands twice.
        """
        index = {entity: row for row, entity in enumerate(self.entities)}
        if len(set(entities)) != len(entities):
            twice = next(e for e in entities if entities.count(e) > 1)
            raise ValueError(f"entity {twice.key} stands twice")
        take = np.array([index.get(entity, -1) for entity in entities], dtype=np.intp)
        known = take >= 0
        for name, old in self._arrays.items():
            new = np.full((*old.shape[:-1], len(entities)), self._fills[name], old.dtype)
            new[..., known] = old[..., take[known]]
            self._arrays[name] = new
        self.entities = entities


def median(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Median over the last axis without its NaN; NaN where nothing is there. Never warns."""
    if x.shape[-1] == 0:
        return np.full(x.shape[:-1], np.nan)
    if x.shape[-1] > _LONG:
        middles = [_middle(line) for line in x.reshape(-1, x.shape[-1])]
        return np.array(middles, np.float64).reshape(x.shape[:-1])
    ordered = np.sort(x.astype(np.float64, copy=False), axis=-1)  # NaN sorts last, so an empty row begins with one
    count = np.asarray(np.count_nonzero(ordered == ordered, axis=-1))  # noqa: PLR0124 - cheaper than isnan: true unless NaN
    places = np.stack((np.maximum(count - 1, 0) // 2, np.minimum(count // 2, x.shape[-1] - 1)), axis=-1)
    flat = ordered.reshape(-1, x.shape[-1])
    pair = flat[np.arange(len(flat))[:, None], places.reshape(-1, 2)]
    middle: npt.NDArray[np.float64] = (pair[:, 0] + (pair[:, 1] - pair[:, 0]) / 2).reshape(count.shape)
    return middle


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
