"""The Validator: budget kept, slow devices found and left out, noisy metrics refused; and a device against its past."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import lib_gpu_variability as longhorn
from mainstay.detectors.validation.criteria import BADNESS
from mainstay.detectors.validation.criterion_limits import CriterionLimits, Distribution, NotAGateError
from mainstay.detectors.validation.repeatability import NEEDED, repeatability
from mainstay.detectors.validation.validator import BestLimits, OwnPast, Validator, judge_run
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from tests.data import DATA, needs

BOTH = pytest.mark.parametrize("better", [Better.LOWER, Better.HIGHER])


def devices(
    n: int, seed: int = 0, *, between: float = 0.005, within: float = 0.003, size: int = 15
) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [100 * np.exp(between * random.standard_normal() + within * random.standard_normal(size)) for _ in range(n)]


def slowed(run: np.ndarray, slowdown: float, better: Better = Better.LOWER) -> np.ndarray:
    return run * (1 + slowdown) if better is Better.LOWER else run / (1 + slowdown)


@pytest.mark.parametrize("n", [5, 12, 40, 200])
def test_a_healthy_run_fails_within_twice_the_budget(n: int) -> None:
    """Scatter of 3 %: the slack of 2 % does not save them, the quantile must."""
    random, alarms, judged = np.random.default_rng(n), 0, 0
    for trial in range(60 if n < 100 else 15):
        with contextlib.suppress(NotAGateError):  # no limit, no alarm
            validator = Validator(0.02).fit(devices(n, seed=1000 * n + trial, between=0.03), Better.LOWER)
            fresh = devices(50, seed=int(random.integers(2**31)), between=0.03)
            alarms += validator.predict(fresh).count(Verdict.FAIL)
            judged += len(fresh)
    assert judged
    assert alarms / judged <= 2 * 0.02


@BOTH
def test_slow_devices_are_left_out_and_found(better: Better) -> None:
    """A fifth of the cohort is slow; who learns from it must not learn that."""
    runs = devices(40)
    bad = range(0, 40, 5)
    runs = [slowed(run, 0.06, better) if i in bad else run for i, run in enumerate(runs)]
    validator = Validator().fit(runs, better)
    found = validator.predict(runs)
    assert [i for i, verdict in enumerate(found) if verdict is Verdict.FAIL] == list(bad)
    kept = validator.limits_.distribution
    assert kept is not None
    assert kept.excluded == 8
    assert kept.detectable < 0.05


def test_nobody_knows_who_is_healthy_without_a_majority() -> None:
    runs = [slowed(run, 0.10 if i % 5 < 2 else 0.0) for i, run in enumerate(devices(40))]
    with pytest.raises(NotAGateError, match="two cohorts in one"):
        Validator().fit(runs, Better.LOWER)


def test_what_is_slow_at_times_is_seen_where_the_median_is_not() -> None:
    validator = Validator().fit(devices(60), Better.LOWER)
    run = devices(1, seed=9)[0]
    run[:5] *= 1.5
    assert np.median(run) < (validator.limits_.high or 0.0)
    assert validator.predict([run]) == [Verdict.FAIL]
    assert validator.limits_.distribution is not None
    assert judge_run(run, validator.limits_, Better.LOWER)[1] < validator.limits_.distribution.alpha


def test_disturbed_repetitions_of_healthy_hosts_are_no_defect() -> None:
    """One repetition in fifty takes up to 30 % longer, somewhere in every fleet."""
    random = np.random.default_rng(3)

    def disturbed(runs: list[np.ndarray]) -> list[np.ndarray]:
        return [
            run * np.where(random.random(len(run)) < 0.02, 1 + random.uniform(0.05, 0.3, len(run)), 1) for run in runs
        ]

    validator = Validator(0.001).fit(disturbed(devices(300)), Better.LOWER)
    found = validator.predict(disturbed(devices(1000, seed=1)))
    assert found.count(Verdict.FAIL) <= 4, "the budget is one in a thousand"
    assert validator.predict([slowed(run, 0.06) for run in devices(100, seed=2)]).count(Verdict.FAIL) >= 99


def test_metrics_that_do_not_repeat_are_refused() -> None:
    noisy = devices(20, within=0.08)
    with pytest.raises(NotAGateError, match=r"repeats agree to 0\.9\d+ only, 0.98 makes a gate"):
        Validator().fit(noisy, Better.LOWER, [f"gpu{i % 5}" for i in range(20)])
    best = BestLimits().fit(noisy, Better.LOWER, [f"gpu{i % 5}" for i in range(20)])
    assert best.limits_.distribution is None, "the limits are those on the median"


@pytest.mark.parametrize("run", [[], [np.nan, 1.0], [0.0], [-1.0]])
def test_what_is_no_measurement_is_unknown(run: list[float]) -> None:
    validator = Validator().fit(devices(10), Better.LOWER)
    assert validator.predict([np.array(run)]) == [Verdict.UNKNOWN]
    assert np.isnan(judge_run(np.array(run), validator.limits_, Better.LOWER)[1])


def test_a_fingerprint_is_right_or_wrong() -> None:
    validator = Validator().fit([np.array([7.0, 7.0])] * 6, Better.EQUAL)
    assert validator.predict([np.array([7.0]), np.array([7.0, 8.0]), np.array([])]) == [
        Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN,
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.floats(min_value=50, max_value=400), min_size=1, max_size=10), st.data())
def test_a_worse_value_never_gets_a_better_verdict(values: list[float], data: st.DataObject) -> None:
    better = data.draw(st.sampled_from([Better.LOWER, Better.HIGHER]))
    validator = _LEARNED[better]
    which = data.draw(st.integers(0, len(values) - 1))
    factor = data.draw(st.floats(min_value=1.0, max_value=1e4))
    worse = list(values)
    worse[which] = values[which] * factor if better is Better.LOWER else values[which] / factor
    one, other = validator.predict([np.array(values), np.array(worse)])
    assert BADNESS[other] >= BADNESS[one]


_LEARNED = {better: Validator().fit(devices(40), better) for better in (Better.LOWER, Better.HIGHER)}


@BOTH
def test_a_device_against_its_own_past(better: Better) -> None:
    """Devices differ by 5 %, so 4 % is invisible in the cohort; each repeats to 0.3 %, so its own past does."""
    before = devices(60, between=0.05)
    after = [run * np.exp(0.003 * np.random.default_rng(i).standard_normal()) for i, run in enumerate(before)]
    past = OwnPast().fit(before, after, better)
    changed = [slowed(run, 0.04, better) if i < 20 else run for i, run in enumerate(after)]
    found = past.predict(before, changed)
    assert [i for i, verdict in enumerate(found) if verdict is Verdict.FAIL] == list(range(20))
    assert Validator().fit(before, better).predict(changed).count(Verdict.FAIL) < 10


@pytest.mark.parametrize("slow", [12, 15, 30])
def test_many_changes_at_once_are_the_updates(slow: int) -> None:
    before = devices(30)
    after = [slowed(run, 0.05) if i < slow else run for i, run in enumerate(before)]
    with pytest.raises(NotAGateError, match=f"{slow} of 30 devices became slower: look at the update"):
        OwnPast().fit(before, after, Better.LOWER)
    with pytest.raises(ValueError, match="30 devices before but 29 after"):
        OwnPast().fit(before, after[1:], Better.LOWER)


def test_repeatability_is_per_device() -> None:
    """Devices 10 % apart, each repeating exactly: the metric repeats perfectly."""
    runs = [np.full(4, 100.0 + 10 * (i % 3)) for i in range(9)]
    found = repeatability(runs, [f"gpu{i % 3}" for i in range(9)])
    assert (found.similarity, found.devices, found.pairs, found.is_gate) == (1.0, 3, 9, True)
    apart = repeatability(runs, ["one"] * 9)
    assert apart.similarity < NEEDED
    assert apart.is_gate is False


def test_repeatability_without_repeats() -> None:
    assert repeatability([np.array([1.0])] * 3).is_gate is None, "it is unknown"
    halves = repeatability([np.array([100.0, 102.0])] * 3)
    assert halves.from_halves
    assert halves.similarity == pytest.approx(1 - np.sqrt(0.5) * 2 / 102)
    with pytest.raises(ValueError, match="2 runs but 1 devices"):
        repeatability([np.ones(2)] * 2, ["a"])


@needs("gpu-variability")
class TestLonghorn:
    """One split of the real GPUs; ``bench/validator.py`` has twenty."""

    @pytest.fixture
    def folder(self) -> Path:
        return DATA / "gpu-variability"

    def test_bert_five_per_cent_slow_is_found_and_the_slow_node_with_it(self, folder: Path) -> None:
        gpus = longhorn.load("bert", folder)
        healthy = longhorn.is_healthy(gpus)
        learned, judged = next(longhorn.splits(gpus, 1))
        validator = Validator().fit([gpus[i].times for i in learned], Better.LOWER)
        mine = [gpus[i].times for i in judged if healthy[i]]
        assert validator.predict(mine).count(Verdict.FAIL) <= 0.005 * len(mine)
        assert validator.predict([run * 1.05 for run in mine]).count(Verdict.FAIL) >= 0.95 * len(mine)
        slow = [gpu.times for gpu in gpus if gpu.node == "c002-5"]
        assert validator.predict(slow) == [Verdict.FAIL] * 4

    def test_resnet_is_no_gate(self, folder: Path) -> None:
        gpus = longhorn.load("resnet", folder)
        single = [(gpu.name, np.array([value])) for gpu in gpus for value in gpu.times]
        assert repeatability([run for _, run in single], [name for name, _ in single]).is_gate is False
        with pytest.raises(NotAGateError, match="makes a gate"):
            Validator().fit([gpu.times for gpu in gpus], Better.LOWER)


def test_devices_that_ran_together_are_one_witness() -> None:
    """Four GPUs of a node in one job move together: the limit must know of 10 nodes, not of 40 GPUs."""
    random = np.random.default_rng(4)
    before = devices(40, between=0.0)
    moved = np.repeat(np.exp(0.02 * random.standard_normal(10)), 4)
    after = [run * by for run, by in zip(before, moved, strict=True)]
    nodes = [f"node{i // 4}" for i in range(40)]
    apart, together = (OwnPast().fit(before, after, Better.LOWER, of).thresholds_ for of in (None, nodes))
    assert together.median.fail > apart.median.fail
    assert together.whole.fail > apart.whole.fail


@pytest.mark.parametrize(
    ("value", "with_limits", "without"),
    [(94.0, Verdict.FAIL, Verdict.PASS), (95.0, Verdict.WARN, Verdict.PASS), (97.9, Verdict.WARN, Verdict.PASS),
     (98.0, Verdict.PASS, Verdict.PASS), (40.0, Verdict.FAIL, Verdict.FAIL)],
)  # fmt: skip
def test_the_worse_verdict_of_median_and_distribution(value: float, with_limits: Verdict, without: Verdict) -> None:
    kept = Distribution(
        reference=(99.0, 100.0, 101.0), alpha=0.5, warn_alpha=0.6, repeatability=None, detectable=0.1, excluded=0
    )
    limits = CriterionLimits(low=95.0, warn=98.0, distribution=kept)
    assert judge_run(np.full(3, value), limits, Better.HIGHER)[0] is with_limits
    assert judge_run(np.full(3, value), CriterionLimits(distribution=kept), Better.HIGHER)[0] is without
    mirrored = CriterionLimits(high=105.0, warn=102.0, distribution=kept)
    if value > 50:
        assert judge_run(np.full(3, 200 - value), mirrored, Better.LOWER)[0] is with_limits
