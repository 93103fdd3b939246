"""How safe a job's memory is now: the probability to outlive the next hour without the disk, and what may not be lost.

A loss of nodes is outlived when all ranks can have one common step from what the others hold. There are two such steps:

newest   each rank's own slot, that of a replica with equal state, or an extra copy of it on another node
parity   the step that the job's groups protect: own slot, a replica's, or what the group's scheme brings back

The probability counts every set of nodes that may be lost, as if no repair came within the hour: after a recovery
a job is protected again within seconds, so that the truth is better. Nodes fail independently here; what fails together
(a rack) is a matter of placement, which warns of it. Where sets are too many the largest are counted as lost: the
figure is then a lower bound, and is marked as one.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstay.recovery.placement import holders
from mainstay.recovery.protection_scheme import ProtectionScheme, SchemeKind

BUDGET: Final = 2_000_000
"""Cells (sets times nodes and ranks) looked at for one group of nodes that depend on each other: a second or less."""
LISTED: Final = 16
"""Sets of nodes reported; their total number is reported too."""
_TRIED: Final = 4096
"""Sets tried for one rank: a rank of a group of 64 under rs:16 has more fatal sets than an operator reads."""

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSnapshots:
    """What is kept of a job, and where.

    Raises:
        ValueError: a rank's node has no probability, or one is not between 0 and 1.
    """

    loss: Mapping[str, float]
    """Node -> probability that it is lost within the hour."""
    home: tuple[str, ...]
    """Rank -> node with its slots."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """Ranks that hold equal state; a rank that stands nowhere has none."""
    extra: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Rank -> nodes that keep an extra copy of its newest slot."""
    scheme: ProtectionScheme = field(default_factory=lambda: ProtectionScheme(SchemeKind.NONE, 0))
    groups: tuple[tuple[int, ...], ...] = ()
    """Of ranks, in the order of their places; empty where no protected step exists yet."""

    def __post_init__(self) -> None:
        for node in {*self.home, *(n for nodes in self.extra.values() for n in nodes)}:
            if node not in self.loss:
                raise ValueError(f"node {node} has no probability to be lost")
        for node, p in self.loss.items():
            if not 0.0 <= p <= 1.0:
                raise ValueError(f"node {node} is lost with probability {p}, which is none")


@dataclass(frozen=True, slots=True, kw_only=True)
class DurabilityEstimate:
    """The figure. ``survival`` is a lower bound unless ``exact``."""

    survival: float
    """Probability that the next hour costs nothing that memory cannot give back."""
    exact: bool
    least: int | None
    """Fewest nodes whose loss at once memory does not outlive; None: it outlives the loss of any."""
    fatal: tuple[tuple[str, ...], ...]
    """The sets of so many nodes, in order; at most ``LISTED``."""
    fatal_count: int


def hourly(mtbf_hours: float, factor: float = 1.0) -> float:
    """The probability that a node is lost within an hour, failing every ``mtbf_hours`` / ``factor`` on average."""
    return -math.expm1(-factor / mtbf_hours)


def durability(holding: HeldSnapshots) -> DurabilityEstimate:
    """The figure of what is held now."""
    rules = _Rules(holding)
    newest = parity = both = 1.0
    exact = True
    for nodes in rules.components():
        sets, whole = _sets(len(nodes), BUDGET // max(1, len(nodes) + len(rules.ranks_on(nodes))))
        lost = dict(zip(nodes, sets.T, strict=True))
        p = np.array([holding.loss[node] for node in nodes])
        weight = np.where(sets, p, 1.0 - p).prod(axis=1)
        first, second = rules.newest(lost, len(sets)), rules.parity(lost, len(sets))
        newest *= float(weight[first].sum())
        parity *= float(weight[second].sum())
        both *= float(weight[first & second].sum())
        exact = exact and whole
    fatal = rules.fatal()
    return DurabilityEstimate(
        survival=min(1.0, max(0.0, newest + parity - both)),
        exact=exact,
        least=len(fatal[0]) if fatal else None,
        fatal=tuple(fatal[:LISTED]),
        fatal_count=len(fatal),
    )


def least_loss(holding: HeldSnapshots) -> int:
    """Fewest nodes whose loss at once takes both steps; that of all of them does."""
    fatal = _Rules(holding).fatal()
    return len(fatal[0]) if fatal else len(holding.loss)


class _Rules:
    """What a set of lost nodes must not contain."""

    def __init__(self, holding: HeldSnapshots) -> None:
        self._h = holding
        self._twins = {rank: ranks for ranks in holding.replicas for rank in ranks}
        self._group = {rank: group for group in holding.groups for rank in group}

    def _homes(self, rank: int) -> frozenset[str]:
        """Nodes with the slot of the rank or of an equal one."""
        return frozenset(self._h.home[twin] for twin in self._twins.get(rank, (rank,)))

    def _copies(self, rank: int) -> frozenset[str]:
        """The same, with extra copies."""
        twins = self._twins.get(rank, (rank,))
        return self._homes(rank).union(*(self._h.extra.get(twin, frozenset()) for twin in twins))

    @cached_property
    def _newest(self) -> frozenset[frozenset[str]]:
        """Of none of these may all be lost if the newest step is to be had."""
        return frozenset(self._copies(rank) for rank in range(len(self._h.home)))

    def components(self) -> list[list[str]]:
        """Nodes whose loss matters to one another, together. Those that hold nothing are in none."""
        links = [*self._newest, *({self._h.home[r] for r in group} for group in self._h.groups)]
        of: dict[str, set[str]] = {}
        for link in links:
            merged = set(link).union(*(of.get(node, ()) for node in link))
            of |= dict.fromkeys(merged, merged)
        unique = {id(nodes): nodes for nodes in of.values()}
        return [sorted(nodes) for nodes in unique.values()]

    def ranks_on(self, nodes: Iterable[str]) -> list[int]:
        inside = set(nodes)
        return [rank for rank, node in enumerate(self._h.home) if node in inside]

    def newest(self, lost: Mapping[str, Bools], count: int) -> Bools:
        """[set] whether the newest step is to be had; ``lost[node]``: [set]. Other nodes are not considered."""
        good = np.ones(count, np.bool_)
        for nodes in self._newest:
            if nodes <= lost.keys():
                good &= ~_all(lost, nodes, count)
        return good

    def parity(self, lost: Mapping[str, Bools], count: int) -> Bools:
        """[set] whether the protected step is to be had; never where there is none."""
        if not self._h.groups:
            return np.zeros(count, np.bool_)
        good, over = np.ones(count, np.bool_), dict[tuple[int, ...], Bools]()
        for rank in self.ranks_on(lost):
            group = self._group.get(rank, (rank,))
            if self._h.scheme.fitted(len(group)).kind is SchemeKind.COPIES:
                kept = holders(self._h.scheme, len(group), group.index(rank))
                away = _all(lost, {self._h.home[group[place]] for place in kept}, count)
            else:  # one answer for all members
                away = over[group] if group in over else over.setdefault(group, self._overwhelmed(group, lost))
            good &= ~(_all(lost, self._homes(rank), count) & away)
        return good

    def _overwhelmed(self, group: tuple[int, ...], lost: Mapping[str, Bools]) -> Bools:
        """[set] whether more of a group's members are lost than its code brings back."""
        gone = np.sum([lost[self._h.home[member]] for member in group], axis=0)
        return np.asarray(gone > self._h.scheme.fitted(len(group)).tolerance)

    # What may not be lost

    def fatal(self) -> list[tuple[str, ...]]:
        """The smallest sets of nodes that take both steps, in order."""
        return _least(self._fatal() if self._h.groups else self._newest)

    def _fatal(self) -> Iterator[frozenset[str]]:
        for rank in range(len(self._h.home)):
            for nodes in self._ends(rank):
                if self._copies(rank) <= nodes:  # who takes the protected step of the rank takes its newest too
                    yield nodes
                else:
                    yield from (nodes | others for others in self._newest)

    def _ends(self, rank: int) -> Iterator[frozenset[str]]:
        """Sets of nodes, none smaller within, whose loss takes the rank's protected step."""
        group, homes = self._group.get(rank, (rank,)), self._homes(rank)
        fitted = self._h.scheme.fitted(len(group))
        if fitted.kind is SchemeKind.COPIES:
            yield homes | {self._h.home[group[p]] for p in holders(self._h.scheme, len(group), group.index(rank))}
            return
        members = Counter(self._h.home[member] for member in group)
        short = fitted.tolerance + 1 - sum(members[node] for node in homes)
        others = [node for node in members if node not in homes]
        tried = (chosen for size in range(len(others) + 1) for chosen in combinations(others, size))
        for chosen in islice(tried, _TRIED):
            counts = [members[node] for node in chosen]
            if sum(counts) >= short and (not counts or sum(counts) - min(counts) < short):
                yield homes | set(chosen)


def _all(lost: Mapping[str, Bools], nodes: Iterable[str], count: int) -> Bools:
    """[set] whether all of ``nodes`` are lost; a node that is not asked about is not."""
    gone = np.ones(count, np.bool_)
    for node in nodes:
        gone &= lost.get(node, np.False_)
    return gone


def _least(sets: Iterable[frozenset[str]]) -> list[tuple[str, ...]]:
    found = set(sets)
    least = min(map(len, found), default=0)
    return sorted(tuple(sorted(nodes)) for nodes in found if len(nodes) == least)


def _sets(nodes: int, most: int) -> tuple[Bools, bool]:
    """[set, node] sets of lost nodes, the small ones first, at most ``most``; whether these are all."""
    if 2**nodes <= most:
        return (np.arange(2**nodes)[:, None] >> np.arange(nodes) & 1).astype(np.bool_), True
    chosen = list(islice((c for size in range(nodes + 1) for c in combinations(range(nodes), size)), max(1, most)))
    sets = np.zeros((len(chosen), nodes), np.bool_)
    for row, lost in enumerate(chosen):
        sets[row, list(lost)] = True
    return sets, False


def describe(figure: DurabilityEstimate, ranks: Sequence[str]) -> str:
    """What may die now, for people. ``ranks``: the nodes that the job runs on."""
    if figure.least is None:
        return "Memory outlives the loss of any node."
    if figure.least == 1:
        alone = [nodes[0] for nodes in figure.fatal]
        some = f"any of its {len(set(ranks))} nodes" if len(alone) == len(set(ranks)) else f"node {', '.join(alone)}"
        return f"The loss of {some} cannot be made good from memory."
    less = "any one node" if figure.least == 2 else f"any {figure.least - 1} nodes at once"
    sets = "; ".join(" with ".join(nodes) for nodes in figure.fatal[:4])
    more = f", and {figure.fatal_count - 4} more such sets" if figure.fatal_count > 4 else ""
    return f"Memory outlives the loss of {less}, not of {sets}{more}."
