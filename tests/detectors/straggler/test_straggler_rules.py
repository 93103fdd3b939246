"""The parts of the straggler test, each on numbers worked out from its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainstay.detectors.finding import Entity
from mainstay.detectors.generator.catalog import generate
from mainstay.detectors.generator.world import JOB
from mainstay.detectors.straggler.detector import _OWN, StragglerDetector
from mainstay.detectors.straggler.noise import noise_of
from mainstay.detectors.straggler.normalize import layout_of, scale_of

NAN, INF = float("nan"), float("inf")


def of_ranks(ranks: int = 1, **fields: object) -> StragglerDetector:
    """A detector of so many ranks, whose first way has these values; noise 2 %, lasting differences 1 %."""
    detector = StragglerDetector()
    rows = detector.rows
    rows.align(tuple(Entity(job="j", rank=r, node=f"n{r}") for r in range(ranks)))
    rows["sigma"][:], rows["spread"][:] = 0.02, 0.01
    for name, value in fields.items():
        if rows[name].ndim == 1:
            rows[name] = np.full(ranks, value, rows[name].dtype)
        else:
            rows[name][0] = value
    detector._learned_at[0] = 1
    detector._layout, detector._nodes = layout_of([np.arange(ranks)], np.arange(ranks), None), np.arange(ranks)
    return detector


@pytest.mark.parametrize(
    ("count", "mean", "pair", "offset", "spread"),
    [
        (0, 0.0, False, 0.01, 1e-4),  # nothing is known: as much doubt as ranks differ
        (16, 0.02, False, 0.8 * 0.02 + np.sqrt(2e-5), 2e-5),  # 1e-4 / (1e-4 + 4e-4 / 16) of the mean is believed
        (16, 0.2, False, 0.04 + np.sqrt(2e-5), 2e-5),  # four deviations at most
        (16, -0.02, False, np.sqrt(2e-5), 2e-5),  # never below zero
        (4, 0.02, False, 0.5 * 0.02 + np.sqrt(5e-5), 5e-5),
        (16, 0.2, True, 0.2 + 0.005, 2.5e-5),  # a pair's own history is believed wholly
        (16, -0.2, True, -0.2 + 0.005, 2.5e-5),
        (7, 0.0, True, 0.02 / np.sqrt(7), 4e-4 / 7),
        (6, 0.0, True, NAN, 4e-4 / 6),  # seven samples are the least
    ],
)
def test_a_ranks_lasting_difference(count: int, mean: float, pair: bool, offset: float, spread: float) -> None:
    found = of_ranks(sum=count * mean, pair=pair)
    found.rows["count"][0] = count
    assert [float(part[0]) for part in found._offset(0)] == pytest.approx([offset, spread], nan_ok=True)


@pytest.mark.parametrize(
    ("before", "z", "after"),
    [
        (0.0, 2.5, 1.5),
        (0.0, 0.9, 0.0),
        (5.0, 0.0, 4.0),
        (5.0, 9.0, 8.0),  # a step says four at most, less the drift of one
        (5.0, -9.0, 0.0),
        (14.0, 4.0, 15.0),
        (5.0, NAN, 5.0),
    ],
)
def test_one_step_moves_the_score(before: float, z: float, after: float) -> None:
    """With nothing learned the offset is 1 % and its error 1 % beside 2 % of noise."""
    detector = of_ranks(score=before, onset=3.0)
    detector._score(0, np.array([0.01 + z * np.hypot(0.02, 0.01)]), 7)
    assert detector.rows["score"][0, 0] == pytest.approx(after)
    assert detector.rows["onset"][0, 0] == (7.0 if before == 0.0 and after > 0.0 else 3.0)


@pytest.mark.parametrize(
    ("sigma", "missing", "state", "after"),
    [
        (0.05, 0, False, 8.0),
        (0.051, 0, False, 5.0),
        (0.02, 9, False, 8.0),
        (0.02, 10, False, 0.0),
        (0.02, 10, True, 8.0),
    ],
)
def test_noisy_steps_count_for_nothing_and_a_suspicion_needs_samples(
    sigma: float, missing: int, state: bool, after: float
) -> None:
    detector = of_ranks(score=5.0, sigma=sigma, missing=missing, state=state)
    detector._score(0, np.array([9.0]), 7)
    assert detector.rows["score"][0, 0] == after
    unlearned = of_ranks(score=5.0)
    unlearned._learned_at[0] = 0
    unlearned._score(0, np.array([9.0]), 7)
    assert unlearned.rows["score"][0, 0] == 5.0


@pytest.mark.parametrize(
    ("ticks", "count", "past", "change", "expected"),
    [
        (20, 4, 0.01, {}, (0.09, 5)),
        (10, 4, 0.01, {}, (0.09, 5)),
        (9, 4, 0.01, {}, (0.08, 4)),  # the eighth step after learning is the first
        (20, 4, 0.9, {}, (0.08 + 0.01 + np.sqrt(5e-5) + 0.06, 5)),  # three deviations from what is believed, at most
        (20, 4, -0.9, {}, (0.08 + 0.01 + np.sqrt(5e-5) - 0.06, 5)),
        (20, 4, NAN, {}, (0.08, 4)),
        (20, 63, 0.01, {}, (0.09, 64)),
        (20, 64, 0.01, {}, (0.08 * 63 / 64 + 0.01, 64)),  # then it forgets slowly
        (20, 4, 0.01, {"score": 4.0}, (0.09, 5)),
        (20, 4, 0.01, {"score": 4.1}, (0.08, 4)),  # a suspect teaches nothing
        (20, 4, 0.01, {"state": True}, (0.08, 4)),
        (20, 31, 0.01, {"pair": True}, (0.09, 32)),
        (20, 32, 0.01, {"pair": True}, (0.08, 32)),  # a pair's base is fixed
    ],
)
def test_a_calm_step_of_a_while_ago_is_believed(
    ticks: int, count: int, past: float, change: dict[str, Any], expected: tuple[float, int]
) -> None:
    detector = of_ranks(sum=0.08, **change)
    detector.rows["count"][0], detector._ticks = count, ticks
    detector.rows["r"][0, (ticks - 1 - 8) % 64] = past
    detector._believe(0, detector._offset(0)[0])
    assert (detector.rows["sum"][0, 0], detector.rows["count"][0, 0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sigmas", "judge", "chosen"),
    [
        ([INF, INF, INF], None, None),
        ([0.03, 0.02, INF], None, 1),
        ([0.02, 0.017, INF], 0, 0),  # not below four fifths
        ([0.02, 0.0159, INF], 0, 1),
        ([0.02, 0.0159, 0.01], 1, 2),
        ([0.02, 0.02, 0.02], None, 0),
    ],
)
def test_the_quietest_way_judges_once_it_is_clearly_quieter(
    sigmas: list[float], judge: int | None, chosen: int | None
) -> None:
    detector = of_ranks()
    detector._sigmas[:_OWN], detector._judge = sigmas, judge
    detector._choose()
    assert detector._judge == chosen


def test_the_noise_of_a_role_counts_by_how_much_of_it_is_known() -> None:
    """Of 256 rank-steps a third: 256 / (256 + 512)."""
    rng = np.random.default_rng(0)
    residuals = rng.normal(0, 0.02, (64, 8)) * np.where(np.arange(8) < 4, 1.0, 0.5)
    detector = of_ranks(8)
    detector._layout = layout_of([np.arange(4), np.arange(4, 8)], np.arange(8), None)
    every, roles = noise_of(residuals), [noise_of(residuals[:, :4]), noise_of(residuals[:, 4:])]
    for way in (0, _OWN):
        detector._learned_at[way] = 0
        detector._learn_way(way, residuals, np.arange(8))
    expected = [every.sigma ** (2 / 3) * one.sigma ** (1 / 3) for one in roles]
    assert detector.rows["sigma"][0].tolist() == pytest.approx(np.repeat(expected, 4).tolist())
    assert detector._sigmas[0] == pytest.approx(np.mean(expected)), "the middle of the roles"
    assert detector.rows["sigma"][_OWN].tolist() == pytest.approx([every.sigma] * 8), "roles do not matter there"
    offsets = [max(every.offset * 2 / 3 + one.offset / 3, 0.005) for one in roles]
    assert detector.rows["spread"][0].tolist() == pytest.approx(np.repeat(offsets, 4).tolist())
    assert detector.rows["count"][0].tolist() == [64] * 8


def test_offsets_start_from_warm_up_without_its_spikes() -> None:
    detector = of_ranks(2)
    detector._learned_at[0] = 0
    residuals = np.zeros((40, 2))
    residuals[::2, 0], residuals[5, 1], residuals[7, 1] = 0.0, 9.0, NAN
    detector._ticks = 40
    detector._learn_way(0, residuals[:31], np.arange(2))
    assert detector._learned_at[0] == 0, "61 rank-steps are too few"
    detector._learn_way(0, residuals, np.arange(2))
    assert (detector._learned_at[0], detector.rows["count"][0].tolist()) == (40, [40, 39])
    sigma = detector.rows["sigma"][0]
    assert sigma.min() >= 0.004
    assert detector.rows["sum"][0].tolist() == pytest.approx([0.0, 3.0 * sigma[1]]), "a spike counts as three"
    still = of_ranks(2)
    still._learned_at[0] = 0
    still._learn_way(0, np.zeros((32, 2)), np.arange(2))
    assert (still.rows["sigma"][0].tolist(), still.rows["spread"][0].tolist()) == ([0.004] * 2, [0.005] * 2)


@pytest.mark.parametrize(
    ("ticks", "at", "order"),
    [(3, 2, [0, 1, 2]), (64, 63, [*range(64)]), (66, 1, [*range(2, 64), 0, 1])],
)
def test_places_of_the_remembered_steps(ticks: int, at: int, order: list[int]) -> None:
    detector = of_ranks()
    detector._ticks = ticks
    assert (detector._at, list(detector._order())) == (at, order)


def judged(scores: list[float], *, ratio: float = 1.1, **fields: float) -> StragglerDetector:
    """Ranks on nodes of their own that are ``ratio`` times slower since step 5 than before."""
    detector = of_ranks(len(scores), **{"onset": 5.0, "state": False, "missing": 0} | fields)
    detector._judge, detector._sigmas[0], detector._ticks = 0, 0.02, 8
    detector._steps[:8] = np.arange(8)
    detector.rows["score"][0] = scores
    slow = np.where(np.arange(8) >= 5, np.log(ratio) / scale_of(np.array([len(scores)]))[0] + 0.01, 0.0)
    detector.rows["r"][0, :8], detector.rows["x"][:8] = slow[:, None], 0.0
    return detector


def test_ranks_begin_at_twelve_the_slowest_first_and_end_at_three() -> None:
    begins = judged([11.9, 12.0, 15.0, 12.0])._decide(1.0)
    assert [(f.entity.rank, f.active) for f in begins] == [(2, True), (1, True), (3, True)]
    ends = judged([3.1, 3.0, 0.0, 15.0], state=True, said=True)._decide(1.0)
    assert [(f.entity.rank, f.active) for f in ends] == [(1, False), (2, False)]
    assert ends[0].evidence.summary == "Rank 1 computes as fast as its peers again."
    assert judged([15.0, 0.0], missing=1)._decide(1.0) == []
    abstaining = judged([15.0, 0.0])
    abstaining._sigmas[0] = 0.051
    assert abstaining._decide(1.0) == []
    assert abstaining.abstains == "compute times of equal ranks differ by 5.1% from step to step (limit 5%)"


@pytest.mark.parametrize(("ratio", "named"), [(1.0101, True), (1.0099, False)])
def test_less_than_a_per_cent_is_not_worth_a_word(ratio: float, named: bool) -> None:
    detector = judged([15.0, 0.0, 0.0], ratio=ratio)
    assert detector._slowdown(0) == pytest.approx(ratio)
    assert bool(detector._decide(1.0)) is named


@pytest.mark.parametrize(
    ("own", "ratio", "convinced"), [(12.0, 1.016, True), (11.9, 1.016, False), (12.0, 1.014, False)]
)
def test_a_pair_is_judged_by_its_own_history_too(own: float, ratio: float, convinced: bool) -> None:
    detector = judged([15.0, 0.0])
    detector.rows["pair"][:] = True
    detector.rows["count"][0], detector.rows["score"][_OWN] = 10**6, own
    scale = float(scale_of(np.array([2]))[0])
    detector.rows["r"][0, 5:8] = np.log(ratio) / scale + 0.02 / 1000  # the base's error: 2 % over the root of a million
    assert detector._slowdown(0) == pytest.approx(ratio)
    assert detector._convinced(0) is convinced


def test_the_case_of_an_accused_rank() -> None:
    detector = judged([15.0, 9.0, 2.0])
    detector.rows["core_wait"][:8] = [0.2, 0.1, 0.04]
    case = detector._case(0)
    assert (case.score, case.next_score, case.onset, case.sigma, case.limit) == (15.0, 9.0, 5.0, 0.02, 12.0)
    assert case.core_wait == pytest.approx(0.2 - 0.07)
    assert case.contended, "more than 5 % and more than half of the slowdown"
    assert case.steps.tolist() == [*range(8)]
    assert case.expected[:5].tolist() == [0.0] * 5
    assert case.expected[7] == pytest.approx(-np.log(1.1) - 0.01 * scale_of(np.array([3]))[0])
    found = detector._say([0], Entity(job="demo", rank=0), 1.0)
    assert (found.severity, found.confidence) == ("info", 0.3)
    detector.rows["core_wait"][:8, 0] = 0.07 + 0.049
    assert not detector._case(0).contended
    detector.rows["core_wait"][:8, 0] = 0.07 + 0.051
    assert detector._case(0).contended
    slower = judged([15.0, 9.0, 2.0], ratio=1.2)
    slower.rows["core_wait"][:8] = [0.16, 0.07, 0.07]
    assert not slower._case(0).contended
    assert slower._say([0], Entity(job="demo", rank=0), 1.0).confidence == 0.95
    slower.rows["pair"][:], slower.rows["count"][0] = True, 10**6
    assert slower._say([0], Entity(job="demo", rank=0), 1.0).confidence == 0.8


@pytest.mark.parametrize(("trap", "seed", "damaged"), [("accumulation", 12405, True), ("long_context", 12113, False)])
def test_work_that_grows_beyond_what_was_seen_accuses_nobody(trap: str, seed: int, damaged: bool) -> None:
    """More micro-batches hold more tokens, and longer sequences cost what no step before has shown."""
    shape: dict[str, Any] = {"dp": 2, "pp": 2, "tp": 4, "seconds": 2.5, "steps": 96, "lengths": 0.1}
    world, _ = generate(trap, seed, damaged=damaged, **shape)
    assert StragglerDetector().update(next(world.recording().steps(JOB))) == []
