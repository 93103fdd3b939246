"""The survival models against figures of lifelines 0.30.3, against known distributions, and against bad input."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.selector import scores
from mainstay.detectors.selector.hazard import NotEnoughError
from mainstay.detectors.selector.survival import Cox, Exponential, KaplanMeier

# Forty rows with ties, censoring and late entry, drawn once; hours end at a half, so that incidents tie.
RNG = np.random.default_rng(5)
X = np.round(RNG.normal(size=(40, 2)), 2)
ENTRY = np.round(np.where(RNG.random(40) < 0.4, RNG.uniform(0, 3, 40), 0.0), 1)
STOP = np.round(ENTRY + 1 + RNG.exponential(8 * np.exp(-0.8 * X[:, 0])), 0) + 0.5
SEEN = RNG.random(40) < 0.75
ALL = {"cox": Cox, "kaplan-meier": KaplanMeier, "exponential": Exponential}


@pytest.mark.parametrize(
    ("entry", "coefficients", "likelihood"),
    [
        (ENTRY, (1.0613522862952207, -0.12650119670201315), -76.83276241709754),
        (None, (0.9883727868334354, -0.1554452954853006), -77.94700987690433),
    ],
    ids=["late entry", "from the start"],
)
def test_cox_agrees_with_lifelines(entry: object, coefficients: tuple[float, ...], likelihood: float) -> None:
    model = Cox(penalty=0.0).fit(X, STOP, SEEN, entry)
    assert model.coef_ == pytest.approx(coefficients, rel=1e-8)
    assert model.log_likelihood_ == pytest.approx(likelihood, rel=1e-12)


def test_kaplan_meier_agrees_with_lifelines_at_incidents() -> None:
    model = KaplanMeier().fit(X, STOP, SEEN, ENTRY)
    for hours, survival in ((2.5, 0.88479263), (5.5, 0.70262944), (10.5, 0.45514458)):
        assert (1 - model.conditional(X[:1], 0.0, hours)) == pytest.approx(survival, abs=1e-8)


def test_the_gradient_is_zero_at_the_fit() -> None:
    """For any data: no small change of a coefficient makes the incidents likelier."""
    model = Cox(penalty=0.0).fit(X, STOP, SEEN, ENTRY)
    from mainstay.detectors.selector.hazard import spells
    from mainstay.detectors.selector.survival import _Partial

    likelihood = _Partial(spells(STOP, SEEN, ENTRY), X)
    gradient, information = likelihood.slopes(model.coef_)
    assert np.abs(gradient).max() < 1e-6
    for j in range(2):  # and the information is the slope of the gradient
        step = np.eye(2)[j] * 1e-5
        change = (likelihood.slopes(model.coef_ + step)[0] - likelihood.slopes(model.coef_ - step)[0]) / 2e-5
        assert -change == pytest.approx(information[j], rel=1e-4, abs=1e-6)


def test_cox_finds_the_coefficients_that_made_the_data() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 3))
    beta = np.array([0.8, -0.5, 0.0])
    time = 100 * (rng.exponential(size=4000) / np.exp(x @ beta)) ** (1 / 1.5)  # Weibull: the baseline is free
    end = rng.uniform(20, 300, 4000)
    model = Cox().fit(x, np.minimum(time, end), time <= end)
    assert model.coef_ == pytest.approx(beta, abs=0.06)
    horizon = 60.0
    truth = np.exp(-((horizon / 100) ** 1.5) * np.exp(x @ beta))
    assert np.abs((1 - model.conditional(x, 0.0, horizon)) - truth).mean() < 0.02


def test_late_entry_removes_the_bias_of_survivors() -> None:
    """Nodes that were watched only after 50 hours say nothing about the first 50."""
    rng = np.random.default_rng(2)
    time = rng.exponential(100, 20_000)
    entry = np.where(rng.random(20_000) < 0.7, 50.0, 0.0)
    watched = time > entry
    x = np.zeros((int(watched.sum()), 1))
    late = KaplanMeier().fit(x, time[watched], np.ones(len(x)), entry[watched])
    blind = KaplanMeier().fit(x, time[watched], np.ones(len(x)))
    assert (1 - late.conditional(x[:1], 0.0, 50.0)) == pytest.approx(np.exp(-0.5), abs=0.02)
    assert (1 - blind.conditional(x[:1], 0.0, 50.0)) > 0.75


@pytest.mark.parametrize("name", ALL)
def test_every_model_keeps_its_word(name: str) -> None:
    """Survival falls from 1 and never rises; the conditional risk is the ratio of survivals, and never zero."""
    model = ALL[name]().fit(X, STOP, SEEN, ENTRY)
    hours = np.linspace(0, 300, 200)
    curve = np.array([(1 - model.conditional(X[:5], 0.0, h)) for h in hours])
    assert curve[0] == pytest.approx(1.0)
    assert (np.diff(curve, axis=0) <= 0).all()
    for survived in (0.0, 7.3, 200.0, 1e5):
        risk = model.conditional(X[:5], survived, 3.0)
        assert ((risk > 0) & (risk < 1)).all(), "no node is ever free of risk, however long it has held"
    ratio = 1 - (1 - model.conditional(X[:5], 0.0, 10.0)) / (1 - model.conditional(X[:5], 0.0, 4.0))
    assert model.conditional(X[:5], 4.0, 6.0) == pytest.approx(ratio)


def test_the_exponential_forgets() -> None:
    model = Exponential().fit(X, STOP, SEEN, ENTRY)
    assert model.conditional(X[:1], 0.0, 5.0) == pytest.approx(model.conditional(X[:1], 999.0, 5.0))
    assert model.hazard_ is not None
    assert model.hazard_.tail == pytest.approx(SEEN.sum() / (STOP - ENTRY).sum())


def test_separated_and_repeated_covariates_stay_finite() -> None:
    x = np.column_stack([np.repeat([0.0, 1.0], 20), np.repeat([0.0, 1.0], 20), np.full(40, 7.0)])
    stop = np.concatenate([np.full(20, 100.0), np.linspace(1, 20, 20)])
    model = Cox().fit(x, stop, np.repeat([False, True], 20))
    assert model.coef_ is not None
    assert np.isfinite(model.coef_).all()
    assert model.coef_[0] == pytest.approx(model.coef_[1])
    assert model.coef_[2] == 0.0


def test_a_value_never_seen_counts_as_the_last_one_seen() -> None:
    model = Cox().fit(X, STOP, SEEN)
    high = X.max(axis=0)
    assert model.conditional([high * 1e6], 1.0, 1.0) == pytest.approx(
        model.conditional([high * [1, 1]], 1.0, 1.0), rel=0.5
    )
    assert model.relative([[1e9, 0.0]]) == pytest.approx(model.relative([[high[0], 0.0]]))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("stop", "seen", "entry", "said"),
    [
        ([1.0, 2.0], [1, 1], [0.0, 2.0], "row 1"),
        ([1.0, np.nan], [1, 1], None, "finite"),
        ([1.0], [1], None, None),
        ([1.0, -1.0], [1, 1], None, "row 1"),
        ([1.0, 2.0], [1], None, "one length"),
    ],
)
def test_bad_times_are_refused_in_words(
    name: str, stop: list[float], seen: list[int], entry: object, said: str | None
) -> None:
    x = np.zeros((len(stop), 1))
    if said is None:
        ALL[name]().fit(x, stop, seen, entry)
        return
    with pytest.raises(ValueError, match=said):
        ALL[name]().fit(x, stop, seen, entry)


@pytest.mark.parametrize("name", ALL)
def test_without_an_incident_nothing_is_learned(name: str) -> None:
    with pytest.raises(NotEnoughError, match="no incident"):
        ALL[name]().fit([[0.0]], [5.0], [False])


def test_bad_covariates_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"x\[1, 0\] is not a finite number"):
        Cox().fit([[0.0], [np.nan]], [1, 2], [1, 1])
    with pytest.raises(ValueError, match="shape"):
        Cox().fit([[0.0]], [1, 2], [1, 1])
    with pytest.raises(ValueError, match="fitted on 2"):
        Cox().fit(X, STOP, SEEN).relative([[1.0]])
    with pytest.raises(ValueError, match="not fitted"):
        Cox().relative([[1.0]])


# scores


def test_concordance_counts_comparable_pairs() -> None:
    assert scores.concordance([3, 2, 1], [1, 2, 3], [1, 1, 1]) == 1.0
    assert scores.concordance([1, 2, 3], [1, 2, 3], [1, 1, 1]) == 0.0
    assert scores.concordance([5, 5, 5], [1, 2, 3], [1, 1, 1]) == 0.5
    # the censored row outlives only what failed before it: (0,1) and (0,2) and (1 ... none)
    assert scores.concordance([3, 9, 1], [1, 2, 3], [1, 0, 1]) == 0.5
    assert np.isnan(scores.concordance([1, 2], [1, 2], [0, 0]))


def test_brier_without_censoring_is_the_mean_squared_error() -> None:
    p, time = np.array([0.9, 0.2, 0.5]), np.array([5.0, 50.0, 8.0])
    assert scores.brier(p, time, [1, 1, 1], 10.0) == pytest.approx(((0.9 - 1) ** 2 + 0.2**2 + 0.5**2) / 3)


def test_brier_with_censoring_is_unbiased() -> None:
    """Half of the rows lost at random on the way: the score stays what it is with all of them."""
    rng = np.random.default_rng(3)
    rate = rng.gamma(2.0, 0.005, 40_000)
    time = rng.exponential(1 / rate)
    lost = rng.exponential(120.0, 40_000)
    p = 1 - np.exp(-rate * 72.0)
    whole = scores.brier(p, time, np.ones(40_000), 72.0)
    part = scores.brier(p, np.minimum(time, lost), time <= lost, 72.0)
    assert part == pytest.approx(whole, abs=0.004)


def test_scores_refuse_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="one length"):
        scores.concordance([1.0], [1.0, 2.0], [1, 1])
    with pytest.raises(ValueError, match="one column"):
        scores.integrated_brier([[0.1]], [1.0], [1], [1.0, 2.0])
    with pytest.raises(ValueError, match="one column"):
        scores.integrated_brier([[[0.1]]], [1.0], [1], [1.0])


def test_a_model_says_which_covariates_it_wants() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\), wanted \[2, covariate\]"):
        Cox().fit([1.0, 2.0], [1.0, 2.0], [1, 1])


def test_pairs_that_end_together_are_compared_only_where_one_was_lost_from_sight() -> None:
    """At hour 2 row 0 fails while row 1 is lost and row 2 fails as well: pairs (0, 1), (2, 1), and 3 with all."""
    assert scores.concordance([2.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 1.0], [1, 0, 1, 1]) == (1 + 0.5 + 3) / 5


@pytest.mark.parametrize(
    ("time", "seen", "horizon", "score"),
    [
        # Row 2 is lost at 4 with two others in sight: what is known after it counts 3/2.
        ([2.0, 9.0, 4.0, 7.0], [1, 1, 0, 1], 5.0, (0.1**2 + (0.2**2 + 0.4**2) * 1.5) / 4),
        # It is lost at the horizon itself; row 0 failed at that moment, which counts as before.
        ([5.0, 9.0, 5.0, 7.0], [1, 1, 0, 1], 5.0, (0.1**2 + (0.2**2 + 0.4**2) * 1.5) / 4),
        # Row 0 fails after row 2 was lost: three left, two in sight.
        ([5.0, 9.0, 4.0, 3.0], [1, 1, 0, 1], 5.0, (0.6**2 + (0.1**2 + 0.2**2) * 1.5) / 4),
        # Two are lost, one after the other: 3/4 and 1/2 are in sight.
        ([2.0, 3.0, 9.0, 8.0], [0, 0, 1, 1], 5.0, (0.3**2 + 0.4**2) * 2 / 4),
    ],
)
def test_brier_by_hand(time: list[float], seen: list[int], horizon: float, score: float) -> None:
    assert scores.brier([0.9, 0.2, 0.3, 0.4], time, seen, horizon) == pytest.approx(score)


def test_brier_over_horizons_is_a_trapezoid() -> None:
    p, time = [[0.5, 0.5, 0.5], [0.1, 0.4, 0.9]], [3.0, 30.0]
    each = [scores.brier([row[k] for row in p], time, [1, 1], at) for k, at in enumerate((2.0, 4.0, 10.0))]
    assert each == pytest.approx([(0.25 + 0.01) / 2, (0.25 + 0.16) / 2, (0.25 + 0.81) / 2])
    expected = (2 * (each[0] + each[1]) / 2 + 6 * (each[1] + each[2]) / 2) / 8
    assert scores.integrated_brier(p, time, [1, 1], [2.0, 4.0, 10.0]) == pytest.approx(expected)
    assert scores.integrated_brier([[0.5], [0.1]], time, [1, 1], [2.0]) == each[0]
    assert np.isnan(scores.brier([0.5], [1.0], [0], 2.0)), "nothing is known"
    for shape in ([0.1], [[[0.1]]]):
        with pytest.raises(ValueError, match="wanted one column for each of 1 horizons"):
            scores.integrated_brier(shape, [1.0], [1], [1.0])


def test_cox_of_one_covariate_by_hand() -> None:
    """Two rows with x = 1, 0 fail in order: likelihood e^b / (e^b + 1), and in standard units 1 is half as far.

    With the prior the slope 1 - s(2z) is z / 2: the coefficient per unit is twice the z with 2 (1 - s(2z)) = z.
    """
    model = Cox(penalty=1.0).fit([[1.0], [0.0]], [1.0, 2.0], [1, 1])
    assert model.coef_ is not None
    z = float(model.coef_[0]) / 2
    assert 2 / (1 + np.exp(2 * z)) == pytest.approx(z, rel=1e-6)
    assert model.log_likelihood_ == pytest.approx(2 * z - np.log(np.exp(2 * z) + 1))
    assert model.relative([[1.0], [0.0], [0.5], [9.0]]) == pytest.approx(np.exp([z, -z, 0.0, z]))
    whole = 1 / (np.exp(z) + np.exp(-z)) + np.exp(z)  # of the weight at risk at 1 and at 2, with one knot for both
    risk = model.conditional([[0.5]], 0.0, [1.0, 2.0])
    assert risk == pytest.approx(1 - np.exp([-whole / 2, -whole]))


@pytest.mark.parametrize("given", [{"penalty": -0.1}, {"piece": 0}, {"iterations": 0}, {"penalty": float("nan")}])
def test_settings_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be at least 0, piece and iterations at least 1"):
        Cox(**given)  # type: ignore[arg-type]
    assert Cox(penalty=0.0, piece=1, iterations=1).fit(X, STOP, SEEN).coef_ is not None
    assert (Cox().penalty, Cox().piece, Cox().iterations) == (1.0, 10, 50)


def test_the_last_incident_of_kaplan_meier_counts_as_nelson_aalens() -> None:
    """Of three one fails at 1, two of the two left at 2: -log(2/3), then 2/2; afterwards 3 in 5 hours."""
    told = KaplanMeier().fit([[0.0]] * 3, [1.0, 2.0, 2.0], [1, 1, 1])
    assert told.hazard_ is not None
    assert told.hazard_.at([1.0, 2.0, 7.0]) == pytest.approx(np.log(1.5) + np.array([0.0, 1.0, 1.0 + 5 * 3 / 5]))


def test_x_that_is_no_table_of_finite_numbers_is_refused_in_words() -> None:
    model = Cox().fit(X, STOP, SEEN)
    for bad in ([1.0, 2.0], np.zeros((2, 0))):
        with pytest.raises(ValueError, match=r"wanted \[row, covariate\] with at least one covariate"):
            model.relative(bad)
    with pytest.raises(ValueError, match=r"wanted \[40, covariate\]"):
        Cox().fit(X[:39], STOP, SEEN)
    with pytest.raises(ValueError, match=r"x\[1, 1\] is not a finite number"):
        model.relative([[0.0, 0.0], [0.0, np.inf], [np.inf, 0.0]])
    with pytest.raises(ValueError, match="x has 1 covariates, the model was fitted on 2"):
        model.relative([[0.0]])
