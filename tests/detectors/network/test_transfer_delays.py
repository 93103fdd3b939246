"""The slow path and its end: sender, receiver, link, switch, all; and none where nothing is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.lib_comm import START, Network, network, simulate, slow, spoil
from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import regular
from mainstay.detectors.network.transfer_delay_config import DelaysConfig
from mainstay.detectors.network.transfer_delay_limits import DelayThresholds
from mainstay.detectors.network.transfer_delay_noise import calibrate
from mainstay.detectors.network.transfer_delay_pools import LinkPools
from mainstay.detectors.network.transfer_delays import TransferDelayDetector

ONSET = 40


def all_to_all(seed: int, *, steps: int = 70) -> tuple[Network, Samples]:
    """Eight ranks on four nodes, everybody to everybody."""
    mesh = regular("job", dp=8, ranks_per_node=2, leaf_nodes=2)
    pairs = np.array([(a, b) for a in range(8) for b in range(8) if a != b])
    net = Network(mesh=mesh, pairs=pairs, size=np.full(len(pairs), 8e6))
    return net, simulate(net, steps, seed)


def cell(net: Network, source: int, target: int) -> np.ndarray:
    return (net.pairs == (source, target)).all(axis=1)


def example(seed: int) -> Samples:
    net, data = all_to_all(seed)
    return slow(data, cell(net, 1, 4), 2.0, ONSET)


def others() -> list[Samples]:
    """A sender, a pair of a ring, a switch, a node, and a link that is good again."""
    net, data = all_to_all(0)
    ring, piped, layered = network("rings", 64), network("pipeline", 128), network("hierarchical", 128)
    ends, nodes = piped.under("leaf-2"), np.array(layered.mesh.nodes)[layered.pairs]
    passing = all_to_all(1)[1]
    passing.x[ONSET : ONSET + 12] = slow(all_to_all(1)[1], cell(net, 1, 4), 2.0, ONSET).x[ONSET : ONSET + 12]
    return [
        slow(data, ~net.local & (net.pairs[:, 0] == 5), 2.0, ONSET),
        slow(simulate(ring, 60, 3), cell(ring, 8, 16), 2.0, ONSET),
        slow(simulate(piped, 60, 1), ~piped.local & (ends[:, 0] != ends[:, 1]), 2.0, ONSET),
        slow(simulate(layered, 60, 2), ~layered.local & (nodes[:, 0] == "node-3"), 2.0, ONSET),
        passing,
    ]


def findings_of(data: Samples) -> list[Finding]:
    return TransferDelayDetector().update(data)


def delay(finding: Finding) -> int:
    """Slow steps taken in until the finding."""
    return round((finding.time - START) / 5.0) - ONSET + 1


@pytest.mark.parametrize("seed", range(6))
def test_one_hot_cell_is_the_link(seed: int) -> None:
    found = findings_of(example(seed))
    assert [(f.kind, f.entity) for f in found] == [(FindingKind.CONGESTION, Entity(job="job", rank=1, peer=4))]
    assert 3 <= delay(found[0]) <= 8
    assert not found[0].recommended_action.evicts
    assert found[0].evidence.numbers["ratio"] == pytest.approx(2.0, rel=0.2)
    assert "both do well with their other peers" in found[0].evidence.summary


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("side", "word"), [(0, "sends takes"), (1, "receives takes"), (None, "sends and receives")])
def test_a_row_is_the_sender_and_a_column_the_receiver(seed: int, side: int | None, word: str) -> None:
    net, data = all_to_all(seed)
    hot = ~net.local & ((net.pairs == 5).any(axis=1) if side is None else net.pairs[:, side] == 5)
    found = findings_of(spoil(slow(data, hot, 2.0, ONSET), seed))
    assert (found[0].kind, found[0].entity.rank, found[0].entity.node) == (FindingKind.NIC_DEGRADED, 5, "node-2")
    assert word in found[0].evidence.summary
    assert delay(found[0]) <= 5


def test_in_a_ring_sender_and_receiver_are_not_told_apart() -> None:
    net = network("rings", 64)
    found = findings_of(slow(simulate(net, 60, 3), cell(net, 8, 16), 2.0, ONSET))
    assert [f.entity for f in found] == [Entity(job="job", rank=8, peer=16)]
    assert found[0].evidence.numbers["sender_possible"] == found[0].evidence.numbers["receiver_possible"] == 1.0
    assert found[0].confidence < 0.7
    assert "the port of rank 8 or the port of rank 16" in found[0].evidence.summary


@pytest.mark.parametrize("pattern", ["pipeline", "hierarchical"])
def test_cells_that_share_a_switch_name_it(pattern: str) -> None:
    net = network(pattern, 128)
    ends = net.under("leaf-2")
    found = findings_of(slow(simulate(net, 60, 1), ~net.local & (ends[:, 0] != ends[:, 1]), 2.0, ONSET))
    assert (found[0].kind, found[0].entity) == (FindingKind.CONGESTION, Entity(job="job", device="leaf-2"))


def test_a_whole_node_is_one_finding() -> None:
    net = network("hierarchical", 128)
    nodes = np.array(net.mesh.nodes)[net.pairs]
    found = findings_of(slow(simulate(net, 60, 2), ~net.local & (nodes[:, 0] == "node-3"), 2.0, ONSET))
    assert [(f.kind, f.entity) for f in found] == [(FindingKind.NIC_DEGRADED, Entity(job="job", node="node-3"))]


def test_when_all_are_slow_no_rank_is_blamed() -> None:
    net = network("pipeline", 64)
    found = findings_of(slow(simulate(net, 80, 2), ~net.local, 1.6, ONSET))
    assert [(f.kind, f.entity) for f in found] == [(FindingKind.CONGESTION, Entity(job="job"))]


def test_two_faults_at_once_are_two_findings() -> None:
    net, data = all_to_all(1)
    hot = cell(net, 1, 4) | (~net.local & (net.pairs[:, 0] == 6))
    named = {(f.kind, f.entity.rank, f.entity.peer) for f in findings_of(slow(data, hot, 2.5, ONSET)) if f.active}
    assert named == {(FindingKind.NIC_DEGRADED, 6, None), (FindingKind.CONGESTION, 1, 4)}


@pytest.mark.parametrize("seed", range(4))
def test_healthy_networks_are_left_alone(seed: int) -> None:
    net = network(["rings", "pipeline", "all_to_all", "hierarchical"][seed], 64)
    assert findings_of(spoil(simulate(net, 150, seed), seed)) == []


def test_one_spike_of_a_whole_row_alarms_nobody() -> None:
    net, data = all_to_all(2)
    x = data.x.copy()
    x[ONSET : ONSET + 2, 0, net.pairs[:, 0] == 3] *= 50.0
    assert findings_of(replace(data, x=x)) == []


def test_it_ends_when_transfers_are_as_they_were() -> None:
    net, data = all_to_all(3)
    x = data.x.copy()
    x[ONSET:55, 0, cell(net, 1, 4)] *= 2.0
    found = findings_of(replace(data, x=x))
    assert [f.active for f in found] == [True, False]
    assert 55 <= (found[1].time - START) / 5.0 <= 61


def test_larger_messages_are_not_slower_links() -> None:
    net, data = all_to_all(4)
    growth = np.exp(np.random.default_rng(0).normal(0.0, 0.5, (len(data.t), 1, data.x.shape[2])))
    assert findings_of(replace(data, x=(data.x * growth).astype(np.float32))) == []
    x = data.x.copy()
    x[ONSET:, :, cell(net, 1, 4)] *= 4.0  # from one step on, of one pair
    assert findings_of(replace(data, x=x)) == []


def test_without_a_mesh_ranks_are_still_named() -> None:
    net, data = all_to_all(5)
    found = findings_of(replace(slow(data, net.pairs[:, 0] == 5, 2.0, ONSET), mesh=None))
    assert [(f.kind, f.entity.rank, f.entity.node) for f in found] == [(FindingKind.NIC_DEGRADED, 5, None)]


def test_a_pair_slow_from_the_start_is_found_among_its_kind() -> None:
    net = network("hierarchical", 128)
    hot = ~net.local & (net.pairs[:, 0] == 9)
    found = findings_of(slow(simulate(net, 60, 5), hot, 2.0, 0))
    assert [(f.kind, f.entity.rank) for f in found] == [(FindingKind.NIC_DEGRADED, 9)]


def test_a_rank_that_moved_to_another_node_is_learned_anew() -> None:
    net, data = all_to_all(6, steps=80)
    moved = replace(net.mesh, nodes=("node-9", *net.mesh.nodes[1:]))
    slower = slow(data, (net.pairs == 0).any(axis=1), 1.4, ONSET)
    detector = TransferDelayDetector()
    assert detector.update(slower.part(0, ONSET)) == []
    assert detector.update(replace(slower.part(ONSET, 80), mesh=moved)) == []


def test_it_says_whether_it_judges() -> None:
    _, data = all_to_all(7)
    detector = TransferDelayDetector()
    assert detector.status().state is DetectorState.IDLE
    detector.update(data.part(0, 10))
    assert detector.status().state is DetectorState.LEARNING
    detector.update(data.part(10, 40))
    assert detector.status().state is DetectorState.ACTIVE
    wild = np.exp(np.random.default_rng(1).normal(0.0, 2.0, (70, 1, data.x.shape[2])))
    detector.reset()
    x = data.x.copy()
    x[:, :1] *= wild
    detector.update(replace(data, x=x))
    assert detector.status().state is DetectorState.ABSTAINING


def test_a_link_of_a_large_job_is_named_although_it_has_many_others_beside_it() -> None:
    net = network("hierarchical", 2048)
    link = int(np.flatnonzero(~net.local)[100])
    hot = np.arange(len(net.pairs)) == link
    found = findings_of(slow(simulate(net, 47, 3), hot, 2.0, ONSET))
    assert [(f.entity.rank, f.entity.peer) for f in found] == [tuple(net.pairs[link].tolist())]


def test_quiet_pairs_are_judged_beside_loud_ones() -> None:
    net, data = all_to_all(8)
    x = data.x.copy()
    loud = net.pairs[:, 0] >= 3
    wild = np.exp(np.random.default_rng(2).normal(0.0, 2.0, (len(data.t), int(loud.sum()))))
    x[:, 0, loud] *= wild
    detector = TransferDelayDetector()
    found = detector.update(slow(replace(data, x=x), cell(net, 1, 4), 2.0, ONSET))
    assert [(f.entity.rank, f.entity.peer) for f in found] == [(1, 4)]
    account = detector.status()
    assert account.state is DetectorState.ACTIVE
    assert account.numbers["pairs_too_loud"] == np.count_nonzero(loud)
    assert "too much from step to step" in account.reason


def test_limits_follow_the_tails_of_the_noise() -> None:
    rng = np.random.default_rng(0)
    light = rng.normal(0.0, 0.05, 20_000)
    heavy = np.where(rng.random(20_000) < 0.02, rng.exponential(1.0, 20_000), light)
    keys = {"shift": np.log(2.0), "least": np.log(1.2), "clip": 4.0, "rare": 1e9, "floor": 0.03}
    assert calibrate(light, **keys).steps < 4.0 < calibrate(heavy, **keys).steps < 12.0
    assert calibrate(rng.normal(0.0, 2.0, 2_000), **keys).steps == np.inf


def test_false_alarms_come_as_rarely_as_asked() -> None:
    """A tenth of the wanted rarity is simulated: the CUSUM at its limit, on fresh samples of the same noise."""
    rng = np.random.default_rng(1)
    noise = rng.standard_t(4, 10_000) * 0.1
    limit = calibrate(noise, shift=np.log(2.0), least=np.log(1.2), clip=4.0, rare=1e4, floor=0.03)
    score, alarms = np.zeros(200), 0
    for _ in range(1_000):  # 200,000 samples
        z = np.clip(rng.standard_t(4, 200) * 0.1 / limit.sigma, -4, 4)
        score = np.maximum(0.0, score + z - limit.k)
        alarms += int(np.count_nonzero(score >= limit.h))
        score[score >= limit.h] = 0.0
    assert alarms <= 20


def test_a_pair_slow_from_the_start_is_not_judged_where_ways_may_differ_in_length() -> None:
    """Without switches a longer way looks like a slow one."""
    net = network("hierarchical", 128)
    data = slow(simulate(net, 60, 5), ~net.local & (net.pairs[:, 0] == 9), 2.0, 0)
    assert findings_of(replace(data, mesh=replace(net.mesh, switches=()))) == []
    assert findings_of(replace(data, mesh=None)) == []


def test_a_transfer_without_a_known_peer_is_not_one_with_rank_zero() -> None:
    data = Samples(
        entities=(Entity(job="job", rank=1, peer=0), Entity(job="job", rank=1), Entity(job="job", rank=0, peer=1)),
        groups=("",) * 3,
        signals=TransferDelayDetector.signals,
        t=np.array([START]),
        x=np.ones((1, 2, 3)),
        steps=np.array([0]),
    )
    detector = TransferDelayDetector()
    assert detector.update(data) == []
    assert detector._ends.tolist() == [[1, 0], [1, -1], [0, 1]]
    assert detector._order.tolist() == [2, 1, 0]


def limits(memory: np.ndarray, kind: np.ndarray | None = None, calm: np.ndarray | None = None) -> DelayThresholds:
    pairs = memory.shape[1]
    found = DelayThresholds(pairs, DelaysConfig())
    assert not found.is_known
    found.measure(
        memory, np.zeros(pairs, np.intp) if kind is None else kind, np.ones(pairs, np.bool_) if calm is None else calm
    )
    return found


def test_pairs_at_one_slow_level_last() -> None:
    memory = np.random.default_rng(0).normal(0.0, 0.05, (32, 60))
    known = limits(memory, np.repeat([0, 1], 30))
    now = memory.copy()
    now[-3:, [4, 40]] = np.log(3.0)
    slow_for = np.zeros(60, np.int64)
    slow_for[[4, 40]] = 3
    assert np.flatnonzero(known.lasting(now, slow_for)).tolist() == [4, 40]
    slow_for[40] = 2
    assert np.flatnonzero(known.lasting(now, slow_for)).tolist() == [4], "two steps are no level"


def test_noise_is_that_of_the_kind_and_of_the_pair_where_that_is_louder() -> None:
    rng = np.random.default_rng(1)
    memory = rng.normal(0.0, 0.05, (32, 60))
    memory[:, 7] *= 4.0
    memory[:, 30:] *= 2.0
    known = limits(memory, np.repeat([0, 1], 30))
    quiet = np.delete(np.arange(30), 7)
    assert np.median(known.bulk[quiet]) == pytest.approx(0.05, rel=0.1)
    assert np.median(known.bulk[30:]) == pytest.approx(0.1, rel=0.1)
    own = 1.4826 * float(np.median(np.abs(memory[:, 7])))
    assert known.bulk[7] == pytest.approx(own / 1.5), "chance widens the deviation of 32 samples by half"
    assert np.isfinite(known.weight).all()
    assert (known.is_known, known.loud) == (True, 0)
    known.forget()
    assert not known.is_known


def test_pairs_too_loud_to_judge_are_counted_and_suspects_teach_nothing() -> None:
    rng = np.random.default_rng(2)
    memory = rng.normal(0.0, 2.0, (32, 20))
    assert limits(memory).loud == 20
    calm = np.arange(20) >= 5
    known = limits(rng.normal(0.0, 0.05, (32, 20)), calm=calm)
    assert np.isfinite(known.bulk).tolist() == calm.tolist()
    memory[:, 15:] *= 0.02  # a quarter is quiet: it is judged apart
    mixed = limits(memory)
    assert np.isfinite(mixed.weight).tolist() == [False] * 15 + [True] * 5
    assert mixed.loud == 15


@pytest.mark.parametrize(
    ("shifts", "changes"),
    [
        ([0.0] * 20 + [1.0] * 4, [(23, True)]),  # four at the clip of 4 less a drift of 1 make 12
        ([0.0] * 20 + [1.0] * 3, []),
        ([0.0] * 19 + [1.0] * 3, []),  # twenty steps make a past
        ([0.0] * 20 + [1.0] * 4 + [0.0] * 9, [(23, True), (29, False)]),
        ([0.0] * 20 + [np.nan] * 9 + [1.0] * 4, [(32, True)]),
    ],
)
def test_a_pool_departs_from_its_own_past(shifts: list[float], changes: list[tuple[int, bool]]) -> None:
    """Each slow step counts 3, each other one -1.67, since the usual shift has followed by 0.02; below 3 it ends."""
    pools, found = LinkPools(0.03, 8), []
    for step, shift in enumerate(shifts):
        for pool, departure in pools.judge(np.array([np.nan, shift])):
            found.append((step, bool(pools.on[pool])))
            assert (pool, departure) == (1, pytest.approx(shift - 0.02, abs=1e-3))
    assert found == changes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], np.nan),
        ([1.0], np.nan),
        ([1.0, 2.0], 1.0),
        ([1.0, 2.0, 3.0], 2.0),
        ([4.0, 3.0, 2.0, 1.0], 2.0),  # the lower median
        ([*range(7)], 3.0),
        ([*range(8)], 2.0 + 0.6745 * 0.1),  # a quartile above the faster quarter
        ([0.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0, 9.0], 0.0),  # but never above the middle
        ([np.nan, 1.0, 2.0, 3.0], 2.0),
    ],
)
def test_the_shift_that_pairs_share(values: list[float], expected: float) -> None:
    y, pool = np.array([*values, 50.0, 60.0], float), np.array([0] * len(values) + [1, 1])
    shift = LinkPools(0.1, 8).shift(y, pool, np.full(len(y), 0.1))
    assert shift.tolist() == pytest.approx([expected, 50.0], nan_ok=True)
    unknown = LinkPools(0.1, 8).shift(np.arange(8.0), np.zeros(8, np.intp), np.full(8, np.nan))
    assert unknown[0] == 2.0
