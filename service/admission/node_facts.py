"""Stored facts about nodes for the admission check, read with a fixed number of queries."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from sqlalchemy import JSON, Integer, Select, TableValuedAlias, Text, and_, bindparam, case, cast, func, or_, select
from sqlalchemy.sql import ColumnElement

from mainstay.detectors.finding import FindingKind
from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.rules import AdmissionFacts, AdmissionRequest
from mainstay.service.common.db import AnySession, UnixTime
from mainstay.service.fleet.lifecycle_facts import EVICTING
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents.models import FindingRow
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import RUNNING
from mainstay.service.validation.latch import power_of
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow
from mainstay.service.validation.service import PENDING

_NODES = NodeRow.__table__
_VERDICT = NodeVerdictRow.__table__
_PARTITION: Final = 128
"""Nodes read at a time in the search for spares: fewer costs calls, more costs rows that the caller does not need."""
_AS_WANTED: Final = {"stream_results": True}
"""PostgreSQL gives rows as they are asked for; SQLite always does."""
_STATES = {state.value: state for state in HealthState}
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_PENDING_NODES = select(ValidationRow.node).distinct().where(ValidationRow.state.in_(PENDING))
_EVICTING_FINDINGS = (
    select(FindingRow.node, FindingRow.evidence)
    .where(
        FindingRow.active, FindingRow.recommended_action.in_(EVICTING), FindingRow.kind != FindingKind.NODE_LOST.value
    )
    .order_by(FindingRow.time.desc())
)
"""Few nodes have one: all are read. The oldest of a node stands."""
_RUNNING_JOBS = select(JobRow.id, JobRow.generation).where(JobRow.state.in_(RUNNING)).order_by(JobRow.id)
_LOST_GPUS = (
    select(FindingRow.node, FindingRow.device)
    .distinct()
    .where(FindingRow.active, FindingRow.kind == FindingKind.GPU_LOST.value)
)


@dataclass
class Occupancy:
    """Which running jobs have ranks on a node. A job's places change with its generation only, so they are kept."""

    _keys: tuple[tuple[str, int], ...] = ()
    _places: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    _by_node: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_node(self, session: AnySession) -> Mapping[str, tuple[str, ...]]:
        """Node -> ids of running jobs. Not to be changed."""
        keys = tuple((job, generation) for job, generation in session.connection().execute(_RUNNING_JOBS).all())
        with self._lock:
            if keys == self._keys:
                return self._by_node
            known = dict(self._places)
        places = {key: known.get(key) or _places(session, key[0]) for key in keys}
        found: dict[str, list[str]] = defaultdict(list)
        for (job, _), nodes in places.items():
            for node in nodes:
                found[node].append(job)
        with self._lock:
            self._keys, self._places = keys, places
            self._by_node = {node: tuple(jobs) for node, jobs in found.items()}
            return self._by_node


def _places(session: AnySession, job: str) -> frozenset[str]:
    topology = session.scalar(select(JobRow.topology).where(JobRow.id == job)) or {"ranks": []}
    return frozenset(place["node"] for place in topology["ranks"])


@dataclass(frozen=True, slots=True)
class _Questions:
    """The statements of one dialect, built once: to build them costs more than to answer them."""

    notable: Select[Any]
    """Asked-for names that have no node, are not fine, or are special."""
    cohorts: Select[Any]
    fine: Select[Any]
    """Names of fine nodes of the cohorts, in order."""


@cache
def _questions(dialect: str) -> _Questions:
    """Parameters: names, special, cohorts (JSON lists), since, valid_since, power, gpus."""
    asked = _listed("names", dialect)
    fine = _fine()
    notable = (
        select(
            asked.c.value, _NODES.c.name, _NODES.c.state, _NODES.c.cohort, _NODES.c.stopped_at, _NODES.c.last_seen_at,
            _NODES.c.gpus, _VERDICT.c.verdict, _VERDICT.c.suite, _VERDICT.c.power, _VERDICT.c.at,
        )
        .select_from(asked)
        .outerjoin(_NODES, _NODES.c.name == asked.c.value)
        .outerjoin(_VERDICT, _VERDICT.c.node == _NODES.c.name)
        .where(or_(case((fine, 1), else_=0) == 0, asked.c.value.in_(select(_listed("special", dialect).c.value))))
    )  # fmt: skip
    of_cohorts = (
        select(_NODES.c.name)
        .join(_VERDICT, _VERDICT.c.node == _NODES.c.name)
        .where(fine, _NODES.c.cohort.in_(select(_listed("cohorts", dialect).c.value)))
        .order_by(_NODES.c.name)
    )
    cohorts = select(_NODES.c.cohort).where(_NODES.c.name.in_(select(asked.c.value))).distinct()
    return _Questions(notable, cohorts, of_cohorts)


def _listed(name: str, dialect: str) -> TableValuedAlias:
    """A JSON list of names as a table: an expanding list of a thousand parameters costs more than the query."""
    given = bindparam(name, type_=Text)
    if dialect == "postgresql":
        return func.json_array_elements_text(cast(given, JSON)).table_valued("value")
    return func.json_each(given).table_valued("value")


def _fine() -> ColumnElement[bool]:
    """True where no rule over these tables speaks: ``rules._fine`` in SQL. What is missing is not fine."""
    return and_(
        _NODES.c.state == HealthState.HEALTHY.value,
        _NODES.c.stopped_at.is_(None),
        _NODES.c.last_seen_at >= bindparam("since", type_=UnixTime),
        _NODES.c.gpus >= bindparam("gpus", type_=Integer),
        _VERDICT.c.verdict == Verdict.PASS.value,
        _VERDICT.c.power >= bindparam("power", type_=Integer),
        _VERDICT.c.at >= bindparam("valid_since", type_=UnixTime),
    )


class FactsQuery:
    """What is stored, for one question.

    The database leaves out the many nodes without objections; a test compares that with the rules.

    Args:
        session: to read with.
        names: of the nodes that are asked for, each once.
        request: requirements for each node.
        job: that asks; its own ranks make no node busy.
        occupancy: which jobs run where.
    """

    def __init__(
        self, session: AnySession, names: Sequence[str], request: AdmissionRequest, job: str, occupancy: Occupancy
    ) -> None:
        self._connection = session.connection()
        """Columns of a thousand rows, not objects: an ORM result costs more than the query."""
        self._names = names
        self._request = request
        self._questions = _questions(self._connection.dialect.name)
        self._bounds = {
            "since": request.now - request.heartbeat_timeout_seconds,
            "valid_since": request.now - request.max_age_seconds,
            "power": power_of(request.suite),
            "gpus": request.gpus or 0,
        }
        self._pending = set(self._connection.scalars(_PENDING_NODES).all())
        self._evicting = {
            node: evidence["summary"]
            for node, evidence in self._connection.execute(_EVICTING_FINDINGS).all()
            if node is not None
        }
        self._lost = Counter(node for node, _ in self._connection.execute(_LOST_GPUS).all())
        self._busy = occupancy.by_node(session)
        self._mine = (job,)
        self._special = {*self._pending, *self._evicting, *self._lost} - {None}
        """Nodes of which other tables have something to say; beside those that are busy."""

    def notable(self) -> dict[str, AdmissionFacts | None]:
        """Nodes that are asked for and of which there may be something to say; None: no node has the name."""
        special = [name for name in self._names if self._is_special(name)]
        lists = {"names": json.dumps(self._names), "special": json.dumps(special)}
        rows = self._connection.execute(self._questions.notable, self._bounds | lists).all()
        return {row[0]: None if row[1] is None else self._known(*row[1:]) for row in rows}

    def _is_special(self, name: str) -> bool:
        return name in self._special or self._busy.get(name, self._mine) != self._mine

    def cohorts(self) -> list[str]:
        """Of the nodes that are asked for."""
        return sorted(self._connection.scalars(self._questions.cohorts, {"names": json.dumps(self._names)}).all())

    def spares(self, cohorts: Collection[str], wanted: int) -> list[str]:
        """Names of free nodes of these cohorts without objections."""
        given = self._bounds | {"cohorts": json.dumps(sorted(cohorts))}
        asked = set(self._names)
        found: list[str] = []
        with self._connection.execute(self._questions.fine, given, execution_options=_AS_WANTED) as rows:
            for names in rows.scalars().partitions(_PARTITION):
                found += [name for name in names if name not in asked and not self._is_special(name)]
                if len(found) >= wanted:
                    break
        return found[:wanted]

    def _known(  # noqa: PLR0917 - the columns of one row
        self,
        name: str,
        state: str,
        cohort: str,
        stopped: float | None,
        seen: float | None,
        gpus: int,
        verdict: str | None,
        suite: str | None,
        power: int | None,
        at: float | None,
    ) -> AdmissionFacts:
        request = self._request
        return AdmissionFacts(
            node=name,
            state=_STATES[state],
            silent=stopped is not None or seen is None or request.now - seen > request.heartbeat_timeout_seconds,
            cohort=cohort,
            verdict=None if verdict is None else _VERDICTS[verdict],
            suite=suite or "",
            power=power or 0,
            validated_at=at,
            pending=name in self._pending,
            gpus=gpus - self._lost[name] if request.gpus is not None else None,
            evicting=self._evicting.get(name, ""),
            jobs=tuple(other for other in self._busy.get(name, ()) if other not in self._mine),
        )
