"""What one failure costs with one recovery strategy, in seconds of the whole healthy job that are lost.

C = D + L + (1 - rho) E[min(R, X)] + q D' + P2 C_restart: downtime, work that is repeated, the degraded time until a
worker is back or the next failure comes, the re-join, and the risk that the last copy is lost meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """From a failure until training continues, in seconds. The sum counts."""

    detect_s: float = 0.0
    fence_s: float = 0.0
    regroup_s: float = 0.0
    move_state_s: float = 0.0
    warm_up_s: float = 0.0

    @property
    def total_s(self) -> float:
        return math.fsum(astuple(self))


MEASURED = Downtime(detect_s=0.026, fence_s=0.001, regroup_s=0.031, move_state_s=0.044, warm_up_s=0.045)
"""Live on a two-core machine, 4 ranks over gloo, 12 MB of state, SIGKILL: middles of the measured spans (exit seen
21-31 ms, groups formed again 2-60 ms, warm-up with the first vote 30-60 ms). Not a GPU cluster's."""

BUDGET = Downtime(detect_s=2.65, fence_s=2.0, regroup_s=10.5, move_state_s=3.5, warm_up_s=10.0)
"""A GPU cluster's, assembled from published spans and not measured: middles of 0.3-5 s (Unicron), 1-3 s, 1-20 s
(FlashRecovery, TrainMover), 2-5 s (7B with Adam at 25-50 GB/s); the warm-up is one iteration of ten seconds."""


class Repair(NamedTuple):
    """A share of repairs, and how long these take: one quantile of a distribution."""

    share: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryAction:
    """One recovery strategy from one failure."""

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
    readiness_share: float = 0.0
    """Of all time between failures, that being able to recover so costs (redundant computation, saves), 0..1."""

    def __post_init__(self) -> None:
        shares = (self.rate, self.rejoin_probability, self.readiness_share)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(f"rate, probability of a re-join and readiness share lie in 0..1, not {self}")
        seconds = (self.downtime_s, self.repeated_s, self.back_after_s, self.rejoin_s, self.exposed_s)
        if min(seconds) < 0.0 or self.copies_at_risk < 0:
            raise ValueError(f"times and copies are at least 0, not {self}")


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Parts of the cost in lost full-rate seconds of the job; times its GPUs, GPU-seconds."""

    downtime_s: float
    repeated_s: float
    degraded_s: float
    rejoin_s: float
    risk_s: float
    readiness_s: float = 0.0
    """What being ready for this way has cost since the last failure."""

    @property
    def total_s(self) -> float:
        return math.fsum(astuple(self))

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they go to, those that are 0 left out."""
        seconds = {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}
        return {name: each for name, each in seconds.items() if each > 0.0}


def estimate_cost(action: RecoveryAction, *, job_rate: float, worker_rate: float, restart_s: float) -> CostEstimate:
    """Price one failure.

    Args:
        action: the recovery strategy.
        job_rate: failures per second of the whole job (1 / its mtbf).
        worker_rate: of one worker.
        restart_s: what a restart from the persistent checkpoint costs if the last copy goes.

    Raises:
        ValueError: a rate below 0.
    """
    if job_rate < 0.0 or worker_rate < 0.0:
        raise ValueError(f"failures come at least 0 times a second, not {job_rate} and {worker_rate}")
    return CostEstimate(
        downtime_s=action.downtime_s,
        repeated_s=action.repeated_s,
        degraded_s=(1.0 - action.rate) * until_back(action.back_after_s, job_rate) if action.rate < 1.0 else 0.0,
        rejoin_s=action.rejoin_probability * action.rejoin_s,
        risk_s=last_copy_risk(worker_rate, action.copies_at_risk, action.exposed_s) * restart_s,
        readiness_s=action.readiness_share / job_rate if action.readiness_share and job_rate else 0.0,
    )


def price_over(
    action: RecoveryAction, repairs: Sequence[Repair], *, job_rate: float, worker_rate: float, restart_s: float
) -> CostEstimate:
    """``estimate_cost``, averaged over how long a repair takes (shares sum to 1) where the action waits for one."""
    rates = {"job_rate": job_rate, "worker_rate": worker_rate, "restart_s": restart_s}
    if not action.until_repair:
        return estimate_cost(action, **rates)
    spans = [
        (each.share, estimate_cost(replace(action, back_after_s=each.seconds, exposed_s=each.seconds), **rates))
        for each in repairs
    ]
    return CostEstimate(*(sum(share * getattr(part, f.name) for share, part in spans) for f in fields(CostEstimate)))


def until_back(back_after_s: float, job_rate: float) -> float:
    """E[min(R, X)], X exponential: seconds until the worker is back or the next failure comes, whichever is first."""
    if job_rate == 0.0:
        return back_after_s
    return -math.expm1(-job_rate * back_after_s) / job_rate


def last_copy_risk(worker_rate: float, copies: int, exposed_s: float) -> float:
    """P2 = 1 - e^(-lambda n D): that one of n workers, each a last copy, fails within the exposed time."""
    return -math.expm1(-worker_rate * copies * exposed_s) if copies and worker_rate else 0.0


def action_threshold(acting_s: float, waiting_s: float) -> float:
    """The probability of a real fault above which acting costs less than waiting: C_act / (C_act + C_wait).

    Args:
        acting_s: what acting on a false alarm costs.
        waiting_s: what waiting costs if the fault is real.
    """
    both = acting_s + waiting_s
    return acting_s / both if both > 0.0 else 0.0
