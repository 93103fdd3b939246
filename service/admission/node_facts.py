"""Stored facts about nodes for the admission check, read with a fixed number of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import and_, case, or_, select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission import pauses
from mainstay.service.admission.rules import AdmissionFacts, AdmissionRequest
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.lifecycle_facts import EVICTING
from mainstay.service.incidents.models import FindingRow
from mainstay.service.validation.latch import power_of
from mainstay.service.validation.models import ValidationRow
from mainstay.service.validation.service import IS_PENDING

if TYPE_CHECKING:
    from mainstay.service.services import Services

_PENDING = select(ValidationRow.node, ValidationRow.held).where(IS_PENDING)
_LOST = FindingRow.kind == FindingKind.GPU_LOST.value
_EVICTS = and_(FindingRow.recommended_action.in_(EVICTING), FindingRow.kind != FindingKind.NODE_LOST.value)
_FINDINGS = (
    select(FindingRow.node, case((_EVICTS, FindingRow.evidence)), case((_LOST, FindingRow.device)))
    .where(FindingRow.active, or_(_LOST, _EVICTS))
    .order_by(FindingRow.time.desc())
)
"""Few nodes have one: all are read; the oldest of a node stands. (With ``node`` in it, SQLite reads old ones too.)"""


class FactsQuery:
    """What is stored, for one question: nodes and verdicts from memory, as new as the session; the rest is few rows.

    Nodes without objections are left out by a quick check; a test compares that with the rules.

    Args:
        session: to read with.
        services: the fleet, who runs where, and when each node last reported.
        names: of the nodes that are asked for, each once.
        request: requirements for each node.
        job: that asks; its own ranks make no node busy.
    """

    def __init__(
        self, session: AnySession, services: Services, names: Sequence[str], request: AdmissionRequest, job: str
    ) -> None:
        connection = session.connection()  # columns, not objects: an ORM result costs more than the query
        fleet = services.fleet.current(session)
        self._nodes, self._columns = fleet.nodes, fleet.columns
        self._seen = services.seen
        self._hears = not services.settings.is_gateway
        """Whether this process knows who is silent."""
        self._names = names
        self._request = request
        self._power = power_of(request.suite)
        self._busy = services.occupancy.by_node(session)
        # One that is held on a busy node waits for the job, and does not stand in its way.
        self._pending = {node for node, held in connection.execute(_PENDING) if not (held and node in self._busy)}
        self._evicting: dict[str, str] = {}
        lost: set[tuple[str, str]] = set()
        for node, evidence, device in connection.execute(_FINDINGS).all():
            if node is not None and evidence is not None:
                self._evicting[node] = evidence["summary"]
            if node is not None and device is not None:
                lost.add((node, device))
        self._lost = Counter(node for node, _ in lost)
        self._paused = pauses.by_rack(session, {one for jobs in self._busy.values() for one in jobs}, job)
        self._mine = (job,)
        self._special = {*self._pending, *self._evicting, *self._lost}
        """Nodes of which other tables have something to say; beside those that are busy."""

    def notable(self) -> dict[str, AdmissionFacts | None]:
        """Nodes that are asked for and of which there may be something to say; None: no node has the name."""
        rows, fine = self._columns.rows, self._fine.tolist()
        notable = [name for name in self._names if (row := rows.get(name)) is None or not fine[row]]
        return {name: None if (node := self._nodes.get(name)) is None else self._known(node) for name in notable}

    def clear(self) -> list[FleetNode]:
        """Nodes that are asked for, without objections: those that ``notable`` leaves out."""
        rows, fine = self._columns.rows, self._fine.tolist()
        found = (rows.get(name) for name in self._names)
        return [self._columns.nodes[row] for row in found if row is not None and fine[row]]

    def cohorts(self) -> set[str]:
        """Of the nodes that are asked for."""
        return {node.cohort for name in self._names if (node := self._nodes.get(name)) is not None}

    def spares(self, cohorts: Collection[str], wanted: int) -> list[str]:
        """Names of free nodes of these cohorts without objections, in order."""
        asked, nodes = set(self._names), self._columns.nodes
        fine = (nodes[row] for row in np.flatnonzero(self._fine).tolist())
        return list(islice((node.name for node in fine if node.cohort in cohorts and node.name not in asked), wanted))

    @cached_property
    def _fine(self) -> NDArray[np.bool_]:
        """[node of the fleet] whether no rule speaks, over what is stored and nothing else.

        What is missing is not fine. One function that holds all the limits of the rules.
        """
        request, values = self._request, self._columns.values
        seen = np.fmax(values["last_seen_at"], self._seen.times(self._columns.names))
        fine: NDArray[np.bool_] = values["fit"] & (values["power"] >= self._power)
        fine &= values["validated_at"] >= request.now - request.max_age_seconds
        fine &= values["gpus"] >= (request.gpus or 0)
        fine &= (seen >= request.now - request.heartbeat_timeout_seconds) | (not self._hears)
        elsewhere = (name for name, jobs in self._busy.items() if jobs != self._mine)
        rows = map(self._columns.rows.get, {*self._special, *elsewhere})
        fine[[row for row in rows if row is not None]] = False
        if self._paused:
            fine &= [not self._pause_of(node) for node in self._columns.nodes]
        return fine

    def _pause_of(self, node: FleetNode) -> str:
        return self._paused.get(pauses.FLEET) or self._paused.get(node.rack, "")

    def _is_silent(self, node: FleetNode) -> bool:
        last = max(node.last_seen_at or 0.0, self._seen.get(node.name) or 0.0)
        overdue = self._hears and self._request.now - last > self._request.heartbeat_timeout_seconds
        return overdue or node.stopped_at is not None

    def _known(self, node: FleetNode) -> AdmissionFacts:
        return AdmissionFacts(
            node=node.name,
            state=HealthState(node.state),
            silent=self._is_silent(node),
            cohort=node.cohort,
            verdict=None if node.verdict is None else Verdict(node.verdict),
            suite=node.suite or "",
            power=node.power or 0,
            validated_at=node.validated_at,
            pending=node.name in self._pending,
            gpus=node.gpus - self._lost[node.name] if self._request.gpus is not None else None,
            evicting=self._evicting.get(node.name, ""),
            jobs=tuple(other for other in self._busy.get(node.name, ()) if other not in self._mine),
            paused=self._pause_of(node),
        )
