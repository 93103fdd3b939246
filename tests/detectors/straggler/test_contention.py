"""The rank, or the node, whose threads wait for cores; and none where all wait alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.straggler.contention import ContentionDetector
from mainstay.probes.core_types import Severity

SIGNALS = ("run_delay_seconds", "step_time_seconds")


def job(seed: int, *, nodes: int = 4, per_node: int = 4, steps: int = 80, share: float = 0.01) -> Samples:
    rng = np.random.default_rng(seed)
    ranks = nodes * per_node
    step = 2.0 * np.exp(rng.normal(0, 0.01, (steps, 1))) * np.ones((steps, ranks))
    delay = step * share * rng.gamma(4.0, 0.25, (steps, ranks))
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // per_node}") for r in range(ranks)),
        groups=("stage 0",) * ranks,
        signals=SIGNALS,
        t=1.7e9 + 2.0 * np.arange(steps, dtype=np.float64),
        x=np.stack((delay, step), axis=1).astype(np.float32),
        steps=np.arange(steps),
    )


def crowd(data: Samples, ranks: list[int], share: float, start: int, stop: int | None = None) -> Samples:
    data.x[start:stop, 0, ranks] += share * data.x[start:stop, 1, ranks]
    return data


def example(seed: int) -> Samples:
    return crowd(job(seed), [5], 0.3, 40)


def others() -> list[Samples]:
    return [crowd(job(0), [4, 5, 6, 7], 0.3, 40, 60), job(0, nodes=1, share=0.4, steps=200)]


def findings_of(data: Samples) -> list[Finding]:
    return ContentionDetector().update(data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "within"), [(0.5, 5), (0.2, 5), (0.08, 8)])
def test_the_crowded_rank_is_named(seed: int, share: float, within: int) -> None:
    (finding,) = findings_of(crowd(job(seed), [5], share, 40))
    assert (finding.kind, finding.entity.rank, finding.entity.node) == (FindingKind.CPU_CONTENTION, 5, "node-1")
    assert (finding.time - 1.7e9) / 2.0 < 40 + within
    assert finding.evidence.numbers["excess"] == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_crowded_node_is_named_as_one(nodes: int) -> None:
    found = findings_of(crowd(job(0, nodes=nodes), [4, 5, 6, 7], 0.3, 40, 60))
    status = {f.entity.key: f for f in found if f.active}
    assert "node=node-1" in status
    withdrawn = {f.entity.key for f in found if not f.active}
    assert set(status) == withdrawn, "all ends when it ends"
    assert len([f for f in found if f.active and f.entity.rank is not None]) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_where_all_wait_alike_blames_nobody(seed: int) -> None:
    found = findings_of(job(seed, nodes=1, share=0.4, steps=200))
    assert {f.severity for f in found} <= {Severity.INFO}
    assert [f.entity for f in found] == [Entity(job="demo")]


def test_without_the_signal_it_abstains() -> None:
    data = job(0)
    silent = Samples(
        entities=data.entities, groups=data.groups, signals=(), t=data.t, x=data.x[:, :0], steps=data.steps
    )
    detector = ContentionDetector()
    assert detector.update(silent) == []
    assert detector.status().state is DetectorState.ABSTAINING


def test_one_crowded_step_is_none() -> None:
    assert findings_of(crowd(job(0), [5], 0.9, 40, 42)) == []


def even(*, nodes: int = 2, per_node: int = 4, steps: int = 100, share: float = 0.0) -> Samples:
    """Without any noise, so that a deviation is the floor of one per cent; steps take two seconds."""
    data = job(0, nodes=nodes, per_node=per_node, steps=steps)
    data.x[:, 0], data.x[:, 1] = 2.0 * share, 2.0
    return data


def changes_of(data: Samples) -> list[tuple[str, int, bool]]:
    """Who, at which step, whether it begins."""
    return [
        (f"rank {f.entity.rank}" if f.entity.rank is not None else f.entity.node or "job",
         round((f.time - 1.7e9) / 2), f.active)
        for f in findings_of(data)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "start", "stop", "expected"),
    [
        (0.051, 40, 60, [("rank 5", 43, True), ("rank 5", 70, False)]),  # 4 at most a step, less 1; 13 to 2 at the end
        (0.051, 40, 43, []),  # three steps make nine of ten
        (0.049, 40, 60, []),  # not worth a word
        (0.9, 40, 44, [("rank 5", 43, True), ("rank 5", 53, False)]),  # from 12 to 2
        (
            0.3,
            0,
            30,
            [("rank 5", 10, True), ("rank 5", 40, False)],
        ),  # five are skipped, three of eight ranks show noise
    ],
)
def test_when_a_rank_is_named(share: float, start: int, stop: int, expected: list[tuple[str, int, bool]]) -> None:
    assert changes_of(crowd(even(), [5], share, start, stop)) == expected


def test_what_is_said_of_a_rank() -> None:
    (finding,) = findings_of(crowd(even(share=0.1), [5], 0.3, 40))
    assert finding.evidence.summary == (
        "Rank 5 on node-1 waits for a core in 40% of the step, 30% more than others: something else runs on its cores."
    )
    assert finding.evidence.numbers == pytest.approx({"share": 0.4, "excess": 0.3, "score": 12.0, "since_step": 40.0})
    assert (finding.confidence, finding.severity) == (0.95, Severity.WARNING)


@pytest.mark.parametrize(
    ("per_node", "crowded", "named"),
    [
        (2, [2, 3], ["node-1"]),
        (4, [4, 5], ["node-1"]),  # half of its ranks
        (5, [5, 6], ["rank 5", "rank 6"]),
        (1, [1], ["rank 1"]),  # at least two
    ],
)
def test_a_node_is_named_where_half_of_its_ranks_and_two_suffer(
    per_node: int, crowded: list[int], named: list[str]
) -> None:
    found = changes_of(crowd(even(nodes=4, per_node=per_node), crowded, 0.3, 40, 60))
    assert found == [(who, 43, True) for who in named] + [(who, 70, False) for who in named]


def test_what_is_said_of_a_node() -> None:
    data = crowd(crowd(even(nodes=4), [4, 5], 0.3, 40), [6], 0.5, 40)
    (finding,) = findings_of(data)
    assert finding.evidence.summary == (
        "3 of 4 ranks on node-1 wait for a core in 30% of the step, more than ranks of other nodes: "
        "something else runs there."
    )
    assert finding.evidence.numbers == pytest.approx({"share": 0.3, "ranks": 3.0})
    assert finding.confidence == 0.95


def test_ranks_that_suffer_first_are_taken_back_when_their_node_is_named() -> None:
    data = crowd(crowd(even(), [5], 0.3, 40, 80), [6], 0.3, 50, 60)
    assert changes_of(data) == [
        ("rank 5", 43, True), ("node-1", 53, True), ("rank 5", 53, False), ("node-1", 90, False),
    ]  # fmt: skip


@pytest.mark.parametrize(("level", "told_at"), [(0.151, [(12, True), (57, False)]), (0.149, [])])
def test_a_job_whose_ranks_all_wait_is_told_after_eight_steps(level: float, told_at: list[tuple[int, bool]]) -> None:
    """Five are skipped; it is taken back after eight below."""
    data = even()
    data.x[:50, 0] = 2.0 * level
    assert changes_of(data) == [("job", step, active) for step, active in told_at]


def test_what_is_said_of_a_job_and_that_it_ends_with_it() -> None:
    detector = ContentionDetector()
    data = even(share=0.4, steps=20)
    (finding,) = detector.update(data)
    assert finding.evidence.summary == (
        "All ranks alike wait for a core in 40% of the step: more busy threads than cores."
    )
    assert finding.evidence.numbers == pytest.approx({"share": 0.4})
    (over,) = detector.update(replace(data, entities=(), groups=(), x=data.x[:, :, :0]))
    assert (over.entity, over.active, over.severity) == (Entity(job="demo"), False, Severity.INFO)
    assert detector.status().state is DetectorState.IDLE


@pytest.mark.parametrize(("missing", "named"), [(9, True), (10, False)])
def test_an_unfinished_suspicion_is_dropped_after_ten_steps_without_a_sample(missing: int, named: bool) -> None:
    data = crowd(even(), [5], 0.3, 40, 43)
    data.x[43 : 43 + missing, :, 5] = np.nan
    crowd(data, [5], 0.3, 43 + missing, 44 + missing)
    assert bool(changes_of(data)) is named


def test_its_account_tells_when_it_knows_the_noise() -> None:
    data, detector = even(nodes=1), ContentionDetector()
    detector.update(data.part(0, 5))
    assert detector.status().state is DetectorState.LEARNING
    detector.update(data.part(5, 10))
    assert detector.status().state is DetectorState.LEARNING, "24 rank-steps: six of four ranks"
    detector.update(data.part(10, 11))
    assert (detector.status().state, detector.status().numbers) == (DetectorState.ACTIVE, {"noise": 0.01})
