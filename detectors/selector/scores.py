"""How good predictions of the time to an incident were: order (concordance) and probability (Brier score).

Sources: Harrell's C (1982); Graf et al. (1999) for the Brier score weighted by the inverse probability of censoring.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mainstay.detectors.selector.hazard import Bools, Floats


def concordance(risk: npt.ArrayLike, durations: npt.ArrayLike, observed: npt.ArrayLike) -> float:
    """Share of comparable pairs in which the row that failed first had the higher risk; ties of risk count half.

    Args:
        risk: [row] any number that grows with the expected risk.
        durations: [row] hours from the prediction to the incident, or to where it was lost from sight.
        observed: [row] whether it was an incident.

    Returns:
        0.5 is chance; NaN when no two rows can be compared.
    """
    score, time, seen = _rows(risk, durations, observed)
    good = pairs = 0.0
    for i in np.flatnonzero(seen):
        later = (time > time[i]) | ((time == time[i]) & ~seen)
        pairs += float(np.sum(later))
        good += float(np.sum(score[later] < score[i]) + 0.5 * np.sum(score[later] == score[i]))
    return good / pairs if pairs else float("nan")


def brier(probability: npt.ArrayLike, durations: npt.ArrayLike, observed: npt.ArrayLike, horizon: float) -> float:
    """Mean squared error of the predicted probability of an incident within ``horizon`` hours; 0 is perfect.

    Rows lost from sight before the horizon count through the others: each known row weighs one over the probability
    that it would still be in sight.

    Returns:
        NaN when nothing is known at the horizon.
    """
    p, time, seen = _rows(probability, durations, observed)
    failed = seen & (time <= horizon)
    known = failed | (time > horizon)
    in_sight = _in_sight(time, seen, np.where(failed, time, horizon), before=failed)
    weights = np.where(known, 1.0 / np.maximum(in_sight, 1e-9), 0.0)
    if not weights.any():
        return float("nan")
    return float(np.sum(weights * (failed - p) ** 2) / len(time))


def integrated_brier(
    probability: npt.ArrayLike, durations: npt.ArrayLike, observed: npt.ArrayLike, horizons: npt.ArrayLike
) -> float:
    """The Brier score averaged over horizons (trapezoid). ``probability`` is [row, horizon]."""
    times = np.asarray(horizons, np.float64)
    p = np.asarray(probability, np.float64)
    if p.ndim != 2 or p.shape[1] != len(times):
        raise ValueError(f"probability has shape {p.shape}, wanted one column for each of {len(times)} horizons")
    found = np.array([brier(p[:, k], durations, observed, float(t)) for k, t in enumerate(times)])
    if len(times) == 1:
        return float(found[0])
    return float(np.sum(np.diff(times) * (found[1:] + found[:-1]) / 2) / (times[-1] - times[0]))


def _in_sight(time: Floats, seen: Bools, at: Floats, *, before: Bools) -> Floats:
    """P(not censored by ``at``) by Kaplan-Meier of the censoring; just before ``at`` if ``before``."""
    ends, counts = np.unique(time[~seen], return_counts=True)
    left = len(time) - np.searchsorted(np.sort(time), ends, side="left")
    # an incident at the same moment came first
    failed = np.sort(time[seen])
    left = left - (np.searchsorted(failed, ends, side="right") - np.searchsorted(failed, ends, side="left"))
    curve = np.concatenate([[1.0], np.cumprod(1.0 - counts / np.maximum(left, 1))])
    place = np.where(before, np.searchsorted(ends, at, side="left"), np.searchsorted(ends, at, side="right"))
    return np.asarray(curve[place], np.float64)


def _rows(score: npt.ArrayLike, durations: npt.ArrayLike, observed: npt.ArrayLike) -> tuple[Floats, Floats, Bools]:
    values, time = np.asarray(score, np.float64), np.asarray(durations, np.float64)
    seen = np.asarray(observed).astype(bool)
    if values.ndim != 1 or values.shape != time.shape or time.shape != seen.shape:
        raise ValueError(f"scores {values.shape}, durations {time.shape} and observed {seen.shape} are not one length")
    if not (np.isfinite(values).all() and np.isfinite(time).all()):
        raise ValueError("scores and durations must be finite")
    return values, time, seen
