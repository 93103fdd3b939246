"""Scores of one machine's samples: what ``bench.machines`` compares, each from the training part and the past alone.

A scorer gives two series: of the training part, each of five blocks by what was learned from the others, and of the
test part. Signals are standardized by the training part and clipped at ten deviations. ``surprise`` makes scores
comparable: minus the logarithm of how often healthy samples reach them. ``rarest`` of several is the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.covariance import OAS, LedoitWolf
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest

from bench.lib_multivariate import CLIP, WINDOW, MachineModel, ewma
from bench.lib_multivariate_views import LEAST_DEVIATION, Unrest
from mainstay.detectors.base import Floats
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.host.host_anomaly import HostAnomalyDetector
from mainstay.detectors.statistics.node_anomalies import NodeAnomalies, NodeAnomalyConfig
from mainstay.detectors.statistics.spot import tail

BLOCKS = 5
SPAN = 15.0
"""Samples of the average that a smoothed rank is."""
A_DAY, LEARNED = 1440, 240
"""Samples of a day of the live detector, and its first that are no scores yet; a sample may be of any length."""
LEAST_MOVE = 3e-3
LEARNS = ", learning on"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    name: str
    day: int
    """Samples a day: SMD has one a minute; ASD one in five minutes, as its daily rhythm of 288 samples shows."""
    train: Floats
    test: Floats
    labels: npt.NDArray[np.bool_]
    culprits: list[tuple[int, int, list[int]]]
    """[start, stop) of each event and the signals that caused it, from 0."""

    @property
    def days(self) -> float:
        return len(self.test) / self.day


@dataclass(frozen=True, slots=True)
class Scores:
    """Higher is more unusual."""

    healthy: Floats
    test: Floats

    def both(self, change: Callable[[Floats], Floats]) -> Scores:
        return Scores(change(self.healthy), change(self.test))


Fit = Callable[[Floats], Callable[[Floats], Floats]]


def mahalanobis(estimator: type[LedoitWolf | OAS], x: Floats) -> Callable[[Floats], Floats]:
    score: Callable[[Floats], Floats] = estimator().fit(x).mahalanobis
    return score


def residual(x: Floats) -> Callable[[Floats], Floats]:
    model = PCA(0.9).fit(x)
    return lambda z: np.square(z - model.inverse_transform(model.transform(z))).sum(axis=1)


def forest(x: Floats) -> Callable[[Floats], Floats]:
    model = IsolationForest(n_estimators=100, max_samples=512, random_state=0).fit(x)
    return lambda z: -model.score_samples(z)


def unlearned(score: Callable[[Floats], Floats]) -> Fit:
    return lambda _: score


FITS: dict[str, Fit] = {
    "max |z|": unlearned(lambda z: np.abs(z).max(axis=1)),
    "mean clipped z^2": unlearned(lambda z: np.square(z).mean(axis=1)),
    "PCA residual 90 %": residual,
    "IsolationForest": forest,
    "Mahalanobis LW": partial(mahalanobis, LedoitWolf),
    "Mahalanobis OAS": partial(mahalanobis, OAS),
}
SIMPLE = ("random", *FITS)
LEARNING = ("max |z|", "mean clipped z^2", "PCA residual 90 %", "Mahalanobis LW")
"""Of these, those that are quick to fit again each day."""
WINDOWED = "Mahalanobis LW, 3 samples"
VIEWS = ("Mahalanobis LW", "unrest")
"""Level and unrest, as the live detector has them."""


def held_out(fit: Fit, train: Floats, test: Floats) -> Scores:
    """Each block of ``train`` scored by what was learned from the others, and ``test`` by all."""
    edges = np.linspace(0, len(train), BLOCKS + 1).astype(int)
    parts = [fit(np.delete(train, np.s_[a:b], axis=0))(train[a:b]) for a, b in pairwise(edges.tolist())]
    return Scores(np.concatenate(parts), fit(train)(test))


def standardized(machine: Machine) -> tuple[Floats, Floats]:
    """Training and test part, in clipped deviations of the training part."""
    mean, deviation = machine.train.mean(axis=0), np.maximum(machine.train.std(axis=0), LEAST_DEVIATION)
    train, test = (np.clip((x - mean) / deviation, -CLIP, CLIP) for x in (machine.train, machine.test))
    return train, test


def scores_of(machine: Machine) -> dict[str, Scores]:
    """Every single score of one machine."""
    both = np.concatenate([machine.train, machine.test])
    n = len(machine.train)
    z = np.concatenate(standardized(machine))
    lagged = np.concatenate([z[:1].repeat(WINDOW - 1, axis=0), z])
    window = np.hstack([lagged[lag : lag + len(z)] for lag in range(WINDOW)])
    moves = np.abs(np.diff(both, axis=0, prepend=both[:1]))
    moving = np.log(ewma(moves, MachineModel.Config().unrest_span, moves[:n].mean(axis=0)) + LEAST_MOVE)
    draw = np.random.default_rng(0).random
    found = {"random": Scores(draw(n), draw(len(machine.test)))}
    found |= {name: held_out(fit, z[:n], z[n:]) for name, fit in FITS.items()}
    found[WINDOWED] = held_out(FITS["Mahalanobis LW"], window[:n], window[n:])
    found[VIEWS[1]] = held_out(lambda x: Unrest().fit(x).score, moving[:n], moving[n:])
    model = MachineModel().fit(machine.train)
    found["six views"] = Scores(model.healthy_.rank, model.score_samples(machine.test))
    return found


def relearned(machine: Machine) -> dict[str, Scores]:
    """Scores that learn on without labels, as the live detector must: fitted each day to all of the past."""
    x, n, day = np.concatenate([machine.train, machine.test]), len(machine.train), machine.day
    moves = np.abs(np.diff(x, axis=0, prepend=x[:1]))
    moving = np.log(ewma(moves, MachineModel.Config().unrest_span, moves[:day].mean(axis=0)) + LEAST_MOVE)
    found = {name: np.zeros(len(x)) for name in (*LEARNING, VIEWS[1])}
    for now in range(day, len(x), day):
        past, today = np.s_[:now], np.s_[now : now + day]
        mean, deviation = x[past].mean(axis=0), np.maximum(x[past].std(axis=0), LEAST_DEVIATION)
        z = np.clip((x[: now + day] - mean) / deviation, -CLIP, CLIP)
        for name in LEARNING:
            found[name][today] = FITS[name](z[past])(z[today])
        found[VIEWS[1]][today] = Unrest().fit(moving[past]).score(moving[today])
    return {f"{name}{LEARNS}": Scores(score[2 * day : n], score[n:]) for name, score in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The live detector on one machine."""

    views: list[Scores]
    raised: npt.NDArray[np.intp]
    """Samples of the test part in which a finding begins."""


def online(machines: list[Machine], asked: float) -> list[Live]:
    """The live detector, which learns on; all machines of a set as its nodes, ``asked`` findings a machine-day."""
    trained, tested = (
        max(len(part) for part in parts) for parts in ([m.train for m in machines], [m.test for m in machines])
    )
    x = np.full((trained + tested, machines[0].train.shape[1], len(machines)), np.nan)
    for k, m in enumerate(machines):
        x[trained - len(m.train) : trained, :, k], x[trained : trained + len(m.test), :, k] = m.train, m.test
    day, usual = machines[0].day, HostAnomalyDetector.Config()
    config = NodeAnomalyConfig(
        learned=LEARNED,
        memory=usual.memory_minutes / A_DAY * day,
        rate=asked * len(machines) / day,
        usual=usual.calm,
        calm=usual.calm_minutes,
        accepted=usual.accepted_minutes * day // A_DAY,
    )
    model = NodeAnomalies(np.full(x.shape[1], LEAST_DEVIATION), config)
    rows = model.declare(EntityState())
    rows.align(tuple(Entity(node=m.name) for m in machines))
    scores, begins = np.empty((len(x), len(VIEWS), len(machines))), np.zeros((len(x), len(machines)), np.bool_)
    for at, row in enumerate(x):
        judged = model.step(rows, row)
        scores[at], begins[at, judged.changed] = judged.scores, model.latch.on(rows)[judged.changed]
    found = []
    for k, m in enumerate(machines):
        past, now = np.s_[trained - len(m.train) + 2 * LEARNED : trained], np.s_[trained : trained + len(m.test)]
        views = [Scores(scores[past, i, k], scores[now, i, k]) for i in range(len(VIEWS))]
        found.append(Live(views=views, raised=np.flatnonzero(begins[now, k])))
    return found


def logged(scores: Scores, span: float = 1.0) -> Scores:
    """Logarithms, smoothed: distances have tails over many decades. The test part follows the training part."""
    n = len(scores.healthy)
    logs = np.log(np.maximum(np.concatenate([scores.healthy, scores.test]), 1e-9))
    smooth = ewma(logs, span, float(logs[0])) if span > 1.0 else logs
    return Scores(smooth[:n], smooth[n:])


def surprise(scores: Scores) -> Scores:
    """Minus the logarithm of how often healthy samples reach a score: counted, and by the fitted tail beyond."""
    known, far = np.sort(scores.healthy), tail(scores.healthy)

    def rare(score: Floats) -> Floats:
        over = 1.0 - np.searchsorted(known, score) / len(known)
        counted = -np.log(np.maximum(over, 1.0 / len(known)))
        beyond = np.minimum(-far.log_rate(score), 30.0)
        return np.maximum(counted, np.where(np.isfinite(beyond), beyond, 0.0))

    return scores.both(rare)


def rarest(parts: list[Scores]) -> Scores:
    made = [surprise(part) for part in parts]
    return Scores(np.max([p.healthy for p in made], axis=0), np.max([p.test for p in made], axis=0))


def mean_rank(parts: list[Scores]) -> Floats:
    """[T] of the test part: mean of logarithms, raw and smoothed, in healthy 99th percentiles."""
    total = np.zeros(len(parts[0].test))
    for part in (logged(part, span) for part in parts for span in (1.0, SPAN)):
        middle = float(np.median(part.healthy))
        total += np.maximum((part.test - middle) / (float(np.quantile(part.healthy, 0.99)) - middle + 0.1), 0.0)
    return total / (2 * len(parts))
