"""How often each level of protection should save: Young's and Daly's optimum, with measured costs and learned hazards.

A save that costs C seconds of training, against failures that come every M seconds and that only this level (or a
slower one) brings back from, is best made every sqrt(2 C M) seconds (Young, CACM 1974); Daly (FGCS 2006) carries the
expansion further, for a C that is not small beside M. Both price the work that is lost (half an interval a failure)
against the work that saving costs. CheckFreq (FAST 2021) adds what asynchronous saving needs: no save begins before the
one before it has ended, and what it costs is measured, not assumed.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

NODE_MTBF_HOURS: Final = 6000.0
"""Between failures of one node: Llama 3's 419 unexpected interruptions in 54 days on 2,048 nodes are 6,300 hours."""
LOCAL_SHARE: Final = 0.4
"""Failures that leave the node with its memory, fit to continue: Llama 3's table 5 lays 58.7 % on GPUs and theirs."""
LONE_SHARE: Final = 0.95
"""Of failures that take a node, those that take no more at once than a group bears. It is not published; a rack's
power, a switch or a bad release take many, and 5 % of such errs on the careful side: the disk is written more often."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    """How often nodes of a job fail: the given figure for such nodes, and what this job has seen itself."""

    nodes: int
    mtbf_hours: float = NODE_MTBF_HOURS
    """Between failures of one node, as given."""
    failures: int = 0
    """Seen in this job."""
    hours: float = 0.0
    """That this job has run."""

    def node_hours(self) -> float:
        """Hours between failures of one node: a gamma prior that weighs as much as one failure, and what was seen."""
        return (self.mtbf_hours + self.nodes * self.hours) / (1.0 + self.failures)

    def job_seconds(self, share: float = 1.0) -> float:
        """Seconds between failures of the job, of the ``share`` of them that a level answers for."""
        return self.node_hours() * 3600.0 / (max(1, self.nodes) * share)


def young(cost: float, mtbf: float) -> float:
    """Seconds of work between saves that cost ``cost`` seconds, with failures every ``mtbf`` seconds."""
    return math.sqrt(2.0 * cost * mtbf)


def daly(cost: float, mtbf: float) -> float:
    """Daly's higher-order estimate of the same; ``mtbf`` itself where saving costs more than twice that.

    Raises:
        ValueError: a cost below 0, or an mtbf that is not above 0.
    """
    if cost < 0.0 or not mtbf > 0.0:
        raise ValueError(f"a save costs at least 0 s and failures are apart, not {cost} and {mtbf}")
    if cost >= 2.0 * mtbf:
        return mtbf
    ratio = math.sqrt(cost / (2.0 * mtbf))
    return young(cost, mtbf) * (1.0 + ratio / 3.0 + ratio * ratio / 9.0) - cost


@dataclass(frozen=True, slots=True)
class ProtectionTier:
    """One level of protection, as it should be used."""

    name: str
    brings_back: str
    """From what kind of loss, in words."""
    cost_s: float
    """What one save takes from training at most."""
    takes_s: float
    """How long one is under way."""
    mtbf_s: float
    """Between the failures that it answers for."""
    every: int
    """Steps between saves; at least 1."""
    lost_share: float
    """Expected share of the time that saving costs and failures repeat: C / interval + interval / 2 M."""


def level(name: str, brings_back: str, *, takes_s: float, mtbf_s: float, step_s: float) -> ProtectionTier:
    """A level with Daly's interval, but never one in which the last save has not ended; a step takes time."""
    every = max(1, round(max(daly(takes_s, mtbf_s), takes_s) / step_s))
    seconds = every * step_s
    share = takes_s / seconds + seconds / (2.0 * mtbf_s)
    return ProtectionTier(name, brings_back, takes_s, takes_s, mtbf_s, every, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCosts:
    """What was measured, or is assumed until it is."""

    state_bytes: int
    """Of the largest rank."""
    ranks_per_node: int
    step_s: float
    parity_Bps: float  # noqa: N815 - bytes per second, as the unit is written
    """One rank's state through encoding and network."""
    disk_Bps: float  # noqa: N815
    """One node's writes."""


def levels(prices: SaveCosts, hazard: FailureRate) -> tuple[ProtectionTier, ...]:
    """Every level with its interval, the cheapest first; a copy into the arena costs training nothing.

    What parity and disk take from training is bounded by the time that they are under way, as though nothing of it were
    hidden behind computation; both run beside it, so that the interval errs on the long side.
    """
    parity_s = prices.state_bytes / prices.parity_Bps
    disk_s = prices.state_bytes * prices.ranks_per_node / prices.disk_Bps
    tiers = (
        ("local slot", "a lost process, its node alive", 0.0, LOCAL_SHARE),
        ("parity", "lost nodes, as many as the scheme bears", parity_s, (1.0 - LOCAL_SHARE) * LONE_SHARE),
        ("disk", "everything in memory", disk_s, (1.0 - LOCAL_SHARE) * (1.0 - LONE_SHARE)),
    )
    return tuple(
        level(name, brings_back, takes_s=takes_s, mtbf_s=hazard.job_seconds(share), step_s=prices.step_s)
        for name, brings_back, takes_s, share in tiers
    )
