"""The rank, or the node, whose threads wait for cores; and none where all wait alike."""

from __future__ import annotations

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
