"""Several jobs on one cluster, redundancy and resources: against brute force, by hand and against sampling."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from bench.lib_allocation import allocate
from mainstay.recovery.cost_model.allocation import Tenant, donor_loss
from mainstay.recovery.cost_model.redundancy import RedundancyScheme, group_loss, torn_rate
from mainstay.recovery.cost_model.resources import Fit, ScalingSample, fit, useful_workers


def tenants(rng: random.Random, count: int, workers: int) -> list[Tenant]:
    made = []
    for i in range(count):
        least, rate = rng.randint(0, 3), rng.uniform(0.5, 2.0)
        achieved = tuple(0.0 if k < least else rate * k**0.9 for k in range(workers + 1))
        made.append(
            Tenant(
                name=f"job-{i}", workers=rng.randint(0, workers // count), achieved=achieved,
                transition_s=rng.uniform(0.0, 300.0), weight=rng.choice((1.0, 3.0)), faulted=rng.random() < 0.3,
            )
        )  # fmt: skip
    return made


@pytest.mark.parametrize("seed", range(12))
def test_the_allocation_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    count, workers = rng.randint(1, 4), rng.randint(1, 10)
    jobs, run_s = tenants(rng, count, workers), rng.uniform(10.0, 10_000.0)
    total, shares = allocate(jobs, workers, run_s)

    def value(given: tuple[int, ...]) -> float:
        return sum(job.gain(k, run_s) for job, k in zip(jobs, given, strict=True))

    best = max(value(given) for given in product(range(workers + 1), repeat=count) if sum(given) <= workers)
    assert total == pytest.approx(best)
    assert value(shares) == pytest.approx(best)
    assert sum(shares) <= workers


def test_a_change_must_pay_for_its_transition() -> None:
    even = [Tenant(name=n, workers=2, achieved=(0.0, 1.0, 1.8, 2.5), transition_s=100.0) for n in "ab"]
    assert allocate(even, 3, 10.0)[1] in {(1, 2), (2, 1)}
    more = [even[0], Tenant(name="b", workers=1, achieved=(0.0, 1.0, 1.8, 2.5), transition_s=100.0)]
    assert allocate(more, 4, 50.0)[1] == (2, 1), "in 50 s another worker earns 40, and the change costs 100"
    assert sum(allocate(more, 4, 5000.0)[1]) == 4


def test_the_cheapest_donor() -> None:
    a = Tenant(name="a", workers=2, achieved=(0.0, 1.0, 2.0), transition_s=10.0)
    b = Tenant(name="b", workers=3, achieved=(0.0, 1.0, 2.0, 2.5), transition_s=10.0)
    assert donor_loss([a, b], 1, 100.0) == pytest.approx(0.5 * 100.0 + 2.5 * 10.0)
    assert donor_loss([a, b], 4, 100.0) is None
    with pytest.raises(ValueError, match="achieved of 'c'"):
        Tenant(name="c", workers=0, achieved=(), transition_s=0.0)


def test_a_group_is_lost_as_often_as_sampling_says() -> None:
    scheme = RedundancyScheme(data=4, extra=2, every_s=60.0)
    gone = np.random.default_rng(5).exponential(1e5, (200_000, 6)) < 2e4
    assert group_loss(scheme, 1e-5, 2e4) == pytest.approx((gone.sum(axis=1) > 2).mean(), rel=0.03)
    assert scheme.memory == 1.5
    assert torn_rate(scheme, workers=60, worker_rate=1e-5, window_s=2e4) == pytest.approx(
        10 * group_loss(scheme, 1e-5, 2e4) / 2e4
    )
    assert torn_rate(scheme, workers=60, worker_rate=1e-5, window_s=0.0) == 0.0


def test_more_extra_blocks_are_safer() -> None:
    rates = [group_loss(RedundancyScheme(data=4, extra=extra, every_s=60.0), 1e-6, 1e4) for extra in (1, 2, 3)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 10.0 * rates[1]


def test_coefficients_are_found_and_never_negative() -> None:
    true = Fit(1.0, 64.0, 0.01)
    found = fit([ScalingSample(n, true.step_s(n)) for n in (2, 4, 8, 16, 32)])
    assert found is not None
    assert (found.fixed_s, found.work_s, found.talk_s) == pytest.approx((1.0, 64.0, 0.01))
    falling = fit([ScalingSample(n, 10.0 / n - 0.05 * n + 1.0) for n in (1, 2, 4, 8)])
    assert falling is not None
    assert min(falling.fixed_s, falling.work_s, falling.talk_s) >= 0.0
    assert fit([ScalingSample(2, 1.0), ScalingSample(2, 1.1), ScalingSample(4, 0.6)]) is None


def test_workers_are_had_while_they_pay() -> None:
    for fitted in (Fit(1.0, 64.0, 0.01), Fit(0.1, 10.0, 0.0), Fit(0.0, 5.0, 1.0)):
        most = 200
        found = useful_workers(fitted, most)
        gains = [fitted.step_s(n) - fitted.step_s(n + 1) >= 0.5 * fitted.step_s(n) / (n + 1) for n in range(1, most)]
        assert found == (gains.index(False) + 1 if False in gains else most)
    assert useful_workers(Fit(1.0, 1.0, 1.0), 1) == 1


@pytest.mark.parametrize(
    ("workers", "faulted", "value"),
    [(2, False, 2.0 * 100), (2, True, 2.0 * 90), (1, False, 100 - 20.0), (9, False, 180)],
)
def test_a_job_pays_for_a_change_at_its_own_rate(workers: int, faulted: bool, value: float) -> None:
    job = Tenant(name="a", workers=2, achieved=(0.0, 1.0, 2.0), transition_s=10.0, weight=3.0, faulted=faulted)
    assert job.gain(workers, 100.0) == 3.0 * value
    assert (job.rate(0), job.rate(2), job.rate(3)) == (0.0, 2.0, 2.0)


def test_what_donors_lose() -> None:
    a, b = (Tenant(name=n, workers=2, achieved=(0.0, 1.0, 1.0), transition_s=0.0) for n in "ab")
    assert donor_loss([a, b], 1, 100.0) == 0.0
    assert donor_loss([a, b], 2, 100.0) == 100.0
    better = Tenant(name="c", workers=1, achieved=(2.0, 1.0), transition_s=0.0)
    assert donor_loss([a, better], 1, 10.0) == 0.0, "less than nothing is nothing"


@pytest.mark.parametrize(("save", "share"), [(0.0, 0.0), (5.0, 0.2), (20.0, 0.5)])
def test_what_a_scheme_takes(save: float, share: float) -> None:
    assert RedundancyScheme(data=2, extra=1, every_s=20.0, save_s=save).share == share


@pytest.mark.parametrize(("most", "found"), [(1, 1), (2, 2), (3, 3), (4, 3), (50, 3)])
def test_the_last_worker_that_pays(most: int, found: int) -> None:
    """1 + 8 / w: 9, 5, 3.67, 3. From 2 to 3 it gains 1.33 of 1.67, from 3 to 4 0.67 of 0.92, half of each is asked.

    With talk of 0.2 a worker: 9.2, 5.4, 4.27, 3.8, 3.6. From 3 to 4 0.47 are less than half of 1.07.
    """
    assert useful_workers(Fit(1.0, 8.0, 0.2), most) == found


def test_terms_that_explain_nothing_are_left_out() -> None:
    for true in (Fit(2.0, 0.0, 0.0), Fit(0.0, 6.0, 0.0), Fit(0.0, 0.0, 0.5), Fit(1.0, 0.0, 0.25)):
        found = fit([ScalingSample(n, true.step_s(n)) for n in (1, 2, 3)])
        assert found is not None
        assert (found.fixed_s, found.work_s, found.talk_s) == pytest.approx(
            (true.fixed_s, true.work_s, true.talk_s), abs=1e-9
        )
