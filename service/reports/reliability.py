"""What failures cost over a time: effective training time, lost GPU hours, and times between failures. Pure.

Effective training time ratio (ETTR) is productive time by wall time of jobs, as in Kokolis et al. 2024 (section 3) and
the ByteDance reports: time in which a job stood still or repeated steps is not productive.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Final

HOUR: Final = 3600.0
_Z: Final = 1.96
"""Two-sided 95 %."""
_TAIL: Final = 0.025
_FEW: Final = 20
RECURRENCE: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpan:
    """A job, from its start to its end or to now. Times are Unix seconds."""

    id: str
    name: str
    ranks: int
    started_at: float
    ended_at: float
    steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A time in which a job stood still, and the steps that it made again."""

    job: str
    started_at: float
    ended_at: float
    detect_seconds: float
    """The first part of it: until Mainstay had noticed."""
    steps_lost: int
    cause: str
    succeeded: bool
    absent_ranks: int = 0
    """Ranks without which the job trained after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An incident."""

    opened_at: float
    recovered_at: float | None
    cause: str
    node: str | None
    component: str = "unknown"
    """``components.Component``."""
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpan:
    """A node since it was first seen, with the times in which it was out of service."""

    name: str
    cohort: str
    gpus: int
    first_seen_at: float
    out: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    since: float
    until: float

    def clip(self, start: float, end: float) -> float:
        """Seconds of [start, end) within the period."""
        return max(0.0, min(end, self.until) - max(start, self.since))

    def holds(self, moment: float) -> bool:
        return self.since <= moment < self.until

    @property
    def before(self) -> Period:
        """The period of the same length that ends where this one begins."""
        return Period(since=2 * self.since - self.until, until=self.since)


@dataclass(slots=True, kw_only=True)
class JobCost:
    """What failures cost one job."""

    job: JobSpan
    wall_seconds: float
    stopped_seconds: float = 0.0
    detect_seconds: float = 0.0
    repeated_seconds: float = 0.0
    steps_lost: int = 0
    recoveries: int = 0
    failed_recoveries: int = 0
    absent_rank_seconds: float = 0.0
    """Absent ranks times the time that the job trained without them."""
    by_cause: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Cause → seconds that it cost."""

    @property
    def lost_seconds(self) -> float:
        return min(self.wall_seconds, self.stopped_seconds + self.repeated_seconds)

    @property
    def ettr(self) -> float | None:
        return None if self.wall_seconds <= 0 else 1.0 - self.lost_seconds / self.wall_seconds

    @property
    def lost_gpu_hours(self) -> float:
        return self.lost_seconds * self.job.ranks / HOUR


def cost_of(job: JobSpan, stops: Sequence[Stop], period: Period) -> JobCost:
    """What the stops of one job cost within a period.

    Times in which two recoveries overlap count once, for the earlier one. Repeated steps cost as much as the steps of
    the job do on average: its time without stops by its steps.
    """
    cost = JobCost(job=job, wall_seconds=period.clip(job.started_at, job.ended_at))
    ordered = sorted(stops, key=lambda stop: (stop.started_at, stop.ended_at))
    productive, free_from = job.ended_at - job.started_at, -math.inf
    for stop in ordered:
        begin = max(stop.started_at, free_from)
        productive -= max(0.0, stop.ended_at - begin)
        free_from = max(free_from, stop.ended_at)
    step_seconds = max(0.0, productive) / job.steps if job.steps else 0.0
    last = None
    for stop, following in zip_longest(ordered, ordered[1:]):
        last = stop if last is None or stop.ended_at >= last.ended_at else last
        trained = period.clip(last.ended_at, following.started_at if following else job.ended_at)
        cost.absent_rank_seconds += last.absent_ranks * trained
    free_from = -math.inf
    for stop in ordered:
        begin, free_from = max(stop.started_at, free_from), max(free_from, stop.ended_at)
        stopped = period.clip(begin, max(begin, stop.ended_at))
        cost.stopped_seconds += stopped
        cost.by_cause[stop.cause] += stopped
        if period.holds(stop.started_at):
            repeated = stop.steps_lost * step_seconds
            cost.detect_seconds += min(stopped, stop.detect_seconds)
            cost.repeated_seconds += repeated
            cost.by_cause[stop.cause] += repeated
            cost.steps_lost += stop.steps_lost
            cost.recoveries += stop.succeeded
            cost.failed_recoveries += not stop.succeeded
    return cost


def poisson_limits(count: int) -> tuple[float, float]:
    """95 % limits of the mean of a Poisson count.

    Byar's approximation (Breslow and Day 1987, section 2.3); of few events, the exact lower limit (Garwood 1936).
    """
    above = count + 1
    high = above * (1 - 1 / (9 * above) + _Z / (3 * math.sqrt(above))) ** 3
    if count > _FEW:
        return count * (1 - 1 / (9 * count) - _Z / (3 * math.sqrt(count))) ** 3, high
    low, top = 0.0, float(count)
    for _ in range(60):  # the mean at which so many events or more have a probability of 2.5 %
        middle = (low + top) / 2
        fewer = sum(math.exp(-middle) * middle**number / math.factorial(number) for number in range(count))
        low, top = (middle, top) if 1 - fewer < _TAIL else (low, middle)
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Time between failures, with 95 % limits; None where no failure bounds it."""

    exposure_hours: float
    """Hours in service of the nodes, or of the GPUs, together."""
    failures: int
    hours: float | None
    low: float
    high: float | None


def between(exposure_hours: float, failures: int) -> Between:
    """Mean time between failures of nodes, or of GPUs, that ran ``exposure_hours`` together; unknown if these are 0."""
    low, high = poisson_limits(failures)
    return Between(
        exposure_hours=exposure_hours,
        failures=failures,
        hours=exposure_hours / failures if failures and exposure_hours else None,
        low=exposure_hours / high,
        high=exposure_hours / low if low and exposure_hours else None,
    )


def in_service_seconds(node: NodeSpan, period: Period) -> float:
    """Seconds in which a node was known and in service."""
    known = period.clip(node.first_seen_at, period.until)
    return max(0.0, known - out_seconds(node, period))


def out_seconds(node: NodeSpan, period: Period) -> float:
    total, since, until = 0.0, period.since, period.until
    for start, end in node.out:  # of all nodes: a call for each would be a tenth of the report
        total += max(0.0, (min(until, end)) - (max(since, start)))
    return total


def mean_repair_seconds(failures: Iterable[Failure]) -> float | None:
    """Mean time from the opening of an incident to its recovery, of those that recovered."""
    seconds = [max(0.0, one.recovered_at - one.opened_at) for one in failures if one.recovered_at is not None]
    return sum(seconds) / len(seconds) if seconds else None


def saved_gpu_hours(costs: Iterable[JobCost], *, restart_seconds: float, checkpoint_seconds: float) -> float:
    """GPU hours that each recovery saved against a restart from the last checkpoint.

    A restart costs ``restart_seconds`` and, on average, half an interval of ``checkpoint_seconds`` of repeated work.
    """
    saved = 0.0
    for cost in costs:
        restarts = cost.recoveries * (restart_seconds + checkpoint_seconds / 2)
        saved += max(0.0, restarts - cost.lost_seconds) * cost.job.ranks if cost.recoveries else 0.0
    return saved / HOUR


class DrainVerdict(StrEnum):
    """Whether a drain was needed, as far as is known."""

    FALSE = "false"
    CONFIRMED = "confirmed"
    NOT_VALIDATED = "not_validated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node that Mainstay took out of service for findings. Times are Unix seconds."""

    drained_at: float
    detectors: frozenset[str]
    """Of the findings."""
    validated_at: float | None
    """The first validation after it with a verdict other than UNKNOWN, before the node was drained again."""
    passed: bool
    repaired: bool | None
    """Whether hardware was exchanged or the node restarted between both; None: it is not known."""
    recurred: bool
    """Whether a finding of the same kind, or of the same incident, came within ``RECURRENCE`` after the validation."""

    def verdict(self, now: float) -> DrainVerdict:
        if self.validated_at is None:
            return DrainVerdict.NOT_VALIDATED
        if not self.passed or self.repaired or self.recurred:
            return DrainVerdict.CONFIRMED
        known = self.repaired is not None and now >= self.validated_at + RECURRENCE
        return DrainVerdict.FALSE if known else DrainVerdict.UNDECIDED


def binomial_limits(count: int, of: int) -> tuple[float, float]:
    """95 % limits of a ratio that was ``count`` of ``of`` (Wilson 1927)."""
    square = _Z**2 / of
    center, spread = count / of + square / 2, _Z * math.sqrt(count * (of - count) / of**3 + square / (4 * of))
    return max(0.0, (center - spread) / (1 + square)), min(1.0, (center + spread) / (1 + square))


def by_cause(costs: Iterable[JobCost]) -> Mapping[str, float]:
    """Cause → GPU hours that jobs lost."""
    found = defaultdict[str, float](float)
    for cost in costs:
        for cause, seconds in cost.by_cause.items():
            found[cause] += seconds * cost.job.ranks / HOUR
    return found
