"""What the rules need to know, gathered once for a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sqlalchemy import func, select

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import ReadSession, WriteSession
from mainstay.service.fleet.lifecycle import NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.models import JobRow
from mainstay.service.remediation.rules import RemediationFacts
from mainstay.service.settings import RemediationSettings

FLEET_SECONDS = 86_400.0
"""A node without a report for a day does not count as part of the fleet."""


SessionT = TypeVar("SessionT", ReadSession, WriteSession)


@dataclass
class FleetView(Generic[SessionT]):
    """The fleet as it stands in one transaction. Drains of the same turn are counted by ``note_drain``."""

    session: SessionT
    limits: RemediationSettings
    now: float
    _running: list[JobRow] | None = field(default=None, init=False)
    _fleet: int | None = field(default=None, init=False)
    _places: dict[str, dict[str, set[int]]] | None = field(default=None, init=False)
    _drained: dict[str, str] | None = field(default=None, init=False)

    def facts(self, node: str, *, first: str | None = None) -> RemediationFacts:
        """Everything that the rules ask about one node."""
        row = self.session.get(NodeRow, node)
        if row is None:
            return RemediationFacts(limits=self.limits, known=False)
        drained = self.drained()
        return RemediationFacts(
            limits=self.limits,
            state=HealthState(row.state),
            owner=Owner(row.owner),
            said=f"{row.actor}: {row.state_reason}",
            uptime_seconds=None if row.booted_at is None else max(0.0, self.now - row.booted_at),
            first=first,
            fleet=self.fleet(),
            touched=len(drained),
            rack=row.rack,
            rack_touched=sum(rack == row.rack for rack in drained.values()),
            stranded=self.stranded(row),
        )

    def fleet(self) -> int:
        """How many nodes there are, for the breaker."""
        if self._fleet is None:
            heard = NodeRow.last_seen_at >= self.now - FLEET_SECONDS
            self._fleet = self.session.scalar(select(func.count()).select_from(NodeRow).where(heard)) or 0
        return self._fleet

    def drained(self) -> dict[str, str]:
        """Nodes that we drained within the window → their racks."""
        if self._drained is None:
            statement = (
                select(TransitionRow.node, NodeRow.rack)
                .join(NodeRow, NodeRow.name == TransitionRow.node)
                .where(
                    TransitionRow.time >= self.now - self.limits.window_seconds,
                    TransitionRow.trigger == NodeTrigger.DRAIN.value,
                    TransitionRow.owner == Owner.SYSTEM.value,
                )
            )
            self._drained = {node: rack for node, rack in self.session.execute(statement)}  # noqa: C416
        return self._drained

    def note_drain(self, node: str) -> None:
        """A node was drained in this turn."""
        row = self.session.get(NodeRow, node)
        self.drained()[node] = "" if row is None else row.rack

    def running(self) -> list[JobRow]:
        """Jobs that run or recover."""
        if self._running is None:
            self._running = jobs.current(self.session, limit=500)
        return self._running

    def places(self) -> dict[str, dict[str, set[int]]]:
        """Running job → node → the data-parallel replicas that have a rank there."""
        if self._places is None:
            self._places = {}
            for job in self.running():
                nodes = self._places[job.id] = {}
                for place in job.topology["ranks"]:
                    nodes.setdefault(place["node"], set()).add(place["dp"])
        return self._places

    def jobs_on(self, node: str) -> tuple[str, ...]:
        """Running jobs with a rank on the node."""
        return tuple(job for job, nodes in self.places().items() if node in nodes)

    def stranded(self, row: NodeRow) -> tuple[str, ...]:
        """Jobs that cannot continue without the node: no data-parallel replica on another node, and no spare."""
        alone = [job for job in self.jobs_on(row.name) if _depends(self.places()[job], row.name)]
        return tuple(alone) if alone and not self._has_spare(row) else ()

    def _has_spare(self, row: NodeRow) -> bool:
        busy = {node for nodes in self.places().values() for node in nodes}
        statement = select(NodeRow.name).where(
            NodeRow.state == HealthState.HEALTHY.value, NodeRow.cohort == row.cohort, NodeRow.name != row.name
        )
        return any(name not in busy for name in self.session.scalars(statement))


def _depends(nodes: Mapping[str, set[int]], node: str) -> bool:
    """Whether every data-parallel replica of a job has a rank on the node."""
    return nodes[node] == set().union(*nodes.values())
