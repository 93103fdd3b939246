"""Errors of ranks whose processes live: the step is made again in the same processes, as long as that seems to help.

once         all ranks regroup; each keeps its process, and its tensors if they are between steps
again, soon  the rank that erred gets a new process: what stays wrong with a process ends with it
and again    without a committed step between, three errors of the script's own end the job, as after any exit

A broken connection has two ends and names no rank: whoever told of it first is taken for the one that erred, it is not
the script's own, and it is counted apart: who raised just before may be at the other end. In-process restart as in
Unicron (He et al. 2024) and NVRx, escalating as they do.
"""

from __future__ import annotations

from typing import Final

CALM_STEPS: Final = 10
"""Committed steps after which an error has nothing to do with the last one: a demo's few seconds, a large job's few
minutes."""


class RetryPolicy:
    """When each rank erred last. One a coordinator."""

    def __init__(self) -> None:
        self._erred: dict[tuple[int, bool], int] = {}
        """(rank, whether it raised) -> epoch that was committed then; of those that kept their process."""

    def replaced_for(self, rank: int, committed: int, *, raised: bool) -> set[int]:
        """Ranks that get a new process because ``rank`` has erred after epoch ``committed``: none, or itself.

        Args:
            rank: whoever told of it.
            committed: the newest epoch.
            raised: its script raised; else a connection broke.
        """
        last = self._erred.pop((rank, raised), None)
        if last is not None and committed - last < CALM_STEPS:
            return {rank}
        self._erred[rank, raised] = committed
        return set()
