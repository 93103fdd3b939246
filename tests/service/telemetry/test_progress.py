"""The last minutes of a job's ranks: exact counts, bounded memory, and when it last moved."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.telemetry.progress import MIN_SECONDS, PROGRESS_SIGNALS, ProgressStore
from tests.service.run_frames import checked, progress_frame

T = 1_800_000_000


def put(store: ProgressStore, t: float, *, ranks: int | list[int] = 4, samples: int = 1, **values: object) -> None:
    dt = 0.5 if samples > 1 else 1.0
    store.write(checked(progress_frame(t, values, ranks=ranks, samples=samples, dt=dt)))


def test_counts_beyond_32_bits_stay_exact() -> None:
    store = ProgressStore(60)
    count = 2**53 - 1
    put(store, T, dp_completed=count, progress_step=2**40)
    window = store.window("demo-1", T, T + 1, ("dp_completed", "progress_step"))
    assert window.x[0, :, 2].tolist() == [float(count), float(2**40)]


def test_two_samples_of_a_second_leave_the_last_known_value() -> None:
    store = ProgressStore(60)
    steps = np.array([[1, 2]] * 4)
    steps[3, 1] = WIDE_MISSING
    put(store, T, samples=2, progress_step=steps)
    window = store.window("demo-1", T, T + 1, ("progress_step",))
    assert window.x[0, 0].tolist() == [2.0, 2.0, 2.0, 1.0]


def test_gaps_and_silent_ranks_are_unknown() -> None:
    store = ProgressStore(60)
    put(store, T, progress_step=1)
    put(store, T + 2, ranks=[1, 2], progress_step=2)
    x = store.window("demo-1", T, T + 4, ("progress_step", "tp_completed")).x
    assert x[:, 0, 0].tolist() == pytest.approx([1, np.nan, np.nan, np.nan], nan_ok=True)
    assert x[:, 0, 1].tolist() == pytest.approx([1, np.nan, 2, np.nan], nan_ok=True)
    assert np.isnan(x[:, 1]).all(), "no rank sends it"
    assert store.reached("demo-1", T + 1) == T + 2
    assert store.reached("demo-1", T) == T
    assert store.reached("demo-1", T + 10) is None
    assert store.oldest("demo-1") == T


def test_a_rank_of_which_nothing_is_heard_is_not_waited_for() -> None:
    """The coordinator sends all ranks and marks the silent ones, so that second counts as reported."""
    store = ProgressStore(60)
    put(store, T, progress_step=1)
    steps = np.array([2, 2, WIDE_MISSING, 2])[:, None]
    put(store, T + 1, progress_step=steps)
    assert store.reached("demo-1", T) == T + 1
    latest = store.latest("demo-1")
    assert latest is not None
    assert latest.heard.tolist() == [T + 1, T + 1, T, T + 1]


def test_the_last_word_of_each_rank_and_when_the_job_moved() -> None:
    store = ProgressStore(60)
    put(store, T, progress_step=7, dp_completed=100, in_collective_seconds=0.0)
    assert np.isnan(store.latest("demo-1").moved_at), "one reading shows no movement"  # type: ignore[union-attr]
    put(store, T + 1, progress_step=7, dp_completed=101, in_collective_seconds=0.0)
    put(store, T + 2, ranks=[0, 1], progress_step=7, dp_completed=101, in_collective_seconds=1.0)
    latest = store.latest("demo-1")
    assert latest is not None
    assert (latest.head, latest.moved_at) == (T + 2, T + 1)
    assert latest.heard.tolist() == [T + 2, T + 2, T + 1, T + 1]
    assert latest.values["in_collective_seconds"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert "tp_completed" not in latest.values
    put(store, T + 3, progress_step=0, dp_completed=0)
    assert store.moved("demo-1") == (T + 3, T + 3), "counts that begin again have moved"
    put(store, T + 1, progress_step=9)
    assert store.moved("demo-1") == (T + 3, T + 3), "an old word that comes late has not"


def test_old_seconds_leave_and_late_ones_do_not_return() -> None:
    store = ProgressStore(60)
    put(store, T, progress_step=1)
    put(store, T + 60, progress_step=2)
    put(store, T, progress_step=1)
    assert store.oldest("demo-1") == T + 60
    assert np.isnan(store.window("demo-1", T, T + 1, ("progress_step",)).x).all()


def test_ranks_that_come_later_leave_the_others_where_they_are() -> None:
    store = ProgressStore(60)
    put(store, T, ranks=[1], progress_step=5)
    put(store, T, ranks=[6], progress_step=6)
    x = store.window("demo-1", T, T + 1, ("progress_step",)).x[0, 0]
    assert x.tolist() == pytest.approx([np.nan, 5, np.nan, np.nan, np.nan, np.nan, 6], nan_ok=True)


def test_memory_is_bounded_by_ranks_and_by_jobs() -> None:
    budget = 4 * 2**20
    store = ProgressStore(600, budget)
    every = dict.fromkeys(PROGRESS_SIGNALS, 1)
    for job in range(8):
        store.write(checked(progress_frame(T, every, ranks=200, subject=f"job-{job}")))
        assert store.nbytes <= budget
    assert "job-7" in store.jobs()
    assert "job-0" not in store.jobs()
    large = ProgressStore(600, budget)
    large.write(checked(progress_frame(T, {"progress_step": 1}, ranks=4000)))
    window = large.window("demo-1", 0, T + 1, ("progress_step",))
    assert len(window.seconds) == MIN_SECONDS, "a job too large for its share keeps a minute"
    assert large.nbytes < 4000 * 8 * (MIN_SECONDS + 20), "signals without data take no memory"


def test_an_unknown_job_has_nothing() -> None:
    store = ProgressStore(60)
    assert store.latest("absent") is None
    assert store.moved("absent") is None
    assert store.window("absent", T, T + 5).x.shape == (1, len(PROGRESS_SIGNALS), 0)
    assert (store.ranks("absent"), store.oldest("absent"), store.reached("absent", 0.0)) == (0, 0, None)
