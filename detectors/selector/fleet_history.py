"""The history of a fleet that the selector learns from, what it learned, and the policy that a decision follows."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from mainstay.detectors.selector.coverage import Coverage
from mainstay.detectors.selector.history import NodeHistory, as_known
from mainstay.detectors.selector.learning import Learned
from mainstay.detectors.selector.posterior import Posterior


class BenchmarkCost(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate."""

    name: str
    seconds: float
    """On one node."""
    catches: tuple[str, ...] | None = None
    """Classes of defect that it is made to find; None: any."""

    def __post_init__(self) -> None:
        if not (self.name and 0 < self.seconds < np.inf):
            raise ValueError(f"benchmark {self.name!r} costs {self.seconds:g} s: it needs a name and a time above 0")


class PastDefect(msgspec.Struct, frozen=True, kw_only=True):
    """A defect of the past."""

    at: float
    """Unix seconds when it was found, or struck."""
    node: str
    defect: str
    found: tuple[str, ...] = ()
    ran: tuple[str, ...] | None = None
    """None: every benchmark."""


class CleanCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Benchmarks ran on a node and found nothing."""

    at: float
    """Unix seconds."""
    node: str
    ran: tuple[str, ...]


class ValidationOpportunity(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes were looked at before a job."""

    at: float
    nodes: tuple[str, ...]
    job_hours: float = 24.0


class FleetHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a fleet's past."""

    benchmarks: tuple[BenchmarkCost, ...]
    nodes: tuple[NodeHistory, ...]
    defects: tuple[PastDefect, ...] = ()
    occasions: tuple[ValidationOpportunity, ...] = ()
    looks: tuple[CleanCheck, ...] = ()
    """What ran when; of a node without any, each of its checks counts as all benchmarks."""

    def __post_init__(self) -> None:
        for what, names in (("benchmark", [b.name for b in self.benchmarks]), ("node", [h.node for h in self.nodes])):
            twice = [name for name, n in Counter(names).items() if n > 1]
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is there twice")

    def until(self, at: float) -> FleetHistory:
        """What was known just before ``at``."""
        known = tuple(as_known(h, at) for h in self.nodes if h.since < at)
        return FleetHistory(
            benchmarks=self.benchmarks,
            nodes=known,
            defects=tuple(d for d in self.defects if d.at < at),
            looks=tuple(look for look in self.looks if look.at < at),
        )


class SelectionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy: one of the two."""

    target_risk: float | None = None
    """Highest risk of an incident in the job."""
    keep: float | None = None
    """Share of what the full set finds that must still be found: in the whole fleet, or with one set in this job."""
    spare_nodes: bool = True
    per_node: bool = True
    """A set of its own for each node; False: one for all, for a suite that must be uniform."""
    worth: float | None = None
    """Node-hours that an averted incident is worth; what costs more than it averts is then not run. None: any cost."""


class Experience(msgspec.Struct, frozen=True, kw_only=True):
    """What the past taught, or why it taught nothing."""

    coverage: Coverage
    learned: Learned | None
    why_not: str = ""
    posterior: Posterior | None = None
    """Which class a node's next defect is of."""
    usual_gap: float | None = None
    """Hours between two looks at a node."""
