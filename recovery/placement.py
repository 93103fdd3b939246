"""Who protects whom: ranks are dealt into groups so that no node, rack or power feed can take too many of one.

Ranks are sorted by domain and node and dealt to the groups in turn, like cards: the ranks of any one domain are spread
as evenly as is possible at all. Copies follow GEMINI (Wang et al., SOSP 2023): groups of M that hold everything of one
another, and the remainder with the last group in a ring, each on its M - 1 successors.

``survival`` is exact, not a bound: losses that a group outlives are counted, groups are independent (a product of
polynomials). GEMINI's formula is the first term of it, equal for fewer than two fatal groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb

from recovery.scheme import Kind, Scheme


@dataclass(frozen=True, slots=True)
class Host:
    """A node with ranks. ``domain`` is what fails together (rack, power); unknown ("") is a domain of its own."""

    node: str
    ranks: tuple[int, ...]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups of ranks, in the order in which members are numbered, and what the promise does not cover."""

    groups: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...]
    """One sentence for each node or domain whose loss could not be made good, and for ranks that nothing protects."""


def place(hosts: Sequence[Host], scheme: Scheme) -> Placement:
    """Deal the ranks of ``hosts``, in node order, into groups.

    Groups are made smaller than asked for where that is what it takes to outlive the loss of a domain.
    """
    ordered = _ordered(hosts)
    if scheme.kind is Kind.NONE or len(ordered) < 2:
        return Placement((), ())
    best: Placement | None = None
    for count in _counts(hosts, scheme):
        groups = _deal(ordered, scheme, count)
        placed = Placement(groups, _warnings(groups, hosts, scheme))
        if best is None or len(placed.warnings) < len(best.warnings):
            best = placed
        if not best.warnings:
            break
    assert best is not None, "there is always one number of groups to try"
    return best


def _ordered(hosts: Sequence[Host]) -> list[int]:
    """Ranks, those of a domain together; domains and nodes in the order in which they are named."""
    domains: dict[str, list[int]] = {}
    for host in hosts:
        domains.setdefault(host.domain or f"\0{host.node}", []).extend(host.ranks)
    return [rank for ranks in domains.values() for rank in ranks]


def _counts(hosts: Sequence[Host], scheme: Scheme) -> range:
    """Numbers of groups that can be tried: first that of the size asked for, then ever smaller groups.

    A node never has two ranks in a group as long as groups of two are possible.
    """
    total = sum(len(host.ranks) for host in hosts)
    most = max(1, total // scheme.least)
    if scheme.kind is Kind.COPIES:
        return range(most, most + 1)
    widest = max(len(host.ranks) for host in hosts)
    wanted = min(most, max(-(-total // scheme.group_size), widest))
    return range(wanted, most + 1)


def _deal(ordered: list[int], scheme: Scheme, count: int) -> tuple[tuple[int, ...], ...]:
    if scheme.kind is Kind.COPIES:
        even = count * scheme.copies
        groups = [list(ordered[number:even:count]) for number in range(count)]
        groups[-1].extend(ordered[even:])
    else:
        groups = [list(ordered[number::count]) for number in range(count)]
    return tuple(tuple(group) for group in groups)


def outlives(scheme: Scheme, size: int, lost: Iterable[int]) -> bool:
    """Whether a group of ``size`` members loses nothing with the members (by place) in ``lost``."""
    gone = set(lost)
    fitted = scheme.fitted(size)
    if fitted.kind is not Kind.COPIES:
        return len(gone) <= fitted.tolerance
    return not any(all((at + d) % size in gone for d in range(fitted.copies)) for at in gone)


def holders(scheme: Scheme, size: int, place: int) -> tuple[int, ...]:
    """Members that keep a copy of ``place``'s slot: its successors (GEMINI: all of the group, or a ring)."""
    copies = scheme.fitted(size).copies
    return tuple((place + d) % size for d in range(1, copies))


def _warnings(groups: tuple[tuple[int, ...], ...], hosts: Sequence[Host], scheme: Scheme) -> tuple[str, ...]:
    domains: dict[str, set[int]] = {}
    for host in hosts:
        if host.domain:
            domains.setdefault(host.domain, set()).update(host.ranks)
    nodes = {host.node: set(host.ranks) for host in hosts}
    told = [f"rank {group[0]} is alone in its group: nothing protects it" for group in groups if len(group) < 2]
    short = sorted({len(group) for group in groups if 2 <= len(group) < scheme.least})
    told += [
        f"groups of {size} ranks outlive {size - 1} losses, not the {scheme.tolerance} of {scheme}" for size in short
    ]
    alone = {group[0] for group in groups if len(group) < 2}
    index, sizes = _index(groups), [len(group) for group in groups]
    for what, named in (("domain", domains), ("node", nodes)):
        for name, ranks in named.items():
            many = _too_many(index, sizes, ranks - alone, scheme)
            if many:
                told.append(
                    f"the loss of {what} {name} would take {many} ranks of one group, more than {scheme} outlives"
                )
    return tuple(told)


def _too_many(index: Mapping[int, tuple[int, int]], sizes: Sequence[int], lost: set[int], scheme: Scheme) -> int:
    """How many of one group are in ``lost`` where that is too many; else 0. ``index``: rank -> (group, place)."""
    by_group: dict[int, list[int]] = {}
    for rank in lost:
        group, at = index[rank]
        by_group.setdefault(group, []).append(at)
    return next((len(p) for g, p in sorted(by_group.items()) if not outlives(scheme, sizes[g], p)), 0)


def _index(groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Rank -> (group, place)."""
    return {rank: (number, at) for number, group in enumerate(groups) for at, rank in enumerate(group)}


# Survival, exactly


def survival(scheme: Scheme, sizes: Sequence[int], lost: int) -> Fraction:
    """The probability that nothing is lost when ``lost`` members, each set as likely, go at once.

    Args:
        scheme: what every group keeps.
        sizes: members of each group.
        lost: how many of all members.
    """
    ways = [1]
    for size, times in Counter(sizes).items():
        one = [survivable(scheme, size, k) for k in range(min(size, lost) + 1)]
        for _ in range(times):
            ways = _product(ways, one)[: lost + 1]
    total = comb(sum(sizes), lost)
    return Fraction(ways[lost] if lost < len(ways) else 0, total) if total else Fraction(0)


def survivable(scheme: Scheme, size: int, lost: int) -> int:
    """How many of the sets of ``lost`` members a group of ``size`` outlives.

    A ring with copies on c - 1 successors outlives a set without c consecutive members. Closed form: the s - k living
    ones part the circle into s - k runs of 0 to c - 1 lost ones, counted by inclusion and exclusion.
    """
    fitted = scheme.fitted(size)
    if fitted.kind is not Kind.COPIES:
        return comb(size, lost) if lost <= fitted.tolerance else 0
    alive, run = size - lost, fitted.copies
    if not alive:
        return 0
    linear = 0
    for j in range(min(alive, lost // run) + 1):
        ways = comb(alive, j) * comb(size - j * run - 1, alive - 1)
        linear += -ways if j % 2 else ways
    return size * linear // alive


def _product(one: Sequence[int], other: Sequence[int]) -> list[int]:
    result = [0] * (len(one) + len(other) - 1)
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            result[i + j] += a * b
    return result


def gemini_bound(nodes: int, copies: int, lost: int) -> Fraction:
    """GEMINI's formula (SOSP 2023, section 4) for ``copies`` that divide ``nodes``: at least so probable.

    1 for lost < copies; else max(0, 1 - N C(N-m, k-m) / (m C(N, k))): the union bound over the N/m groups.
    """
    if lost < copies:
        return Fraction(1)
    fatal = Fraction(nodes * comb(nodes - copies, lost - copies), copies * comb(nodes, lost))
    return max(Fraction(0), 1 - fatal)


def enumerate_survival(scheme: Scheme, groups: Sequence[Sequence[int]], lost: int) -> Fraction:
    """The same as ``survival`` by trying every set: for tests and benches of small N."""
    members = [rank for group in groups for rank in group]
    place = _index(groups)
    good = total = 0
    for gone in combinations(members, lost):
        by_group: dict[int, list[int]] = {}
        for rank in gone:
            group, at = place[rank]
            by_group.setdefault(group, []).append(at)
        good += all(outlives(scheme, len(groups[g]), places) for g, places in by_group.items())
        total += 1
    return Fraction(good, total) if total else Fraction(0)
