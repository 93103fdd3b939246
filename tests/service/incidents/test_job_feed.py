"""What the detectors of a job are shown: each step and second once, whoever is late, silent or gone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.service.incidents.job_feed import LATE_STEPS, PROGRESS_BACK_SECONDS, PairFeed, ProgressFeed, StepFeed
from mainstay.service.incidents.runs import RunningJob, run_of
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.steps import StepStore
from tests.service.run_frames import checked, pair_frame, progress_frame, step_frame

T = 1_800_000_000
SIGNALS = ("loss", "step_time_seconds")


def make_run(ranks: int = 4, *, started_at: float = 0.0, node: str = "n{}") -> RunningJob:
    places = [
        {"rank": r, "dp": r // 2, "pp": r % 2, "tp": 0, "node": node.format(r // 2), "device": None}
        for r in range(ranks)
    ]
    return run_of("demo-1", started_at, {"ranks": places}, {"n0": ("leaf-1", "spine-1")})


def took(samples: Samples | None) -> Samples:
    assert samples is not None
    return samples


class Steps:
    """A store and the feed from it."""

    def __init__(self, **options: Any) -> None:
        self.store = StepStore(2048, **options)
        self.feed = StepFeed(self.store, "demo-1", SIGNALS)
        self.run = make_run()

    def put(self, step: int, ranks: list[int] | None = None, *, end: float | None = None, time: Any = 0.5) -> None:
        named = range(4) if ranks is None else ranks
        entities = tuple(str(rank) for rank in named)
        ended = float(T + step) if end is None else end
        self.store.write(checked(step_frame(step, {"step_time_seconds": time}, end=ended, entities=entities)))

    def read_steps(self, now: float | None = None) -> list[int]:
        samples = self.feed.read_ready(self.run, T if now is None else now)
        return [] if samples is None else took(samples).steps.tolist()  # type: ignore[union-attr]


def test_each_step_is_shown_once_with_who_is_who() -> None:
    steps = Steps()
    for step in (1, 2):
        steps.put(step, time=[[0.1], [0.2], [0.3], [0.4]])
    samples = took(steps.feed.read_ready(steps.run, T))
    assert samples.steps is not None
    assert samples.steps.tolist() == [1, 2]
    assert samples.signals == SIGNALS
    assert samples.x[0, 1].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert samples.t.tolist() == [T + 1, T + 2]
    assert samples.groups == ("pp0", "pp1", "pp0", "pp1")
    assert [(e.job, e.rank, e.node) for e in samples.entities][3] == ("demo-1", 3, "n1")
    assert samples.mesh is steps.run.mesh
    assert samples.mesh.switches == (("leaf-1", "spine-1"), ("leaf-1", "spine-1"), (), ())
    assert steps.read_steps() == []
    steps.put(3)
    again = took(steps.feed.read_ready(steps.run, T))
    assert again.entities is samples.entities
    assert again.steps is not None
    assert again.steps.tolist() == [3]


def test_a_signal_that_some_ranks_never_report_holds_nothing_up() -> None:
    """``loss`` is known to the last stage only, and stands first among the signals."""
    steps = Steps()
    steps.put(1)
    samples = took(steps.feed.read_ready(steps.run, T))
    assert np.isnan(samples.x[:, 0]).all()
    assert np.isfinite(samples.x[:, 1]).all()


def test_a_late_rank_is_waited_for_but_not_for_ever() -> None:
    steps = Steps()
    steps.put(1)
    steps.put(2, [0, 1, 2])
    assert steps.read_steps() == [1]
    steps.put(2, [3])
    assert steps.read_steps() == [2], "it came"
    for step in range(3, 4 + LATE_STEPS):
        steps.put(step, [0, 1, 2])
    assert steps.read_steps() == [3], "it is too many steps behind"
    assert steps.read_steps(now=T + 100.0) == list(range(4, 4 + LATE_STEPS)), "or it is too long ago"


def test_steps_that_are_done_again_are_shown_again() -> None:
    steps = Steps()
    for step in range(1, 11):
        steps.put(step)
    assert steps.read_steps() == list(range(1, 11))
    for step in range(6, 9):
        steps.put(step, end=T + 100.0 + step)
    assert steps.read_steps() == [6, 7, 8]
    samples = steps.feed.read_ready(steps.run, T)
    assert samples is None
    steps.put(9, end=T + 109.0)
    assert took(steps.feed.read_ready(steps.run, T)).t.tolist() == [T + 109.0]


def test_time_never_falls_although_a_job_goes_back() -> None:
    steps = Steps()
    steps.put(1, end=T + 500.0)
    steps.put(2, end=T + 400.0)
    assert took(steps.feed.read_ready(steps.run, T)).t.tolist() == [T + 500.0, T + 500.0]


def test_ranks_move_and_their_entities_with_them() -> None:
    steps = Steps()
    steps.put(1)
    assert took(steps.feed.read_ready(steps.run, T)).entities[3].node == "n1"
    steps.run = make_run(node="m{}")
    steps.put(2)
    samples = took(steps.feed.read_ready(steps.run, T))
    assert samples.entities[3].node == "m1"
    assert len(samples.entities) == 4


def test_a_rank_that_no_frame_named_yet_is_unknown() -> None:
    steps = Steps()
    steps.put(1, [0, 1])
    samples = took(steps.feed.read_ready(steps.run, T + 100.0))
    assert np.isnan(samples.x[0, 1]).tolist() == [False, False, True, True]


def test_nothing_is_shown_of_a_job_without_ranks_or_without_steps() -> None:
    steps = Steps()
    assert steps.read_steps() == []
    steps.run = run_of("demo-1", 0.0, {"ranks": []})
    steps.put(1)
    assert steps.read_steps() == []


def test_a_large_job_is_shown_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.service.incidents.job_feed.CHUNK_CELLS", 3 * len(SIGNALS) * 4)
    steps = Steps()
    for step in range(10):
        steps.put(step)
    shown = list(itertools.chain.from_iterable(steps.read_steps() for _ in range(4)))
    assert shown == list(range(10))


class Progress:
    def __init__(self) -> None:
        self.store = ProgressStore(600)
        self.feed = ProgressFeed(self.store, "demo-1", ("progress_step", "dp_completed"))
        self.run = make_run()

    def put(self, t: float, ranks: list[int] | int = 4, *, step: int = 1, samples: int = 1, dt: float = 1.0) -> None:
        frame = progress_frame(t, {"progress_step": step, "dp_completed": step}, ranks=ranks, samples=samples, dt=dt)
        self.store.write(checked(frame))

    def read_steps(self, now: float) -> list[int]:
        samples = self.feed.read_ready(self.run, now)
        return [] if samples is None else [int(t) - T for t in samples.t]


def test_a_second_that_everybody_sent_is_shown_at_once_and_once() -> None:
    progress = Progress()
    progress.put(T, samples=2, dt=0.5)
    samples = took(progress.feed.read_ready(progress.run, T + 0.9))
    assert samples.t.tolist() == [T]
    assert samples.x.dtype == np.float64
    assert samples.mesh is progress.run.mesh
    assert progress.read_steps(T + 0.95) == []
    progress.put(T + 1, samples=2, dt=0.5)
    assert progress.read_steps(T + 1.9) == [1]


def test_a_silent_rank_costs_two_seconds_and_is_unknown() -> None:
    progress = Progress()
    progress.put(T)
    assert progress.read_steps(T + 0.5) == [0]
    progress.put(T + 1, [0, 1, 2])
    assert progress.read_steps(T + 1.5) == []
    progress.put(T + 2, [0, 1, 2])
    assert progress.read_steps(T + 2.5) == []
    samples = took(progress.feed.read_ready(progress.run, T + 4.0))
    assert [int(t) - T for t in samples.t] == [1]
    assert np.isnan(samples.x[0, 0]).tolist() == [False, False, False, True]
    for second in range(3, 10):
        progress.put(T + second, [0, 1, 2])
    assert progress.read_steps(T + 9.5) == list(range(2, 10)), "whoever is silent for long is not waited for"


def test_silence_of_all_is_shown_as_seconds_without_a_word() -> None:
    progress = Progress()
    progress.put(T)
    assert progress.read_steps(T + 0.5) == [0]
    samples = took(progress.feed.read_ready(progress.run, T + 6.0))
    assert [int(t) - T for t in samples.t] == [1, 2, 3]
    assert np.isnan(samples.x).all()


def test_after_a_restart_the_last_minutes_are_shown_and_no_more() -> None:
    progress = Progress()
    assert progress.read_steps(T) == [], "a job that sends no progress is not shown"
    for second in range(300):
        progress.put(T + second)
    shown = progress.read_steps(T + 299.5)
    assert shown == list(range(300 - PROGRESS_BACK_SECONDS, 300))


class Pairs:
    def __init__(self) -> None:
        self.store = PairStore(64)
        self.feed = PairFeed(self.store, "demo-1")
        self.run = make_run()

    def put(self, step: int, *pairs: str, end: float | None = None) -> None:
        ended = float(T + step) if end is None else end
        self.store.write(checked(pair_frame(step, 0.1, pairs=pairs, end=ended)))

    def read_steps(self, now: float = T) -> Samples | None:
        return self.feed.read_ready(self.run, now)


def test_a_step_of_pairs_is_shown_when_the_next_is_told() -> None:
    pairs = Pairs()
    pairs.put(1, "0>1", "1>2")
    assert pairs.read_steps() is None
    pairs.put(1, "2>3")
    pairs.put(2, "0>1")
    samples = took(pairs.read_steps())
    assert samples.steps is not None
    assert samples.steps.tolist() == [1]
    assert [(e.rank, e.peer, e.node) for e in samples.entities] == [(0, 1, None), (1, 2, None), (2, 3, None)]
    assert samples.mesh is pairs.run.mesh
    assert np.isfinite(samples.x).all()
    last = took(pairs.read_steps(T + 100.0))
    assert last.entities is samples.entities
    assert last.steps is not None
    assert last.steps.tolist() == [2], "or when it is long ago"
    assert pairs.read_steps(T + 100.0) is None


def test_transfers_of_steps_done_again_are_shown_again() -> None:
    pairs = Pairs()
    for step in (1, 2, 3):
        pairs.put(step, "0>1")
    assert took(pairs.read_steps(T + 100.0)).t.tolist() == [T + 1, T + 2, T + 3]
    pairs.put(2, "0>1", end=T + 50.0)
    assert took(pairs.read_steps(T + 100.0)).t.tolist() == [T + 50.0]
