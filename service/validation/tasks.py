"""The tasks of validation. Each takes ids only, may run twice, and is one or two short transactions.

Nothing depends on a task arriving: what is due is a row, and the next tick sends it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mainstay.service.common.db import after_commit
from mainstay.service.localization import findings as localization_findings
from mainstay.service.localization import service as localization_service
from mainstay.service.services import Services
from mainstay.service.validation import limits, service, sweeps


@dataclass(frozen=True, slots=True)
class Tasks:
    """The task functions of one process, around its services."""

    services: Services
    send_fan_out: Callable[[str], None]

    def tick(self) -> None:
        """Expire what is late, release held tasks, close finished runs, start the sweeps that are due.

        In this order: a sweep that is due skips what still waits for a job, and then runs again.
        """
        now = self.services.clock.now()
        with self.services.database.session() as session:
            service.expire(session, now=now, settings=self.services.settings)
            jobs = self.services.occupancy.by_node(session)
            for run_id in limits.holding_runs(session):
                limits.release(session, run_id, jobs, now=now, settings=self.services.settings)
            sweeps.finish_runs(session, now=now)
            after_commit(session, lambda: self.services.wakers.wake("orders"))
        with self.services.database.session() as session:
            sweeps.claim_due(session, now=now)
            for run_id in sweeps.waiting_runs(session):
                after_commit(session, partial(self.send_fan_out, run_id))
        with self.services.database.session() as session:
            if late := localization_service.tick(session, now=now):
                session.flush()
                for row in late:
                    localization_findings.ended(session, row, now=now, settings=self.services.settings)
                after_commit(session, lambda: self.services.wakers.wake("orders"))

    def fan_out(self, run_id: str) -> None:
        """Order the validations of one run."""
        now = self.services.clock.now()
        with self.services.database.session() as session:
            jobs = self.services.occupancy.by_node(session)
            sweeps.fan_out(session, run_id, jobs, now=now, settings=self.services.settings)
            after_commit(session, lambda: self.services.wakers.wake("orders"))
