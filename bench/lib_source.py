"""Snapshots of plain arrays, for benches and tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.slot_copy import Piece


class ArraySource:
    """A source over fixed numpy arrays, for tests and benches."""

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.generic]], dtypes: Mapping[str, str] | None = None) -> None:
        self.arrays = arrays
        names = dtypes or {}
        self._layout = Layout.build({n: (names.get(n, str(a.dtype)), a.shape) for n, a in arrays.items()})

    @property
    def layout(self) -> Layout:
        return self._layout

    def freeze(self) -> Mapping[str, Piece]:
        return {name: array.reshape(-1).view(np.uint8) for name, array in self.arrays.items()}
