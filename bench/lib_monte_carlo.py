"""A policy over many runs at once: each gap between failures is a restart, then training; what was not saved is lost.

Arrays have the shape (runs, gaps), in seconds. A gap that ends before its restart did brings nothing: the next failure
repeats a restart. The last gap of a run ends with the run and not with a failure, so that nothing of it is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mainstay.recovery.cost_model.ettr import SaveSchedule
from mainstay.recovery.simulate.failure_processes import Array


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure: how it is recovered from, and what share of all failures it is."""

    share: float
    cadence: SaveSchedule


def useful(gaps: Array, cadence: SaveSchedule) -> Array:
    """Useful seconds of each gap that ends with a failure: whole intervals alone survive it."""
    room = np.maximum(gaps - cadence.restart_s, 0.0)
    return np.asarray(np.floor(room / (cadence.interval_s + cadence.save_s)) * cadence.interval_s)


def useful_until_end(gaps: Array, cadence: SaveSchedule) -> Array:
    """Useful seconds of gaps that end with the run: the begun interval counts too."""
    period = cadence.interval_s + cadence.save_s
    room = np.maximum(gaps - cadence.restart_s, 0.0)
    whole = np.floor(room / period)
    return np.asarray(whole * cadence.interval_s + np.minimum(room - whole * period, cadence.interval_s))


def ettr(failures: Array, horizon_s: float, kinds: tuple[Kind, ...], rng: np.random.Generator) -> Array:
    """Effective training time ratio of every run.

    Args:
        failures: instants of failure, ascending along the last axis; shape (runs, failures), inf where a run has fewer.
        horizon_s: length of a run.
        kinds: of failure, with shares that sum to 1; each failure draws one. A kind's cadence also says how often the
            gap after it saves, and the first gap follows the first kind without a restart.
        rng: for the draws.

    Raises:
        ValueError: shares that do not sum to 1.
    """
    if not math.isclose(sum(kind.share for kind in kinds), 1.0, abs_tol=1e-9):
        raise ValueError(f"shares of kinds of failure sum to 1, not {sum(kind.share for kind in kinds)}")
    runs = len(failures)
    edges = np.concatenate(
        [np.zeros((runs, 1)), np.minimum(failures, horizon_s), np.full((runs, 1), horizon_s)], axis=1
    )
    gaps = np.diff(edges, axis=1)
    drawn = np.concatenate([np.full((runs, 1), -1), _draw(kinds, failures.shape, rng)], axis=1)
    fails = edges[:, 1:] < horizon_s
    kept = np.zeros_like(gaps)
    first = kinds[0].cadence
    fresh = SaveSchedule(interval_s=first.interval_s, save_s=first.save_s, restart_s=0.0)
    for number, cadence in [(-1, fresh), *((i, kind.cadence) for i, kind in enumerate(kinds))]:
        here = np.where(fails, useful(gaps, cadence), useful_until_end(gaps, cadence))
        kept = np.where(drawn == number, here, kept)
    return np.asarray(kept.sum(axis=1) / horizon_s)


def _draw(kinds: tuple[Kind, ...], shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.intp]:
    return np.asarray(np.searchsorted(np.cumsum([kind.share for kind in kinds[:-1]]), rng.random(shape), side="right"))


def scattered(count: int, horizon_s: float, runs: int, rng: np.random.Generator) -> Array:
    """A Poisson process of which the count is known: ``count`` instants, uniform over the horizon."""
    return np.sort(rng.random((runs, count)) * horizon_s, axis=1)
