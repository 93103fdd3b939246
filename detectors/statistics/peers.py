"""Middle and scale of every cohort, for one signal at a time, at the cost of a few sorts.

Small cohorts are laid into matrices and sorted together; of a huge one a sample stands for all. The sample is drawn by
a hash of the entities' names: it depends neither on their order nor on chance. With 2,048 drawn of a normal cohort the
sample's median lies within 1.25 / sqrt(2048) = 0.028 standard deviations of the cohort's (one sigma), and the scale
within 1.17 / sqrt(2048) = 2.6 %: a z of 6 reads 5.8 to 6.2.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Samples
from mainstay.detectors.entity_state import NORMAL_MAD, median

Rows32 = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

_NARROW = 512
"""Up to here cohorts are sorted together as lines of a matrix; above, one sort each serves median and MAD."""


class Peers:
    """Who is compared with whom. Cohorts are numbered in order of label; all but the large enough are left out."""

    def __init__(self, *, least: int, sample: int) -> None:
        self.least, self.sample = least, sample
        self._of: tuple[object, object] = (None, None)
        self.labels: tuple[str, ...] = ()
        self.index: Places = np.zeros(0, np.intp)
        """[E] each entity's cohort; ``len(labels)`` where it has none that is large enough."""
        self.drawn: list[Places] = []
        """Per cohort: the rows that stand for it."""
        self._block, self._blocks = 1, self.index
        self._wide: list[int] = []
        self._narrow: list[tuple[Places, Places]] = []

    def follow(self, samples: Samples, names: npt.NDArray[np.uint32] | None = None) -> tuple[int, ...] | None:
        """Follow entities and groups; returns each cohort's former number (-1 = new) when anything changed.

        ``names`` [E] keeps the hashes of the entities' names from call to call; 0 = not known yet.
        """
        same = self._of[1] is samples.groups or self._of[1] == samples.groups
        if same and (self._of[0] is samples.entities or self._of[0] == samples.entities):
            return None
        self._of = (samples.entities, samples.groups)
        before = {label: number for number, label in enumerate(self.labels)}
        labels = sorted(set(samples.groups))
        index = np.fromiter(map({label: i for i, label in enumerate(labels)}.get, samples.groups), np.intp)
        count = np.bincount(index, minlength=len(labels))
        large = np.flatnonzero(count >= self.least)
        number = np.full(len(labels) + 1, len(large), np.intp)
        number[large] = np.arange(len(large))
        self.labels = tuple(labels[i] for i in large)
        self.index = number[index]
        self._find_blocks()
        members = np.split(np.argsort(self.index, kind="stable"), np.cumsum(np.bincount(self.index))[: len(large)])
        names = np.zeros(len(index), np.uint32) if names is None else names
        self.drawn = [self._draw(rows, samples, names) for rows in members[: len(large)]]
        self._arrange(len(samples.entities))
        return tuple(before.get(label, -1) for label in self.labels)

    def _draw(self, rows: Places, samples: Samples, names: npt.NDArray[np.uint32]) -> Places:
        if len(rows) <= self.sample:
            return rows
        for row in rows[names[rows] == 0].tolist():
            names[row] = zlib.crc32(samples.entities[row].key.encode())
        return np.sort(rows[np.argsort(names[rows], kind="stable")[: self.sample]])

    def _arrange(self, entities: int) -> None:
        """Narrow cohorts of like size (up to a factor of two) share a matrix; the row behind the last is NaN."""
        sizes = np.array([len(rows) for rows in self.drawn], np.intp)
        self._wide = [int(i) for i in np.flatnonzero(sizes > _NARROW)]
        self._narrow = []
        widths = 2 ** np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.intp)
        for width in np.unique(widths[sizes <= _NARROW]):
            which = np.flatnonzero((widths == width) & (sizes <= _NARROW))
            places = np.full((len(which), width), entities, np.intp)
            for line, cohort in enumerate(which):
                places[line, : sizes[cohort]] = self.drawn[cohort]
            self._narrow.append((which, places))

    def _find_blocks(self) -> None:
        """Entities side by side, as the GPUs of a node, are mostly of one cohort: what is copied for all at once."""
        for block in (8, 4, 2, 1):
            if len(self.index) % block == 0:
                rows = self.index.reshape(-1, block)
                if (rows == rows[:, :1]).all():
                    self._block, self._blocks = block, np.ascontiguousarray(rows[:, 0])
                    return

    def spread(self, values: Rows32, out: Rows32) -> Rows32:
        """``values`` [cohorts + 1] for each entity, in ``out`` [E]."""
        table = np.repeat(values[:, None], self._block, axis=1)
        table.take(self._blocks, axis=0, out=out.reshape(-1, self._block), mode="clip")  # "raise" copies ``out``
        return out

    def middle(self, x: Rows32) -> tuple[Rows32, Rows32, npt.NDArray[np.intp]]:
        """Median and scale (1.4826 MAD) of each cohort, and the sample size; the last entry is NaN, for no cohort."""
        size = len(self.labels)
        middle, scale = np.full(size + 1, np.nan, np.float32), np.full(size + 1, np.nan, np.float32)
        count = np.zeros(size + 1, np.intp)
        for cohort in self._wide:
            values = x.take(self.drawn[cohort])
            values.sort()  # NaN last
            known = values[: np.count_nonzero(values == values)]  # noqa: PLR0124 - not NaN
            count[cohort] = n = len(known)
            if n >= self.least:
                middle[cohort] = (float(known[(n - 1) // 2]) + float(known[n // 2])) / 2
                near, far = _nearest(known, middle[cohort], n // 2 + 1)
                _, less = _nearest(near, middle[cohort], (n + 1) // 2)
                scale[cohort] = NORMAL_MAD * (less + far) / 2
        if self._narrow:
            padded = np.append(x, np.float32(np.nan))
            for which, places in self._narrow:
                values = padded[places]
                count[which] = np.count_nonzero(np.isfinite(values), axis=1)
                middle[which] = median(values)
                scale[which] = NORMAL_MAD * median(np.abs(values - middle[which, None]))
        middle[count < self.least] = np.nan
        return middle, scale, count

    def share(self, count: npt.NDArray[np.uint8], below: int) -> npt.NDArray[np.float32]:
        """Of each cohort's drawn members: the share whose ``count`` is below a number; 0 for no cohort."""
        shares = [float(np.count_nonzero(count[rows] < below)) / len(rows) for rows in self.drawn]
        return np.array([*shares, 0.0], np.float32)


def _nearest(ordered: Rows32, middle: np.float32, n: int) -> tuple[Rows32, float]:
    """Of sorted values the ``n`` nearest to ``middle``, which lie side by side, and the farthest one's distance."""
    far = np.maximum(middle - ordered[: len(ordered) - n + 1], ordered[n - 1 :] - middle)
    at = int(far.argmin())
    return ordered[at : at + n], float(far[at])
