"""Adaptive group testing: which nodes make a collective fail, from which groups of them pass.

All groups of a round are disjoint and run at the same time. A group that fails is halved, both halves in the next
round, until single nodes are left; a single node is tested beside one that passed, for a collective needs two. So d bad
of n nodes take log2 n + 2 rounds and about 2 d log2 (n/d) tests (generalized binary splitting: Hwang 1972; Aldridge,
Johnson, Scarlett 2019, section 1.5), and no node is named that failed only in company: one is bad if it fails with a
partner that passes without it, twice.

A group that fails although both its halves pass is not explained by a single node; it is tested again, and if it fails
again its members stay unknown, as are those from whom no answer came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstay.detectors.finding import join_names
from mainstay.detectors.localize.model import (
    LocalizationState,
    LocalizationVerdict,
    LocalizedCulprit,
    Round,
    limit,
    wanted_nodes,
)
from mainstay.detectors.localize.topology import FabricComponentKind

CONFIRM = 2
"""Failures of one node beside a good one that name it: a collective fails for nothing once in a while."""


@dataclass(slots=True)
class _Known:
    """What the tests so far say."""

    good: set[str] = field(default_factory=set)
    """Members of a group that passed."""
    guilty: set[str] = field(default_factory=set)
    together: set[str] = field(default_factory=set)
    """Members of a group that fails again and again although its parts pass."""
    passed: set[frozenset[str]] = field(default_factory=set)
    failed: Counter[frozenset[str]] = field(default_factory=Counter)
    silent: Counter[frozenset[str]] = field(default_factory=Counter)

    def strange(self) -> Iterator[frozenset[str]]:
        """Groups that failed without one of their members to blame."""
        for members in self.failed:
            if members <= self.good and members not in self.passed and not members & self.guilty:
                yield members


def next_groups(state: LocalizationState) -> Round | LocalizationVerdict:
    """The next groups, or the verdict."""
    if state.round >= limit(state):
        return build_verdict(state)
    groups = tuple(_wanted(state, _known(state)))
    return Round(number=state.round + 1, groups=groups) if groups else build_verdict(state)


def _known(state: LocalizationState) -> _Known:
    known = _Known()
    for result in state.groups:
        members = frozenset(result.members)
        if result.passed is None:
            known.silent[members] += 1
        elif result.passed:
            known.good |= members
            known.passed.add(members)
        else:
            known.failed[members] += 1
    helpers = known.good | set(state.known_good)
    for members, count in known.failed.items():
        if len(members) == 2 and count >= CONFIRM and len(members - helpers) == 1:
            known.guilty |= members - helpers
    known.together = set().union(*(group for group in known.strange() if known.failed[group] >= CONFIRM))
    return known


def _wanted(state: LocalizationState, known: _Known) -> Iterator[tuple[str, ...]]:
    """Disjoint groups: each contaminated set, halved; then what failed without a node to blame, again."""
    parts = list(_parts(known, wanted_nodes(state), first=True))
    busy = {name for part in parts for name in part}
    helpers = [n for n in dict.fromkeys((*state.known_good, *sorted(known.good))) if n not in known.guilty | busy]
    singles = [part[0] for part in parts if len(part) == 1]
    groups = [part for part in parts if len(part) >= 2]
    groups += _accompanied(known, singles, helpers)
    groups += _unconfirmed(known, {name for group in groups for name in group})
    yield from (group for group in groups if known.silent[frozenset(group)] < state.settings.tries)


def _unconfirmed(known: _Known, taken: set[str]) -> Iterator[tuple[str, ...]]:
    """Groups that failed too rarely to be sure of, without nodes that are ``taken``."""
    for members in known.strange():
        if known.failed[members] < CONFIRM and not members & taken:
            yield tuple(sorted(members))
            taken |= members


def _parts(known: _Known, members: tuple[str, ...], *, first: bool = False) -> Iterator[tuple[str, ...]]:
    """What of ``members`` is still to be tested, halving what failed."""
    open_ = tuple(name for name in members if name not in known.good and name not in known.guilty)
    if not open_:
        return
    if len(members) == 1 or frozenset(members) not in known.failed:
        yield members if first else open_
        return
    middle = (len(members) + 1) // 2
    for half in (members[:middle], members[middle:]):
        yield from _parts(known, half)


def _accompanied(known: _Known, singles: list[str], helpers: list[str]) -> list[tuple[str, ...]]:
    """Each single node beside one that passed; before any node has, beside one it has not failed with."""
    groups: list[tuple[str, ...]] = []
    left = list(singles)
    while left and helpers:
        groups.append((left.pop(0), helpers.pop(0)))
    if groups:
        return groups  # the others wait for a partner of known health
    while left:
        one = left.pop(0)
        other = next((name for name in left if frozenset((one, name)) not in known.failed), None)
        if other is not None:
            left.remove(other)
            groups.append((one, other))
    return groups


def build_verdict(state: LocalizationState) -> LocalizationVerdict:
    """What the groups say."""
    known = _known(state)
    asked = wanted_nodes(state)
    good = tuple(name for name in asked if name in known.good - known.guilty - known.together)
    unknown = {name: _why(name, known) for name in asked if name not in good and name not in known.guilty}
    culprits = tuple(_culprit(state, name) for name in asked if name in known.guilty)
    return LocalizationVerdict(
        culprits=culprits, good=good, unknown=unknown, rounds=state.round, noise=None, settled=not unknown
    )


def _why(name: str, known: _Known) -> str:
    if name in known.together:
        return "a group with it fails although its parts pass: no single node explains that"
    if any(name in members for members in known.failed):
        return "groups with it failed, but it was not singled out"
    if any(name in members for members in known.silent):
        return "no answer came from a group with it"
    return "not tested"


def _culprit(state: LocalizationState, name: str) -> LocalizedCulprit:
    failures = [r for r in state.groups if r.passed is False and name in r.members]
    partners = sorted({other for r in failures if len(r.members) == 2 for other in r.members} - {name})
    return LocalizedCulprit(
        kind=FabricComponentKind.NODE,
        name=(name,),
        nodes=(name,),
        speed=None,
        sizes=(),
        odds=float(len(failures)),
        evidence=(),
        summary=f"Node {name}: the collective failed in all {len(failures)} groups with it, among them beside"
        f" {join_names(partners)}, which passed without it; take it out and run a full check.",
    )
