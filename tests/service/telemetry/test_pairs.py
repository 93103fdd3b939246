"""Transfers between ranks: a column a pair, bounded, and steps that are done again."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.service.telemetry.pairs import PAIR_SIGNALS, PairStore
from tests.service.run_frames import checked, pair_frame

T = 1_800_000_000.0
SECONDS = PAIR_SIGNALS.index("transfer_seconds")


def put(store: PairStore, step: int, seconds: object, pairs: list[str], end: float | None = None, **c: object) -> None:
    ended = T + step if end is None else end
    store.write(checked(pair_frame(step, seconds, pairs=pairs, end=ended, **c)))


def test_pairs_come_and_go_between_steps() -> None:
    store = PairStore(16)
    put(store, 1, [[0.1], [0.2]], ["0>1", "1>0"])
    put(store, 2, [[0.3]], ["0>7"])
    window = store.window("demo-1")
    assert window.pairs == ((0, 1), (1, 0), (0, 7))
    assert window.steps.tolist() == [1, 2]
    expected = [[0.1, 0.2, np.nan], [np.nan, np.nan, 0.3]]
    for row, line in zip(window.values[:, SECONDS].tolist(), expected, strict=True):
        assert row == pytest.approx(line, nan_ok=True, rel=1e-6)
    assert window.ends.tolist() == [T + 1, T + 2]
    assert store.last_step("demo-1") == 2


def test_a_step_told_in_two_frames_is_one_step() -> None:
    store = PairStore(16)
    put(store, 1, 0.1, ["0>1"])
    put(store, 1, 0.2, ["1>2"], end=T + 1.4)
    window = store.window("demo-1")
    assert window.steps.tolist() == [1]
    assert window.values[0, SECONDS].tolist() == pytest.approx([0.1, 0.2])
    assert window.ends.tolist() == [T + 1.4]
    assert store.take_rewind("demo-1") is None


def test_steps_that_are_done_again_replace_what_followed() -> None:
    store = PairStore(16)
    for step in range(1, 9):
        put(store, step, 0.1, ["0>1"])
    put(store, 4, 0.9, ["0>1"], end=T + 20)
    assert store.window("demo-1").steps.tolist() == [1, 2, 3, 4]
    assert (store.take_rewind("demo-1"), store.take_rewind("demo-1")) == (4, None)


def test_pairs_are_bounded_and_silent_ones_give_their_column_back() -> None:
    store = PairStore(4, most=3)
    put(store, 1, 0.1, ["0>1", "1>2", "2>3"])
    put(store, 2, 0.2, ["3>4"])
    assert len(store.window("demo-1").pairs) == 3, "no room while the others are there"
    for step in range(3, 7):
        put(store, step, 0.3, ["0>1"])
    put(store, 7, 0.4, ["5>6", "0>1"])
    window = store.window("demo-1")
    assert window.pairs == ((0, 1), (5, 6))
    assert window.values[-1, SECONDS].tolist() == pytest.approx([0.4, 0.4])
    assert window.values[0, SECONDS].tolist() == pytest.approx([0.3, np.nan], nan_ok=True)


def test_memory_of_all_jobs_is_bounded() -> None:
    budget = 400_000
    store = PairStore(64, budget)
    pairs = [f"{a}>{b}" for a in range(16) for b in range(16) if a != b]
    for job in range(8):
        put(store, 1, 0.1, pairs, subject=f"job-{job}")
        assert store.nbytes <= budget
    assert store.last_step("job-0") is None
    assert store.last_step("job-7") == 1


def test_an_unknown_job_has_nothing() -> None:
    window = PairStore(4).window("absent")
    assert (window.pairs, len(window.steps)) == ((), 0)
