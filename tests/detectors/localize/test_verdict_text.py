"""What is usual, what a verdict says and the findings it becomes: worked examples."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from mainstay.detectors.finding import Cause, Finding, join_names
from mainstay.detectors.localize import plan
from mainstay.detectors.localize.cohort import Cohort, usual
from mainstay.detectors.localize.findings import between, entity, findings
from mainstay.detectors.localize.inference import LocalizationHypothesis, PathMatrix, _one_thing, _prior
from mainstay.detectors.localize.model import (
    LocalizationConfig,
    LocalizationState,
    LocalizationVerdict,
    LocalizedCulprit,
    PairEvidence,
    PairOutcome,
    PairResult,
    Round,
    limit,
)
from mainstay.detectors.localize.topology import Component, Endpoint, FabricComponentKind, TopologyMap, flat
from mainstay.detectors.localize.verdict_text import _bytes, _summary, component_label
from mainstay.probes.core_types import RecommendedAction, Severity

K = FabricComponentKind
NEAR, FAR = (1, False), (3, False)


def pair(a: str, b: str, speed: float = 1e9, number: int = 1) -> PairResult:
    return PairResult(a=Endpoint(a), b=Endpoint(b), round=number, bandwidth={"1048576": speed})


def judged(*results: PairResult, leaves: str = "112233", **changes: object) -> LocalizationVerdict:
    """Nodes a, b, c, ... under the leaves with these numbers, and one switch above them."""
    names = "abcdefgh"[: len(leaves)]
    above = {name: (f"l{leaf}", "s") for name, leaf in zip(names, leaves, strict=True)}
    state = plan.start_localization(flat(list(names), above), **changes)  # type: ignore[arg-type]
    return plan.verdict(msgspec.structs.replace(state, results=results))


# what is usual


@pytest.mark.parametrize(
    ("logs", "base", "noise"),
    [
        ([0.0] * 3, None, 0.03),  # three do not say what is usual
        ([0.0] * 4, 0.0, 0.03 * math.sqrt(8 / 12)),
        ([0.0] * 4 + [math.nan], 0.0, 0.03 * math.sqrt(8 / 12)),
        ([0.0] * 4 + [1.0] * 4, 1.0, 0.03 * math.sqrt(8 / 12)),  # the upper crowd, of half or of a quarter
        ([0.0] * 9 + [1.0] * 3, 1.0, 0.03 * math.sqrt(8 / 11)),
        ([0.0] * 7 + [1.0], 0.0, 0.03 * math.sqrt(8 / 15)),  # one is no crowd
        ([-0.01, 0.0, 0.0, 0.01], 0.0, math.sqrt((8 * 0.03**2 + 4 * (1.4826 * 0.005) ** 2) / 12)),
    ],
)
def test_the_usual_speed_and_its_scatter(logs: list[float], base: float | None, noise: float) -> None:
    """The belief of 3 % weighs as much as eight measurements."""
    found = usual(np.array(logs), [NEAR] * len(logs), 0.03)
    assert found.base == ({} if base is None else {NEAR: pytest.approx(base)})
    assert found.noise == pytest.approx(noise)
    assert usual(np.array([]), [], 0.001).noise == 0.002, "no transfer repeats better"


def test_what_is_usual_is_renewed_from_two_healthy_measurements_of_a_known_group() -> None:
    groups = [NEAR, NEAR, NEAR, FAR, FAR]
    known = Cohort(groups, {NEAR: 0.0}, 0.01)
    speed = np.array([0.2, 0.4, -9.0, 5.0, 5.0])
    assert known.renewed(speed, np.array([1, 1, 0, 1, 1], bool), 0.01).base == {NEAR: pytest.approx(0.3)}
    assert known.renewed(speed, np.array([1, 0, 0, 1, 1], bool), 0.01).base == {NEAR: 0.0}
    assert known.residual(speed).tolist()[:3] == [0.2, 0.4, -9.0]
    assert np.isnan(known.residual(speed)[3:]).all()


@pytest.mark.parametrize(
    ("base", "noise", "near"),
    [({NEAR: 0.05}, 1.0, True), ({NEAR: -0.051}, 1.0, False), ({NEAR: 0.0}, 1.06, False), ({}, 1.0, False)],
)
def test_nothing_has_changed_within_a_twentieth_of_the_noise(
    base: dict[tuple[int, bool], float], noise: float, near: bool
) -> None:
    assert Cohort([NEAR], {NEAR: 0.0}, 1.0).near(Cohort([NEAR], base, noise)) is near


# inference


def test_levels_fall_from_healthy_over_mild_to_hung() -> None:
    ways = PathMatrix(TopologyMap(flat(["a", "b"])), [pair("a", "b")], ())
    story = LocalizationHypothesis(ways, np.zeros(1), np.full(1, 0.01), 0.05)
    least = -math.log(0.95)
    assert story.levels[: story.bad] == pytest.approx([0, -least / 8, -least / 4, -3 * least / 8, -least / 2])
    assert (story.levels[story.bad], story.levels[-1]) == pytest.approx((-least, -6.0))
    ratios = story.levels[story.bad + 1 :] / story.levels[story.bad : -1]
    assert ratios == pytest.approx(np.full(len(ratios), ratios[0])), "evenly in ratio"
    assert 1.14 < ratios[0] <= 1.15


@pytest.mark.parametrize(
    ("pieces", "one"),
    [
        ([(K.NODE, ("a",)), (K.NIC, ("a", "x")), (K.GPU, ("a", "g"))], True),
        ([(K.NIC, ("a", "x")), (K.NIC, ("b", "x"))], False),
        ([(K.NODE, ("a",)), (K.PATH, ("a", "b"))], False),
        ([(K.UPLINK, ("l1",)), (K.CABLE, ("l1", "s1"))], True),
        ([(K.UPLINK, ("l1",)), (K.UPLINK, ("l2",))], False),
    ],
)
def test_pieces_that_are_named_together_belong_together(pieces: list[tuple[K, tuple[str, ...]]], one: bool) -> None:
    assert _one_thing([Component(*piece) for piece in pieces]) is one


@pytest.mark.parametrize(
    ("piece", "prior"),
    [
        ((K.NODE, ("a",)), 1e-2),
        ((K.GPU, ("a", "g")), 1e-2),
        ((K.NIC, ("good", "x")), 1e-4),
        ((K.SWITCH, ("good",)), 1e-3),
        ((K.CABLE, ("l", "s")), 1e-3),
        ((K.PATH, ("a", "b")), 1e-4),
    ],
)
def test_how_rare_a_fault_is(piece: tuple[K, tuple[str, ...]], prior: float) -> None:
    assert _prior(Component(*piece), {"good"}) == prior


# words


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1536 B"), (3 << 19, "1536 KiB"), (1 << 20, "1 MiB"),
        (1025 << 20, "1025 MiB"), (1 << 30, "1 GiB"), (4 << 30, "4 GiB"),
    ],
)  # fmt: skip
def test_sizes_in_the_largest_unit_that_divides_them(size: int, text: str) -> None:
    assert _bytes(size) == text


@pytest.mark.parametrize(
    ("piece", "label"),
    [
        ((K.NODE, ("a",)), "node a"),
        ((K.NIC, ("a", "x")), "NIC x of a (or its cable)"),
        ((K.GPU, ("a", "g")), "GPU g of a"),
        ((K.CABLE, ("l", "s")), "the cable between l and s"),
        ((K.UPLINK, ("l",)), "the uplinks of switch l"),
        ((K.SWITCH, ("l",)), "switch l"),
        ((K.PATH, ("a", "b")), "the way between a and b"),
    ],
)
def test_pieces_in_words(piece: tuple[K, tuple[str, ...]], label: str) -> None:
    assert component_label(Component(*piece)) == label


@pytest.mark.parametrize(
    ("speed", "shown", "spared", "also", "count", "text"),
    [
        (0.5, (0,), (), (), 1, "Node a: 50% of the usual speed, seen in one pair;"),
        (None, (1 << 20,), (), (), 2, "Node a: transfers hang, seen in 2 pairs;"),
        (0.7, (1 << 20,), (512,), (), 3, "Node a: 70% of the usual speed at 1 MiB (not at 512 B), seen in 3 pairs;"),
        (0.7, (), (), ("x",), 3, "Node a, or x (nothing measured tells them apart): 70% of the usual speed, seen in 3"),
    ],
)
def test_a_culprit_in_a_sentence(
    *,
    speed: float | None,
    shown: tuple[int, ...],
    spared: tuple[int, ...],
    also: tuple[str, ...],
    count: int,
    text: str,
) -> None:
    told = _summary(Component(K.NODE, ("a",)), speed, shown, spared, also=also, count=count)
    assert told.startswith(text)
    assert told.endswith("; take it out and run a full check.")


@pytest.mark.parametrize(("names", "said"), [("", ""), ("abcd", "a, b, c, d"), ("abcde", "a, b, c, d and 1 more")])
def test_a_list_is_cut_after_four(names: str, said: str) -> None:
    assert join_names(list(names)) == said


# unknown


def test_uplinks_that_nothing_passed_are_unknown_where_three_leaves_can_be_compared() -> None:
    verdict = judged(*WITHIN)
    assert verdict.unknown == {f"the uplinks of switch l{n}": "not measured often enough" for n in (1, 2, 3)}
    assert (verdict.good, verdict.settled) == (tuple("abcdef"), False)
    assert judged(*WITHIN[:6], leaves="1122").unknown == {}
    nothing = judged()
    assert nothing.unknown == dict.fromkeys("abcdef", "not measured")
    assert nothing.noise is None


WITHIN = [pair(a, b, number=n) for a, b in ("ab", "cd", "ef") for n in (1, 2, 3)]
FARTHER = [pair("d", "f", number=n) for n in range(4)]
SLOW = pair("a", "c", 0.5e9)
ALONE = "one slow transfer"
MAY = "a slow transfer passed it; it may also be"


@pytest.mark.parametrize(
    ("across", "unknown"),
    [
        ([SLOW, pair("b", "d", 0.5e9)], {"the uplinks of switch l1": ALONE}),
        ([SLOW, SLOW, pair("b", "f"), pair("b", "f")], {"the way between a and c": ALONE}),
        (
            [SLOW, SLOW],
            {
                "the way between a and c": f"{MAY} the uplinks of switch l1",
                "the uplinks of switch l1": f"{MAY} the way between a and c",
            },
        ),
    ],
)
def test_slow_transfers_between_leaves_suspect_what_they_passed(
    across: list[PairResult], unknown: dict[str, str]
) -> None:
    assert judged(*WITHIN, *FARTHER, *across).unknown == unknown


def test_slow_transfers_within_a_leaf_suspect_their_ends() -> None:
    healthy = [pair("c", "d", number=n) for n in range(4)]
    assert judged(*healthy, pair("a", "b", 0.5e9), leaves="1111").unknown == {
        "the way between a and b": f"{MAY} node a, node b",
        "a": "slow with partners; it may also be node b",
        "b": "slow with partners; it may also be node a",
    }
    assert judged(*healthy, pair("a", "b", 0.5e9), pair("b", "d"), leaves="1111").unknown == {
        "the way between a and b": f"{MAY} node a",
        "a": "slow once",
    }


def test_two_nodes_meet_four_times_when_there_is_no_other() -> None:
    state = plan.start_localization(flat(["a", "b"]), settings=LocalizationConfig(rounds=9))
    while isinstance(step := plan.next_round(state), Round):
        assert len(step.pairs) == 1
        state = plan.record(state, [pair("a", "b") if step.number % 2 else pair("a", "b", 0.5e9)])
    assert len(state.results) == step.rounds == 4


@pytest.mark.parametrize(("count", "rounds", "most"), [(2, 0, 4), (64, 0, 14), (100, 0, 15), (64, 3, 3)])
def test_rounds_that_may_be_spent(count: int, rounds: int, most: int) -> None:
    """2 + 2 log2 n, rounded down."""
    names = [f"n{i}" for i in range(count)]
    state = plan.start_localization(flat(names), settings=LocalizationConfig(rounds=rounds))
    assert limit(state) == most


@pytest.mark.parametrize(
    ("missing", "why"), [("bc", "not measured"), ("bcd", "it does not answer"), ("bcdb", "it does not answer")]
)
def test_a_node_is_away_after_three_missing_answers(missing: str, why: str) -> None:
    """Unless it answered another node."""
    lost = [PairResult(a=Endpoint("a"), b=Endpoint(other), outcome=PairOutcome.MISSING) for other in missing]
    others = [pair("c", "d", number=n) for n in range(4)]
    assert judged(*lost, *others, leaves="1111").unknown["a"] == why
    assert "a" in judged(*lost, *others, pair("a", "c"), leaves="1111").good


# findings


def culprit(kind: K, *name: str, speed: float | None, ratios: tuple[float | None, ...] = ()) -> LocalizedCulprit:
    evidence = tuple(
        PairEvidence(a=Endpoint("a"), b=Endpoint(other), round=1, ratio=ratio)
        for other, ratio in zip("bcde", ratios, strict=False)
    )
    return LocalizedCulprit(
        kind=kind, name=name, nodes=(), speed=speed, sizes=(), odds=10.123, evidence=evidence, summary="It is bad."
    )


def finding_of(one: LocalizedCulprit) -> Finding:
    verdict = LocalizationVerdict(culprits=(one,), good=(), unknown={}, rounds=3, noise=None, settled=True)
    (found,) = findings(verdict, time=5.0)
    return found


@pytest.mark.parametrize(
    ("ratios", "pairs"),
    [
        ((), ""),
        ((0.5,), " Pairs: a - b 50%."),
        ((None, 0.5, 0.515), " Pairs: a - b hung, a - c 50%, a - d 52%."),
        ((None, 0.5, 0.5, 0.5), " Pairs: a - b hung, a - c 50%, a - d 50% and 1 more."),
    ],
)
def test_a_finding_lists_three_pairs(ratios: tuple[float | None, ...], pairs: str) -> None:
    found = finding_of(culprit(K.NIC, "a", "x", speed=0.5, ratios=ratios))
    assert found.evidence.summary == f"Localized: It is bad.{pairs}"
    assert found.evidence.numbers == {"odds": 10.12, "witnesses": len(ratios), "rounds": 3, "slowdown": 1.0}


def test_what_hangs_is_critical_and_what_is_slow_is_watched() -> None:
    slow, hung = (finding_of(culprit(K.NODE, "a", speed=speed)) for speed in (0.8, None))
    assert (slow.severity, slow.recommended_action) == (Severity.WARNING, RecommendedAction.MONITOR)
    assert (hung.severity, hung.recommended_action) == (Severity.CRITICAL, RecommendedAction.INSPECT_NODE)
    assert slow.evidence.numbers["slowdown"] == 0.25
    assert "slowdown" not in hung.evidence.numbers
    assert slow.confidence == pytest.approx(1 / (1 + math.exp(-10.123)))
    assert (slow.time, slow.detector) == (5.0, "localize")


@pytest.mark.parametrize(
    ("kind", "name", "about", "cause"),
    [
        (K.NODE, ("a",), ("a", None), Cause.HOST),
        (K.NIC, ("a", "x"), ("a", "x"), Cause.NIC),
        (K.GPU, ("a", "g"), ("a", "g"), Cause.GPU_LINK),
        (K.CABLE, ("l", "s"), (None, "cable l/s"), Cause.NETWORK),
        (K.UPLINK, ("l",), (None, "uplink l"), Cause.NETWORK),
    ],
)
def test_a_finding_is_about_the_piece(
    kind: K, name: tuple[str, ...], about: tuple[str | None, str | None], cause: Cause
) -> None:
    found = finding_of(culprit(kind, *name, speed=0.5))
    assert (found.entity.node, found.entity.device) == about
    assert (entity(Component(kind, name)), found.cause) == (found.entity, cause)
    assert len(between(Component(K.PATH, ("n" * 100, "m" * 100)))) == 128


def test_the_state_is_built_by_name() -> None:
    for kind in (PairResult, LocalizationState, LocalizationConfig, LocalizedCulprit, LocalizationVerdict, Round):
        with pytest.raises(TypeError, match="positional"):
            kind(1)
