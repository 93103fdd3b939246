"""Schedules: everybody meets everybody by the circle method; ways through the fabric."""

from __future__ import annotations

from itertools import combinations

import pytest

from detectors.localise.rounds import circle
from detectors.localise.topology import Host, Kind, Map, Nic, Piece, Place, Topology, flat


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 17])
def test_the_circle_lets_every_two_meet_once(count: int) -> None:
    turns = count - 1 + count % 2
    met = []
    for turn in range(turns):
        pairs = circle(count, turn)
        seats = [seat for pair in pairs for seat in pair]
        assert len(set(seats)) == len(seats)
        assert len(seats) == count - count % 2, "with an odd count one has a bye"
        met += pairs
    assert sorted(met) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_meets_nobody(count: int) -> None:
    assert circle(count, 3) == []


def kinds(way: tuple[Piece, ...], kind: Kind) -> set[tuple[str, ...]]:
    return {piece.name for piece in way if piece.kind is kind}


def test_ways_over_chains_of_switches() -> None:
    chart = Map(
        flat(["a", "b", "c", "d"], {"a": ("l1", "s1"), "b": ("l1", "s1"), "c": ("l2", "s1"), "d": ("l3", "s2")})
    )
    near = chart.way(Place("a"), Place("b"))
    assert kinds(near.pieces, Kind.SWITCH) == {("l1",)}
    assert not kinds(near.pieces, Kind.UPLINK)
    far = chart.way(Place("a"), Place("c"))
    assert kinds(far.pieces, Kind.SWITCH) == {("l1",), ("l2",), ("s1",)}
    assert kinds(far.pieces, Kind.UPLINK) == {("l1",), ("l2",)}
    apart = chart.way(Place("a"), Place("d"))
    assert kinds(apart.pieces, Kind.UPLINK) == {("l1",), ("s1",), ("l3",), ("s2",)}
    assert len({near.group, far.group, apart.group}) == 3, "healthy speed differs with the length of the way"


def test_ways_over_several_spines() -> None:
    hosts = tuple(Host(name=n, nics=(Nic(name="x", switches=(leaf,)),)) for n, leaf in (("a", "l1"), ("b", "l2")))
    chart = Map(Topology(nodes=hosts, spines={"l1": ("s1", "s2"), "l2": ("s2", "s3")}))
    a, b = Place("a", "x"), Place("b", "x")
    assert chart.vias(a, b) == ("s2",)
    told = chart.way(a, b, "s2").pieces
    assert kinds(told, Kind.CABLE) == {("l1", "s2"), ("l2", "s2")}
    untold = chart.way(a, b).pieces
    assert not kinds(untold, Kind.CABLE), "nobody knows which it took"
    assert kinds(untold, Kind.UPLINK) == {("l1",), ("l2",)}
    assert chart.way(a, b).group == chart.way(a, b, "s2").group


def test_a_gpu_beside_another_nic_is_another_kind_of_transfer() -> None:
    host = Host(name="a", nics=(Nic(name="x"), Nic(name="y")), gpus=("g", "h"))
    chart = Map(Topology(nodes=(host, Host(name="b"))))
    straight = chart.way(Place("a", "x", "g"), Place("b"))
    crossed = chart.way(Place("a", "x", "h"), Place("b"))
    assert straight.group != crossed.group
    assert kinds(crossed.pieces, Kind.GPU) == {("a", "h")}
    with pytest.raises(ValueError, match="no NIC 'z' of node a"):
        chart.way(Place("a", "z"), Place("b"))
