"""Whole localizations on simulated fabrics: the faulty piece is named, in time, and no other is."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from bench.lib_localize import CLASSES, Cluster, Fault, draw, draws
from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import (
    LocalizationConfig,
    LocalizationState,
    LocalizationVerdict,
    NodePair,
    PairOutcome,
    PairResult,
    Round,
    limit,
)
from mainstay.detectors.localize.topology import (
    OWN,
    Component,
    Endpoint,
    FabricComponentKind,
    FabricTopology,
    Host,
    Nic,
    flat,
)


def play(world: Cluster, state: LocalizationState | None = None) -> LocalizationVerdict:
    state = state or plan.start_localization(world.topology)
    while isinstance(step := plan.next_round(state), Round):
        used = [(end.node, end.nic) for pair in step.pairs for end in (pair.a, pair.b)]
        assert len(set(used)) == len(used), "a NIC has one transfer at a time"
        state = plan.record(state, world.measure(step))
    assert step.rounds <= limit(state)
    return step


def pieces(verdict: LocalizationVerdict) -> set[Component]:
    return {Component(culprit.kind, culprit.name) for culprit in verdict.culprits}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_class_of_fault_is_named(kind: str) -> None:
    world = Cluster(count=16, leaf_nodes=4, seed=3)
    world.faults = (draw(kind, world, np.random.default_rng(5)),)
    verdict = play(world)
    assert pieces(verdict) == {world.faults[0].piece}
    assert world.together <= 1, "no two transfers share a cable between switches"
    culprit = verdict.culprits[0]
    assert culprit.evidence
    assert culprit.odds >= 10
    wanted = world.faults[0].speed
    assert culprit.speed is None if wanted == 0 else culprit.speed == pytest.approx(wanted, rel=0.12)
    if kind.startswith("loss"):
        assert culprit.sizes == (65_536, 16 << 20)
        assert culprit.spared == (512,)


@pytest.mark.parametrize("seed", range(6))
def test_three_faults_at_once_and_no_good_node_blamed(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    world = Cluster(count=64, seed=seed)
    world.faults = tuple(draws(tuple(map(str, rng.choice(CLASSES, 3))), world, rng))
    verdict = play(world)
    assert pieces(verdict) == {fault.piece for fault in world.faults}
    assert verdict.rounds <= 2 + 2 * math.log2(64)
    bad = {fault.piece.name[0] for fault in world.faults if fault.piece.kind in OWN}
    assert set(verdict.good) == {host.name for host in world.topology.nodes} - bad


@pytest.mark.parametrize(("noise", "missing"), [(0.01, 0.0), (0.03, 0.0), (0.02, 0.2)])
def test_a_healthy_fleet_has_no_culprit(noise: float, missing: float) -> None:
    world = Cluster(count=24, leaf_nodes=6, noise=noise, spread=0.005, missing=missing, seed=8)
    verdict = play(world)
    assert verdict.culprits == ()
    assert len(verdict.good) == 24
    assert verdict.noise == pytest.approx(noise, rel=0.5)


def _pair(a: str, b: str, speed: float | None, number: int = 1) -> PairResult:
    ends = {"a": Endpoint(a), "b": Endpoint(b), "round": number}
    if speed is None:
        return PairResult(**ends, outcome=PairOutcome.HUNG)
    return PairResult(**ends, bandwidth={"1048576": speed})


def verdict_of(*results: PairResult, names: str = "abcdefgh", **changes: object) -> LocalizationVerdict:
    state = msgspec.structs.replace(plan.start_localization(flat(list(names))), results=results, **changes)
    return plan.verdict(state)


HEALTHY = (_pair("e", "f", 1e9), _pair("g", "h", 1.003e9), _pair("e", "g", 0.998e9, 2), _pair("f", "h", 1.001e9, 2))


def test_one_slow_pair_names_nobody() -> None:
    verdict = verdict_of(*HEALTHY, _pair("a", "b", 0.5e9))
    assert verdict.culprits == ()
    assert {"a", "b"} <= set(verdict.unknown)
    assert {"e", "f", "g", "h"} <= set(verdict.good)


def test_two_bad_nodes_that_meet_blame_no_third() -> None:
    first = _pair("a", "b", 0.5e9)
    alone = verdict_of(*HEALTHY, first, _pair("a", "e", 0.5e9, 2), _pair("b", "f", 0.7e9, 2),
                       _pair("a", "g", 0.51e9, 3),
                 _pair("b", "h", 0.69e9, 3))  # fmt: skip
    assert [c.name for c in alone.culprits] == [("a",), ("b",)]
    assert {"e", "f", "g", "h"} <= set(alone.good)


def test_who_only_met_a_bad_node_stays_unknown() -> None:
    verdict = verdict_of(*HEALTHY, _pair("a", "e", 0.5e9), _pair("a", "f", 0.5e9, 2), _pair("a", "b", 0.49e9, 3))
    assert [c.name for c in verdict.culprits] == [("a",)]
    assert "b" in verdict.unknown
    assert "b" not in verdict.good


def test_a_pair_that_hangs_is_evidence_and_a_missing_one_is_none() -> None:
    twice = (_pair("a", "b", None), _pair("a", "e", None, 2), _pair("b", "f", 1e9, 2))
    assert verdict_of(*HEALTHY, *twice).culprits == (), "two may still be chance"
    hung = verdict_of(*HEALTHY, *twice, _pair("a", "g", None, 3))
    assert [(c.name, c.speed) for c in hung.culprits] == [(("a",), None)]
    gone = [
        PairResult(a=Endpoint("a"), b=Endpoint(x), outcome=PairOutcome.MISSING, round=n) for n, x in enumerate("bcd")
    ]
    silent = verdict_of(*HEALTHY, *gone)
    assert silent.culprits == ()
    assert silent.unknown["a"] == "it does not answer"


def test_one_strange_measurement_is_outvoted() -> None:
    others = (_pair("a", "e", 1e9, 2), _pair("a", "f", 1.002e9, 3), _pair("b", "g", 1e9, 2))
    verdict = verdict_of(*HEALTHY, _pair("a", "b", 0.4e9), *others)
    assert not [c for c in verdict.culprits if c.kind is FabricComponentKind.NODE]
    assert {"a", "b"} <= set(verdict.good)


def test_known_good_nodes_are_partners_and_the_last_to_be_blamed() -> None:
    names = [f"n{k}" for k in range(8)]
    state = plan.start_localization(flat(names), known_good=names[4:], suspects=names[:4])
    step = plan.next_round(state)
    assert isinstance(step, Round)
    assert all(len({pair.a.node, pair.b.node} & set(names[4:])) == 1 for pair in step.pairs)
    both = verdict_of(*HEALTHY, _pair("a", "b", 0.5e9), _pair("a", "c", 0.5e9, 2), known_good=("a",))
    assert not [c for c in both.culprits if c.name == ("a",)], "that takes more than a stranger's word"


def test_the_state_survives_json_and_the_plan_is_a_function_of_it() -> None:
    world = Cluster(count=12, leaf_nodes=4, seed=2)
    world.faults = (draw("nic 0.5", world, np.random.default_rng(1)),)
    state = plan.start_localization(world.topology, settings=LocalizationConfig(slower=0.1))
    for _ in range(2):
        step = plan.next_round(state)
        assert isinstance(step, Round)
        state = plan.record(state, world.measure(step))
    again = msgspec.json.decode(msgspec.json.encode(state), type=LocalizationState)
    assert again == state
    assert plan.next_round(again) == plan.next_round(state)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: plan.start_localization(flat(["a"])), "two nodes"),
        (lambda: plan.start_localization(flat(["a", "b"]), known_good=["d", "c"]), "known-good node 'c'"),
        (lambda: LocalizationConfig(slower=0.0), "slower"),
        (lambda: PairResult(a=Endpoint("a"), b=Endpoint("a"), bandwidth={"1": 1.0}), "itself"),
        (lambda: PairResult(a=Endpoint("a"), b=Endpoint("b")), "without a bandwidth"),
        (lambda: PairResult(a=Endpoint("a"), b=Endpoint("b"), bandwidth={"1": math.inf}), "finite"),
        (lambda: FabricTopology(nodes=(Host(name="a"), Host(name="a"))), "twice"),
        (lambda: Host(name="a", nics=(Nic(name="x"), Nic(name="x"))), "must differ"),
    ],
)
def test_bad_input_is_refused_in_words(make: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]


def test_a_node_that_the_topology_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no node 'z'"):
        verdict_of(_pair("a", "z", 1e9))


def test_groups_are_not_recorded_among_pairs() -> None:
    state = plan.start_localization(flat(["a", "b", "c"]), method="groups")
    with pytest.raises(ValueError, match="another method"):
        plan.record(state, [plan.missing(NodePair(a=Endpoint("a"), b=Endpoint("b")), "")])


def test_a_fault_of_a_fabric_that_is_not_told_stays_a_way() -> None:
    """Without switches, what slows one pair only is the way between the two, once that was seen often enough."""
    slow = [_pair("a", "b", 0.5e9, n) for n in (1, 2, 3, 4)]
    good = (_pair("a", "e", 1e9, 2), _pair("b", "f", 1e9, 2), _pair("a", "g", 1e9, 3), _pair("b", "h", 1e9, 3))
    verdict = verdict_of(*HEALTHY, *slow, *good)
    assert [(c.kind, c.nodes) for c in verdict.culprits] == [(FabricComponentKind.PATH, ())]
    assert {"a", "b"} <= set(verdict.good)


def test_bad_nodes_of_a_flat_pair_are_told_as_one_fault_each() -> None:
    world = Cluster(count=10, rails=1, leaf_nodes=10, spines=0, seed=4)
    nic = Component(FabricComponentKind.NIC, ("node-0003", "nic0"))
    world.faults = (Fault(name="x", piece=nic, speed=0.8),)
    verdict = play(world)
    assert [c.nodes for c in verdict.culprits] == [("node-0003",)]
    assert verdict.culprits[0].also, "one NIC and one GPU cannot be distinguished, and the verdict lists both"


def test_pairs_that_disagree_with_themselves_blame_nobody() -> None:
    """A busy host: what node a's pairs say lies low, and each of them scatters by more than that."""
    names = "abcd"
    speeds = {("a", "b"): 0.55e9, ("c", "d"): 1.0e9, ("a", "c"): 0.7e9, ("b", "d"): 1.02e9, ("a", "d"): 0.6e9,
              ("b", "c"): 0.98e9}  # fmt: skip

    def pairs(scatter: float) -> list[PairResult]:
        told = {"1048576": scatter}
        return [msgspec.structs.replace(_pair(a, b, x), scatter=told) for (a, b), x in speeds.items()]

    steady, shaky = verdict_of(*pairs(0.005), names=names), verdict_of(*pairs(0.4), names=names)
    assert [culprit.name for culprit in steady.culprits] == [("a",)]
    assert shaky.culprits == ()
    assert "a" not in shaky.good, "nor is it called good"


def test_a_scatter_that_is_no_number_is_refused() -> None:
    for scatter in (math.nan, -0.5):
        with pytest.raises(ValueError, match="scatter of 1"):
            PairResult(a=Endpoint("a"), b=Endpoint("b"), bandwidth={"1": 1.0}, scatter={"1": scatter})


def test_pairs_that_disagree_with_themselves_name_nobody() -> None:
    """On a busy machine equal pairs differ by tens of percent, and each reports it: then no node stands out."""
    rng = np.random.default_rng(14)
    state = plan.start_localization(flat([f"n{i}" for i in range(6)], {}))
    while isinstance(step := plan.next_round(state), Round):
        results = []
        for p in step.pairs:
            slow = 0.6 if "n2" in {p.a.node, p.b.node} else 1.0
            speed = 1e9 * slow * float(np.exp(rng.normal(0, 0.3)))
            results.append(PairResult(a=p.a, b=p.b, via=p.via, scatter={"4194304": 0.4}, bandwidth={"4194304": speed}))
        state = plan.record(state, results)
    assert step.culprits == ()
    assert step.unknown
