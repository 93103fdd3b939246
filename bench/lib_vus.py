"""Scores of a score: how well a series ranks the anomalous stretches of a labeled one, without any threshold.

VUS-PR: Paparrizos et al., "Volume under the surface: a new accuracy evaluation measure for time-series anomaly
detection", VLDB 2022, section 4. Labels are softened by a margin of every width from 0 to ``window``; for each the
area under precision against recall is taken, and the volume is the mean of the areas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ranges = list[tuple[int, int]]

THRESHOLDS = 250
"""Operating points on each curve, evenly spaced by rank, as in the authors' programs: figures stay comparable."""


def ranges_of(labels: npt.NDArray[np.bool_]) -> Ranges:
    """[start, stop) of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], labels, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def softened(labels: npt.NDArray[np.bool_], window: int) -> Floats:
    """Labels in [0, 1]: beside each range a slope of ``window // 2`` samples, sqrt(1 - distance / window)."""
    soft: Floats = labels.astype(np.float64)
    half = window // 2
    for start, stop in ranges_of(labels):
        after = np.arange(stop, min(stop + half, len(labels)))
        soft[after] += np.sqrt(1 - (after - (stop - 1)) / window)
        before = np.arange(max(start - half, 0), start)
        soft[before] += np.sqrt(1 - (start - before) / window)
    return np.minimum(soft, 1.0)


def auc_pr(labels: npt.NDArray[np.bool_], score: Floats) -> float:
    """Average precision over every threshold: sum of precision x step of recall; tied scores are one step.

    Raises:
        ValueError: nothing is labeled, or a score is not a number.
    """
    order, ends = _steps(labels, score)
    hits = np.cumsum(labels[order])[ends]
    recall = hits / labels.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * hits / (ends + 1)))


def vus_pr(labels: npt.NDArray[np.bool_], score: Floats, window: int) -> float:
    """Volume under the precision-recall surface, margins 0 to ``window``.

    Args:
        labels: [T] which samples are anomalous.
        score: [T] higher = more anomalous.
        window: widest margin, samples.

    Raises:
        ValueError: nothing is labeled, or a score is not a number.
    """
    order, ends = _steps(labels, score)
    picks = np.linspace(0, len(score) - 1, THRESHOLDS).astype(np.intp)
    picks = ends[np.searchsorted(ends, picks)]  # ">= threshold" takes all that tie
    at = _Points(labels, score, order, picks, score[order[picks]])
    return float(np.mean([_area(at, softened(labels, w)) for w in range(window + 1)]))


@dataclass(frozen=True, slots=True)
class _Points:
    """The operating points that all margins share."""

    labels: npt.NDArray[np.bool_]
    score: Floats
    order: npt.NDArray[np.intp]
    """Samples from the highest score down."""
    picks: npt.NDArray[np.intp]
    """Places in ``order`` up to which a point takes."""
    thresholds: Floats


def _area(at: _Points, soft: Floats) -> float:
    """Area under one margin's curve: recall counts samples and is scaled by the share of ranges that were touched."""
    hits = np.cumsum(soft[at.order])[at.picks]
    margin = hits - np.cumsum(at.labels[at.order])[at.picks]
    positives = at.labels.sum() + margin / 2  # between the hard count and that with the margins that were hit
    peaks = np.sort([at.score[start:stop].max() for start, stop in ranges_of(soft > 0)])
    touched = (len(peaks) - np.searchsorted(peaks, at.thresholds)) / len(peaks)
    recall = np.minimum(hits / positives, 1.0) * touched
    return float(np.sum(np.diff(recall, prepend=0.0) * hits / (at.picks + 1)))


def _steps(labels: npt.NDArray[np.bool_], score: Floats) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Samples from the highest score down, and the last place of each run of equal scores."""
    if not labels.any():
        raise ValueError("no sample is labeled: precision and recall say nothing")
    if not np.isfinite(score).all():
        raise ValueError("a score is not finite")
    order = np.argsort(-score, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    return order, ends
