"""Where most ranks of a node are slow together, the node is named once, and no advice about sequences is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.straggler.detector import StragglerDetector
from mainstay.detectors.straggler.imbalance import ImbalanceDetector
from mainstay.detectors.straggler.slow_nodes import common_nodes

ONSET = 60


def job(
    slow: list[int], *, ranks: int = 32, per_node: int = 8, steps: int = 110, tokens: float | None = 0.0
) -> Samples:
    """One role; the slow ranks lose a fifth to a quarter, each step another part, and go back at step 90.

    ``tokens``: spread of the reported work from which all times follow; None: the same, and no rank reports it.
    """
    rng = np.random.default_rng(7)
    work = np.exp((0.1 if tokens is None else tokens) * rng.standard_normal((steps, ranks)))
    own = 2.0 * work * np.exp(0.005 * rng.standard_normal((steps, ranks)))
    own[ONSET:90, slow] *= rng.uniform(1.2, 1.3, (30, len(slow)))
    told = {"forward_seconds": own / 3, "backward_seconds": own * 2 / 3}
    told |= {} if tokens is None else {"tokens": 8192 * work, "sequence_squares": work**2}
    return Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // per_node}") for r in range(ranks)),
        groups=("",) * ranks,
        signals=tuple(told),
        t=np.arange(float(steps)),
        x=np.stack([*told.values()], axis=1),
        steps=np.arange(steps),
    )


def held(found: list[Finding]) -> list[Entity]:
    """What findings are about that hold in the end."""
    active: dict[str, Entity] = {}
    for finding in found:
        active.pop(finding.key, None)
        if finding.active:
            active[finding.key] = finding.entity
    return list(active.values())


@pytest.mark.parametrize("slow", [list(range(8, 16)), [8, 9, 12, 15]])
def test_a_node_of_which_half_is_slow_is_one_finding(slow: list[int]) -> None:
    data, node = job(slow), Entity(job="demo", node="node-1")
    detector = StragglerDetector()
    found = detector.update(data.part(0, 85))
    assert held(found) == [node]
    (said,) = [f for f in found if f.entity == node]
    assert said.evidence.summary.startswith(f"{len(slow)} of 8 ranks on node-1 (8, 9, ")
    assert {f"ratio of rank {rank}" for rank in slow} <= said.evidence.numbers.keys()
    assert said.evidence.numbers["ratio"] == pytest.approx(1.25, abs=0.05)
    assert held([*found, *detector.update(data.part(85, 110))]) == []


def test_fewer_ranks_are_named_one_by_one() -> None:
    assert held(StragglerDetector().update(job([8, 9, 12]).part(0, 85))) == [
        Entity(job="demo", rank=rank, node="node-1") for rank in (8, 9, 12)
    ]


def test_the_ranks_of_a_job_on_one_node_are_named_one_by_one() -> None:
    found = StragglerDetector().update(job([2, 3], ranks=32, per_node=32).part(0, 85))
    assert sorted(entity.rank or 0 for entity in held(found)) == [2, 3]


def test_a_named_node_that_leaves_is_no_longer_slow() -> None:
    data, detector = job(list(range(8, 16))), StragglerDetector()
    found = detector.update(data.part(0, 85))
    stay = [row for row in range(32) if not 8 <= row < 16]
    entities = tuple(data.entities[row] for row in stay)
    rest = replace(data.part(85, 90), entities=entities, groups=("",) * len(stay), x=data.x[85:90][:, :, stay])
    assert held([*found, *detector.update(rest)]) == []


def test_nodes_named_before_stay_while_any_rank_is_hit() -> None:
    entities = [Entity(job="demo", rank=r, node=f"node-{r // 4}" if r < 8 else None) for r in range(12)]
    nodes, hit = np.repeat([0, 1, 2], 4), np.isin(np.arange(12), [0, 1, 4, 8, 9])
    assert {node: rows.tolist() for node, rows in common_nodes(hit, entities, nodes, []).items()} == {
        "node-0": [0, 1, 2, 3]
    }
    assert common_nodes(hit, entities, nodes, ["node-1"]).keys() == {"node-0", "node-1"}


@pytest.mark.parametrize("half", [8, 16])
@pytest.mark.parametrize("told", [True, False], ids=["work reported", "not reported"])
def test_throttled_ranks_are_no_uneven_sequences(half: int, told: bool) -> None:
    data = job(list(range(half)))
    if not told:
        data = replace(data, signals=data.signals[:2], x=data.x[:, :2])
    assert ImbalanceDetector().update(data) == []


@pytest.mark.parametrize("tokens", [0.1, None], ids=["work reported", "not reported"])
def test_uneven_sequences_still_are(tokens: float | None) -> None:
    found = ImbalanceDetector().update(job([], tokens=tokens))
    assert [f.kind for f in found] == [FindingKind.SEQUENCE_IMBALANCE]


def two_nodes(excess: float, *, fast_tokens: float = 1.0, tell: bool = True) -> list[Finding]:
    """Findings about 16 ranks of one role on two nodes, of which the second is slower from the first step."""
    rng = np.random.default_rng(3)
    card = np.exp(0.003 * rng.standard_normal(16))
    own = 2.0 * card * np.exp(0.005 * rng.standard_normal((80, 16)))
    own[:, 8:] *= 1.0 + excess
    tokens = np.full((80, 16), 8192.0)
    tokens[:, :8] *= fast_tokens
    told = {"forward_seconds": own / 3, "backward_seconds": own * 2 / 3}
    told |= {"tokens": tokens, "sequence_squares": tokens**2} if tell else {}
    data = Samples(
        entities=tuple(Entity(job="demo", rank=r, node=f"node-{r // 8}") for r in range(16)),
        groups=("",) * 16, signals=tuple(told), t=np.arange(80.0), x=np.stack([*told.values()], axis=1),
        steps=np.arange(80),
    )  # fmt: skip
    return StragglerDetector().update(data)


def test_of_two_nodes_the_one_that_is_slow_from_the_start_is_named_without_certainty() -> None:
    found = two_nodes(0.06)
    assert held(found) == [Entity(job="demo", node="node-1")]
    assert {finding.confidence for finding in found if finding.active} == {0.8}


@pytest.mark.parametrize(
    ("excess", "told"),
    [
        (0.04, {}),  # as healthy nodes differ
        (0.06, {"fast_tokens": 0.95}),  # it has more work
        (0.06, {"tell": False}),  # no rank reports its work
    ],
)
def test_a_node_that_may_be_healthy_is_not_named(excess: float, told: dict[str, Any]) -> None:
    assert not two_nodes(excess, **told)


def test_a_fast_node_of_two_that_becomes_as_slow_as_healthy_ones_differ_is_no_suspect() -> None:
    assert not two_nodes(-0.04)
