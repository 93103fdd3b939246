"""Who protects whom: ranks are assigned into groups so that no node, rack or power feed can take too many of one.

Ranks are sorted by domain and node and assigned to the groups in turn: the ranks of any one domain are spread
as evenly as is possible at all. Copies follow GEMINI (Wang et al., SOSP 2023): groups of M that hold everything of one
another, and the remainder with the last group in a ring, each on its M - 1 successors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind


@dataclass(frozen=True, slots=True)
class PlacementHost:
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


def place_groups(hosts: Sequence[PlacementHost], scheme: ProtectionScheme) -> Placement:
    """Divide the ranks of ``hosts``, in node order, into groups.

    Groups are made smaller than asked for where that is what it takes to outlive the loss of a domain.
    """
    ordered = _ordered(hosts)
    if scheme.kind is SchemeKind.NONE or len(ordered) < 2:
        return Placement((), ())
    best: Placement | None = None
    for count in _counts(hosts, scheme):
        groups = _divide(ordered, scheme, count)
        placed = Placement(groups, _warnings(groups, hosts, scheme))
        if best is None or len(placed.warnings) < len(best.warnings):
            best = placed
        if not best.warnings:
            break
    assert best is not None, "there is always one number of groups to try"
    return best


def _ordered(hosts: Sequence[PlacementHost]) -> list[int]:
    """Ranks, those of a domain together; domains and nodes in the order in which they are named."""
    domains: dict[str, list[int]] = {}
    for host in hosts:
        domains.setdefault(host.domain or f"\0{host.node}", []).extend(host.ranks)
    return [rank for ranks in domains.values() for rank in ranks]


def _counts(hosts: Sequence[PlacementHost], scheme: ProtectionScheme) -> range:
    """Numbers of groups that can be tried: first that of the size asked for, then ever smaller groups.

    A node never has two ranks in a group as long as groups of two are possible.
    """
    total = sum(len(host.ranks) for host in hosts)
    most = max(1, total // scheme.least)
    if scheme.kind is SchemeKind.COPIES:
        return range(most, most + 1)
    widest = max(len(host.ranks) for host in hosts)
    wanted = min(most, max(-(-total // scheme.group_size), widest))
    return range(wanted, most + 1)


def _divide(ordered: list[int], scheme: ProtectionScheme, count: int) -> tuple[tuple[int, ...], ...]:
    if scheme.kind is SchemeKind.COPIES:
        even = count * scheme.copies
        groups = [list(ordered[number:even:count]) for number in range(count)]
        groups[-1].extend(ordered[even:])
    else:
        groups = [list(ordered[number::count]) for number in range(count)]
    return tuple(tuple(group) for group in groups)


def survives(scheme: ProtectionScheme, size: int, lost: Iterable[int]) -> bool:
    """Whether a group of ``size`` members loses nothing with the members (by place) in ``lost``."""
    gone = set(lost)
    fitted = scheme.fitted(size)
    if fitted.kind is not SchemeKind.COPIES:
        return len(gone) <= fitted.tolerance
    return not any(all((at + d) % size in gone for d in range(fitted.copies)) for at in gone)


def holders(scheme: ProtectionScheme, size: int, place: int) -> tuple[int, ...]:
    """Members that keep a copy of ``place``'s slot: its successors (GEMINI: all of the group, or a ring)."""
    copies = scheme.fitted(size).copies
    return tuple((place + d) % size for d in range(1, copies))


def _warnings(
    groups: tuple[tuple[int, ...], ...], hosts: Sequence[PlacementHost], scheme: ProtectionScheme
) -> tuple[str, ...]:
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


def _too_many(
    index: Mapping[int, tuple[int, int]], sizes: Sequence[int], lost: set[int], scheme: ProtectionScheme
) -> int:
    """How many of one group are in ``lost`` where that is too many; else 0. ``index``: rank -> (group, place)."""
    by_group: dict[int, list[int]] = {}
    for rank in lost:
        group, at = index[rank]
        by_group.setdefault(group, []).append(at)
    return next((len(p) for g, p in sorted(by_group.items()) if not survives(scheme, sizes[g], p)), 0)


def _index(groups: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """Rank -> (group, place)."""
    return {rank: (number, at) for number, group in enumerate(groups) for at, rank in enumerate(group)}


# Survival, exactly
