"""Schemes, groups over nodes and domains, and the exact probability that nothing is lost."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

from bench.lib_survival import enumerate_survival, gemini_bound, survivable, survival
from mainstay.recovery.placement import PlacementHost, place_groups, survives
from mainstay.recovery.protection_scheme import ProtectionScheme, parse


def hosts(count: int, *, each: int = 1, per_domain: int = 0) -> list[PlacementHost]:
    return [
        PlacementHost(f"n{n}", tuple(range(n * each, (n + 1) * each)), f"rack{n // per_domain}" if per_domain else "")
        for n in range(count)
    ]


@pytest.mark.parametrize("text", ["none", "xor", "rs:2", "copies:3"])
def test_a_scheme_reads_back(text: str) -> None:
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "group", "words"),
    [
        ("raid", None, "'raid' is none of"),
        ("rs", None, "none of"),
        ("xor:2", None, "none of"),
        ("rs:x", None, "none of"),
        ("rs:-1", None, "none of"),
        ("rs:0", None, "rs:0"),
        ("rs:99", None, "rs:99"),
        ("copies:1", None, "copies:1"),
        ("rs:2", 2, "group of 2 nodes is too small for rs:2: at least 3"),
        ("xor", 1, "group of 1"),
        ("xor", 999, "group of 999"),
    ],
)
def test_nonsense_is_named(text: str, group: int | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text, group)


def test_a_small_group_tolerates_all_but_one() -> None:
    assert [parse("rs:2").fitted(g).tolerance for g in (1, 2, 3, 8)] == [0, 1, 2, 2]
    assert [parse("copies:3").fitted(g).tolerance for g in (1, 2, 3, 8)] == [0, 1, 2, 2]


def test_ranks_at_the_same_place_of_their_nodes_protect_one_another() -> None:
    assert place_groups(hosts(4, each=2), parse("xor", 4)).groups == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_groups_have_the_size_asked_for_or_less() -> None:
    for count in range(2, 40):
        for size in (3, 4, 8):
            placed = place_groups(hosts(count), parse("rs:2", size))
            assert sorted(rank for group in placed.groups for rank in group) == list(range(count))
            assert max(map(len, placed.groups)) <= max(size, 5)  # five nodes cannot be two groups of three
            if count > 2:
                assert placed.warnings == ()
            else:
                assert "outlive 1 losses" in placed.warnings[0]


@pytest.mark.parametrize("scheme", [parse("xor", 4), parse("rs:2", 4), parse("rs:2", 8), parse("copies:2")])
def test_any_one_domain_may_be_lost(scheme: ProtectionScheme) -> None:
    """Racks of two and of four nodes, all within one group's reach."""
    for racks in (2, 4):
        given = hosts(16, each=2, per_domain=racks)
        placed = place_groups(given, scheme)
        assert placed.warnings == ()
        for rack in {host.domain for host in given}:
            gone = {rank for host in given if host.domain == rack for rank in host.ranks}
            for group in placed.groups:
                assert survives(scheme, len(group), [at for at, rank in enumerate(group) if rank in gone])


def test_groups_shrink_before_a_domain_is_given_up() -> None:
    """Racks of four and one group of eight: two of a rack in each group would be one too many for xor."""
    placed = place_groups(hosts(16, per_domain=4), parse("xor", 8))
    assert placed.warnings == ()
    assert {len(group) for group in placed.groups} == {4}


def test_a_domain_that_is_too_large_is_named() -> None:
    given = [PlacementHost(f"n{n}", (n,), "power-a" if n < 6 else "power-b") for n in range(8)]
    (warning,) = place_groups(given, parse("xor", 4)).warnings
    assert "domain power-a" in warning
    assert "xor" in warning


def test_after_a_loss_uneven_nodes_are_still_protected() -> None:
    """Two ranks have moved to the first node: each protects itself with another node."""
    placed = place_groups(
        [PlacementHost("a", (0, 1)), PlacementHost("b", (2,)), PlacementHost("c", (3,))], parse("xor")
    )
    assert placed.warnings == ()
    assert all(not {0, 1} <= set(group) for group in placed.groups)
    assert place_groups([PlacementHost("a", (0, 1, 2))], parse("xor")).warnings != ()
    assert place_groups([PlacementHost("a", (0,))], parse("xor")).groups == ()


def test_a_job_that_has_become_too_small_for_its_scheme_says_so() -> None:
    (warning,) = place_groups(hosts(2), parse("rs:2")).warnings
    assert warning == "groups of 2 ranks outlive 1 losses, not the 2 of rs:2"


def test_copies_are_placed_as_gemini_does() -> None:
    assert [len(group) for group in place_groups(hosts(16), parse("copies:2")).groups] == [2] * 8
    assert [len(group) for group in place_groups(hosts(17), parse("copies:3")).groups] == [3, 3, 3, 3, 5]


@pytest.mark.parametrize(
    ("text", "size", "nodes", "expected"),
    [  # reference tables of exact survival for k = 2, 3, 4 (16 nodes) and 2, 4, 8 (128)
        ("copies:2", None, 16, {2: 0.9333, 3: 0.8000, 4: 0.6154}),
        ("copies:2", None, 128, {2: 0.9921, 4: 0.9529, 8: 0.7925}),
        ("copies:3", None, 18, {2: 1.0, 3: 0.9926, 4: 0.9706}),
        ("xor", 4, 16, {2: 0.8, 3: 0.4571, 4: 0.1407}),
        ("rs:2", 4, 16, {2: 1.0, 3: 0.9714, 4: 0.8923}),
        ("rs:2", 8, 16, {2: 1.0, 3: 0.8, 4: 0.4308}),
        ("rs:2", 8, 1024, {2: 1.0, 4: 0.9998, 8: 0.9978}),
    ],
)
def test_survival_is_the_published_one(text: str, size: int | None, nodes: int, expected: dict[int, float]) -> None:
    scheme = parse(text, size)
    sizes = [len(group) for group in place_groups(hosts(nodes), scheme).groups]
    for lost, probability in expected.items():
        assert float(survival(scheme, sizes, lost)) == pytest.approx(probability, abs=6e-5)


@pytest.mark.parametrize("scheme", [parse("xor", 3), parse("rs:2", 4), parse("copies:2"), parse("copies:3")])
@pytest.mark.parametrize("nodes", [4, 7, 9, 11])
def test_survival_equals_every_set_tried(scheme: ProtectionScheme, nodes: int) -> None:
    groups = place_groups(hosts(nodes), scheme).groups
    for lost in range(nodes + 1):
        exact = survival(scheme, [len(group) for group in groups], lost)
        assert exact == enumerate_survival(scheme, groups, lost), (lost, groups)


def test_rings_count_what_they_outlive() -> None:
    for size in range(2, 10):
        for copies in (2, 3, 4):
            scheme = parse(f"copies:{copies}")
            for lost in range(size + 1):
                tried = sum(survives(scheme, size, gone) for gone in combinations(range(size), lost))
                assert survivable(scheme, size, lost) == tried, (size, copies, lost)


def test_geminis_formula_is_exact_below_two_groups_and_a_bound_beyond() -> None:
    scheme = parse("copies:2")
    for lost in range(9):
        exact, bound = survival(scheme, [2] * 8, lost), gemini_bound(16, 2, lost)
        assert exact >= bound
        if lost < 4:
            assert exact == bound
    assert gemini_bound(16, 2, 3) == Fraction(4, 5)
