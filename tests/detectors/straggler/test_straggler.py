"""The right rank, within stated steps; and none where the imbalance is no fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.straggler.detector import StragglerDetector
from mainstay.probes.core_types import Severity, StepPhase
from tests.data import DATA

STAGES = np.array([1.0, 1.0, 1.62, 1.1])
"""Stage 2 is slower for every replica, as in a real job with the vocabulary head."""


def job(seed: int, *, dp: int = 8, steps: int = 150, noise: float = 0.01, stages: np.ndarray = STAGES) -> Samples:
    """Compute times [step, 1, rank] of a dp x pp job; rank = dp index x pp + stage."""
    rng = np.random.default_rng(seed)
    base = np.tile(stages, dp)
    drift = 1 + 0.05 * np.sin(np.arange(steps) / 40)[:, None]  # the whole job breathes
    seconds = 2.0 * base * drift * np.exp(rng.normal(0, noise, (steps, len(base))))
    return samples(seconds, stages=len(stages))


def samples(seconds: np.ndarray, *, stages: int, first: int = 0) -> Samples:
    steps, ranks = seconds.shape
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 4}") for r in range(ranks)),
        groups=tuple(f"stage {r % stages}" for r in range(ranks)),
        signals=("compute_time_seconds",),
        t=1.7e9 + 4.0 * np.arange(steps, dtype=np.float64),
        x=seconds[:, None, :].astype(np.float32),
        steps=np.arange(first, first + steps),
    )


def slow(data: Samples, rank: int, by: float, start: int, stop: int | None = None) -> Samples:
    data.x[start:stop, :, rank] *= 1 + by
    return data


def cut(data: Samples, steps: int) -> Samples:
    assert data.steps is not None
    return replace(data, t=data.t[:steps], x=data.x[:steps], steps=data.steps[:steps])


def example(seed: int) -> Samples:
    return slow(job(seed), rank=13, by=0.10, start=100)


def others() -> list[Samples]:
    return [
        slow(job(0), 13, 0.2, 60, 100),
        slow(job(1, dp=2), 3, 0.3, 60),
        job(2, dp=32, noise=0.09, stages=np.ones(2)),
    ]


def findings_of(data: Samples) -> list[Finding]:
    return StragglerDetector().update(data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("by", "noise", "within"), [(0.10, 0.01, 6), (0.05, 0.01, 8), (0.05, 0.004, 6), (0.03, 0.008, 14)]
)
def test_the_slow_rank_is_named_in_few_steps(seed: int, by: float, noise: float, within: int) -> None:
    data = slow(job(seed, noise=noise), rank=13, by=by, start=100)
    found = findings_of(data)
    assert [(f.kind, f.entity.rank) for f in found] == [(FindingKind.STRAGGLER, 13)]
    step = (found[0].time - 1.7e9) / 4.0
    assert 100 + 3 <= step < 100 + within
    numbers = found[0].evidence.numbers
    assert numbers["ratio"] == pytest.approx(1 + by, abs=max(0.02, 2 * noise))
    assert abs(numbers["since_step"] - 100) <= 3
    assert numbers["score"] > numbers["next_score"]


def test_the_evidence_can_be_drawn_in_steps() -> None:
    (finding,) = findings_of(example(0))
    seconds, score = finding.evidence.series
    assert (seconds.x_is, seconds.unit, score.threshold) == ("step", "s", 12.0)
    assert seconds.x[-1] == (finding.time - 1.7e9) / 4.0
    assert seconds.y[-1] > 1.05 * seconds.peers[-1]
    assert score.y[-1] >= 12.0


@pytest.mark.parametrize("seed", range(3))
def test_stage_imbalance_is_no_fault(seed: int) -> None:
    assert findings_of(job(seed, dp=8, steps=250)) == []
    assert findings_of(job(seed, dp=2, steps=250)) == []


@pytest.mark.parametrize("seed", range(3))
def test_varying_sequence_lengths_are_not_judged(seed: int) -> None:
    data = job(seed, dp=32, noise=0.09, steps=200, stages=np.ones(2))
    detector = StragglerDetector()
    assert detector.update(data) == []
    assert detector.abstains is not None
    assert "(limit 5%)" in detector.abstains


@pytest.mark.parametrize("seed", range(3))
def test_noise_that_comes_later_ends_the_judging(seed: int) -> None:
    quiet, loud = job(seed, dp=16, noise=0.005, steps=100), job(seed + 50, dp=16, noise=0.10, steps=200)
    data = samples(np.concatenate((quiet.x, loud.x))[:, 0], stages=4)
    detector = StragglerDetector()
    detector.update(data.part(0, 100))
    assert detector.abstains is None
    first = detector.update(data.part(100, 108))
    assert detector.update(data.part(116, 300)) == [] or first, "the watch on the noise looks at every eighth step"
    assert detector.abstains is not None


def test_a_rank_slow_from_the_start_is_found_in_a_large_role() -> None:
    found = findings_of(slow(job(3), rank=6, by=0.10, start=0))
    assert [f.entity.rank for f in found] == [6]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dp", [2, 8])
def test_noise_that_stays_from_step_to_step_is_no_straggler(seed: int, dp: int) -> None:
    """Correlated noise (another process comes and goes) shortens the time to a false alarm by orders of magnitude."""
    rng = np.random.default_rng(seed)
    fresh = rng.normal(size=(400, 4 * dp))
    noise = np.zeros_like(fresh)
    for step in range(1, len(fresh)):
        noise[step] = 0.7 * noise[step - 1] + np.sqrt(1 - 0.7**2) * fresh[step]
    assert findings_of(samples(np.exp(0.015 * noise), stages=4)) == []


def test_it_clears_when_the_rank_is_fast_again() -> None:
    begins, ends = findings_of(slow(job(0), rank=13, by=0.10, start=80, stop=110))
    assert (begins.active, ends.active) == (True, False)
    assert (ends.time - 1.7e9) / 4.0 < 110 + 20


def test_a_spike_of_any_size_is_no_straggler() -> None:
    data = job(0)
    data.x[90, 0, 5] *= 50.0
    data.x[91, 0, 5] *= 50.0
    assert findings_of(data) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by", [0.10, 0.25])
def test_of_two_peers_the_slow_one_is_named(seed: int, by: float) -> None:
    data = slow(job(seed, dp=2, steps=200), rank=6, by=by, start=120)
    found = findings_of(data)
    assert [f.entity.rank for f in found] == [6]
    assert (found[0].time - 1.7e9) / 4.0 < 120 + 12
    assert found[0].evidence.numbers["ratio"] == pytest.approx(1 + by, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_of_two_peers_one_that_became_faster_accuses_nobody(seed: int) -> None:
    assert findings_of(slow(job(seed, dp=2, steps=200), rank=6, by=-0.15, start=120)) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_slows_down_as_a_whole_accuses_nobody(seed: int) -> None:
    for dp in (2, 8):
        data = job(seed, dp=dp, steps=200)
        data.x[120:] *= 1.3
        assert findings_of(data) == []


def test_a_rank_without_peers_is_never_judged() -> None:
    detector = StragglerDetector()
    assert detector.update(slow(job(0, dp=1, steps=200), rank=2, by=0.5, start=100)) == []
    assert detector.abstains is not None


def test_a_pair_with_a_new_member_learns_anew() -> None:
    before = job(0, dp=2, steps=100)
    after = job(1, dp=2, steps=200)
    after.x[:, 0, 6] *= 1.2  # the replacement is simply another machine
    moved = tuple(e if e.rank != 6 else Entity(job="demo", rank=6, node="spare") for e in after.entities)
    fresh = Samples(
        entities=moved, groups=after.groups, signals=after.signals, t=after.t + 400, x=after.x, steps=after.steps
    )
    detector = StragglerDetector()
    assert detector.update(before) == []
    assert detector.update(fresh) == []


def test_steps_are_required() -> None:
    data = job(0)
    timed = Samples(entities=data.entities, groups=data.groups, signals=data.signals, t=data.t, x=data.x)
    with pytest.raises(ValueError, match="judges steps"):
        findings_of(timed)


@pytest.mark.slow
def test_false_alarms_stay_within_the_budget() -> None:
    """2,048 ranks x 500 steps x 4 jobs = 4e6 rank-steps; the budget of h = 12 allows 3e-5 of an alarm in them."""
    for seed in range(4):
        assert findings_of(job(100 + seed, dp=512, steps=500)) == []


def with_signals(data: Samples, **more: np.ndarray) -> Samples:
    x = np.concatenate((data.x, np.stack(list(more.values()), axis=1).astype(np.float32)), axis=1)
    return replace(data, signals=(*data.signals, *more), x=x)


def lengths(seed: int, *, dp: int = 16, steps: int = 90) -> tuple[Samples, np.ndarray]:
    """Two stages, the second with a head that knows no attention; [step, rank] squares of the replicas' sequences."""
    rng = np.random.default_rng(seed)
    mesh = regular("demo", dp=dp, pp=2)
    squares = np.exp(rng.normal(0, 0.25, (steps, dp)))[:, mesh.on("dp")]
    head = np.where(mesh.on("pp") == 1, 0.7, 0.0)
    seconds = (0.5 + squares + head) * np.exp(rng.normal(0, 0.005, squares.shape))
    return replace(samples(seconds, stages=2), mesh=mesh), squares


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("told", [True, False])
def test_with_lengths_that_vary_the_workload_or_the_replica_judges(seed: int, told: bool) -> None:
    data, squares = lengths(seed)
    if told:
        data = with_signals(replace(data, mesh=None), tokens=np.ones_like(squares), sequence_squares=squares)
    detector = StragglerDetector()
    data.x[60:, 0, 9] *= 1.05
    assert [f.entity.rank for f in detector.update(data)] == [9]
    account = detector.status()
    assert account.state is DetectorState.ACTIVE
    assert account.numbers["normalizer"] == (2.0 if told else 1.0)
    assert account.numbers["noise"] < 0.03 < account.numbers["role_noise"]
    assert 0.01 <= account.numbers["smallest_slowdown"] < 0.06


def test_stuck_sensors_are_unknown_and_nobodys_fault() -> None:
    data = job(0, dp=64, steps=200)
    data.x[:, 0, ::20] = data.x[0, 0, ::20]
    detector = StragglerDetector()
    assert detector.update(data) == []
    assert detector.status().numbers["unknown_ranks"] == len(range(0, 256, 20))


def test_a_coarse_clock_is_not_stuck() -> None:
    data = job(0, noise=0.004)
    data = replace(data, x=np.round(slow(data, rank=13, by=0.10, start=100).x, 2))  # ten milliseconds of two seconds
    assert [f.entity.rank for f in findings_of(data)] == [13]


def test_only_training_steps_are_judged() -> None:
    data = slow(job(0), rank=13, by=0.5, start=60, stop=90)
    phase = np.zeros(data.x[:, 0].shape)
    phase[60:90] = StepPhase.EVALUATE
    assert findings_of(with_signals(data, step_phase=phase)) == []


def test_sections_are_preferred_to_the_whole() -> None:
    data = job(0)
    parts = with_signals(data, forward_seconds=data.x[:, 0] / 3, backward_seconds=data.x[:, 0] * 2 / 3)
    parts.x[100:, 0, 5] *= 2.0  # all that the rank does outside of forward and backward
    assert findings_of(parts) == []
    parts.x[100:, 1:, 6] *= 1.1
    assert [f.entity.rank for f in findings_of(parts)] == [6]


def test_who_was_assigned_more_after_a_loss_is_not_slow() -> None:
    data = job(0, steps=200)
    assigned = np.full(data.x[:, 0].shape, 4.0)
    assigned[100:], assigned[100:, 13] = 5.0, 6.0
    data.x[:, 0] *= (assigned / 4).astype(np.float32)
    assert [f.entity.rank for f in findings_of(data)] == [13]
    assert findings_of(with_signals(data, micro_batches=assigned)) == []
    sick = slow(data, rank=6, by=0.10, start=140)
    assert [f.entity.rank for f in findings_of(with_signals(sick, micro_batches=assigned))] == [6]


def test_who_waits_for_a_core_is_not_accused_aloud() -> None:
    data = slow(job(0), rank=13, by=0.10, start=100)
    delay = np.full(data.x[:, 0].shape, 0.01)
    delay[100:, 13] = 0.8
    (finding,) = findings_of(with_signals(data, run_delay_seconds=delay))
    assert finding.severity is Severity.INFO
    assert "contention" in finding.evidence.summary


@pytest.mark.parametrize(("beside", "named"), [(12, []), (16, [13])])
def test_a_small_slowdown_beside_a_thread_put_aside_waits_for_its_end(beside: int, named: list[int]) -> None:
    """Rank 12 runs on the node of rank 13, rank 16 on the next."""
    data = slow(job(0, steps=220), rank=13, by=0.06, start=100)
    delay = np.full(data.x[:, 0].shape, 0.01)
    delay[100:160, beside] = 12.0  # of a compute of two seconds; rank 13 loses 0.12 of them
    told = with_signals(data, run_delay_seconds=delay)
    early, late = StragglerDetector(), StragglerDetector()
    assert [f.entity.rank for f in early.update(cut(told, 160))] == named
    assert [f.entity.rank for f in late.update(told)] == [13]


def test_a_large_slowdown_is_named_beside_any_thread_put_aside() -> None:
    data = slow(job(0), rank=13, by=1.0, start=100)
    delay = np.full(data.x[:, 0].shape, 0.01)
    delay[100:, 12] = 9.0
    assert [f.entity.rank for f in findings_of(with_signals(data, run_delay_seconds=delay))] == [13]


def test_of_two_peers_the_one_beside_the_busy_core_is_not_named() -> None:
    """As it was seen once: three loops on the core of rank 1, and rank 0 computed some per cent longer meanwhile."""
    rng = np.random.default_rng(5)
    seconds = 0.009 * np.exp(rng.normal(0, 0.02, (180, 2)))
    seconds[120:, 0] *= 1.1
    delay = np.full((180, 2), 0.0005)
    delay[120:] = [0.011, 0.058]
    alone = samples(seconds, stages=1)
    assert {f.entity.rank for f in findings_of(alone)} == {0}
    assert findings_of(with_signals(alone, run_delay_seconds=delay)) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_rank_slow_from_the_start_is_found(seed: int) -> None:
    assert {f.entity.rank for f in findings_of(slow(job(seed), rank=13, by=0.10, start=0))} == {13}


@pytest.mark.parametrize("seed", range(2))
def test_two_slow_at_once_are_both_named(seed: int) -> None:
    data = slow(slow(job(seed), rank=13, by=0.06, start=100), rank=30, by=0.08, start=100)
    assert {f.entity.rank for f in findings_of(data)} == {13, 30}


@pytest.mark.parametrize("seed", range(2))
def test_gpus_that_differ_for_good_are_healthy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = job(seed, dp=64, steps=150, noise=0.004)
    data.x[:] *= np.exp(rng.normal(0, 0.01, 256)).astype(np.float32)
    assert findings_of(data) == []


def test_after_a_roll_back_first_steps_are_nobodys_fault() -> None:
    data = job(0, steps=120)
    data.x[60:63, 0, 4] *= 2.0
    back = replace(data, steps=np.concatenate((np.arange(60), np.arange(50, 110))))
    assert findings_of(back) == []


TRACES = DATA / "straggler-traces"


def compute_seconds(trace: str) -> tuple[np.ndarray, int]:
    """Own compute per step and rank (dp x stage), from the operations of a real job."""
    import pyarrow.parquet as pq

    table = pq.read_table(TRACES / f"trace-{trace}.parquet").to_pydict()
    own = np.array(["forward-compute" in str(op) or "backward-compute" in str(op) for op in table["optype"]])
    dp, stage, step = (np.array(table[name])[own] for name in ("dp_rank", "stage", "step"))
    seconds = np.array(table["duration"], dtype=np.float64)[own]
    rows, stages = {s: i for i, s in enumerate(np.unique(step))}, int(stage.max()) + 1
    total = np.zeros((len(rows), (int(dp.max()) + 1) * stages))
    np.add.at(total, (np.array([rows[s] for s in step]), dp * stages + stage), seconds)
    return np.where(total > 0, total, np.nan), stages


@pytest.fixture(params=["ST", "SE"])
def trace(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, int]:
    if not (TRACES / f"trace-{request.param}.parquet").exists():
        pytest.skip(f"{TRACES} is absent: set MAINSTAY_TEST_DATA to the folder that holds straggler-traces")
    return (request.param, *compute_seconds(request.param))


def test_real_imbalance_is_never_blamed(trace: tuple[str, np.ndarray, int]) -> None:
    """Both jobs are healthy: ST has a slow last stage, SE sequences of varying length."""
    name, seconds, stages = trace
    detector = StragglerDetector()
    assert detector.update(samples(seconds, stages=stages)) == []
    assert (detector.abstains is not None) == (name == "SE"), "by roles alone SE is too noisy, and it reports that"
    detector = StragglerDetector()
    assert detector.update(of_job(seconds, stages)) == []
    assert detector.abstains is None, "who shares a replica says what is to be expected"


def of_job(seconds: np.ndarray, stages: int) -> Samples:
    return replace(samples(seconds, stages=stages), mesh=regular("demo", dp=seconds.shape[1] // stages, pp=stages))


@pytest.mark.parametrize("rank", range(0, 8, 3))
@pytest.mark.parametrize("by", [0.05, 0.20])
def test_an_injected_slowdown_in_a_real_job_is_found(trace: tuple[str, np.ndarray, int], rank: int, by: float) -> None:
    name, seconds, stages = trace
    data = slow(of_job(seconds, stages), rank=rank, by=by, start=17)
    assert [f.entity.rank for f in StragglerDetector().update(data) if f.active] == [rank], name
