"""How far one sample lies from another in the worse direction: the area between their distribution functions.

Definition, for a time (lower is better)::

    d+ = integral max(F_ref - F_obs, 0) dx / max(ref, obs)

and for a rate the mirror image, ``max(F_obs - F_ref, 0)``. A uniform slowdown by a share s gives s / (1 + s) where the
reference is narrow, a share q of repetitions slowed by s about q s / (1 + s). Similarity is ``1 - d+``. It is the
one-sided form of the distance of the SuperBench paper (ATC'24, Validator), normalized by the largest value.

The integral is exact, not gridded: the region between two step functions has the same area seen along the other axis,
``integral max(Q_obs - Q_ref, 0) dp``, and both quantile functions are constant between the merged breakpoints i/n and
j/m. Samples are sorted once (n log n); all observed samples of one length share the breakpoints and are one array.

The definition itself breaks a promise that a verdict must keep, that worse is never better: the largest value is also
the normalizer, so one absurd repetition makes everything else look similar (ten repetitions twice as slow are 0.50
apart, with one of them a hundred times as slow 0.11), and one absurdly fast reading hides a slow card. ``shortfall`` is
the least distance above the definition that keeps the promise; for samples without such a repetition it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Floats
from mainstay.probes.benchmarks.result import Better

Sample = NDArray[np.float64]
"""Values of one run, shape [repetitions], finite and above zero, in any order."""

_MOST_LENGTHS = 16
_CANDIDATES = 256
"""Samples tried as the medoid, those with the most usual medians: the medoid of thousands lies among them."""


def shortfalls(observed: Sequence[Sample], reference: Sample, better: Better) -> Floats:
    """The distance that judges: ``d+``, made monotone; shape [observed].

    For a rate, readings above the largest of the reference count as that. For a time it is the largest ``d+`` over all
    limits at which the observed values might be cut off: cutting makes a sample better, so no better one lies further.

    Raises:
        ValueError: as ``distances``.
    """
    sign = _sign(better)
    result = np.empty(len(observed))
    for where, cells in _blocks(observed, _checked(reference)):
        if sign < 0:
            result[where] = np.maximum(cells.reference - cells.observed, 0.0) @ cells.weight / cells.reference[-1]
        else:
            result[where] = _cut_at_worst(cells)
    return result


def _cut_at_worst(cells: _Cells) -> Floats:
    """``max over c of d+(min(observed, c))``: the maximum lies at the reference's largest value or at a value above."""
    top = cells.reference[-1]
    cut = np.maximum(np.minimum(cells.observed, top) - cells.reference, 0.0) @ cells.weight / top
    so_far = np.cumsum(np.maximum(cells.observed - cells.reference, 0.0) * cells.weight, axis=1)
    weight_left = cells.weight.sum() - np.cumsum(cells.weight)
    reference_left = cells.reference @ cells.weight - np.cumsum(cells.reference * cells.weight)
    area = so_far + cells.observed * weight_left - reference_left  # all later values cut at this one
    above = np.where(cells.observed >= top, area / cells.observed, 0.0)
    return np.asarray(np.maximum(cut, above.max(axis=1)))


def two_sided(observed: Sequence[Sample], reference: Sample) -> Floats:
    """``integral |F_ref - F_obs| dx / max(ref, obs)``; shape [observed], symmetric in its arguments.

    Raises:
        ValueError: a sample is empty, not finite or not above zero.
    """
    result = np.empty(len(observed))
    for where, cells in _blocks(observed, _checked(reference)):
        result[where] = np.abs(cells.observed - cells.reference) @ cells.weight / cells.largest
    return result


def medoid(samples: Sequence[Sample]) -> int:
    """The sample with the largest summed similarity to all: the first of equals in the order of medians.

    Samples of very many lengths are compared by 64 quantiles of each: which of them is typical does not hang on more,
    and one length is one array.

    Raises:
        ValueError: there is no sample, or as ``two_sided``.
    """
    if not samples:
        raise ValueError("no samples: there is no medoid")
    medians = np.array([np.median(sample) for sample in samples])
    order = np.argsort(np.abs(medians - np.median(medians)), kind="stable")[:_CANDIDATES]
    alike = samples if len({len(sample) for sample in samples}) <= _MOST_LENGTHS else [_at_64(s) for s in samples]
    sums = [float(two_sided(alike, alike[int(one)]).sum()) for one in order]
    return int(order[int(np.argmin(sums))])


def _at_64(sample: Sample) -> Sample:
    return np.asarray(np.sort(sample)[((np.arange(64) + 0.5) / 64 * len(sample)).astype(np.intp)])


@dataclass(frozen=True, slots=True)
class _Cells:
    """Quantile functions over the cells of probability on which both are constant."""

    observed: Floats
    """[samples, cells], rising along the cells."""
    reference: Floats
    """[cells]"""
    weight: Floats
    """[cells], sums to 1."""

    @property
    def largest(self) -> Floats:
        """Of both, shape [samples]."""
        return np.asarray(np.maximum(self.observed[:, -1], self.reference[-1]))


def _blocks(observed: Sequence[Sample], reference: Sample) -> Iterator[tuple[NDArray[np.intp], _Cells]]:
    """Observed samples of one length at a time, with their places."""
    lengths = np.array([len(sample) for sample in observed])
    ordered = np.sort(reference)
    for n in np.unique(lengths):
        where = np.flatnonzero(lengths == n)
        block = _checked(np.array([observed[int(i)] for i in where], dtype=np.float64))
        block.sort(axis=1)
        m = len(ordered)
        ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)  # whole numbers: no rounding of i/n
        starts = np.concatenate(([0], ends[:-1]))
        yield (
            where,
            _Cells(
                observed=block[:, starts // m],
                reference=ordered[starts // n],
                weight=np.diff(ends, prepend=0) / (n * m),
            ),
        )


def _checked(values: Floats) -> Floats:
    if not values.size or not np.isfinite(values).all() or not (values > 0).all():
        raise ValueError("a sample needs values that are finite and above zero, at least one")
    return values


def _sign(better: Better) -> float:
    if better is Better.EQUAL:
        raise ValueError("a fingerprint is right or wrong: it has no distance")
    return 1.0 if better is Better.LOWER else -1.0
