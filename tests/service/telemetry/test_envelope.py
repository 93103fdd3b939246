"""Thinning keeps every spike, and never invents data."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mainstay.service.telemetry.envelope import Buckets, as_json


def test_a_spike_survives() -> None:
    times = np.arange(0.0, 600.0)
    values = np.ones(600)
    values[333] = 100.0
    envelope = Buckets.over(0.0, 600.0, 10).thin(times, values)
    assert envelope.high.tolist() == [1, 1, 1, 1, 1, 100, 1, 1, 1, 1]
    assert envelope.low.tolist() == [1] * 10
    assert envelope.mean[5] > 1


def test_empty_buckets_are_unknown() -> None:
    envelope = Buckets.over(0.0, 10.0, 10).thin(np.array([2.0, 3.0]), np.array([5.0, np.nan]))
    assert as_json(envelope.mean) == [None, None, 5.0, *[None] * 7]
    assert as_json(envelope.low) == as_json(envelope.high) == as_json(envelope.mean)


@given(
    st.floats(0, 2e9), st.floats(0.001, 1e6), st.integers(1, 500),
    st.lists(st.tuples(st.floats(-100, 1e6), st.one_of(st.floats(-1e6, 1e6), st.just(np.nan))), max_size=50),
)  # fmt: skip
def test_buckets_cover_the_range_and_bound_their_values(
    start: float, length: float, points: int, samples: list[tuple[float, float]]
) -> None:
    stop = start + length
    if not start < stop:
        return
    buckets = Buckets.over(start, stop, points)
    assert buckets.count <= points + 1
    assert buckets.start <= start
    assert buckets.start + buckets.count * buckets.width >= stop
    times = np.array([start + offset for offset, _ in samples])
    values = np.array([value for _, value in samples])
    envelope = buckets.thin(times, values)
    known = ~np.isnan(envelope.mean)
    assert (envelope.low[known] <= envelope.high[known]).all()
    inside = values[(times >= buckets.start) & (times < buckets.start + buckets.count * buckets.width)]
    inside = inside[~np.isnan(inside)]
    if inside.size:
        assert np.nanmax(envelope.high) == inside.max()
        assert np.nanmin(envelope.low) == inside.min()
    else:
        assert not known.any()
