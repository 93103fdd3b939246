"""Which ranks keep the others waiting because their script has not called ``mainstay.init`` yet.

A script may take as long as it likes until then: it imports, reads its data, compiles. Only its user can tell
that from a hang, so it is reported and left alone.
"""

from __future__ import annotations

import time
from typing import Final

from mainstay.recovery.controller.job import Job, log

FIRST_SECONDS: Final = 60.0
"""Until the first report; each further one after twice the time."""
NAMED: Final = 8
"""Ranks in one report."""


class StartMonitor:
    """One a coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._since: float | None = None
        self._next = FIRST_SECONDS

    def run_once(self, now: float | None = None) -> None:
        """Called every second or so.

        Args:
            now: seconds of a monotonic clock; None: its time now.
        """
        now = time.monotonic() if now is None else now
        late = self._late()
        if not late:
            self._since, self._next = None, FIRST_SECONDS
            return
        self._since = now if self._since is None else self._since
        if now - self._since >= self._next:
            self._next *= 2.0
            more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
            log.warning(
                "the job waits: %s%s have not called mainstay.init() for %.0f s, and the other ranks have",
                ", ".join(late[:NAMED]), more, now - self._since,
            )  # fmt: skip

    def _late(self) -> list[str]:
        """None before a rank has joined: the script may be one without the SDK."""
        job = self._job
        if job.members.shape is None or job.state.over or job.state.inheriting:
            return []
        present = [rank for rank in job.members.present if rank.pid is not None and not rank.gone]
        late = [rank for rank in present if not rank.joined]
        return [] if len(late) == len(present) else [f"rank {r.number} on {r.node} (pid {r.pid})" for r in late]
