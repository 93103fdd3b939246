"""Data types of a fault localization, JSON both ways: the measurements to make, those made, and the verdict.

Invariant: ``missing`` is no evidence. A pair that both ends tried and that did not come to an end is ``hung``, which is
evidence against the pair; one that was never tried, or could not be, gives no information about a node.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal

import msgspec

from mainstay.detectors.localize.topology import Endpoint, FabricComponentKind, FabricTopology


class PairOutcome(StrEnum):
    OK = "ok"
    HUNG = "hung"  # begun by both, not ended: a time-out, a connection that broke
    MISSING = "missing"  # no answer, or it could not run


class NodePair(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer to be measured: both directions of it at once, or one after the other, alike for all pairs."""

    a: Endpoint
    b: Endpoint
    via: str = ""
    """The spine that it shall take; empty: any."""


class PairResult(NodePair, frozen=True, kw_only=True):
    """What became of a pair. ``via`` is the spine it took; empty: unknown."""

    outcome: PairOutcome = PairOutcome.OK
    bandwidth: dict[str, float] = {}
    """Message size in bytes (as text, JSON has no other keys) → B/s, the median of its repetitions."""
    scatter: dict[str, float] = {}
    """Message size → robust standard deviation of the log of its repetitions: a pair that disagrees with itself is no
    witness of less. Absent: not told."""
    note: str = ""
    round: int = 0

    def __post_init__(self) -> None:
        for size, speed in self.bandwidth.items():
            if not size.isdecimal() or not (math.isfinite(speed) and speed > 0):
                raise ValueError(
                    f"pair {self.a.node}, {self.b.node}: bandwidth maps a size in bytes to a finite B/s above 0,"
                    f" not {size!r} to {speed!r}"
                )
        for size, scatter in self.scatter.items():
            if not (math.isfinite(scatter) and scatter >= 0):
                raise ValueError(
                    f"pair {self.a.node}, {self.b.node}: scatter of {size} must be finite and at least 0, not {scatter}"
                )
        if self.outcome is PairOutcome.OK and not self.bandwidth:
            raise ValueError(f"pair {self.a.node}, {self.b.node}: ok, but without a bandwidth")
        if self.a == self.b:
            raise ValueError(f"a place cannot be paired with itself: {self.a.node}")


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a collective of these nodes passed; None: no answer."""

    members: tuple[str, ...]
    passed: bool | None
    round: int = 0


class DeviceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What one device computed in a preflight check."""

    device: str
    cohort: str = ""
    """Model and software: equal ones compute the same bits."""
    digest: str = ""
    repeats: bool = True
    """Whether each repetition gave the same bits."""
    rate: float = 0.0
    """FLOP/s of a matrix multiply; 0: not measured."""
    problem: str = ""
    """Why there is no result."""


class LocalizationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How sure, how long, how careful."""

    slower: float = 0.05
    """Least slowdown worth a name; a difference below half of it is how machines are. DCGM's limits are at 0.25."""
    noise: float = 0.01
    """What is believed of the scatter before it was seen: repeats of one GPU scatter by 0.1-3 %."""
    rounds: int = 0
    """At most so many; 0: 2 + 2 log2 n."""
    flows: int = 1
    """Transfers at a time over one cable between switches: more would share it, and each look slow."""
    tries: int = 3
    """Answers that may be missing from a node before the planner leaves it out."""

    def __post_init__(self) -> None:
        if not 0.005 <= self.slower <= 0.9 or not 0.0 < self.noise < 1.0:
            raise ValueError(f"slower must lie within 0.005-0.9, noise within 0-1: {self.slower}, {self.noise}")
        if self.rounds < 0 or self.flows < 1 or self.tries < 1:
            raise ValueError("rounds must be at least 0, flows and tries at least 1")


class PairEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement that speaks against a culprit."""

    a: Endpoint
    b: Endpoint
    round: int
    ratio: float | None
    """Speed as a share of what is usual here; None: it hung."""


class LocalizedCulprit(msgspec.Struct, frozen=True, kw_only=True):
    """Something bad, named."""

    kind: FabricComponentKind
    name: tuple[str, ...]
    nodes: tuple[str, ...]
    """Nodes that own it; empty for what is between them."""
    also: tuple[str, ...] = ()
    """Pieces that every measurement so far passed together with it: nothing measured tells them apart."""
    speed: float | None
    """Share of the usual speed at the size that shows it most; None: transfers hang."""
    sizes: tuple[int, ...]
    """Message sizes that show it."""
    spared: tuple[int, ...] = ()
    """Message sizes measured that do not show it."""
    odds: float
    """Natural logarithm of the odds that it is bad against every story without it."""
    evidence: tuple[PairEvidence, ...]
    summary: str


class LocalizationVerdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    """Who is bad, who is good, and of whom nothing can be said."""

    culprits: tuple[LocalizedCulprit, ...]
    good: tuple[str, ...]
    """Nodes."""
    unknown: dict[str, str]
    """Node, or piece of the fabric, of which nothing can be said → why."""
    rounds: int
    noise: float | None
    """Scatter of healthy pairs, as a share; None: too few to tell."""
    settled: bool
    """Whether nothing is left to find out: no unknown, every culprit told from its rivals."""


class Round(msgspec.Struct, frozen=True, kw_only=True, tag="round"):
    """What shall be measured next, all of it at the same time."""

    number: int
    pairs: tuple[NodePair, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    """For collectives that pass or fail; disjoint."""


class LocalizationState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a fault localization knows; kept as JSON between rounds."""

    topology: FabricTopology
    method: Literal["pairs", "groups"] = "pairs"
    known_good: tuple[str, ...] = ()
    """Nodes that a check of their own passed: partners, and the last to be blamed."""
    suspects: tuple[str, ...] = ()
    """Nodes to be told about; empty: all. The others are measured only as partners."""
    settings: LocalizationConfig = LocalizationConfig()
    round: int = 0
    """The number of the last round that was given out."""
    results: tuple[PairResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()

    def __post_init__(self) -> None:
        names = {host.name for host in self.topology.nodes}
        for what, given in (("known-good", self.known_good), ("suspect", self.suspects)):
            strangers = sorted(set(given) - names)
            if strangers:
                raise ValueError(f"{what} node {strangers[0]!r} is not in the topology")


def limit(state: LocalizationState) -> int:
    """Rounds that may be spent: 2 + 2 log2 n, rounded down."""
    count = max(2, len(state.topology.nodes))
    return state.settings.rounds or int(2 + 2 * math.log2(count))


def wanted_nodes(state: LocalizationState) -> tuple[str, ...]:
    """Nodes to be told about."""
    return state.suspects or tuple(host.name for host in state.topology.nodes)
