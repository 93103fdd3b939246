"""What a placement outlives: the probability that nothing is lost when so many members go at once.

``survival`` is exact, not a bound: losses that a group outlives are counted, groups are independent (a product of
polynomials). GEMINI's formula is the first term of it, equal for fewer than two fatal groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from math import comb

from mainstay.recovery.placement import survives
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind


def survival(scheme: ProtectionScheme, sizes: Sequence[int], lost: int) -> Fraction:
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


def survivable(scheme: ProtectionScheme, size: int, lost: int) -> int:
    """How many of the sets of ``lost`` members a group of ``size`` outlives.

    A ring with copies on c - 1 successors outlives a set without c consecutive members. Closed form: the s - k living
    ones part the circle into s - k runs of 0 to c - 1 lost ones, counted by inclusion and exclusion.
    """
    fitted = scheme.fitted(size)
    if fitted.kind is not SchemeKind.COPIES:
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


def enumerate_survival(scheme: ProtectionScheme, groups: Sequence[Sequence[int]], lost: int) -> Fraction:
    """The same as ``survival`` by trying every set: for tests and benches of small N."""
    members = [rank for group in groups for rank in group]
    place = {rank: (number, at) for number, group in enumerate(groups) for at, rank in enumerate(group)}
    good = total = 0
    for gone in combinations(members, lost):
        by_group: dict[int, list[int]] = {}
        for rank in gone:
            group, at = place[rank]
            by_group.setdefault(group, []).append(at)
        good += all(survives(scheme, len(groups[g]), places) for g, places in by_group.items())
        total += 1
    return Fraction(good, total) if total else Fraction(0)
