"""A job that became slower as a whole; one that spikes, drifts, pauses or resumes has not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.lib_pace import pace_of
from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.slowdown import SlowdownDetector
from mainstay.probes.core_types import Severity, StepPhase
from tests.data import DATA, needs

ONSET = 100


def series(seed: int, *, steps: int = 200, noise: float = 0.01, by: float = 0.0, stop: int | None = None) -> np.ndarray:
    """Step times with single spikes; ``by`` slower from ``ONSET`` to ``stop``."""
    rng = np.random.default_rng(seed)
    seconds = 2.0 * np.exp(rng.normal(0.0, noise, steps))
    seconds[rng.random(steps) < 0.02] *= 1.5
    seconds[ONSET:stop] *= 1 + by
    return seconds


def job(seconds: np.ndarray, ranks: int = 4) -> Samples:
    """All ranks alike, as in synchronous training."""
    rng = np.random.default_rng(1)
    x = seconds[:, None] * np.exp(rng.normal(0.0, 0.001, (len(seconds), ranks)))
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 2}") for r in range(ranks)),
        groups=("stage 0",) * ranks,
        signals=("step_time_seconds",),
        t=1.7e9 + np.cumsum(seconds),
        x=x[:, None, :].astype(np.float32),
        steps=np.arange(len(seconds)),
    )


def example(seed: int) -> Samples:
    return job(series(seed, by=0.15))


def others() -> list[Samples]:
    return [job(series(2, steps=300, by=0.2, stop=130)), job(series(3, steps=900, by=0.2))]


def findings_of(data: Samples) -> list[Finding]:
    return SlowdownDetector().update(data)


def delay(data: Samples, finding: Finding) -> int:
    return int(np.searchsorted(data.t, finding.time)) - ONSET + 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("by", "noise", "within"), [(0.10, 0.005, 7), (0.10, 0.02, 10), (0.3, 0.02, 7), (0.09, 0.01, 10)]
)
def test_a_lasting_slowdown_is_said_in_few_steps(seed: int, by: float, noise: float, within: int) -> None:
    data = job(series(seed, noise=noise, by=by))
    found = findings_of(data)
    assert [(f.kind, f.entity, f.active) for f in found] == [(FindingKind.JOB_SLOWDOWN, Entity(job="demo"), True)]
    assert 5 <= delay(data, found[0]) <= within + 1
    assert found[0].evidence.numbers["ratio"] == pytest.approx(1 + by, rel=0.03)
    assert abs(found[0].evidence.numbers["since_step"] - ONSET) <= 3


@pytest.mark.parametrize("seed", range(4))
def test_spikes_and_drift_are_not(seed: int) -> None:
    seconds = series(seed, steps=1000)
    seconds *= 1 + 0.02 * np.sin(np.arange(1000) / 150)  # day and night
    seconds[300:302] *= 3.0  # a pause of two steps
    assert findings_of(job(seconds)) == []


def test_it_ends_when_it_returns_and_can_come_again() -> None:
    seconds = series(2, steps=300, by=0.2, stop=130)
    seconds[200:240] *= 1.2
    assert [f.active for f in findings_of(job(seconds))] == [True, False, True, False]


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    found = findings_of(job(series(3, steps=900, by=0.2)))
    assert [f.active for f in found] == [True, False]
    assert "taken as usual" in found[1].evidence.summary


def test_three_per_cent_is_below_what_is_verified() -> None:
    assert findings_of(job(series(4, steps=400, by=0.03))) == []


def test_other_phases_and_first_steps_after_a_rollback_do_not_count() -> None:
    data = job(series(5, by=0.5))
    phase = np.zeros((200, 1, 4), np.float32)
    phase[ONSET:] = StepPhase.EVALUATE
    assert (
        findings_of(replace(data, signals=("step_time_seconds", "step_phase"), x=np.concatenate((data.x, phase), 1)))
        == []
    )
    again = job(series(5, by=2.0, stop=ONSET + 5))
    assert findings_of(replace(again, steps=np.r_[np.arange(100), np.arange(90, 190)])) == []


def test_it_says_whether_it_judges() -> None:
    detector = SlowdownDetector()
    assert detector.status().state is DetectorState.IDLE
    data = job(series(6))
    detector.update(data.part(0, 10))
    assert detector.status().state is DetectorState.LEARNING
    detector.update(data.part(10, 90))
    assert detector.status().state is DetectorState.ACTIVE
    detector.reset()
    detector.update(job(series(6, noise=0.3)))
    assert detector.status().state is DetectorState.ABSTAINING


# Without noise: the floor of 0.4 % counts, the drift is two of it, and a slow step adds 4 - 2 to the score.


def exact(*stretches: tuple[int, float], ranks: int = 4) -> Samples:
    """So many steps of so many seconds, one stretch after the other; all ranks the same."""
    seconds = np.repeat([s for _, s in stretches], [n for n, _ in stretches])
    return replace(
        job(seconds, ranks), t=np.arange(float(len(seconds))), x=np.tile(seconds[:, None, None], (1, 1, ranks))
    )


@pytest.mark.parametrize(
    ("stretches", "told"),
    [
        (((60, 2.0), (30, 2.4)), [(64, True)]),  # four steps make the score, five the level
        (((60, 2.0), (30, 2.15)), [(64, True)]),
        (((60, 2.0), (30, 2.13)), []),  # below 7 %
        (((25, 2.0), (30, 2.4)), [(29, True)]),  # five steps are skipped, twenty are learned
        (((24, 2.0), (31, 2.4)), [(29, True)]),
        (((100, 2.0), (30, 2.4), (20, 2.0)), [(104, True), (132, False)]),  # three of the last five
        (((100, 2.0), (30, 2.4), (3, 2.0), (30, 2.4)), [(104, True), (132, False), (142, True)]),  # ten apart
        (((60, 2.0), (600, 2.4)), [(64, True), (564, False)]),  # as usual after 500
        (((60, 2.0), (60, 2.09), (30, 2.16)), []),  # a level that was not verified in 50 steps is the usual one
        (((60, 2.0), (60, 2.09), (30, 2.25)), [(124, True)]),
    ],
)
def test_when_a_slowdown_is_told_and_ends(
    stretches: tuple[tuple[int, float], ...], told: list[tuple[int, bool]]
) -> None:
    assert [(int(f.time), f.active) for f in findings_of(exact(*stretches))] == told


@pytest.mark.parametrize(("seconds", "told"), [(2.11, [274.0]), (2.09, [])])
def test_five_per_cent_are_enough_once_it_is_known_how_the_job_swings(seconds: float, told: list[float]) -> None:
    config = SlowdownDetector.Config(known_blocks=15)
    assert [f.time for f in SlowdownDetector(config).update(exact((270, 2.0), (30, seconds)))] == told
    assert SlowdownDetector(config).update(exact((230, 2.0), (30, seconds))) == []


def test_a_slowdown_is_told_with_its_numbers() -> None:
    (found,) = findings_of(exact((60, 2.0), (30, 2.4)))
    assert found.evidence.summary == ("Steps take 2.4 s since step 60, 20% longer than the 2 s before.")
    assert found.evidence.numbers == {
        "ratio": pytest.approx(1.2), "usual_seconds": pytest.approx(2.0), "since_step": 60.0
    }  # fmt: skip
    (line,) = found.evidence.series
    assert (line.x, line.y) == (tuple(range(5, 65)), pytest.approx([2.0] * 55 + [2.4] * 5))
    assert (line.threshold, line.peers) == (pytest.approx(2.14), pytest.approx([2.0] * 60))


def test_a_fast_step_takes_the_suspicion_away() -> None:
    detector = SlowdownDetector()
    data, scores = exact((60, 2.0), (3, 2.4), (1, 1.6), (2, 2.4)), []
    for k in range(len(data.t)):
        detector.update(data.part(k, k + 1))
        scores.append(detector._score)
    assert scores[58:] == pytest.approx([0.0, 0.0, 2.0, 4.0, 6.0, 0.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("ranks", "steps", "state", "number"),
    [(2, 30, "active", 20), (1, 30, "idle", 0), (2, 24, "learning", 19), (2, 25, "active", 20)],
)
def test_a_quarter_of_the_ranks_and_twenty_steps_are_enough(ranks: int, steps: int, state: str, number: int) -> None:
    data = exact((steps, 2.0), ranks=8)
    data.x[:, 0, ranks:6], data.x[:, 0, 6:] = np.nan, (0.0, -1.0)
    detector = SlowdownDetector()
    detector.update(data)
    assert (detector.status().state.value, detector._depth >= number) == (state, True)


def test_step_times_that_differ_too_much_are_not_judged() -> None:
    detector = SlowdownDetector()
    detector.update(exact((5, 2.0), *((1, s) for s in (1.7, 2.0, 2.3) * 7), (10, 4.0)))
    assert detector.status().reason == f"Step times differ by {1.4826 * np.log(2.3 / 2.0):.0%} from step to step."
    assert detector._finding_now is None


def test_a_job_that_leaves_is_no_longer_slow() -> None:
    detector, data = SlowdownDetector(), exact((60, 2.0), (10, 2.4))
    assert len(detector.update(data)) == 1
    nobody = replace(data.part(69, 70), entities=(), groups=(), x=np.zeros((1, 1, 0)))
    (ended,) = detector.update(nobody)
    assert (ended.active, ended.evidence.summary) == (False, "The job left the fleet and is no longer watched.")


@needs("step-times")
@pytest.mark.parametrize("name", ["bert_h100", "gpt3_15b_a100lts", "mixtral8x7b_h100_dev"])
def test_real_jobs_without_a_slow_stretch_are_left_alone(name: str) -> None:
    with np.load(DATA / "step-times" / f"{name}.npz") as data:
        seconds = data["iteration_time"]
    found = findings_of(pace_of(seconds[np.isfinite(seconds)]))
    assert [f for f in found if f.severity is not Severity.INFO] == []
