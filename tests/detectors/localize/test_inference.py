"""The arithmetic behind a localization: what is usual, how a measurement speaks, odds a priori, and limits."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from mainstay.detectors.localize import plan
from mainstay.detectors.localize.cohort import Cohort, _crowd, _noise, usual
from mainstay.detectors.localize.group_testing import _accompanied, _Known, _parts
from mainstay.detectors.localize.inference import LocalizationHypothesis, PathMatrix, _fit, _one_thing, _prior
from mainstay.detectors.localize.model import (
    GroupResult,
    LocalizationConfig,
    PairOutcome,
    PairResult,
    Round,
    limit,
    some,
)
from mainstay.detectors.localize.status import _away, compute_status, fabric_pieces
from mainstay.detectors.localize.topology import Component, Endpoint, FabricComponentKind, TopologyMap, flat

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


@pytest.mark.parametrize(
    ("base", "noise", "near"),
    [
        ({NEAR: 1.0}, 0.1, True),
        ({NEAR: 1.0049}, 0.1, True),
        ({NEAR: 1.0051}, 0.1, False),  # a twentieth of the noise
        ({NEAR: 1.0}, 0.1049, True),
        ({NEAR: 1.0}, 0.0951, True),
        ({NEAR: 1.0}, 0.1051, False),
        ({}, 0.1, False),
        ({NEAR: 1.0, FAR: 7.0}, 0.1, True),
    ],
)
def test_when_two_cohorts_are_alike(base: dict[tuple[int, bool], float], noise: float, near: bool) -> None:
    assert Cohort([NEAR], {NEAR: 1.0}, 0.1).near(Cohort([NEAR], base, noise)) is near


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


def test_levels_go_from_healthy_over_tolerance_to_what_hangs() -> None:
    story = LocalizationHypothesis(paths(pair("a", "b")), np.zeros(1), np.full(1, 0.01), 0.05)
    least = -math.log(0.95)
    assert story.levels[:6].tolist() == pytest.approx([0.0, *(-least * x for x in (0.125, 0.25, 0.375, 0.5, 1.0))])
    assert (story.bad, story.levels[-1], len(story.levels)) == (5, pytest.approx(-6.0), 1 + 4 + 36)
    ratios = story.levels[6:] / story.levels[5:-1]
    assert 1.14 < ratios.min() <= ratios.max() <= 1.15
    piece = story.ways.pieces.index(Component(K.NODE, ("a",)))
    assert story._cost(piece) == pytest.approx(math.log(1e-2) - math.log(36))


@pytest.mark.parametrize(
    ("piece", "prior"),
    [
        (Component(K.PATH, ("a", "b")), 1e-4),
        (Component(K.NODE, ("a",)), 1e-4),  # it passed a check of its own
        (Component(K.NIC, ("a", "x")), 1e-4),
        (Component(K.NODE, ("b",)), 1e-2),
        (Component(K.NIC, ("b", "x")), 1e-2),
        (Component(K.GPU, ("b", "g")), 1e-2),
        (Component(K.UPLINK, ("a",)), 1e-3),
        (Component(K.CABLE, ("a", "b")), 1e-3),
        (Component(K.SWITCH, ("a",)), 1e-3),
    ],
)
def test_how_likely_each_piece_is_bad_before_anything_was_measured(piece: Component, prior: float) -> None:
    assert _prior(piece, {"a"}) == prior


@pytest.mark.parametrize(
    ("pieces", "one"),
    [
        ([(K.NIC, ("a", "x")), (K.GPU, ("a", "g"))], True),
        ([(K.NIC, ("a", "x")), (K.NIC, ("b", "x"))], False),
        ([(K.NIC, ("a", "x")), (K.PATH, ("a", "b"))], False),
        ([(K.UPLINK, ("l",)), (K.SWITCH, ("l",)), (K.CABLE, ("l", "s"))], True),
        ([(K.UPLINK, ("l",)), (K.UPLINK, ("m",))], False),
        ([(K.PATH, ("a", "b"))], True),
    ],
)
def test_what_cannot_be_told_apart_is_one_thing_where_it_belongs_together(
    pieces: list[tuple[FabricComponentKind, tuple[str, ...]]], one: bool
) -> None:
    assert _one_thing([Component(kind, name) for kind, name in pieces]) is one


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


@pytest.mark.parametrize(("count", "rounds", "most"), [(2, 0, 4), (16, 0, 10), (17, 0, 10), (1000, 0, 21), (16, 3, 3)])
def test_how_many_rounds_may_be_spent(count: int, rounds: int, most: int) -> None:
    names = [f"n{k}" for k in range(count)]
    assert limit(plan.start_localization(flat(names), settings=LocalizationConfig(rounds=rounds))) == most


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "0"), (4, "0, 1, 2, 3"), (5, "0, 1, 2, 3 and 1 more"), (9, "0, 1, 2, 3 and 5 more")],
)
def test_four_names_are_told(count: int, text: str) -> None:
    assert some([str(k) for k in range(count)]) == text


@pytest.mark.parametrize(
    ("results", "away"),
    [
        ([pair("a", "b", None), pair("a", "c", None)], set()),
        ([pair("a", "b", None), pair("a", "c", None), pair("a", "d", None)], {"a"}),
        ([pair("a", "b", None)] * 3, {"a", "b"}),
        ([pair("a", "b", None)] * 3 + [pair("b", "c")], {"a"}),
        ([pair("a", "b", None)] * 3 + [pair("b", "c", 0.0)], {"a"}),  # what hangs answers
    ],
)
def test_who_misses_three_answers_and_gives_none_is_away(results: list[PairResult], away: set[str]) -> None:
    state = msgspec.structs.replace(plan.start_localization(flat(list("abcd"))), results=tuple(results))
    assert _away(state) == away
    assert compute_status(state).measured(Endpoint("a")) == 0


@pytest.mark.parametrize(("leaves", "judged"), [("11223", 3), ("11222", 0), ("11111", 0)])
def test_uplinks_are_judged_from_three_leaves_on(leaves: str, judged: int) -> None:
    switches = {name: (f"l{leaf}", "top") for name, leaf in zip("abcde", leaves, strict=True)}
    assert len(fabric_pieces(TopologyMap(flat(list("abcde"), switches)))) == judged


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
