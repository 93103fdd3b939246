"""Which part of the fabric explains a set of slow pairs, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.finding import Cause, Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.network.fabric import (
    ENOUGH,
    GAIN,
    LOSS,
    MOST_FAULTS,
    ComponentKind,
    Fabric,
    FaultHypothesis,
    _evidence,
    _route,
    same_placement,
)
from mainstay.detectors.network.transfer_delay_messages import about, finding_of

RANKS = 24
FLAT = regular("job", dp=RANKS, ranks_per_node=4, leaf_nodes=2)
MESH = replace(FLAT, switches=tuple((*above, "spine") for above in FLAT.switches))
"""Four ranks a node, two nodes a leaf, one spine above the three leaves."""
PAIRS = np.array([(x, y) for x in range(RANKS) for y in range(RANKS) if x != y])
a, b = PAIRS.T
LOCAL = a // 4 == b // 4
K = ComponentKind
NIC, JAM = FindingKind.NIC_DEGRADED, FindingKind.CONGESTION


def explained(hot: np.ndarray, fabric: Fabric, by: float = 2.0) -> list[FaultHypothesis]:
    effect = np.where(hot, np.log(by), 0.0)
    return fabric.explain(effect, np.full(len(effect), 0.03), hot)


def finding_for(story: FaultHypothesis, fabric: Fabric) -> Finding:
    drawn = (np.array([1.0, 2.0, np.nan]), np.array([0.1, np.nan, 0.2]), np.full(3, 0.05))
    return finding_of(story, fabric, Entity(job="job", rank=0, peer=1), 5.0, drawn)


@pytest.mark.parametrize(
    ("hot", "part", "finding", "words"),
    [
        ((a == 5) & (b == 9), (K.LINK, (5, 9)), (JAM, Entity(rank=5, peer=9), Cause.NETWORK),
         "Transfers from rank 5 to rank 9 take 2 times as long as they should, and both do well with their other"),
        (((a == 5) & (b == 9)) | ((a == 9) & (b == 5)), (K.CABLE, (5, 9)), (JAM, Entity(rank=5, peer=9), Cause.NETWORK),
         "Transfers between ranks 5 and 9 take 2 times as long as they should, and both do well"),
        ((a == 5) & ~LOCAL, (K.SENDER, (5,)), (NIC, Entity(rank=5, node="node-1"), Cause.NIC),
         "Every transfer that rank 5 on node-1 sends takes 2 times as long as they should (20 pairs of ranks)"),
        ((b == 5) & ~LOCAL, (K.RECEIVER, (5,)), (NIC, Entity(rank=5, node="node-1"), Cause.NIC),
         "Every transfer that rank 5 on node-1 receives takes"),
        (((a == 5) | (b == 5)) & ~LOCAL, (K.PORT, (5,)), (NIC, Entity(rank=5, node="node-1"), Cause.NIC),
         "Every transfer that rank 5 on node-1 sends and receives takes 2 times as long as they should (40"),
        ((a // 4 == 1) & ~LOCAL, (K.NODE_SENDER, "node-1"), (NIC, Entity(node="node-1"), Cause.NIC),
         "Every transfer that node-1 sends takes 2 times as long as they should (80 pairs of ranks): its network"),
        ((b // 4 == 1) & ~LOCAL, (K.NODE_RECEIVER, "node-1"), (NIC, Entity(node="node-1"), Cause.NIC),
         "Every transfer that node-1 receives takes"),
        (((a // 4 == 1) | (b // 4 == 1)) & ~LOCAL, (K.NODE, "node-1"), (NIC, Entity(node="node-1"), Cause.NIC),
         "Every transfer that node-1 sends and receives takes"),
        ((a // 8 == 1) & (b // 8 != 1), (K.UPLINK, "leaf-1"), (JAM, Entity(device="leaf-1"), Cause.NETWORK),
         "Transfers that leave upwards through leaf-1 take 2 times as long as they should (128 pairs of"),
        ((a // 8 != 1) & (b // 8 == 1), (K.DOWNLINK, "leaf-1"), (JAM, Entity(device="leaf-1"), Cause.NETWORK),
         "Transfers that come down through leaf-1 take"),
        ((a // 8 == 1) ^ (b // 8 == 1), (K.CROSSING, "leaf-1"), (JAM, Entity(device="leaf-1"), Cause.NETWORK),
         "Transfers that cross the uplinks of leaf-1 take"),
        (((a // 8 == 1) | (b // 8 == 1)) & ~LOCAL, (K.SWITCH, "leaf-1"), (JAM, Entity(device="leaf-1"), Cause.NETWORK),
         "Transfers that pass leaf-1 take"),
        (a // 8 != b // 8, (K.SWITCH, "spine"), (JAM, Entity(device="spine"), Cause.NETWORK),
         "Transfers that pass spine"),
        ((a == 5) & LOCAL, (K.LOCAL_SENDER, (5,)), (JAM, Entity(rank=5, node="node-1"), Cause.GPU_LINK),
         "Every transfer that rank 5 on node-1 sends within its node takes 2 times as long as they"),
        ((b == 5) & LOCAL, (K.LOCAL_RECEIVER, (5,)), (JAM, Entity(rank=5, node="node-1"), Cause.GPU_LINK),
         "Every transfer that rank 5 on node-1 receives within its node takes"),
        (((a == 5) | (b == 5)) & LOCAL, (K.LOCAL, (5,)), (JAM, Entity(rank=5, node="node-1"), Cause.GPU_LINK),
         "Every transfer that rank 5 on node-1 sends and receives within its node takes"),
        ((a // 4 == 1) & LOCAL, (K.WITHIN, "node-1"), (JAM, Entity(node="node-1"), Cause.GPU_LINK),
         "Transfers within node-1 take 2 times as long as they should (12 pairs of ranks)."),
        ((a == 5) & (b == 6), (K.LINK, (5, 6)), (JAM, Entity(rank=5, peer=6), Cause.NETWORK),
         "Transfers from rank 5 to rank 6 take 2 times as long as they should: the way between them within their"),
    ],
)  # fmt: skip
def test_the_part_that_all_slow_pairs_pass_is_named(
    hot: np.ndarray,
    part: tuple[ComponentKind, tuple[int, ...] | str],
    finding: tuple[FindingKind, Entity, Cause],
    words: str,
) -> None:
    fabric = Fabric(PAIRS, MESH)
    (story,) = explained(hot, fabric)
    assert ((story.part, story.name), story.rivals, story.also) == (part, (), ())
    assert story.effect == pytest.approx(np.log(2.0))
    assert sorted(story.cells.tolist()) == np.flatnonzero(hot).tolist()
    found, (kind, entity, cause) = finding_for(story, fabric), finding
    assert (found.kind, found.entity, found.cause) == (kind, replace(entity, job="job"), cause)
    assert found.evidence.summary.startswith(words)
    assert (found.confidence, found.time) == (0.9, 5.0)
    assert found.evidence.numbers == pytest.approx({"ratio": 2.0, "pairs": hot.sum(), "evidence_nats": story.score})
    assert about(story, fabric) == f"{kind}:{replace(entity, job=None).key}"
    (series,) = found.evidence.series
    assert (series.x, series.y, series.peers) == ((1.0,), (0.1,), (0.05,))


def test_kinds_of_parts_are_apart() -> None:
    assert len(ComponentKind) == len({int(kind) for kind in ComponentKind}) == 16


def test_what_a_link_must_pay_for_the_others() -> None:
    (story,) = explained((a == 5) & (b == 9), Fabric(PAIRS, MESH))
    assert story.score == pytest.approx(GAIN - np.log(len(PAIRS)))  # every pair is a link that might have been it
    fabric = Fabric(PAIRS, None)
    assert not explained((a == 5) & (b == 9), fabric, by=1.1)  # 0.095 is three errors: no 10 nats
    assert story.score >= ENOUGH


def test_two_faults_give_two_hypotheses_the_stronger_first() -> None:
    hot = ((a == 5) & ~LOCAL) | ((a == 20) & (b == 9))
    hypotheses = explained(hot, Fabric(PAIRS, MESH))
    assert [(s.part, s.name) for s in hypotheses] == [(K.SENDER, (5,)), (K.LINK, (20, 9))]
    links = np.zeros(len(PAIRS), np.bool_)
    for rank in range(MOST_FAULTS + 2):  # each another sender and another receiver
        links |= (a == rank) & (b == rank + 12)
    assert len(explained(links, Fabric(PAIRS, MESH))) == MOST_FAULTS


def test_what_was_not_heard_of_is_no_evidence() -> None:
    fabric, hot = Fabric(PAIRS, MESH), (a == 5) & ~LOCAL
    effect = np.where(hot, np.log(2.0), 0.0)
    effect[hot & (b > 10)] = np.nan
    (story,) = fabric.explain(effect, np.full(len(effect), 0.03), hot)
    assert (story.part, len(story.cells)) == (K.SENDER, np.count_nonzero(hot & (b <= 10)))
    assert fabric.explain(np.full(len(effect), np.nan), np.full(len(effect), 0.03), hot) == []


def test_what_owns_the_same_pairs_cannot_be_told_apart() -> None:
    ring = np.array([(0, 4), (4, 8), (8, 12), (12, 0)])
    fabric = Fabric(ring, replace(FLAT, switches=()))
    (story,) = explained(np.array([True, False, False, False]), fabric)
    assert (story.part, story.rivals) == (K.LINK, (K.CABLE, K.SENDER, K.RECEIVER, K.NODE_SENDER, K.NODE_RECEIVER))
    found = finding_for(story, fabric)
    assert found.evidence.numbers["sender_possible"] == found.evidence.numbers["receiver_possible"] == 1.0
    assert "the link between them, or the port of rank 0 or the port of rank 4" in found.evidence.summary
    assert found.confidence == 0.6
    chain = replace(FLAT, switches=tuple((f"leaf-{r // 8}", f"middle-{r // 8}", "top") for r in range(RANKS)))
    fabric = Fabric(PAIRS, chain)
    (story,) = explained((a // 8 == 1) & (b // 8 != 1), fabric)
    assert (story.part, story.name, story.also) == (K.UPLINK, "leaf-1", ("middle-1",))
    assert "It may as well be middle-1: the same pairs." in finding_for(story, fabric).evidence.summary
    assert finding_for(story, fabric).confidence == 0.6


@pytest.mark.parametrize(
    ("effect", "error", "shift", "nats"),
    [
        (0.5, 0.1, 0.5, 12.5 - np.log(2) / 2),  # the width is 0.1 each of error and unevenness
        (0.25, 0.1, 0.5, 3.125 - 0.0625 / 0.04 - np.log(2) / 2),
        (0.0, 0.1, 0.5, LOSS),  # -6.6 is more than one healthy pair may say
        (5.0, 0.1, 5.0, 20.0),
        (0.1, 0.1, 0.0, 0.0),
    ],
)
def test_what_one_pair_says(effect: float, error: float, shift: float, nats: float) -> None:
    found = _evidence(*(np.array([value]) for value in (effect, error, shift)), 20.0)
    assert found[0] == pytest.approx(nats)
    assert pytest.approx(-4.605, abs=1e-3) == LOSS


@pytest.mark.parametrize(
    ("source", "target", "route"),
    [
        (0, 4, ((), (), ("leaf-0",))),
        (0, 8, (("leaf-0",), ("leaf-1",), ("spine",))),
        (-1, 8, ((), (), ())),
        (0, -1, ((), (), ())),
    ],
)
def test_the_way_through_the_switches(source: int, target: int, route: tuple[tuple[str, ...], ...]) -> None:
    assert _route(MESH, source, target, apart=True) == route
    assert _route(MESH, source, target, apart=False) == ((), (), ())
    assert _route(None, source, target, apart=True) == ((), (), ())
    assert _route(replace(MESH, switches=()), source, target, apart=True) == ((), (), ())


def test_without_a_common_switch_both_ways_are_known_and_no_turn() -> None:
    islands = replace(FLAT, switches=FLAT.switches)
    assert _route(islands, 0, 8, apart=True) == (("leaf-0",), ("leaf-1",), ())
    fabric = Fabric(np.array([(0, 1), (0, 4), (0, 8), (0, 99)]), MESH)
    assert fabric.hops.tolist() == [0, 0, 2, 0]
    assert fabric.local.tolist() == [True, False, False, False]
    assert fabric.nodes[3] == (None, None)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda mesh: mesh, True),
        (lambda mesh: replace(mesh, job="other"), True),
        (lambda mesh: replace(mesh, nodes=("node-9", *mesh.nodes[1:])), False),
        (lambda mesh: replace(mesh, switches=()), False),
        (lambda mesh: replace(mesh, ranks=mesh.ranks + 1), False),
        (lambda mesh: None, False),
    ],
)
def test_whether_two_meshes_place_ranks_alike(change: Callable[..., object], same: bool) -> None:
    assert same_placement(MESH, change(MESH)) is same
    assert same_placement(None, None)
    assert not same_placement(None, MESH)
