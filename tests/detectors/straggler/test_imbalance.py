"""Advice where the layout, the lengths or the garbage slow a job; nothing else, and blame never."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Floats, Samples
from mainstay.detectors.finding import ADVICE, Entity, Finding, FindingKind
from mainstay.detectors.straggler.imbalance import ImbalanceDetector, _correlation, _entropy_of
from mainstay.probes.core_types import Severity

SIGNALS = ("compute_time_seconds", "forward_seconds", "backward_seconds", "gc_seconds")


def job(
    seed: int, *, dp: int = 8, stages: tuple[float, ...] = (1.0, 1.0), steps: int = 120, lengths: float = 0.0
) -> Samples:
    """Forward one part, backward two; ``lengths``: deviation of the replicas' work from step to step."""
    rng = np.random.default_rng(seed)
    ranks = dp * len(stages)
    work = np.repeat(np.exp(rng.normal(0, lengths, (steps, dp))), len(stages), axis=1) if lengths else 1.0
    forward, backward = (
        part * np.tile(stages, dp) * work * np.exp(rng.normal(0, 0.005, (steps, ranks))) for part in (1.0, 2.0)
    )
    gc = np.full((steps, ranks), 0.001)
    return pack(forward, backward, gc, len(stages))


def pack(forward: Floats, backward: Floats, gc: Floats, stages: int) -> Samples:
    steps, ranks = forward.shape
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 8}") for r in range(ranks)),
        groups=tuple(f"stage {r % stages}" for r in range(ranks)),
        signals=SIGNALS,
        t=1.7e9 + 3.0 * np.arange(steps, dtype=np.float64),
        x=np.stack((forward + backward + gc, forward, backward, gc), axis=1).astype(np.float32),
        steps=np.arange(steps),
    )


def example(seed: int) -> Samples:
    """A slow last stage, until layers are moved."""
    data = job(seed, stages=(1.0, 1.0, 1.3), steps=160)
    data.x[80:, :3, 2::3] /= 1.3
    return data


def others() -> list[Samples]:
    """Lengths that vary, and garbage collected by turns."""
    data, rng = job(0, stages=(1.0,)), np.random.default_rng(0)
    for step in range(0, 120, 2):
        data.x[step, (0, 3), rng.integers(8)] += 0.3
    return [job(0, lengths=0.1), data, job(0, dp=2, stages=(1.0, 1.3, 1.0, 1.0), steps=160)]


def findings_of(data: Samples) -> list[Finding]:
    return ImbalanceDetector().update(data)


def test_a_stage_that_computes_for_a_lost_rank_is_not_long() -> None:
    data = job(0, stages=(1.0, 1.0, 1.0), steps=160)
    assigned = np.full((160, 24), 4.0, np.float32)
    assigned[80:, 2::3] = 5.0
    data.x[:, :3] *= assigned[:, None] / 4
    assert [f.kind for f in findings_of(data)] == [FindingKind.STAGE_IMBALANCE]
    told = replace(data, signals=(*SIGNALS, "micro_batches"), x=np.concatenate((data.x, assigned[:, None]), axis=1))
    assert findings_of(told) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_long_stage_is_told_with_what_balance_would_give(seed: int) -> None:
    begins, ends = findings_of(example(seed))
    assert (begins.kind, begins.active, ends.active) == (FindingKind.STAGE_IMBALANCE, True, False)
    assert begins.entity == Entity(job="demo")
    assert begins.evidence.numbers["excess"] == pytest.approx(0.3, abs=0.02)
    assert begins.evidence.numbers["speedup_at_most"] == pytest.approx(1.3 / 1.1, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_varying_lengths_are_told(seed: int) -> None:
    (finding,) = findings_of(job(seed, lengths=0.1))
    assert finding.kind is FindingKind.SEQUENCE_IMBALANCE
    assert finding.severity is Severity.INFO
    assert finding.evidence.numbers["correlation"] > 0.95


def test_one_slow_rank_is_no_matter_of_lengths() -> None:
    data = job(0, dp=4)
    data.x[:, :3, 5] *= 1.5
    assert [f.kind for f in findings_of(data) if f.kind is not FindingKind.STAGE_IMBALANCE] == []


@pytest.mark.parametrize("seed", range(3))
def test_garbage_by_turns_is_told(seed: int) -> None:
    data = job(seed, stages=(1.0,))
    rng = np.random.default_rng(seed)
    for step in range(0, 120, 2):
        rank = rng.integers(8)
        data.x[step, 0, rank] += 0.3
        data.x[step, 3, rank] += 0.3
    (finding,) = findings_of(data)
    assert finding.kind is FindingKind.GC_JITTER
    assert finding.evidence.numbers["share"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_balanced_job_needs_no_advice(seed: int) -> None:
    assert findings_of(job(seed, steps=200)) == []


def test_all_that_it_says_is_advice() -> None:
    assert ImbalanceDetector.kinds == ADVICE


def clean(stages: tuple[float, ...], *, dp: int = 4, steps: int = 120) -> Samples:
    """Without any noise, so that each limit can be worked out. The three seconds of a step are all work."""
    part = np.tile(np.array(stages), (steps, dp))
    return pack(part, 2.0 * part, np.zeros_like(part), len(stages))


@pytest.mark.parametrize(
    ("stages", "excess"),
    [
        ((1.0, 1.3), 0.3),
        ((1.0, 1.09), None),  # less than a tenth above the middle stage
        ((1.0, 1.11), 0.11),
        ((1.3,), None),  # nothing to compare with
        ((1.3, 1.3), None),
        ((1.0, 1.0, 1.0, 1.5), 0.5),
    ],
)
def test_the_longest_stage_against_the_middle_one(stages: tuple[float, ...], excess: float | None) -> None:
    found = findings_of(clean(stages))
    assert [f.kind for f in found] == ([] if excess is None else [FindingKind.STAGE_IMBALANCE])
    if excess is not None:
        gain = max(stages) / float(np.mean(stages))
        worst = f"stage {len(stages) - 1}"
        assert found[0].evidence.numbers == pytest.approx(
            {"excess": excess, "speedup_at_most": gain}
            | {f"seconds stage {n}": 3.0 * length for n, length in enumerate(stages)},
            rel=1e-5,
        )
        assert found[0].evidence.summary.startswith(
            f"{worst.capitalize()} takes {excess:.0%} longer than the middle stage in every replica; equal stages "
            f"would make steps up to {gain:.2f} times as fast."
        )
        # Five steps are skipped, twenty looked at, and every tenth is a look: the thirtieth is the first.
        assert found[0].time == 1.7e9 + 3.0 * 29


@pytest.mark.parametrize(("share", "told"), [(0.85, False), (0.95, True)])
def test_a_stage_must_be_long_in_nine_of_ten_steps(share: float, told: bool) -> None:
    data = clean((1.0, 1.3))
    data.x[np.arange(120) % 20 >= round(20 * share), :3, 1::2] /= 1.3
    assert bool(findings_of(data)) is told


@pytest.mark.parametrize(("after", "over"), [(1.06, False), (1.04, True)])
def test_a_stage_is_long_until_it_is_a_twentieth_above(after: float, over: bool) -> None:
    data = clean((1.0, 1.3))
    data.x[60:, :3, 1::2] *= after / 1.3
    found = findings_of(data)
    assert [f.active for f in found] == [True, False][: 1 + over]
    # Most of the fifty remembered steps are those after 60 from the 86th on; the 90th is the next look.
    assert not over or found[1].time == 1.7e9 + 3.0 * 89


def test_what_only_the_forward_or_the_backward_pass_shows_is_not_of_lengths() -> None:
    data = job(0, stages=(1.0,))
    rng = np.random.default_rng(1)
    data.x[:, 1:3] *= np.exp(rng.normal(0, 0.15, data.x[:, 1:3].shape))
    data.x[:, 0] = data.x[:, 1] + data.x[:, 2]
    assert findings_of(data) == []


@pytest.mark.parametrize(("spread", "told"), [(0.04, False), (0.06, True)])
def test_lengths_must_differ_by_a_twentieth(spread: float, told: bool) -> None:
    """1.4826 x 0.6745 of the normal deviation is the deviation itself."""
    found = findings_of(job(1, dp=32, stages=(1.0,), lengths=spread))
    assert [f.kind for f in found] == [FindingKind.SEQUENCE_IMBALANCE] * told
    if told:
        assert found[0].evidence.numbers["spread"] == pytest.approx(spread, rel=0.1)
        # The longest of 32 normal draws lies 2.07 deviations above the middle one.
        assert found[0].evidence.numbers["speedup_at_most"] == pytest.approx(np.exp(2.07 * spread), rel=0.03)


@pytest.mark.parametrize(
    ("seconds", "own", "every", "told"),
    [
        (0.3, 0.3, 2, True),
        (0.08, 0.08, 2, False),  # 3 % of three seconds is the least
        (0.1, 0.1, 2, True),
        (0.3, 0.14, 2, False),  # less than half of it is garbage
        (0.3, 0.16, 2, True),
        (0.3, 0.3, 6, False),  # one step in five must be so
        (0.3, 0.3, 4, True),
    ],
)
def test_how_much_garbage_matters(seconds: float, own: float, every: int, told: bool) -> None:
    data = clean((1.0,), dp=8)
    for turn, step in enumerate(range(0, 120, every)):
        data.x[step, 0, turn % 8] += seconds
        data.x[step, 3, turn % 8] = own
    found = findings_of(data)
    assert [f.kind for f in found] == [FindingKind.GC_JITTER] * told
    if told:
        assert found[0].evidence.numbers["share"] == pytest.approx(1 / every, abs=0.05)
        assert found[0].evidence.numbers["lost"] == pytest.approx(seconds / 3.0, rel=1e-3)


def test_garbage_of_one_rank_is_not_by_turns() -> None:
    data = clean((1.0,), dp=8)
    data.x[::2, 0, 3] += 0.3
    data.x[::2, 3, 3] += 0.3
    assert findings_of(data) == []


@pytest.mark.parametrize(
    ("worst", "ranks", "entropy", "chance"),
    [
        ([], 4, 0.0, 1.0),
        ([0, 0], 1, 0.0, 1.0),
        ([0, 1, 2, 3], 4, np.log(4), 0.8 * np.log(4)),  # Miller's correction, 3/8, would be more than a fifth
        ([0] * 10 + [1] * 10, 2, np.log(2), np.log(2) - 1 / 40),
        ([1, 1, 1, 1], 2, 0.0, np.log(2) - 1 / 8),
        ([0], 2, 0.0, np.log(2) - 1 / 2),
        ([0], 3, 0.0, 0.1),  # log 3 - 1 is less
    ],
)
def test_entropy_of_who_is_worst(worst: list[int], ranks: int, entropy: float, chance: float) -> None:
    assert _entropy_of(np.array(worst, np.intp), ranks) == pytest.approx((entropy, chance))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 4], [2, 4, 8], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2], [1, 2], 0.0),  # too few
        ([1, 2, np.nan], [1, 2, 3], 0.0),
        ([1, 2, 3], [5, 5, 5], 0.0),
        ([0, 1, -1, 2], [1, 0, 0, 2], 2.5 / np.sqrt(5.0 * 3.0)),  # about the middles 0.5 and 0.5
    ],
)
def test_correlation_about_the_middle(a: list[float], b: list[float], expected: float) -> None:
    assert _correlation(np.array(a, float), np.array(b, float)) == pytest.approx(expected)


def test_its_account_tells_when_it_knows_enough() -> None:
    data, detector = clean((1.0, 1.3)), ImbalanceDetector()
    assert detector.status().state is DetectorState.IDLE
    detector.update(data.part(0, 24))
    assert detector.status().state is DetectorState.LEARNING
    detector.update(data.part(24, 25))
    assert (detector.status().state, detector.status().numbers) == (DetectorState.ACTIVE, {"advice": 0.0})
    detector.update(data.part(25, 30))
    assert detector.status().numbers == {"advice": 1.0}
    (over,) = detector.update(replace(data.part(0, 1), entities=(), groups=(), x=data.x[:1, :, :0]))
    assert (over.kind, over.active) == (FindingKind.STAGE_IMBALANCE, False)
