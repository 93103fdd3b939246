"""How often each level of protection should save: least expected loss of all levels together, from measured costs.

Memory saves each step, parity every p steps, disk every d, the upload every u. A failure goes back to the newest copy
that outlives it. To first order each level's best interval is then Young's, for its own cost and the failures that it
answers for (Benoit et al., "Towards Optimal Multi-Level Checkpointing", IEEE TC 2017). Three things tie the levels
together: intervals are multiples of one another, so that one slot serves both; a level that is off leaves its failures
to the next one; and no save begins before the last one has ended (CheckFreq, FAST 2021). So the search is over
multiples, where each level loses what Daly's exact formula says (FGCS 2006).

Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from mainstay.recovery.cost_model.ettr import SaveSchedule, best_interval, exact_ettr

NODE_MTBF_HOURS: Final = 6000.0
"""Between failures of one node: Llama 3's 419 unexpected interruptions in 54 days on 2,048 nodes are 6,300 hours."""
LOCAL_SHARE: Final = 0.4
"""Failures that leave the node with its memory, fit to continue: Llama 3's table 5 lays 58.7 % on GPUs and theirs."""
LONE_SHARE: Final = 0.95
"""Of failures that take a node, those that take no more at once than a group bears. It is not published; a rack's
power, a switch or a bad release take many, and 5 % of such errs on the careful side: the disk is written more often."""
DIRECTORY_SHARE: Final = 0.5 / 420.0
"""Failures that take the checkpoint directory: none of Llama 3's 419, by Jeffreys' estimate (0 + 1/2) / (419 + 1)."""
SLOWDOWN: Final = 0.033
"""Share by which steps beside a save are longer, until the job has measured its own: ``bench.checkpoints``."""
LONGEST_S: Final = 86_400.0
"""No copy is older than a day, for losses of which no rate is known, such as a directory that is deleted by mistake."""
LEAST_STEPS: Final = 16
"""Steps beside saves, and as many without, before a slowdown counts as measured."""
_NEVER_S: Final = 1e15
"""Failures further apart are as good as none, and the formulas stay finite."""
_TRIED: Final = 16
"""Intervals of the innermost level, from half to one and a half of its best: an outer one may fit none of two."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionTier:
    """One level of protection, as it should be used."""

    name: str
    brings_back: str
    """From what kind of loss, in words."""
    cost_s: float
    """What one save takes from training."""
    takes_s: float
    """How long one is under way."""
    mtbf_s: float
    """Between the failures that it answers for."""
    restore_s: float
    """To read the state back."""
    lag_s: float = 0.0
    """From a step until its copy at this level is complete."""
    every: int = 0
    """Steps between saves; at least 1. 0: to be chosen."""
    lost_share: float = 0.0
    """Expected share of the time that saving costs, failures repeat, and restores take."""

    def saved_every(self, every: int, step_s: float) -> ProtectionTier:
        """The same with an interval and what it loses."""
        back_s = self.restore_s + max(0.0, self.lag_s - self.cost_s)  # the formula knows of the cost
        schedule = SaveSchedule(interval_s=every * step_s, save_s=self.cost_s, restart_s=back_s)
        return replace(self, every=every, lost_share=1.0 - exact_ettr(schedule, self.mtbf_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCosts:
    """What was measured, or is assumed until it is. A level without a rate is off."""

    state_bytes: int
    """Of the largest rank."""
    ranks_per_node: int
    step_s: float
    copy_Bps: float  # noqa: N815 - bytes per second, as the unit is written
    """One rank's state from memory."""
    parity_Bps: float | None = None  # noqa: N815
    """One rank's state through encoding and network."""
    disk_Bps: float | None = None  # noqa: N815
    """One node's writes."""
    read_Bps: float | None = None  # noqa: N815
    """One node's reads; None: as it writes."""
    upload_s: float | None = None
    """For a whole step to reach the upload level."""
    slowdown: Mapping[str, float] = field(default_factory=dict)
    """Level -> share by which its saves make steps longer. An upload costs nothing until the opposite is measured."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Level -> steps between its saves, where that is not to be chosen."""

    @property
    def parity_s(self) -> float | None:
        return self.state_bytes / self.parity_Bps if self.parity_Bps else None

    @property
    def disk_s(self) -> float | None:
        return self.state_bytes * self.ranks_per_node / self.disk_Bps if self.disk_Bps else None


def levels(costs: SaveCosts, hazard: FailureRate) -> tuple[ProtectionTier, ...]:
    """Every level with its interval, the cheapest first; a copy into the arena costs training nothing."""
    parity_s, disk_s = costs.parity_s, costs.disk_s
    read_s = costs.state_bytes * costs.ranks_per_node / costs.read_Bps if costs.read_Bps and disk_s else disk_s
    node_share = 1.0 - LOCAL_SHARE
    offered: Sequence[tuple[str, str, float, float | None, float | None]] = (
        ("local slot", "a lost process, its node alive", LOCAL_SHARE, 0.0, costs.state_bytes / costs.copy_Bps),
        ("parity", "lost nodes, as many as the scheme bears", node_share * LONE_SHARE, parity_s, parity_s),
        ("disk", "everything in memory", node_share * (1.0 - LONE_SHARE) - DIRECTORY_SHARE, disk_s, read_s),
        ("upload", "the checkpoint directory", DIRECTORY_SHARE, costs.upload_s, costs.upload_s),
    )
    tiers: list[ProtectionTier] = []
    share = 0.0
    for name, brings_back, own, takes_s, restore_s in offered:
        share += own
        if takes_s is None or restore_s is None:
            continue
        tier = ProtectionTier(
            name=name,
            brings_back=brings_back,
            cost_s=takes_s * costs.slowdown.get(name, 0.0 if name == "upload" else SLOWDOWN),
            takes_s=takes_s,
            mtbf_s=min(hazard.job_seconds(share), _NEVER_S),
            restore_s=restore_s,
            lag_s=takes_s + (disk_s or 0.0) * (name == "upload"),
            every=1 if name == "local slot" else costs.given.get(name, 0),
        )
        tiers.append(tier)
        share = 0.0
    return choose_intervals(tiers, costs.step_s)


def choose_intervals(tiers: Sequence[ProtectionTier], step_s: float) -> tuple[ProtectionTier, ...]:
    """The same levels with the intervals that together lose least; an interval above 0 stays as it is.

    Args:
        tiers: the cheapest first.
        step_s: seconds of a step, above 0.
    """
    return max(_schedules(tiers, step_s, 1), key=lambda made: math.prod(1.0 - tier.lost_share for tier in made))


def _schedules(tiers: Sequence[ProtectionTier], step_s: float, inner: int) -> Iterator[tuple[ProtectionTier, ...]]:
    """Intervals to choose from: each a multiple of ``inner``, that of the level before, unless it is given."""
    if not tiers:
        yield ()
        return
    tier, outer = tiers[0], tiers[1:]
    most = min((each.every for each in outer if each.every), default=None)
    for every in [tier.every] if tier.every else _multiples(tier, step_s, inner, most):
        made = tier.saved_every(every, step_s)
        for others in _schedules(outer, step_s, every):
            yield (made, *others)


def _multiples(tier: ProtectionTier, step_s: float, inner: int, most: int | None) -> list[int]:
    """Multiples of ``inner`` steps near the best interval, the longer ones first, none shorter than a save takes."""
    unit_s = inner * step_s
    least = max(1, math.ceil(tier.takes_s / unit_s - 1e-9))
    longest = max(least, math.floor(LONGEST_S / unit_s))
    best = best_interval(tier.cost_s, tier.mtbf_s) / unit_s
    tried = [math.floor(best), math.floor(best) + 1]
    if inner == 1:
        tried += [round(best * (0.5 + number / _TRIED)) for number in range(_TRIED + 1)]
    every = {min(max(least, number), longest) * inner for number in tried}
    return sorted(every if most is None else {min(each, most) for each in every}, reverse=True)


def slowdown(beside: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """Share by which steps beside a save are longer, with its standard error; None: too few steps.

    By medians, whose error is that of a mean times 1.25; the deviation is 1.48 times the median one (both: normal).

    Args:
        beside: seconds of steps during which a save was under way.
        others: of steps during which none was.
    """
    if min(len(beside), len(others)) < LEAST_STEPS:
        return None
    typical = median(others)
    spread = math.hypot(*(_deviation(each) / math.sqrt(len(each)) for each in (beside, others)))
    return median(beside) / typical - 1.0, 1.25 * 1.48 * spread / typical


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)
