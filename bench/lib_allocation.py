"""Workers of one cluster shared out among all of its jobs at once (Unicron, arXiv 2401.00134).

With the gains of ``mainstay.recovery.cost_model.allocation``: S(i, j) = max over k of S(i - 1, j - k) + G(i, k), which
takes O(jobs x workers^2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mainstay.recovery.cost_model.allocation import Tenant


def allocate(tenants: Sequence[Tenant], workers: int, run_s: float) -> tuple[float, tuple[int, ...]]:
    """The allocation of at most ``workers`` with the largest sum of gains.

    Args:
        tenants: the jobs, at least one.
        workers: that there are.
        run_s: expected seconds until the next event (mtbf of a worker / workers).

    Returns:
        The sum, and the workers of each job; among equals the one that gives the last jobs fewest.
    """
    best: NDArray[np.float64] = np.zeros(workers + 1)
    taken: list[NDArray[np.intp]] = []
    for tenant in tenants:
        gains = np.array([tenant.gain(k, run_s) for k in range(workers + 1)])
        following = np.full(workers + 1, -np.inf)
        choice = np.zeros(workers + 1, dtype=np.intp)
        for k in range(workers + 1):
            offered = best[: workers + 1 - k] + gains[k]
            better = offered > following[k:]
            following[k:][better] = offered[better]
            choice[k:][better] = k
        best = following
        taken.append(choice)
    shares, left = [], workers
    for choice in reversed(taken):
        shares.append(int(choice[left]))
        left -= shares[-1]
    return float(best[workers]), tuple(reversed(shares))
