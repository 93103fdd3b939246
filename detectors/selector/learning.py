"""From a fleet's past to a risk that can be believed: the model is chosen by what it said of times it had not seen.

The last part of the history is held out. A model with covariates is used only when its Brier score there is better than
that of the same curve for all nodes and that of one constant hazard; so a fleet without any structure costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mainstay.detectors.selector import scores
from mainstay.detectors.selector.hazard import Bools, Floats, NotEnoughError
from mainstay.detectors.selector.history import HOUR, CovariateEncoder, FailureRuns, NodeHistory, as_known
from mainstay.detectors.selector.survival import Cox, Exponential, KaplanMeier, SurvivalModel

LEAST_INCIDENTS = 30
"""Fewer incidents than this teach nothing about covariates (ten a coefficient is the common rule; most are shrunk)."""
_HELD_OUT = 0.3
"""Share of the incidents, the latest, that choose the model."""
_HORIZONS = (24.0, 72.0, 168.0)
"""Hours over which the held-out probabilities are compared."""
_ROWS = 20_000
"""Held-out rows that are enough to tell models apart."""
MODELS: dict[str, Callable[[], SurvivalModel]] = {
    "cox": Cox,
    "kaplan-meier": KaplanMeier,
    "exponential": Exponential,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """Moments at which a risk is asked for, and what came of it."""

    x: Floats
    """[row, covariate] as known at the moment."""
    survived: Floats
    """[row] hours."""
    residual: Floats
    """[row] hours to the next incident, or to where the history ends."""
    observed: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How a model did on the part of the history that it had not seen."""

    concordance: float
    brier: float
    """Averaged over the horizons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A model of the whole history, with what the models were worth on its last part."""

    encoder: CovariateEncoder
    model: SurvivalModel
    name: str
    incidents: int
    held_out: dict[str, HeldOut] = field(default_factory=dict)
    """Model → its scores; empty when the last part was too short to tell."""

    def risk(self, histories: Sequence[NodeHistory], at: float, hours: float) -> Floats:
        """[node] P(incident within the next ``hours`` | survived so far).

        Raises:
            ValueError: ``hours`` is not above zero.
        """
        if not hours > 0:
            raise ValueError(f"a job of {hours:g} hours has no risk to ask for")
        survived = np.array([h.survived(at) for h in histories])
        return self.model.conditional(self.encoder.rows(histories, at), survived, hours)


def learn(histories: Sequence[NodeHistory]) -> Learned:
    """Fit to every node that served, and choose among the models by the last part of the history.

    Raises:
        NotEnoughError: fewer incidents than ``LEAST_INCIDENTS``; the message says how many there are.
    """
    times = sorted(i.at for h in histories for i in h.incidents if h.since < i.at <= h.until)
    if len(times) < LEAST_INCIDENTS:
        raise NotEnoughError(f"{len(times)} incidents in the history, {LEAST_INCIDENTS} are needed to learn a risk")
    judged = _compare(histories, times[int((1 - _HELD_OUT) * len(times))])
    name = min(judged, key=lambda n: (judged[n].brier, n != "cox")) if judged else "kaplan-meier"
    encoder = CovariateEncoder.learn(histories)
    model = fit(MODELS[name](), encoder.failure_runs(histories))
    return Learned(encoder=encoder, model=model, name=name, incidents=len(times), held_out=judged)


def fit(model: SurvivalModel, failure_runs: FailureRuns) -> SurvivalModel:
    """Fit a model to spells."""
    return model.fit(failure_runs.x, failure_runs.stop, failure_runs.observed, failure_runs.entry)


def _compare(histories: Sequence[NodeHistory], split: float) -> dict[str, HeldOut]:
    """Model → its scores after ``split``, learned from before; empty where that cannot be said."""
    before = [as_known(h, split) for h in histories if h.since < split]
    end = max(h.until for h in histories)
    most = max(3, min(60, _ROWS // len(histories)))
    moments = np.arange(split, end, max(24.0 * HOUR, (end - split) / most))
    try:
        encoder = CovariateEncoder.learn(before)
        failure_runs = encoder.failure_runs(before)
        models = {name: fit(make(), failure_runs) for name, make in MODELS.items()}
    except NotEnoughError:
        return {}
    marks = landmarks(histories, encoder, moments)
    judged = {name: held_out_scores(model, marks, _HORIZONS) for name, model in models.items()}
    return judged if all(np.isfinite(found.brier) for found in judged.values()) else {}


def landmarks(histories: Sequence[NodeHistory], encoder: CovariateEncoder, moments: npt.ArrayLike) -> Landmarks:
    """Every node in service at each of the moments (Unix seconds)."""
    x: list[list[float]] = []
    rows: list[tuple[float, float, float]] = []
    for history in histories:
        for at in np.asarray(moments, np.float64):
            if not history.since < at < history.until or history.origin(float(at)) is None:
                continue
            coming = next((i.at for i in history.incidents if at <= i.at <= history.until), None)
            end = history.until if coming is None else coming
            x.append(encoder.row(history, float(at)))
            rows.append((history.survived(float(at)), max((end - at) / HOUR, 1e-6), float(coming is not None)))
    table = np.array(rows, np.float64).reshape(-1, 3)
    covariates = np.array(x, np.float64).reshape(-1, len(encoder.names))
    return Landmarks(x=covariates, survived=table[:, 0], residual=table[:, 1], observed=table[:, 2] > 0)


def held_out_scores(model: SurvivalModel, marks: Landmarks, horizons: Sequence[float]) -> HeldOut:
    """Order and probability of what a model says at landmarks."""
    if not len(marks.survived):
        return HeldOut(concordance=float("nan"), brier=float("nan"))
    p = np.stack([model.conditional(marks.x, marks.survived, hours) for hours in horizons], axis=1)
    return HeldOut(
        concordance=scores.concordance(p[:, -1], marks.residual, marks.observed),
        brier=scores.integrated_brier(p, marks.residual, marks.observed, horizons),
    )
