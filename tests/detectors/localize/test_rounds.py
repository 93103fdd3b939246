"""Schedules: everybody meets everybody by the circle method; ways through the fabric."""

from __future__ import annotations

from itertools import combinations

import pytest

from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import GroupResult, LocalizationConfig
from mainstay.detectors.localize.rounds import RoundSlots, circle
from mainstay.detectors.localize.status import compute_status, crossings
from mainstay.detectors.localize.topology import (
    Component,
    Endpoint,
    FabricComponentKind,
    FabricTopology,
    Host,
    Nic,
    TopologyMap,
    flat,
)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 17])
def test_the_circle_lets_every_two_meet_once(count: int) -> None:
    turns = count - 1 + count % 2
    met = []
    for turn in range(turns):
        pairs = circle(count, turn)
        positions = [position for pair in pairs for position in pair]
        assert len(set(positions)) == len(positions)
        assert len(positions) == count - count % 2, "with an odd count one has a bye"
        met += pairs
    assert sorted(met) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_meets_nobody(count: int) -> None:
    assert circle(count, 3) == []


def kinds(way: tuple[Component, ...], kind: FabricComponentKind) -> set[tuple[str, ...]]:
    return {piece.name for piece in way if piece.kind is kind}


def test_ways_over_chains_of_switches() -> None:
    chart = TopologyMap(
        flat(["a", "b", "c", "d"], {"a": ("l1", "s1"), "b": ("l1", "s1"), "c": ("l2", "s1"), "d": ("l3", "s2")})
    )
    near = chart.way(Endpoint("a"), Endpoint("b"))
    assert kinds(near.pieces, FabricComponentKind.SWITCH) == {("l1",)}
    assert not kinds(near.pieces, FabricComponentKind.UPLINK)
    far = chart.way(Endpoint("a"), Endpoint("c"))
    assert kinds(far.pieces, FabricComponentKind.SWITCH) == {("l1",), ("l2",), ("s1",)}
    assert kinds(far.pieces, FabricComponentKind.UPLINK) == {("l1",), ("l2",)}
    apart = chart.way(Endpoint("a"), Endpoint("d"))
    assert kinds(apart.pieces, FabricComponentKind.UPLINK) == {("l1",), ("s1",), ("l3",), ("s2",)}
    assert len({near.group, far.group, apart.group}) == 3, "healthy speed differs with the length of the way"


def test_ways_over_several_spines() -> None:
    hosts = tuple(Host(name=n, nics=(Nic(name="x", switches=(leaf,)),)) for n, leaf in (("a", "l1"), ("b", "l2")))
    chart = TopologyMap(FabricTopology(nodes=hosts, spines={"l1": ("s1", "s2"), "l2": ("s2", "s3")}))
    a, b = Endpoint("a", "x"), Endpoint("b", "x")
    assert chart.vias(a, b) == ("s2",)
    told = chart.way(a, b, "s2").pieces
    assert kinds(told, FabricComponentKind.CABLE) == {("l1", "s2"), ("l2", "s2")}
    untold = chart.way(a, b).pieces
    assert not kinds(untold, FabricComponentKind.CABLE), "it is unknown which it took"
    assert kinds(untold, FabricComponentKind.UPLINK) == {("l1",), ("l2",)}
    assert chart.way(a, b).group == chart.way(a, b, "s2").group


def test_a_gpu_beside_another_nic_is_another_kind_of_transfer() -> None:
    host = Host(name="a", nics=(Nic(name="x"), Nic(name="y")), gpus=("g", "h"))
    chart = TopologyMap(FabricTopology(nodes=(host, Host(name="b"))))
    straight = chart.way(Endpoint("a", "x", "g"), Endpoint("b"))
    crossed = chart.way(Endpoint("a", "x", "h"), Endpoint("b"))
    assert straight.group != crossed.group
    assert kinds(crossed.pieces, FabricComponentKind.GPU) == {("a", "h")}
    with pytest.raises(ValueError, match="no NIC 'z' of node a"):
        chart.way(Endpoint("a", "z"), Endpoint("b"))


# what a round has room for

LEAVES = {"a": "l1", "b": "l1", "c": "l2", "d": "l2", "e": "l1", "f": "l2"}


def slots(*, flows: int = 1, spines: tuple[str, ...] = (), turn: int = 0) -> RoundSlots:
    hosts = tuple(Host(name=name, nics=(Nic(switches=(leaf, "top")),)) for name, leaf in LEAVES.items())
    chart = FabricTopology(nodes=hosts, spines=dict.fromkeys(("l1", "l2"), spines) if spines else {})
    return RoundSlots(compute_status(plan.start_localization(chart)), flows, turn)


@pytest.mark.parametrize(
    ("flows", "spines", "vias"),
    [
        (1, (), [""]),  # one transfer over the uplinks, which share what is above them
        (2, (), ["", ""]),
        (1, ("s1", "s2"), ["s1", "s2"]),
        (2, ("s1",), ["s1", "s1"]),
    ],
)
def test_a_cable_has_room_for_so_many_transfers(flows: int, spines: tuple[str, ...], vias: list[str]) -> None:
    lanes = slots(flows=flows, spines=spines)
    fit = [lanes.reserve_pair(Endpoint(a), Endpoint(b)) for a, b in ("ac", "bd", "ef")]
    assert fit == [number < len(vias) for number in range(3)]
    assert [pair.via for pair in lanes.pairs] == vias
    assert lanes.free(Endpoint("e")) is (len(vias) < 3)
    assert not lanes.free(Endpoint("a"))
    assert not lanes.reserve_pair(Endpoint("e"), Endpoint("e", "y")), "a node does not meet itself"
    assert lanes.reserve_pair(Endpoint("e"), Endpoint("b")) is (len(vias) < 2), "within a leaf there is always room"


def test_spines_take_turns_and_those_in_doubt_come_last() -> None:
    assert slots(spines=("s1", "s2"), turn=1).via(Endpoint("a"), Endpoint("c")) == "s2"
    lanes = slots(spines=("s1", "s2"))
    lanes._suspects.add(Component(FabricComponentKind.CABLE, ("l2", "s1")))
    assert lanes.via(Endpoint("a"), Endpoint("c")) == "s2"


def test_a_gpu_has_one_transfer_at_a_time() -> None:
    host = Host(name="a", nics=(Nic(name="x"), Nic(name="y")), gpus=("g", "h"))
    chart = FabricTopology(nodes=(host, Host(name="b"), Host(name="c")))
    lanes = RoundSlots(compute_status(plan.start_localization(chart)), 1, 0)
    assert lanes.reserve_pair(Endpoint("a", "x", "g"), Endpoint("b"))
    assert not lanes.free(Endpoint("a", "y", "g"))
    assert lanes.free(Endpoint("a", "y", "h"))


def test_a_nic_is_crossed_with_another_gpu_and_the_gpu_with_another_nic() -> None:
    host = Host(name="a", nics=(Nic(name="x"), Nic(name="y"), Nic(name="z")), gpus=("g", "h", "i"))
    chart = TopologyMap(FabricTopology(nodes=(host, Host(name="b"))))
    own = chart.own(Endpoint("a", "x", "g"))
    assert crossings(chart, own, 0) == [Endpoint("a", "x", "h"), Endpoint("a", "y", "g")]
    assert crossings(chart, own, 1) == [Endpoint("a", "x", "i"), Endpoint("a", "z", "g")]
    assert crossings(chart, own, 2) == crossings(chart, own, 0)
    assert crossings(chart, own[:2], 0) == [], "without a GPU there is nothing to tell apart"


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": -1}, {"flows": 0}, {"tries": 0}, {"slower": 0.0049}, {"slower": 0.91}, {"noise": 0.0}, {"noise": 1.0}],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must (lie within|be at least)"):
        LocalizationConfig(**wrong)  # type: ignore[arg-type]
    LocalizationConfig(rounds=0, flows=1, tries=1, slower=0.005)
    LocalizationConfig(slower=0.9)


def test_results_of_groups_are_refused_among_pairs() -> None:
    with pytest.raises(ValueError, match="another method than 'pairs'"):
        plan.record(plan.start_localization(flat(["a", "b"])), [GroupResult(members=("a", "b"), passed=True)])
