"""Sessions: stretches in which runs of one machine share conditions, and what a run of the next one may measure.

Forty runs of one quiet hour agree with each other better than with the next hour: temperature, other load, the pages
that memory got and the age of a disk are drawn once a session. Limits made of the scatter within one session are too
tight for all others. So there are two variances, as in the one-way random-effects model (Searle, Casella & McCulloch,
*Variance Components*, 1992, chapter 3):

    run = center + what its session brings (between) + its own noise (within)

The center is the mean of the sessions' medians. Unweighted means serve where sessions have different numbers of runs
(Thomas & Hultquist, Annals of Statistics 6, 1978): with a sessions, h the harmonic mean of their runs, S2 the variance
of their medians and W the variance within, a run of an unseen session differs from the center by a variance of

    (1 + 1/a) S2 + (1 - 1/h) W

No term is subtracted, so there is no negative estimate to correct. Each of the two is multiplied by the square of
Student's t of its own degrees of freedom (Banerjee, Sankhya 22, 1960): a - 1 for the sessions, those of the runs for W.
That keeps the budget at any ratio of the two. One t with Satterthwaite's degrees of freedom does not: simulated,
five sessions of eight that differ by three times what their runs do exceed a budget of 1.5e-4 eight times; by two t
they stay at 0.6 of it. Few sessions give honestly wide limits: where a run has 28 metrics the sessions' t is 13 with
five of them, 7.2 with eight and 4.6 with twenty. W is robust (Shamos: the median difference of two runs of a session);
S2 is not: of five sessions the one that differs is no outlier but what there is to learn.

Exchangeable sessions are taken for granted: the next one is like those seen. A machine that drifts one way for weeks
needs sessions of weeks; runs of several machines make a session each, so that how machines differ is in S2 as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mainstay.detectors.base import Floats

GAP_SECONDS = 1800.0
"""Half an hour without a run ends a session: by then a machine has cooled down and its other load has changed."""
LONGEST_SECONDS = 3600.0
"""No session is longer than an hour: limits learned in one quiet hour failed one clean run in eight of the next."""
ONE_SESSION = "learned from one session: the limits hold for that session only"
_SHAMOS = 1.0483
"""Median absolute difference of two values of a normal distribution, to its standard deviation (Shamos 1976)."""
_SHAMOS_WORTH = 0.86
"""What that estimate is worth of the sample (Rousseeuw & Croux 1993, section 3)."""
_MOST_RUNS = 100
"""Runs of one session whose differences are taken, evenly chosen: 4,950 pairs fix a median."""

_MANY = 20
"""Sessions from which on one that is out is an outlier among sessions, and no sign of how they differ."""

Mask = NDArray[np.bool_]
Groups = NDArray[np.intp]
"""[runs] the number of each run's session, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """What is known of the sessions that a criterion was learned from; scatters are shares of the typical value."""

    count: int
    within: float | None
    """Scatter of runs of one session; None where no session has two runs."""
    between: float | None
    """Scatter of sessions, with that of their runs where no session has two; None where there is one session only:
    the effect of the next one is unknown."""
    freedom: int | None
    """Degrees of freedom of ``between``; None with it."""

    def __post_init__(self) -> None:
        numbers = [number for number in (self.within, self.between) if number is not None]
        if self.count < 1 or not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("sessions: a count of one at least and scatters of zero at least are needed")
        if (self.count == 1) != (self.between is None):
            raise ValueError("sessions: what lies between sessions is known from two on, and never from one")

    @property
    def description(self) -> str:
        """``5 sessions that differ by 3.1 %``; of one what that means."""
        if self.between is None:
            return ONE_SESSION
        return f"learned from {self.count} sessions that differ by {self.between:.1%}"


class VarianceComponent(NamedTuple):
    """A variance that was estimated, and the degrees of freedom of its estimate."""

    variance: float
    freedom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Center and variances of a metric; the unit is that of the values (a logarithm, a distance)."""

    count: int
    center: float
    within: float | None
    """Standard deviation of runs of one session; None where no session has two runs."""
    between: float | None
    """Standard deviation of sessions; None where there is one."""
    parts: tuple[VarianceComponent, ...]
    """Of the variance by which a run of an unseen session differs from the center, that of the center included; of one
    session: a run of the same."""

    @property
    def describe(self) -> bool:
        """Whether sessions tell more than their runs: there are several, and one of them has two runs."""
        return self.count > 1 and self.within is not None

    @property
    def total(self) -> float:
        """Standard deviation of runs over sessions; of one session: of its runs."""
        return math.hypot(self.within or 0.0, self.between or 0.0)

    @property
    def kept(self) -> Sessions:
        """As a criterion keeps it."""
        freedom = None if self.between is None else self.count - 1
        return Sessions(count=self.count, within=self.within, between=self.between, freedom=freedom)


def components(values: Floats, groups: Groups) -> Components:
    """Variance within and between sessions.

    Args:
        values: one a run, shape [runs]; outliers have been left out.
        groups: which session each is of.

    Raises:
        ValueError: there is no value, or not a session for each.
    """
    if not len(values) or len(values) != len(groups):
        raise ValueError(f"{len(values)} runs but {len(groups)} sessions: name one a run, of one run at least")
    members = [values[groups == one] for one in np.unique(groups)]
    within = _within(members)
    medians = np.array([float(np.median(member)) for member in members])
    counts, spare = np.array([len(member) for member in members]), len(values) - len(members)
    noise, freedom = (within or 0.0) ** 2, max(1, int(_SHAMOS_WORTH * spare))
    if len(members) == 1:
        parts: tuple[VarianceComponent, ...] = (VarianceComponent(noise * (1.0 + 1.0 / len(values)), freedom),)
        return Components(count=1, center=float(medians[0]), within=within, between=None, parts=parts)
    share = float(np.mean(1.0 / counts))  # one over the harmonic mean; a median's noise is more, which widens
    apart = float(np.var(medians, ddof=1))
    return Components(
        count=len(members),
        center=float(medians.mean()),
        within=within,
        between=math.sqrt(max(0.0, apart - noise * float(np.mean(math.pi / (2.0 * counts + math.pi - 2.0))))),
        parts=(
            VarianceComponent((1.0 + 1.0 / len(members)) * apart, len(members) - 1),
            VarianceComponent((1.0 - share) * noise, freedom),
        ),
    )


def _within(members: Sequence[Floats]) -> float | None:
    """Shamos' scale over all pairs of runs of the same session."""
    pairs = [_differences(member) for member in members if len(member) > 1]
    return _SHAMOS * float(np.median(np.concatenate(pairs))) if pairs else None


def _differences(member: Floats) -> Floats:
    if len(member) > _MOST_RUNS:
        member = member[np.linspace(0, len(member) - 1, _MOST_RUNS).astype(np.intp)]
    first, second = np.triu_indices(len(member), 1)
    return np.asarray(np.abs(member[first] - member[second]))


def drifted(out: Mask, groups: Groups, devices: Groups) -> Mask:
    """Which outliers are a session's drift, to be learned from, and no defect, to be left out; shape [runs].

    Most runs of their session are out, two at least, and the same device was in during another. From twenty sessions
    on there are enough to call one of them an outlier.

    Args:
        out: [runs] which are outliers among all.
        groups: the session of each.
        devices: the number of each run's device.
    """
    runs = np.bincount(groups)
    away = ((np.bincount(groups, weights=out) > 0.5 * runs) & (runs > 1))[groups]
    if groups.max() + 1 >= _MANY:
        return np.zeros_like(out)
    return np.asarray(out & away & np.isin(devices, devices[~away]))


def common(sessions: Sequence[str]) -> list[str] | None:
    """The session of each run; None where that of any is not known: half a partition is none."""
    return list(sessions) if all(sessions) else None


def numbered(sessions: Sequence[str]) -> Groups:
    """The number of each run's session, from names."""
    return np.asarray(np.unique(np.array(sessions, dtype=np.str_), return_inverse=True)[1], dtype=np.intp)


def by_time(machines: Sequence[str], times: Sequence[float | None]) -> list[str]:
    """The session of each run, ``machine@time of its first run``, from when runs were made where.

    Args:
        machines: of each run; empty: not known, taken as one.
        times: Unix seconds of each run; None: not known, its session is empty.
    """
    names = [""] * len(times)
    begun: dict[str, float] = {}
    last: dict[str, float] = {}
    for time, machine, i in sorted((time, machines[i], i) for i, time in enumerate(times) if time is not None):
        if machine not in begun or time - last[machine] > GAP_SECONDS or time - begun[machine] > LONGEST_SECONDS:
            begun[machine] = time
        last[machine] = time
        names[i] = f"{machine}@{begun[machine]:.0f}"
    return names


def by_day(machines: Sequence[str], times: Sequence[float | None]) -> list[str]:
    """The session of each run, ``machine@date``: one a machine and day (UTC)."""
    return [
        "" if time is None else f"{machine}@{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"
        for machine, time in zip(machines, times, strict=True)
    ]
