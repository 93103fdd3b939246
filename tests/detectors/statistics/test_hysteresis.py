"""Sample by sample: when a condition begins and when it is over."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity
from mainstay.detectors.statistics.hysteresis import Hysteresis, HysteresisConfig


def latch(needed: int = 2, of_last: int = 3, calm: int = 2, rows: int = 1) -> tuple[Hysteresis, EntityState]:
    made = Hysteresis("x", HysteresisConfig(needed=needed, of_last=of_last, calm=calm))
    state = made.declare(EntityState())
    state.align(tuple(Entity(node=f"n{i}") for i in range(rows)))
    return made, state


def trace(made: Hysteresis, state: EntityState, samples: str) -> str:
    """``y`` yes, ``n`` no, ``.`` neither: ``B`` where it begins, ``E`` where it ends, ``-`` at all other samples."""
    out = []
    for sample in samples:
        changed = made.step(state, np.array([sample == "y"]), np.array([sample == "n"])).tolist()
        out.append("-" if not changed else "B" if made.on(state)[0] else "E")
    return "".join(out)


@pytest.mark.parametrize(
    ("samples", "changes"),
    [
        ("yy", "-B"),
        ("yny", "--B"),
        ("ynny", "----"),  # the first is no more among the last three
        ("y..y", "---B"),  # what says nothing moves nothing
        ("yynn", "-B-E"),
        ("yyn.n", "-B--E"),
        ("yynyn", "-B---"),  # calm begins again
        ("yynnyy", "-B-E-B"),
        ("yynny", "-B-E-"),  # it begins from nothing
        ("nnyy", "---B"),
    ],
)
def test_two_of_three_begin_and_two_in_a_row_end(samples: str, changes: str) -> None:
    assert trace(*latch(), samples) == changes


def test_all_of_thirty_two_may_be_asked_for() -> None:
    assert trace(*latch(needed=32, of_last=32), "y" * 33) == "-" * 31 + "B-"
    assert trace(*latch(needed=1, of_last=1, calm=1), "nyny") == "-BEB"


def test_rows_are_their_own_and_one_can_be_let_go() -> None:
    made, state = latch(rows=3)
    for _ in range(2):
        changed = made.step(state, np.array([True, False, True]), np.array([False, True, False]))
    assert changed.tolist() == [0, 2]
    made.drop(state, np.array([True, False, False]))
    assert made.on(state).tolist() == [False, False, True]
    assert made.step(state, np.array([True, True, False]), np.zeros(3, np.bool_)).tolist() == []
    assert made.step(state, np.array([True, False, False]), np.zeros(3, np.bool_)).tolist() == [0], "after two more"
