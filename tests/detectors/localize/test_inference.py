"""The arithmetic behind a localization: what is usual, how a measurement speaks, odds a priori, and limits."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from mainstay.detectors.localize import plan
from mainstay.detectors.localize.cohort import _crowd, _noise, usual
from mainstay.detectors.localize.findings import sound
from mainstay.detectors.localize.group_testing import _accompanied, _Known, _parts
from mainstay.detectors.localize.inference import PathMatrix, _fit
from mainstay.detectors.localize.model import (
    GroupResult,
    LocalizationVerdict,
    LocalizedCulprit,
    PairOutcome,
    PairResult,
    Round,
)
from mainstay.detectors.localize.topology import Endpoint, FabricComponentKind, TopologyMap, flat

K = FabricComponentKind
NAN = float("nan")
NEAR, FAR = (0, False), (1, False)


def pair(a: str, b: str, speed: float | None = 1e9) -> PairResult:
    """``speed`` 0 hangs, None is missing."""
    outcome = PairOutcome.OK if speed else PairOutcome.MISSING if speed is None else PairOutcome.HUNG
    told = {"1048576": speed} if speed else {}
    return PairResult(a=Endpoint(a), b=Endpoint(b), outcome=outcome, bandwidth=told)


@pytest.mark.parametrize(
    ("rest", "noise"),
    [
        ([], 0.01),  # the belief alone
        ([0.02, -0.02] * 4, math.sqrt((8 * 0.01**2 + 8 * (1.4826 * 0.02) ** 2) / 16)),  # it is worth eight
        ([0.0] * 8, math.sqrt(8 * 0.01**2 / 16)),
        ([0.0] * 10_000, 0.002),  # no transfer repeats better
    ],
)
def test_noise_is_what_was_seen_and_what_is_believed(rest: list[float], noise: float) -> None:
    assert _noise(np.array(rest), 0.01) == pytest.approx(noise)


@pytest.mark.parametrize(
    ("values", "middle", "near"),
    [
        ([1.0, 1.01, 1.02, 1.03], 1.015, 4),
        ([0.0, 0.0, 0.0, 1.0, 1.01], 1.005, 2),  # the upper of two crowds
        ([1.0, 1.0, 1.0, 1.0, 1.5], 1.0, 4),  # one alone is none
        ([0.0, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.5], 0.2, 5),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.019, 1.021], 1.0, 8),  # within two per cent
    ],
)
def test_health_is_the_upper_place_where_measurements_crowd(values: list[float], middle: float, near: int) -> None:
    found, members = _crowd(np.array(values))
    assert (found, len(members)) == pytest.approx((middle, near))


def test_what_is_usual_takes_four_measurements_of_a_group() -> None:
    speed = np.array([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, NAN])
    cohort = usual(speed, [NEAR] * 4 + [FAR] * 4, 0.01)
    assert cohort.base == {NEAR: 1.0}
    assert cohort.noise == pytest.approx(math.sqrt(8 * 0.01**2 / 12))
    assert cohort.residual(speed).tolist() == pytest.approx([0.0] * 4 + [NAN] * 4, nan_ok=True)
    renewed = cohort.renewed(np.array([1.0, 1.1, 1.2, 9.0, *[5.0] * 4]), np.arange(8) < 3, 0.01)
    assert renewed.base == {NEAR: pytest.approx(1.1)}
    spread = 1.4826 * 0.1
    assert renewed.noise == pytest.approx(math.sqrt((8 * 0.01**2 + 3 * spread**2) / 11))
    assert cohort.renewed(speed, np.arange(8) < 1, 0.01).base == {NEAR: 1.0}, "one alone moves nothing"


def test_how_a_measurement_speaks_of_each_level() -> None:
    """A normal around the level, its width the noise and a tenth of the level; one in 200 means nothing, within 6."""
    levels = np.array([0.0, -0.5, -6.0])
    fit = _fit(np.array([-0.1, NAN, -6.0]), levels, np.array([0.05, 0.05, 0.05]))

    def nats(residual: float, level: float, width: float) -> float:
        normal = math.exp(-(((residual - level) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
        return math.log(0.995 * normal + 0.005 / 6)

    own = math.hypot(0.05, 0.05)
    assert fit[0].tolist() == pytest.approx([nats(-0.1, 0.0, 0.05), nats(-0.1, -0.5, own), nats(-0.1, -6.0, 0.1)])
    assert fit[1].tolist() == [0.0] * 3, "what is unknown says nothing"
    assert fit[2, 2] == pytest.approx(nats(-6.0, -6.0, 0.1)), "what hangs hangs alike"
    assert fit[2, 0] == pytest.approx(math.log(0.005 / 6))


def paths(*results: PairResult, good: tuple[str, ...] = ()) -> PathMatrix:
    return PathMatrix(TopologyMap(flat(list("abcd"))), results, good)


def test_which_measurements_passed_a_piece() -> None:
    ways = paths(pair("a", "b"), pair("c", "d", None), pair("a", "c"), pair("b", "c", 0.0))
    assert len(ways.results) == 3, "what is missing is no evidence"
    rows = {piece.name: ways.rows_through(n).tolist() for n, piece in enumerate(ways.pieces) if piece.kind is K.NODE}
    assert rows == {("a",): [0, 1], ("b",): [0, 2], ("c",): [1, 2]}
    sums = ways.total(np.array([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]))
    total = {piece.name: sums[n].tolist() for n, piece in enumerate(ways.pieces) if piece.kind is K.NODE}
    assert total == {("a",): [3.0, 30.0], ("b",): [5.0, 50.0], ("c",): [6.0, 60.0]}
    for number, piece in enumerate(ways.pieces):
        alike = {ways.pieces[other].name[0] for other in ways.alike(number)}
        assert piece.name[0] in alike
        assert (len(alike) == 1) or piece.kind is K.PATH


def parts(names: str, *failed: str, good: str = "", guilty: str = "") -> list[str]:
    known = _Known(good=set(good), guilty=set(guilty))
    known.failed.update(frozenset(members) for members in failed)
    return ["".join(part) for part in _parts(known, tuple(names), first=True)]


@pytest.mark.parametrize(
    ("names", "failed", "good", "expected"),
    [
        ("abcde", [], "", ["abcde"]),
        ("abcde", ["abcde"], "", ["abc", "de"]),  # the first half is the larger one
        ("abcde", ["abcde", "abc"], "de", ["ab", "c"]),
        ("abcde", ["abcde", "abc", "ab"], "cde", ["a", "b"]),
        ("abcde", ["abcde"], "abd", ["c", "e"]),
        ("abcde", ["abcde"], "abcde", []),
    ],
)
def test_a_group_that_fails_is_halved(names: str, failed: list[str], good: str, expected: list[str]) -> None:
    assert parts(names, *failed, good=good) == expected


@pytest.mark.parametrize(
    ("singles", "helpers", "failed", "groups"),
    [
        ("ab", "cd", [], ["ac", "bd"]),
        ("abc", "d", [], ["ad"]),  # the others wait for a partner
        ("abcd", "", [], ["ab", "cd"]),
        ("abcd", "", ["ab"], ["ac", "bd"]),
        ("abc", "", ["ab", "ac"], ["bc"]),
        ("a", "", [], []),
    ],
)
def test_a_single_node_is_tested_beside_one_that_passed(
    singles: str, helpers: str, failed: list[str], groups: list[str]
) -> None:
    known = _Known()
    known.failed.update(frozenset(members) for members in failed)
    assert ["".join(group) for group in _accompanied(known, list(singles), list(helpers))] == groups


def test_a_group_without_an_answer_is_tried_three_times() -> None:
    state = plan.start_localization(flat(list("abcd")), method="groups")
    asked = 0
    while isinstance(step := plan.next_round(state), Round):
        asked += 1
        state = plan.record(state, [GroupResult(members=group, passed=None) for group in step.groups])
    assert asked == 3
    assert set(step.unknown.values()) == {"no answer came from a group with it"}


def test_what_is_said_of_a_node_that_fails_beside_good_ones() -> None:
    groups = [("ab", True), ("abc", False), ("ac", False), ("bc", False), ("bc", False)]
    state = plan.start_localization(flat(list("abcd")), method="groups")
    told = tuple(GroupResult(members=tuple(members), passed=passed) for members, passed in groups)
    verdict = plan.verdict(msgspec.structs.replace(state, groups=told))
    (culprit,) = verdict.culprits
    assert (culprit.name, culprit.odds, verdict.good) == (("c",), 4.0, ("a", "b"))
    assert culprit.summary == (
        "Node c: the collective failed in all 4 groups with it, among them beside a, b, which passed without it; "
        "take it out and run a full check."
    )
    assert verdict.unknown == {"d": "not tested"}
    assert not verdict.settled


def test_what_a_verdict_tells_to_be_sound() -> None:
    """Three leaves under one switch: a named uplink, one that is unknown, and one that is known."""
    switches = {name: (leaf, "top") for name, leaf in zip("abcdef", ("l1", "l1", "l2", "l2", "l3", "l3"), strict=True)}
    state = plan.start_localization(flat(list("abcdef"), switches))
    uplink = LocalizedCulprit(
        kind=K.UPLINK, name=("l1",), nodes=(), speed=0.5, sizes=(), odds=12.0, evidence=(), summary=""
    )
    unknown = {"the uplinks of switch l2": "not measured often enough"}
    verdict = LocalizationVerdict(
        culprits=(uplink,), good=("a",), unknown=unknown, rounds=1, noise=None, settled=False
    )  # fmt: skip
    nodes, between = sound(state, verdict)
    assert (sorted(nodes), sorted(between)) == (["a"], ["switch l3", "uplink l3"])
    doubt = msgspec.structs.replace(uplink, also=("the uplinks of switch l3",))
    assert sound(state, msgspec.structs.replace(verdict, culprits=(doubt,)))[1] == set()
    beside = msgspec.structs.replace(uplink, also=("switch l3",))
    assert sound(state, msgspec.structs.replace(verdict, culprits=(beside,)))[1] == {"uplink l3"}
    clear = msgspec.structs.replace(verdict, culprits=(), unknown={})
    all_of_it = {f"{what} l{n}" for what in ("uplink", "switch") for n in (1, 2, 3)}
    assert sound(state, clear)[1] == all_of_it


@pytest.mark.parametrize(
    ("speed", "settled", "told"),
    [(1e9, True, {"path a/b"}), (1e9, False, set()), (0.0, True, set()), (None, True, set())],
)
def test_a_way_that_was_measured_is_sound_when_all_is_told(speed: float | None, settled: bool, told: set[str]) -> None:
    state = msgspec.structs.replace(plan.start_localization(flat(list("abcd"))), results=(pair("a", "b", speed),))
    verdict = LocalizationVerdict(culprits=(), good=(), unknown={}, rounds=1, noise=None, settled=settled)
    assert sound(state, verdict)[1] == told
    way = LocalizedCulprit(
        kind=K.PATH, name=("a", "b"), nodes=(), speed=0.5, sizes=(), odds=12.0, evidence=(), summary=""
    )
    assert sound(state, msgspec.structs.replace(verdict, culprits=(way,)))[1] == set()
