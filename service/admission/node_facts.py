"""Stored facts about nodes for the admission check, read with a fixed number of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import and_, case, or_, select

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.rules import AdmissionFacts, AdmissionRequest
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetNode
from mainstay.service.fleet.lifecycle_facts import EVICTING
from mainstay.service.incidents.models import FindingRow
from mainstay.service.validation.latch import power_of
from mainstay.service.validation.models import ValidationRow
from mainstay.service.validation.service import PENDING

if TYPE_CHECKING:
    from mainstay.service.services import Services

_HEALTHY, _PASS = HealthState.HEALTHY.value, Verdict.PASS.value
_PENDING_NODES = select(ValidationRow.node).distinct().where(ValidationRow.state.in_(PENDING))
_LOST = FindingRow.kind == FindingKind.GPU_LOST.value
_EVICTS = and_(FindingRow.recommended_action.in_(EVICTING), FindingRow.kind != FindingKind.NODE_LOST.value)
_FINDINGS = (
    select(FindingRow.node, case((_EVICTS, FindingRow.evidence)), case((_LOST, FindingRow.device)))
    .where(FindingRow.active, FindingRow.node.is_not(None), or_(_LOST, _EVICTS))
    .order_by(FindingRow.time.desc())
)
"""Few nodes have one: all are read. The oldest of a node stands."""


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
        self._nodes = services.fleet.current(session).nodes
        self._seen = services.seen
        self._names = names
        self._request = request
        self._power = power_of(request.suite)
        self._pending = set(connection.scalars(_PENDING_NODES).all())
        self._evicting: dict[str, str] = {}
        lost: set[tuple[str, str]] = set()
        for node, evidence, device in connection.execute(_FINDINGS).all():
            if evidence is not None:
                self._evicting[node] = evidence["summary"]
            if device is not None:
                lost.add((node, device))
        self._lost = Counter(node for node, _ in lost)
        self._busy = services.occupancy.by_node(session)
        self._mine = (job,)
        self._special = {*self._pending, *self._evicting, *self._lost}
        """Nodes of which other tables have something to say; beside those that are busy."""

    def notable(self) -> dict[str, AdmissionFacts | None]:
        """Nodes that are asked for and of which there may be something to say; None: no node has the name."""
        nodes, is_fine = self._nodes, self._make_check()
        asked = {name: nodes.get(name) for name in self._names}
        notable = {name: node for name, node in asked.items() if node is None or not is_fine(node)}
        return {name: None if node is None else self._known(node) for name, node in notable.items()}

    def cohorts(self) -> set[str]:
        """Of the nodes that are asked for."""
        return {node.cohort for name in self._names if (node := self._nodes.get(name)) is not None}

    def spares(self, cohorts: Collection[str], wanted: int) -> list[str]:
        """Names of free nodes of these cohorts without objections, in order."""
        asked, is_fine = set(self._names), self._make_check()
        good = (
            name for name, node in self._nodes.items() if node.cohort in cohorts and name not in asked and is_fine(node)
        )
        return list(islice(good, wanted))

    def _make_check(self) -> Callable[[FleetNode], bool]:
        """Whether no rule speaks, over what is stored and nothing else.

        What is missing is not fine. One function that holds all its limits: it is called for thousands of nodes.
        """
        request, special, busy, mine = self._request, self._special, self._busy, self._mine
        power, gpus, last_seen = self._power, request.gpus or 0, self._seen.get
        oldest, silent = request.now - request.max_age_seconds, request.now - request.heartbeat_timeout_seconds

        def is_fine(node: FleetNode) -> bool:
            name = node.name
            return (
                node.state == _HEALTHY
                and node.verdict == _PASS
                and (node.power or 0) >= power
                and node.validated_at is not None
                and node.validated_at >= oldest
                and node.gpus >= gpus
                and node.stopped_at is None
                and ((last_seen(name) or 0.0) >= silent or (node.last_seen_at or 0.0) >= silent)
                and name not in special
                and busy.get(name, mine) == mine
            )

        return is_fine

    def _is_silent(self, node: FleetNode) -> bool:
        last = max(node.last_seen_at or 0.0, self._seen.get(node.name) or 0.0)
        return node.stopped_at is not None or self._request.now - last > self._request.heartbeat_timeout_seconds

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
        )
