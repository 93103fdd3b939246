"""What one failure costs with one way of recovering, in seconds of the whole healthy job that are lost.

C = D + L + (1 - rho) E[min(R, X)] + q D' + P2 C_restart: downtime, work that is repeated, the degraded time until a
worker is back or the next failure comes, the re-join, and the risk that the last copy is lost meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """From a failure until training goes on, in seconds. The sum counts."""

    detect_s: float = 0.0
    fence_s: float = 0.0
    regroup_s: float = 0.0
    move_state_s: float = 0.0
    warm_up_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.detect_s + self.fence_s + self.regroup_s + self.move_state_s + self.warm_up_s


MEASURED = Downtime(detect_s=0.026, fence_s=0.001, regroup_s=0.031, move_state_s=0.044, warm_up_s=0.045)
"""Live on a two-core machine, 4 ranks over gloo, 12 MB of state, SIGKILL: middles of the measured spans (exit seen
21-31 ms, groups formed again 2-60 ms, warm-up with the first vote 30-60 ms). Not a GPU cluster's."""

BUDGET = Downtime(detect_s=2.65, fence_s=2.0, regroup_s=10.5, move_state_s=3.5, warm_up_s=10.0)
"""A GPU cluster's, assembled from published spans and not measured: middles of 0.3-5 s (Unicron), 1-3 s, 1-20 s
(FlashRecovery, TrainMover), 2-5 s (7B with Adam at 25-50 GB/s); the warm-up is one iteration of ten seconds."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A share of repairs, and how long these take: one quantile of a distribution."""

    share: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One way of recovering from one failure."""

    downtime_s: float
    repeated_s: float
    """Work done again: half a step from a live peer, half an interval and a lag from snapshots, 0 if planned."""
    rate: float = 1.0
    """Of the job until the worker is back, against the healthy one, 0..1."""
    back_after_s: float = 0.0
    """Until a repaired or spare worker is there; 0 if nothing is missing, inf if none comes."""
    rejoin_probability: float = 0.0
    rejoin_s: float = 0.0
    """That the later re-join stops the job."""
    copies_at_risk: int = 0
    """Workers of which one more loss would take the last copy of some state."""
    exposed_s: float = 0.0
    """How long that is so."""
    until_repair: bool = False
    """``back_after_s`` and ``exposed_s`` are the repair's, and are to be averaged over its quantiles."""
    standing_share: float = 0.0
    """Of all time between failures, that being able to recover so costs (redundant computation, saves), 0..1."""

    def __post_init__(self) -> None:
        shares = (self.rate, self.rejoin_probability, self.standing_share)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(f"rate, probability of a re-join and standing share lie in 0..1, not {self}")
        seconds = (self.downtime_s, self.repeated_s, self.back_after_s, self.rejoin_s, self.exposed_s)
        if min(seconds) < 0.0 or self.copies_at_risk < 0:
            raise ValueError(f"times and copies are at least 0, not {self}")


@dataclass(frozen=True, slots=True)
class Price:
    """Parts of the cost in lost full-rate seconds of the job; times its GPUs, GPU-seconds."""

    downtime_s: float
    repeated_s: float
    degraded_s: float
    rejoin_s: float
    risk_s: float
    risk: float
    """Probability that the last copy is lost (P2)."""
    standing_s: float = 0.0
    """What being ready for this way has cost since the last failure."""

    @property
    def total_s(self) -> float:
        return self.downtime_s + self.repeated_s + self.degraded_s + self.rejoin_s + self.risk_s + self.standing_s


def price(action: Action, *, job_rate: float, worker_rate: float, restart_s: float) -> Price:
    """Price one failure.

    Args:
        action: the way of recovering.
        job_rate: failures per second of the whole job (1 / its mtbf).
        worker_rate: of one worker.
        restart_s: what a restart from the persistent checkpoint costs if the last copy goes.

    Raises:
        ValueError: a rate below 0.
    """
    if job_rate < 0.0 or worker_rate < 0.0:
        raise ValueError(f"failures come at least 0 times a second, not {job_rate} and {worker_rate}")
    risk = last_copy_risk(worker_rate, action.copies_at_risk, action.exposed_s)
    return Price(
        downtime_s=action.downtime_s,
        repeated_s=action.repeated_s,
        degraded_s=(1.0 - action.rate) * until_back(action.back_after_s, job_rate) if action.rate < 1.0 else 0.0,
        rejoin_s=action.rejoin_probability * action.rejoin_s,
        risk_s=risk * restart_s,
        risk=risk,
        standing_s=action.standing_share / job_rate if action.standing_share and job_rate else 0.0,
    )


def price_over(
    action: Action, repairs: Sequence[Repair], *, job_rate: float, worker_rate: float, restart_s: float
) -> Price:
    """``price``, averaged over how long a repair takes (shares sum to 1) where the action waits for one."""
    rates = {"job_rate": job_rate, "worker_rate": worker_rate, "restart_s": restart_s}
    if not action.until_repair:
        return price(action, **rates)
    spans = [
        (each.share, price(replace(action, back_after_s=each.seconds, exposed_s=each.seconds), **rates))
        for each in repairs
    ]
    return Price(*(sum(share * getattr(part, f.name) for share, part in spans) for f in fields(Price)))


def until_back(back_after_s: float, job_rate: float) -> float:
    """E[min(R, X)], X exponential: seconds until the worker is back or the next failure comes, whichever is first."""
    if job_rate == 0.0:
        return back_after_s
    return -math.expm1(-job_rate * back_after_s) / job_rate


def last_copy_risk(worker_rate: float, copies: int, exposed_s: float) -> float:
    """P2 = 1 - e^(-lambda n D): that one of n workers, each a last copy, fails within the exposed time."""
    return -math.expm1(-worker_rate * copies * exposed_s) if copies and worker_rate else 0.0


def spares_needed(workers: int, worker_rate: float, repair_s: float, shortage: float = 0.01) -> int:
    """The fewest spares of which more are wanted at once with a probability of at most ``shortage``.

    The number in repair is binomial with p = 1 - e^(-lambda R): ByteRobust's P99 rule for ``shortage`` 0.01.
    """
    p = -math.expm1(-worker_rate * repair_s)
    if p >= 1.0:
        return workers
    covered, exactly = 0.0, math.exp(workers * math.log1p(-p))
    for spares in range(workers + 1):
        covered += exactly
        if covered >= 1.0 - shortage:
            return spares
        exactly *= (workers - spares) / (spares + 1) * p / (1.0 - p)
    return workers


def worth_swapping(swap_s: float, reroute_s: float, *, rate: float, back_after_s: float, job_rate: float) -> bool:
    """Whether a swap to a standby beats going on degraded: D_swap - D_reroute < (1 - rho) E[min(R, X)]."""
    return swap_s - reroute_s < (1.0 - rate) * until_back(back_after_s, job_rate)


def act_above(acting_s: float, waiting_s: float) -> float:
    """The probability of a real fault above which acting costs less than waiting: C_act / (C_act + C_wait).

    Args:
        acting_s: what acting on a false alarm costs.
        waiting_s: what waiting costs if the fault is real.
    """
    both = acting_s + waiting_s
    return acting_s / both if both > 0.0 else 0.0


def cheapest(prices: Sequence[Price]) -> int:
    """Place of the least total; the first on a tie.

    Raises:
        ValueError: nothing to choose from.
    """
    if not prices:
        raise ValueError("no way of recovering is feasible")
    return min(range(len(prices)), key=lambda i: prices[i].total_s)
