"""What the rules need to know, gathered once for a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from sqlalchemy import func, select

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import ReadSession, WriteSession
from mainstay.service.detector_policies.in_force import hold_reason, policies_in_force
from mainstay.service.detector_policies.models import DetectorPolicyRow
from mainstay.service.fleet.lifecycle import NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.jobs import job_requests
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.models import JobRow
from mainstay.service.remediation import repository
from mainstay.service.remediation.job_migrations import JobMigration, find_job_migrations
from mainstay.service.remediation.rules import RemediationFacts, asks_jobs
from mainstay.service.settings import RemediationSettings

FLEET_SECONDS = 86_400.0
"""A node without a report for a day does not count as part of the fleet."""
JOB_SECONDS = 600.0
"""A job without a report for so long may be gone: it keeps no drained node from quarantine."""

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
    _unfit: frozenset[str | None] | None = field(default=None, init=False)
    _policies: dict[str, DetectorPolicyRow] | None = field(default=None, init=False)

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
            stranded=self.stranded(node),
        )

    def held_by_policy(self, detector: str) -> str:
        """Why a person has to accept what a detector proposes; empty where Mainstay may."""
        if self._policies is None:
            self._policies = policies_in_force(self.session)
        return hold_reason(self._policies.get(detector))

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
        self._unfit = None

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

    def moves(self, node: str, device: str | None = None) -> list[JobMigration]:
        """What running jobs would move off the node, or off one of its devices."""
        here = self.jobs_on(node)
        running = [job for job in self.running() if job.id in here]
        return find_job_migrations(running, node, device, partial(self._free_standbys, node))

    def depending(self, node: str, seen_since: float = 0.0) -> tuple[str, ...]:
        """Jobs, of those that reported since then, of which every data-parallel replica has a rank on the node."""
        seen = {job.id for job in self.running() if job.last_seen_at >= seen_since}
        return tuple(job for job in self.jobs_on(node) if job in seen and _depends(self.places()[job], node))

    def stranded(self, node: str) -> tuple[str, ...]:
        """Why jobs that depend on the node cannot leave it, a sentence each.

        A job runs on the nodes that it has: another node of the fleet is no spare for it, nor is one of its own
        without a warm standby.
        """
        alone = self.depending(node)
        moves = self.moves(node) if alone else ()
        return tuple(why for move in moves if move.job in alone and (why := self._why(move)))

    def _why(self, move: JobMigration) -> str:
        asks = asks_jobs(self.limits, is_automatic=self.limits.mode == "automatic")
        setting = f"MAINSTAY_REMEDIATION__MIGRATE={self.limits.migrate}"
        return move.obstacle or ("" if asks else f"Mainstay may not move the ranks of job {move.job} ({setting})")

    def _free_standbys(self, node: str, job: JobRow) -> int | None:
        """Warm standbys on other nodes that are fit, less those for ranks that the job was asked to move already."""
        waiting = job.topology.get("standbys")
        if waiting is None:
            return None
        asked = job_requests.open_ones(self.session, job.id)
        nodes, ranks = {one.node for one in asked}, {one.rank for one in asked}
        others = (place for place in job.topology["ranks"] if place["node"] != node)
        taken = sum(place["node"] in nodes or place["rank"] in ranks for place in others) if asked else 0
        ready: int = sum(count for name, count in waiting.items() if name != node and name not in self._unfit_nodes())
        return max(0, ready - taken)

    def _unfit_nodes(self) -> frozenset[str | None]:
        """Nodes with warm standbys that no rank may move to."""
        if self._unfit is None:
            waiting = [job.topology.get("standbys") or {} for job in self.running()]
            names = {name for counts in waiting for name, count in counts.items() if count}
            self._unfit = repository.unfit(self.session, names)
        return self._unfit


def _depends(nodes: Mapping[str, set[int]], node: str) -> bool:
    """Whether every data-parallel replica of a job has a rank on the node."""
    return nodes[node] == set().union(*nodes.values())
