"""The durability figure against trying every set of lost nodes, and what it says in words."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import combinations

import pytest

from bench.lib_survival import survival
from mainstay.recovery.durability import HeldSnapshots, describe, durability, hourly
from mainstay.recovery.placement import PlacementHost, holders, place_groups
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind, parse


def back(h: HeldSnapshots, lost: set[str]) -> bool:
    """The definition once more, rank by rank and in other words than the code's."""
    twins = {rank: set(ranks) for ranks in h.replicas for rank in ranks}
    group_of = {rank: group for group in h.groups for rank in group}

    def slot(rank: int) -> bool:
        return any(h.home[twin] not in lost for twin in twins.get(rank, {rank}))

    def copy(rank: int) -> bool:
        return any(set(h.extra.get(twin, ())) - lost for twin in twins.get(rank, {rank}))

    def decoded(rank: int) -> bool:
        group = group_of.get(rank)
        if group is None or len(group) < 2:
            return False
        scheme = h.scheme.fitted(len(group))
        if scheme.kind is SchemeKind.COPIES:
            return any(h.home[group[p]] not in lost for p in holders(h.scheme, len(group), group.index(rank)))
        return sum(h.home[member] in lost for member in group) <= scheme.tolerance

    ranks = range(len(h.home))
    return all(slot(r) or copy(r) for r in ranks) or (bool(h.groups) and all(slot(r) or decoded(r) for r in ranks))


def brute(h: HeldSnapshots) -> tuple[float, list[tuple[str, ...]]]:
    """Survival by every subset, and the smallest subsets that are not outlived."""
    nodes, alive, fatal = sorted(h.loss), 0.0, list[tuple[str, ...]]()
    for size in range(len(nodes) + 1):
        for lost in combinations(nodes, size):
            good = back(h, set(lost))
            if good:
                alive += math.prod(h.loss[n] if n in lost else 1.0 - h.loss[n] for n in nodes)
            elif not fatal or len(fatal[0]) == size:
                fatal.append(lost)
    return alive, fatal


def world(seed: int, nodes: int) -> HeldSnapshots:
    """A job as it may be: some nodes with two ranks, replicas, extra copies, any scheme, with or without parity."""
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(nodes)]
    home = [name for name in names[: rng.randint(1, nodes)] for _ in range(rng.choice([1, 1, 2]))]
    scheme = parse(rng.choice(["xor", "rs:2", "rs:3", "copies:2", "copies:3"]), rng.choice([4, 6, 8]))
    hosts = [PlacementHost(n, tuple(r for r, at in enumerate(home) if at == n)) for n in dict.fromkeys(home)]
    dp = rng.choice([1, 1, 2])
    half = len(home) // 2
    return HeldSnapshots(
        loss={name: rng.uniform(0.01, 0.6) for name in names},
        home=tuple(home),
        replicas=tuple((r, r + half) for r in range(half)) if dp == 2 and len(home) % 2 == 0 else (),
        extra={r: frozenset(rng.sample(names, 1)) for r in range(len(home)) if rng.random() < 0.2},
        scheme=scheme,
        groups=place_groups(hosts, scheme).groups if rng.random() < 0.8 else (),
    )


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_trying_every_set_gives(seed: int) -> None:
    h = world(seed, nodes=12 if seed % 20 == 0 else 2 + seed % 6)
    alive, fatal = brute(h)
    figure = durability(h)
    assert figure.exact
    assert figure.survival == pytest.approx(alive, abs=1e-12)
    assert figure.least == (len(fatal[0]) if fatal else None)
    assert list(figure.fatal) == fatal[:16]
    assert figure.fatal_count == len(fatal)


@pytest.mark.parametrize("text", ["xor", "rs:2", "copies:2"])
def test_it_agrees_with_the_formula_of_placement(text: str) -> None:
    """With equal nodes: the sum over sizes of the binomial weight times the surviving fraction."""
    scheme, p, n = parse(text, 4), 0.1, 12
    hosts = [PlacementHost(f"n{i}", (i,)) for i in range(n)]
    groups = place_groups(hosts, scheme).groups
    figure = durability(
        HeldSnapshots(loss={h.node: p for h in hosts}, home=tuple(h.node for h in hosts), scheme=scheme, groups=groups)
    )
    sizes = [len(group) for group in groups]
    parts = [Fraction(math.comb(n, k)) * survival(scheme, sizes, k) * Fraction(p) ** k * Fraction(1 - p) ** (n - k)
             for k in range(n + 1)]  # fmt: skip
    assert figure.survival == pytest.approx(float(sum(parts)), abs=1e-12)


def test_of_a_large_job_a_lower_bound_is_told_as_one() -> None:
    n, scheme = 64, ProtectionScheme(SchemeKind.RS, 2, 1, 64)
    home = tuple(f"n{i:02}" for i in range(n))
    p = hourly(6000.0)
    figure = durability(HeldSnapshots(loss=dict.fromkeys(home, p), home=home, scheme=scheme, groups=(tuple(range(n)),)))
    truth = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(3))
    assert not figure.exact
    assert truth - 1e-9 <= figure.survival <= truth + 1e-12
    assert figure.least == 3


def test_hazards_and_extra_copies_move_the_figure() -> None:
    home = ("a", "b")
    loss = {"a": hourly(6000.0), "b": hourly(6000.0, 100.0), "c": hourly(6000.0)}
    bare = durability(HeldSnapshots(loss=loss, home=home))
    copied = durability(HeldSnapshots(loss=loss, home=home, extra={1: frozenset({"c"})}))
    assert bare.survival == pytest.approx((1 - loss["a"]) * (1 - loss["b"]))
    assert copied.survival == pytest.approx((1 - loss["a"]) * (1 - loss["b"] * loss["c"]))
    assert (bare.fatal, copied.fatal) == ((("a",), ("b",)), (("a",),))


def test_words() -> None:
    home, scheme = ("a", "b", "c"), parse("xor", 3)
    loss = dict.fromkeys(home, 0.1)
    bare, safe = (
        HeldSnapshots(loss=loss, home=home),
        HeldSnapshots(loss=loss, home=home, scheme=scheme, groups=((0, 1, 2),)),
    )
    assert describe(durability(bare), home) == "The loss of any of its 3 nodes cannot be made good from memory."
    said = "Memory outlives the loss of any one node, not of a with b; a with c; b with c."
    assert describe(durability(safe), home) == said
    copied = HeldSnapshots(loss=loss, home=home, extra={0: frozenset("b"), 1: frozenset("c")})
    assert describe(durability(copied), home) == "The loss of node c cannot be made good from memory."


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="node b has no probability"):
        HeldSnapshots(loss={"a": 0.1}, home=("a", "b"))
    with pytest.raises(ValueError, match=r"node a is lost with probability 1\.5"):
        HeldSnapshots(loss={"a": 1.5}, home=("a",))
