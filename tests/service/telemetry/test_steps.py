"""Step rings: a row a rank, a slot a step; what was done again replaces what was done first."""

from __future__ import annotations

import numpy as np
import pytest

from mainstay.probes.frame import Axis, Frame
from mainstay.probes.signals import WIDE_MISSING, SignalSource, catalog
from mainstay.service.common.problem import ProblemError
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.check import CheckedSamples, check
from mainstay.service.telemetry.steps import StepStore

RANK = compile_catalog(catalog(SignalSource.RANK))
TIME = "step_time_seconds"


def steps(
    first: int, times: list[list[float]], *, ranks: tuple[str, ...] | None = None, job: str = "j", **changes
) -> CheckedSamples:
    """Step times [rank][step]; every other signal is missing."""
    ranks = ranks or tuple(str(rank) for rank in range(len(times)))
    count = len(times[0])
    narrow = np.full((len(ranks), len(RANK.catalog.narrow), count), np.nan, "<f4")
    narrow[:, RANK.catalog.narrow.index(TIME)] = times
    wide = np.broadcast_to((1_700_000_000 + first + np.arange(count)) * 10**9, (len(ranks), 1, count)).astype("<i8")
    fields = {
        "version": 1, "subject": job, "axis": Axis.STEP, "stream": "s", "sequence": 1, "t0": float(first), "dt": 1.0,
        "catalog": RANK.catalog.digest, "entities": ranks, "samples": count, "crc32": 0,
        "values": narrow.tobytes(), "wide": wide.tobytes(),
    }  # fmt: skip
    return check(Frame(**{**fields, **changes}), RANK)


def test_steps_of_all_ranks() -> None:
    store = StepStore(64)
    store.write(steps(5, [[0.1, 0.2], [0.3, 0.4]]))
    window = store.window("j")
    assert window.steps.tolist() == [5, 6]
    np.testing.assert_array_equal(window.signal(TIME), np.array([[0.1, 0.2], [0.3, 0.4]], "f4"))
    assert window.ends[0].tolist() == [1_700_000_005.0, 1_700_000_006.0]
    assert store.last_step("j") == 6
    assert store.jobs() == ("j",)


def test_ranks_may_come_apart() -> None:
    store = StepStore(64)
    store.write(steps(1, [[0.5]], ranks=("2",)))
    store.write(steps(1, [[0.1]], ranks=("0",)))
    assert store.window("j").signal(TIME)[:, 0].tolist() == pytest.approx([0.1, np.nan, 0.5], nan_ok=True, rel=1e-6)


def test_a_step_done_again_replaces_the_first() -> None:
    store = StepStore(64)
    store.write(steps(1, [[0.1, 0.2, 0.3]]))
    store.write(steps(2, [[0.9]]))
    assert store.window("j").signal(TIME)[0].tolist() == pytest.approx([0.1, 0.9, 0.3], rel=1e-6)


def test_old_steps_leave_and_late_ones_do_not_return() -> None:
    store = StepStore(64)
    store.write(steps(0, [[0.1]]))
    store.write(steps(64, [[0.2]]))
    store.write(steps(0, [[0.1]]))
    assert store.window("j").steps.tolist() == [64]


def later(first: int, times: list[list[float]], seconds: int, **changes) -> CheckedSamples:
    """The same, done ``seconds`` later than steps of these numbers were."""
    count = len(times[0])
    ends = (1_700_000_000 + seconds + first + np.arange(count)) * 10**9
    return steps(first, times, wide=np.broadcast_to(ends, (len(times), 1, count)).astype("<i8").tobytes(), **changes)


def test_a_job_that_goes_back_does_not_keep_what_it_threw_away() -> None:
    store = StepStore(64)
    store.write(steps(1, [[0.1] * 10, [0.2] * 10]))
    assert store.take_rewind("j") is None
    store.write(later(6, [[0.9], [0.8]], 100))
    window = store.window("j")
    assert window.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert window.signal(TIME)[:, -1].tolist() == pytest.approx([0.9, 0.8])
    assert store.last_step("j") == 6
    assert (store.take_rewind("j"), store.take_rewind("j")) == (6, None)


def test_a_job_that_begins_anew_far_back_is_followed() -> None:
    store = StepStore(64)
    store.write(steps(5000, [[0.1]]))
    store.write(later(1, [[0.2]], 10_000))
    assert store.window("j").steps.tolist() == [1]
    assert store.take_rewind("j") == 1


def test_clocks_of_two_nodes_are_not_compared() -> None:
    store = StepStore(64)
    store.write(steps(1, [[0.1] * 10], ranks=("0",)))
    store.write(later(5, [[0.2]], 60, ranks=("1",)))
    assert store.last_step("j") == 10
    assert store.take_rewind("j") is None


def test_memory_is_bounded_by_ranks_and_by_jobs() -> None:
    budget = 2**20
    store = StepStore(2048, budget)
    for job in range(6):
        store.write(steps(1, [[0.1]] * 8, job=f"job-{job}"))
        assert store.nbytes <= budget
    assert store.jobs() == ("job-5",), "each takes more than a third of it"
    large = StepStore(2048, budget)
    for rank in (3, 99):
        for step in range(1, 100):
            large.write(steps(step, [[float(step)]], ranks=(str(rank),)))
    kept = large.window("j").steps
    assert kept.tolist() == list(range(100 - len(kept), 100)), "a large job keeps fewer, the newest"
    assert large.window("j").signal(TIME)[3].tolist() == pytest.approx(kept.tolist())


def test_chosen_signals_only() -> None:
    store = StepStore(64)
    store.write(steps(5, [[0.1, 0.2], [0.3, 0.4]]))
    window = store.window("j", signals=("loss", TIME))
    assert window.values.shape == (2, 2, 2)
    assert window.signal(TIME)[1].tolist() == pytest.approx([0.3, 0.4])
    assert np.isnan(window.signal("loss")).all()


def test_thinning_by_a_stride() -> None:
    store = StepStore(256)
    store.write(steps(0, [[float(i) for i in range(100)]]))
    window = store.window("j", 10, 90, points=20)
    assert window.steps.tolist() == list(range(10, 90, 4))


def test_an_unknown_job_has_nothing() -> None:
    window = StepStore(64).window("absent")
    assert (window.values.shape[0], len(window.steps)) == (0, 0)
    assert StepStore(64).last_step("absent") is None


def test_the_span_of_a_step_frame_is_its_steps_ends() -> None:
    made = steps(5, [[0.1, 0.2]])
    assert (made.start, made.stop) == (1_700_000_005.0, 1_700_000_006.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"t0": 1.5}, "whole step"),
        ({"dt": 2.0}, "whole step"),
        ({"t0": 2.0**60}, "whole step"),
        ({"wide": np.full((1, 1, 1), WIDE_MISSING, "<i8").tobytes()}, "no place in time"),
    ],
)
def test_step_frames_that_make_no_sense(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ProblemError, match=words):
        steps(1, [[0.1]], **changes)
