"""Counters become rates; what cannot be known stays unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.telemetry.rates import CounterRates

ONE = slice(0, 1)


def feed(rates: CounterRates, readings: list[int], t0: float, dt: float = 1.0) -> list[float]:
    given = np.array(readings, np.int64)[:, None, None]
    return rates.feed(ONE, ONE, given, starts=np.array([t0]), dt=dt)[:, 0, 0].tolist()


def test_rates_go_on_across_frames() -> None:
    rates = CounterRates(1)
    assert feed(rates, [100, 150], 10.0) == pytest.approx([np.nan, 50], nan_ok=True)
    assert feed(rates, [170, 200], 12.0) == pytest.approx([20, 30])
    assert feed(rates, [400], 23.0) == pytest.approx([20]), "a gap is averaged over its length"


def test_a_reset_is_unknown_and_counting_goes_on() -> None:
    rates = CounterRates(1)
    assert feed(rates, [100, 5, 25], 0.0) == pytest.approx([np.nan, np.nan, 20], nan_ok=True)


def test_missing_readings_are_unknown() -> None:
    rates = CounterRates(1)
    assert feed(rates, [WIDE_MISSING, 10, WIDE_MISSING, 30], 0.0) == pytest.approx(
        [np.nan, np.nan, np.nan, 10], nan_ok=True
    )


def test_older_readings_change_nothing() -> None:
    rates = CounterRates(1)
    feed(rates, [100], 50.0)
    assert np.isnan(feed(rates, [10, 20], 10.0)).all()
    assert feed(rates, [110], 51.0) == pytest.approx([10])


def test_columns_and_counters_are_apart() -> None:
    rates = CounterRates(2)
    counters, columns = slice(0, 2), np.array([3, 1], np.intp)

    def feed_both(readings: list[list[int]], start: float) -> list[list[float]]:
        """[counter, column]"""
        given, starts = np.array([readings], np.int64), np.full(2, start)
        return rates.feed(counters, columns, given, starts=starts, dt=1.0)[0].tolist()

    feed_both([[0, 100], [10, 0]], 0.0)
    assert feed_both([[1, 105], [30, 9]], 1.0) == [[1, 5], [20, 9]]
    rates.forget(np.array([3], np.intp))
    again = np.array(feed_both([[2, 106], [31, 10]], 2.0))
    assert np.isnan(again[:, 0]).all()
    assert again[:, 1].tolist() == [1, 1]


def test_each_column_has_its_own_start() -> None:
    rates, both = CounterRates(1), slice(0, 2)
    rates.feed(ONE, both, np.array([[[0, 0]]]), starts=np.array([0.0, 8.0]), dt=1.0)
    got = rates.feed(ONE, both, np.array([[[10, 10]]]), starts=np.array([10.0, 10.0]), dt=1.0)
    assert got[0, 0].tolist() == [1, 5]


@given(
    st.lists(st.one_of(st.just(WIDE_MISSING), st.integers(0, 2**62)), min_size=1, max_size=30),
    st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_chunks_do_not_matter(readings: list[int], sizes: list[int]) -> None:
    whole = feed(CounterRates(1), readings, 1000.0)
    pieces: list[float] = []
    rates, at = CounterRates(1), 0
    while at < len(readings):
        size = sizes[at % len(sizes)]
        pieces += feed(rates, readings[at : at + size], 1000.0 + at)
        at += size
    # To the last bit of a float32: the times of a chunk are sums that round differently.
    np.testing.assert_allclose(whole, pieces, rtol=2e-7)
    known = [rate for rate in whole if not np.isnan(rate)]
    assert all(rate >= 0 for rate in known)
