"""Series of an evidence: the points that are known, and the memory of the last samples."""

from __future__ import annotations

import math

import numpy as np

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity, Series
from mainstay.detectors.series import Drawn, draw_series

NAN = math.nan


def test_points_are_drawn_where_all_is_known() -> None:
    (line,) = draw_series("watts", "W", [1.0, NAN, 3.0, 4.0], [5, 6, 7, NAN], x_is="step", peers=np.arange(4.0))
    assert line == Series(name="watts", unit="W", x=(1.0, 3.0), y=(5.0, 7.0), x_is="step", peers=(0.0, 2.0))
    assert draw_series("watts", "W", [1.0], [NAN], threshold=2.0) == ()
    assert draw_series("watts", "W", [1.0], [2.0], threshold=2.0)[0].peers == ()


def test_the_last_samples_are_drawn_oldest_first() -> None:
    drawn, rows = Drawn("watts", length=3), EntityState()
    drawn.declare(rows)
    rows.align((Entity(node="a"), Entity(node="b")))
    assert drawn.series(rows, 0, unit="W") == ()
    for time in range(1, 5):
        drawn.note(rows, float(time), np.array([10.0 * time, NAN if time == 3 else 1.0]))
    line = Series(name="watts", unit="W", x=(2.0, 3.0, 4.0), y=(20.0, 30.0, 40.0), threshold=25.0)
    assert drawn.series(rows, 0, unit="W", threshold=25.0) == (line,)
    assert drawn.series(rows, 1, unit="W")[0].x == (2.0, 4.0)
    assert Drawn("x").times.shape == (30,)
