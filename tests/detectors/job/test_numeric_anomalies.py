"""Values that are sick, at the rank and the step where it began; and curves of training that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Cause, Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.job.numeric_anomalies import NumericAnomalyDetector
from mainstay.detectors.job.spikes import SpikeDetectorState
from mainstay.probes.core_types import Severity
from tests.data import DATA, needs

ONSET = 60
NAMES = NumericAnomalyDetector.signals


def job(seed: int, *, dp: int = 4, pp: int = 2, steps: int = 120) -> Samples:
    """A falling loss, noisy gradient norms (each stage its own), digests that agree among replicas every tenth step."""
    rng = np.random.default_rng(seed)
    mesh = regular("demo", dp=dp, pp=pp, ranks_per_node=4)
    ranks = mesh.size
    stage = mesh.on("pp")
    x = np.full((steps, len(NAMES), ranks), np.nan)
    x[:, 0] = 0.0
    loss = 2.0 + 8.0 * np.exp(-np.arange(steps) / 20)
    x[:, 1] = np.where(stage == pp - 1, loss[:, None] * np.exp(rng.normal(0.0, 0.02, (steps, ranks))), np.nan)
    x[:, 2] = (1.0 + 3.0 * stage) * np.exp(rng.normal(0.0, 0.15, (steps, ranks)))
    x[::10, 3] = rng.integers(0, 2**24, (len(x[::10]), pp))[:, stage]
    x[:, 4] = 0.0
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=mesh.nodes[r]) for r in range(ranks)),
        groups=tuple(f"stage {s}" for s in stage),
        signals=NAMES,
        t=1.7e9 + 2.0 * np.arange(steps),
        x=x.astype(np.float32),
        mesh=mesh,
        steps=np.arange(steps),
    )


def planted(data: Samples, name: str, rows: object, steps: slice, value: float, *, times: bool = False) -> Samples:
    x = data.x.copy()
    part = x[steps, NAMES.index(name)]
    part[:, rows] = part[:, rows] * value if times else value
    return replace(data, x=x)


def example(seed: int) -> Samples:
    data = planted(job(seed), "nonfinite_values", 3, slice(ONSET, ONSET + 1), 1.0)
    return planted(data, "nonfinite_values", slice(None), slice(ONSET + 1, 80), 1.0)


def findings_of(data: Samples) -> list[Finding]:
    return NumericAnomalyDetector().update(data)


def step_of(finding: Finding) -> int:
    return round((finding.time - 1.7e9) / 2.0)


def test_nan_is_named_at_its_first_rank_in_its_first_step() -> None:
    found = findings_of(example(0))
    assert [(f.kind, f.entity.rank, step_of(f), f.severity, f.active) for f in found] == [
        (FindingKind.NAN, 3, ONSET, Severity.WARNING, True),
        (FindingKind.NAN, 3, ONSET + 1, Severity.CRITICAL, True),  # the next step is no better
        (FindingKind.NAN, 3, 82, Severity.CRITICAL, False),
    ]
    assert found[0].confidence >= 0.9


def test_ranks_that_are_first_together_share_the_suspicion() -> None:
    data = planted(job(0), "nonfinite_values", [3, 5], slice(ONSET, ONSET + 1), 1.0)
    found = [finding for finding in findings_of(data) if finding.active]
    assert [(f.entity.rank, f.confidence) for f in found] == [(3, 0.475), (5, 0.475)]
    assert all("in the same step as 1 others" in f.evidence.summary for f in found)


def test_a_single_overflow_stays_a_warning() -> None:
    found = findings_of(planted(job(1), "nonfinite_values", 5, slice(ONSET, ONSET + 1), 1.0))
    assert [(f.entity.rank, f.severity, f.active) for f in found] == [
        (5, Severity.WARNING, True),
        (5, Severity.WARNING, False),
    ]


def test_of_a_nan_that_is_everywhere_nobody_is_first() -> None:
    everywhere = planted(job(2), "nonfinite_values", slice(None), slice(ONSET, None), 1.0)
    assert findings_of(everywhere)[0].entity == Entity(job="demo")
    silent = planted(everywhere, "nonfinite_values", 6, slice(ONSET - 1, ONSET), np.nan)
    first = findings_of(silent)[0]
    assert (first.entity.rank, step_of(first)) == (6, ONSET)
    assert first.confidence <= 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
def test_five_times_is_a_spike_in_one_step(seed: int, name: str) -> None:
    found = findings_of(planted(job(seed), name, slice(None), slice(ONSET, ONSET + 1), 5.0, times=True))
    assert [(f.kind, f.entity, f.active) for f in found] == [
        (FindingKind.LOSS_SPIKE, Entity(job="demo"), True),
        (FindingKind.LOSS_SPIKE, Entity(job="demo"), False),
    ]
    assert step_of(found[0]) == ONSET


def test_the_rank_whose_gradients_explode_is_told_with_the_spike() -> None:
    found = findings_of(planted(job(3), "gradient_norm", 2, slice(ONSET, ONSET + 1), 100.0, times=True))
    assert found[0].evidence.numbers["rank"] == 2.0
    assert "most of it at rank 2" in found[0].evidence.summary


@pytest.mark.parametrize(
    ("rows", "steps", "severities"),
    [(2, 1, ["info"]), (2, 2, ["info", "warning"]), (2, 9, ["info", "warning"]), (slice(None), 1, ["warning"])],
)
def test_gradients_of_one_rank_in_one_step_are_information(rows: object, steps: int, severities: list[str]) -> None:
    found = findings_of(planted(job(3), "gradient_norm", rows, slice(ONSET, ONSET + steps), 100.0, times=True))
    assert [str(f.severity) for f in found if f.active and f.kind is FindingKind.LOSS_SPIKE] == severities
    assert not found[-1].active


def test_a_loss_that_runs_away_slowly_is_said_too() -> None:
    data = job(4, steps=200)
    growth = np.ones((200, 1))
    growth[100:] = np.exp(0.03 * np.arange(100))[:, None]
    x = data.x.copy()
    x[:, 1] *= growth
    found = findings_of(replace(data, x=x))
    assert found[0].kind is FindingKind.LOSS_SPIKE
    assert 100 < step_of(found[0]) <= 130
    assert "rising" in found[0].evidence.summary


@pytest.mark.parametrize("seed", range(4))
def test_healthy_training_is_left_alone(seed: int) -> None:
    assert findings_of(job(seed, dp=8, steps=300)) == []


def test_spikes_know_no_sign_and_no_scale() -> None:
    rng = np.random.default_rng(0)
    for level, noise in ((-3.0, 0.1), (0.0, 1e-4), (1e-6, 1e-7), (1e5, 1e3)):
        spikes = SpikeDetectorState()
        quiet = [spikes.add_value(float(level + noise * z)) for z in rng.standard_normal(500)]
        assert not any(quiet)
        assert spikes.add_value(level + 4 * abs(level) + 40 * noise)
        assert spikes.on


def digests(seed: int, value: float = 7.0) -> Samples:
    """Rank 4 (stage 0) holds other parameters from step 60 on."""
    return planted(job(seed), "parameters_digest", 4, slice(ONSET, None, 10), value)


def test_the_replica_that_differs_is_named_at_once() -> None:
    found = findings_of(digests(0))
    assert [(f.kind, f.entity.rank, step_of(f)) for f in found] == [(FindingKind.SDC_SUSPECT, 4, ONSET)]
    assert found[0].severity is Severity.CRITICAL
    assert found[0].cause is Cause.SILENT_CORRUPTION
    assert "which agree among themselves" in found[0].evidence.summary


def test_it_is_over_when_digests_agree_again() -> None:
    found = findings_of(planted(job(0), "parameters_digest", 4, slice(ONSET, ONSET + 11, 10), 7.0))
    assert [(f.active, step_of(f)) for f in found] == [(True, ONSET), (False, ONSET + 20)]


def test_of_two_replicas_both_are_suspected() -> None:
    data = planted(job(1, dp=2), "parameters_digest", 0, slice(ONSET, None, 10), 7.0)
    found = findings_of(data)
    assert [(f.entity.rank, f.severity) for f in found] == [(0, Severity.WARNING), (2, Severity.WARNING)]
    assert all(f.confidence < 0.5 and "no majority says who is right" in f.evidence.summary for f in found)


def test_ranks_that_the_mesh_does_not_have_are_no_replicas() -> None:
    data = job(0)
    names = tuple(replace(e, rank=e.rank + 100) if e.rank in {1, 4, 5, 6} else e for e in data.entities)
    x = data.x.copy()
    x[:, NAMES.index("parameters_digest"), [1, 4, 5, 6]] = 5.0
    x[ONSET:, NAMES.index("parameters_digest"), 1] = 7.0
    detector = NumericAnomalyDetector()
    assert detector.update(replace(data, entities=names, x=x)) == []
    assert [rows.tolist() for rows in detector._replicas] == [[0, 2], [3, 7]]


@pytest.mark.parametrize(
    ("sick", "silent", "ranks", "confidence"),
    [
        (1, 0, [0], 0.95),
        (4, 0, [0, 1, 2, 3], 0.95 / 4),
        (5, 0, [None], 0.95),  # more than half of the ranks at once
        (7, 1, [7], 0.5),  # an eighth of them is suspected for its silence
        (6, 2, [None], 0.95),
    ],
)
def test_how_many_may_be_first(sick: int, silent: int, ranks: list[int | None], confidence: float) -> None:
    data = planted(job(0), "nonfinite_values", slice(0, sick), slice(ONSET, ONSET + 1), 1.0)
    data = planted(data, "nonfinite_values", slice(8 - silent, 8), slice(ONSET, ONSET + 1), np.nan)
    found = [finding for finding in findings_of(data) if finding.active]
    assert [f.entity.rank for f in found] == ranks
    assert {f.confidence for f in found} == {confidence}


def test_a_nan_is_over_after_three_finite_steps_in_a_row() -> None:
    data = planted(job(0), "nonfinite_values", 3, slice(ONSET, ONSET + 1), 1.0)
    for again, over in ((ONSET + 3, ONSET + 6), (ONSET + 4, ONSET + 3)):
        told = findings_of(planted(data, "nonfinite_values", 3, slice(again, again + 1), 1.0))
        assert next(step_of(f) for f in told if not f.active) == over
    unheard = planted(data, "nonfinite_values", slice(None), slice(ONSET + 1, ONSET + 3), np.nan)
    assert [step_of(f) for f in findings_of(unheard) if not f.active] == [ONSET + 5], "silence is not finite"


def test_a_job_that_leaves_takes_its_findings_along() -> None:
    detector, data = NumericAnomalyDetector(), planted(job(0), "nonfinite_values", 3, slice(ONSET, None), 1.0)
    detector.update(data)
    nobody = replace(data.part(0, 1), entities=(), groups=(), x=data.x[:1, :, :0], mesh=None)
    (ended,) = detector.update(nobody)
    assert (ended.kind, ended.active, ended.time) == (FindingKind.NAN, False, data.t[0])


def test_where_digests_never_agree_parameters_are_sharded() -> None:
    data = job(2)
    x = data.x.copy()
    x[::10, 3] = np.random.default_rng(0).integers(0, 2**24, x[::10, 3].shape)
    detector = NumericAnomalyDetector()
    assert detector.update(replace(data, x=x)) == []
    assert detector.status().state is DetectorState.ACTIVE
    assert "sharded" in detector.status().reason


def test_a_rank_whose_gradients_stay_unlike_its_replicas_is_suspected() -> None:
    found = findings_of(planted(job(3), "gradient_norm", 6, slice(ONSET, None), 2.6, times=True))
    assert [(f.kind, f.entity.rank) for f in found if f.kind is FindingKind.SDC_SUSPECT] == [
        (FindingKind.SDC_SUSPECT, 6)
    ]
    assert found[0].confidence <= 0.5
    assert found[0].severity is Severity.WARNING


def test_without_a_mesh_replicas_are_not_compared_and_it_says_so() -> None:
    detector = NumericAnomalyDetector()
    assert detector.status().state is DetectorState.IDLE
    assert detector.update(replace(digests(0), mesh=None)) == []
    assert "Who replicates whom is unknown" in detector.status().reason


@needs("step-times")
@pytest.mark.parametrize("name", ["bert_h100", "gpt3_15b_a100lts", "gpt3_15b_h100", "mixtral8x7b_h100_dev"])
def test_real_loss_curves_have_no_spikes(name: str) -> None:
    with np.load(DATA / "step-times" / f"{name}.npz") as data:
        loss = data["lm_loss"]
    spikes = SpikeDetectorState()
    assert not any(spikes.add_value(float(value)) for value in loss)
