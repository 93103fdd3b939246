"""What a step's work explains of its time; and whose compute a slowdown comes from, in words."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_pace import pace_of
from mainstay.detectors.finding import Entity
from mainstay.detectors.job.expected_pace import ExpectedPace, work_of
from mainstay.detectors.job.rank_share import describe_share

NAN = float("nan")


def fitted(tokens: np.ndarray, squares: np.ndarray) -> ExpectedPace:
    """Of steps that take a second, a second per token, and two per square."""
    work = np.stack((tokens, squares, np.full_like(tokens, NAN)), axis=1)
    pace = ExpectedPace()
    pace.fit(np.log(1.0 + tokens + 2.0 * squares), work)
    return pace


def varied() -> ExpectedPace:
    rng = np.random.default_rng(0)
    return fitted(rng.uniform(1.0, 2.0, 60), rng.uniform(1.0, 2.0, 60))


def test_within_what_was_seen_the_fit_tells() -> None:
    found = varied().expected(np.array([[1.5, 1.2, NAN], [1.2, 1.8, NAN]]))
    np.testing.assert_allclose(np.exp(found), [1.0 + 1.5 + 2.4, 1.0 + 1.2 + 3.6], rtol=1e-3)


def test_beyond_it_more_work_explains_its_own_growth_and_less_work_nothing() -> None:
    same = fitted(np.ones(60), np.ones(60))
    usual, more, less = np.exp(same.expected(np.array([[1.0, 1.0, NAN], [1.0, 1.5, NAN], [0.5, 0.5, NAN]])))
    assert (usual, more, less) == pytest.approx((4.0, 6.0, 4.0), rel=1e-3)


def test_unknown_work_is_unknown_and_work_that_no_rank_reports_explains_nothing() -> None:
    assert np.isnan(varied().expected(np.array([1.5, NAN, NAN])))
    assert ExpectedPace().expected(np.array([[NAN, NAN, NAN], [1.0, 1.0, 1.0]])).tolist() == [0.0, 0.0]
    assert fitted(np.full(60, NAN), np.full(60, NAN)).expected(np.full(3, NAN)) == 0.0


def test_the_work_of_a_step_is_the_largest_of_a_rank_that_trains() -> None:
    told = {"tokens": np.array([[3.0, 5.0, 9.0, NAN]]), "micro_batches": np.array([[4.0, 8.0, 4.0, 4.0]])}
    works, largest = work_of(pace_of(np.ones(1), told), 0, np.array([True, True, False, True]))
    np.testing.assert_array_equal(largest, [5.0, NAN, NAN])
    np.testing.assert_array_equal(works[0], [3.0, 5.0, NAN, NAN])
    only = {"micro_batches": np.array([[4.0, 8.0, 0.0]])}
    np.testing.assert_array_equal(work_of(pace_of(np.ones(1), only), 0, np.ones(3, np.bool_))[1], [NAN, NAN, 8.0])


@pytest.mark.parametrize(
    ("rise", "words"),
    [
        ([0.1] * 8, "; all ranks alike"),
        ([0.1] * 4 + [NAN] * 4, "; all ranks alike"),
        ([0.1] * 3 + [NAN] * 5, ""),  # fewer than half are known
        ([0.1] * 4 + [0.0] * 4, "; 4 of 8 ranks compute 11% longer"),
        ([0.0] * 8, "; no rank computes longer: they wait, for the network, for data, or for storage"),
        ([0.0] * 5 + [0.1] + [0.0] * 2, ": rank 5 on node-1 computes 11% longer, the others do not"),
        ([0.0] * 4 + [0.1, 0.049, 0.051, 0.0], ": ranks 4, 6 on node-1 compute 8% longer, the others do not"),
    ],
)
def test_whose_compute_it_is(rise: list[float], words: str) -> None:
    entities = [Entity(job="demo", rank=r, node=f"node-{r // 4}") for r in range(8)]
    assert describe_share(entities, np.array(rise), 0.1) == words
