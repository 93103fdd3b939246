"""Run lengths against all ways to cut a series into runs, each with its likelihood in closed form."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mainstay.detectors.statistics.bocpd import Bocpd, Prior

PRIOR = Prior(mean=0.5, kappa=0.25, alpha=1.5, beta=0.75, hazard=0.125)
SERIES = (0.0, 0.75, -0.25, 3.0, 3.5)


def log_evidence(run: tuple[float, ...], prior: Prior) -> float:
    """Normal-Gamma: Murphy, "Conjugate Bayesian analysis of the Gaussian distribution" (2007), equation 95."""
    n, middle = len(run), sum(run) / len(run)
    kappa, alpha = prior.kappa + n, prior.alpha + n / 2
    squares = sum((value - middle) ** 2 for value in run)
    beta = prior.beta + squares / 2 + prior.kappa * n * (middle - prior.mean) ** 2 / (2 * kappa)
    gammas = math.lgamma(alpha) - math.lgamma(prior.alpha)
    return gammas + prior.alpha * math.log(prior.beta) - alpha * math.log(beta) + 0.5 * math.log(prior.kappa / kappa)


def run_lengths(series: tuple[float, ...], prior: Prior) -> list[float]:
    """Place r: probability that the last run has r samples. Each sample after the first may begin a run."""
    found = [0.0] * (len(series) + 1)
    for cuts in itertools.product([False, True], repeat=len(series) - 1):
        starts = [0, *(at + 1 for at, cut in enumerate(cuts) if cut)]
        runs = [series[a:b] for a, b in itertools.pairwise([*starts, len(series)])]
        chance = math.prod(prior.hazard if cut else 1.0 - prior.hazard for cut in cuts)
        found[len(runs[-1])] += chance * math.exp(sum(log_evidence(run, prior) for run in runs))
    return [mass / sum(found) for mass in found]


@pytest.mark.parametrize("prior", [PRIOR, Prior(), Prior(mean=-1.0, kappa=2.0, alpha=1.0, beta=3.0, hazard=0.3)])
def test_run_lengths_are_those_of_all_cuts(prior: Prior) -> None:
    told = Bocpd(2, longest=8, prior=prior)
    for n, value in enumerate(SERIES, 1):
        told.update(np.array([value, math.nan]))
        expected = run_lengths(SERIES[:n], prior)
        assert told.mass[0] == pytest.approx([*expected, *[0.0] * (7 - n)], abs=1e-12)
        assert told.run_length()[0] == np.argmax(expected)
        assert told.changed_within(2)[0] == pytest.approx(sum(expected[:3]))
    assert told.mass[1].tolist() == [1.0] + [0.0] * 7, "a series without a sample is where it was"


def test_the_last_place_gathers_the_runs_that_arrive_and_those_that_are_there() -> None:
    told = Bocpd(longest=3, prior=PRIOR)
    for value in SERIES[:2]:
        told.update(np.array([value]))
    _, one, two = told.mass[0]
    densities = np.exp(told._predictive(np.array([[SERIES[2]]]), told._mean, told._beta))[0]
    begun, grown = 0.125 * densities[0], 0.875 * (one * densities[1] + two * densities[2])
    told.update(np.array([SERIES[2]]))
    assert told.mass[0] == pytest.approx([0.0, begun / (begun + grown), grown / (begun + grown)])


def test_the_last_place_forgets_as_slowly_as_it_remembers() -> None:
    """Kappa 2 and alpha 1.5 stay. The mean: 3 / 3, then (2 + 4) / 3. Beta: (1 + 3) x 3/4, then (3 + 3) x 3/4."""
    told = Bocpd(longest=2, prior=Prior(kappa=1.0, alpha=1.0, beta=1.0))
    for value, mean, beta in ((3.0, 1.0, 3.0), (4.0, 2.0, 4.5)):
        told.update(np.array([value]))
        assert (told._mean.tolist(), told._beta.tolist()) == ([[0.0, mean]], [[1.0, beta]])
        assert told.mass.tolist() == [[0.0, 1.0]]


def test_two_hundred_run_lengths_are_told_apart_and_the_prior_is_worth_four_samples() -> None:
    assert Bocpd().mass.shape == (1, 200)
    assert Bocpd().prior == Prior(mean=0.0, kappa=0.01, alpha=2.0, beta=2.0, hazard=0.002)
