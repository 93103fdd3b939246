"""What is stored of nodes, for the gate: a handful of queries whatever their number."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import JSON, Integer, Select, TableValuedAlias, Text, and_, bindparam, case, cast, func, or_, select
from sqlalchemy.sql import ColumnElement

from detectors.finding import FindingKind
from probes.words import HealthState, Verdict
from service.admission.rules import Known, Wish
from service.fleet.models import DeviceRow, NodeRow
from service.fleet.situation import EVICTING
from service.incidents.models import FindingRow
from service.jobs.models import JobRow
from service.jobs.repository import RUNNING
from service.kit.db import AnySession, UnixTime
from service.validation.latch import power_of
from service.validation.models import NodeVerdictRow, ValidationRow
from service.validation.service import PENDING

_STATES = {state.value: state for state in HealthState}
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_PENDING_NODES = select(ValidationRow.node).distinct().where(ValidationRow.state.in_(PENDING))
_EVICTING_FINDINGS = (
    select(FindingRow.node, FindingRow.evidence)
    .where(FindingRow.active, FindingRow.remedy.in_(EVICTING), FindingRow.kind != FindingKind.NODE_LOST.value)
    .order_by(FindingRow.time.desc())
)
"""Few nodes have one: all are read. The oldest of a node stands."""
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
        running = select(JobRow.id, JobRow.generation).where(JobRow.state.in_(RUNNING)).order_by(JobRow.id)
        keys = tuple((job, generation) for job, generation in session.execute(running))
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
    cohorts: Select[str]
    spares: Select[str]
    working: Select[str, int]
    """Node -> GPUs that are present."""


@cache
def _questions(dialect: str, *, gpus: bool) -> _Questions:
    """Parameters: names, special, without, cohorts (JSON lists), since, valid_since, power, gpus, wanted."""
    asked = _listed("names", dialect)
    fine = _fine(gpus=gpus)
    notable = (
        select(
            asked.c.value, NodeRow.name, NodeRow.state, NodeRow.cohort, NodeRow.stopped_at, NodeRow.last_seen_at,
            NodeVerdictRow.verdict, NodeVerdictRow.suite, NodeVerdictRow.power, NodeVerdictRow.at,
        )
        .select_from(asked)
        .outerjoin(NodeRow, NodeRow.name == asked.c.value)
        .outerjoin(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
        .where(or_(fine == 0, asked.c.value.in_(select(_listed("special", dialect).c.value))))
    )  # fmt: skip
    among = NodeRow.name.in_(select(_listed("names", dialect).c.value))
    spares = (
        select(NodeRow.name)
        .outerjoin(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
        .where(
            NodeRow.cohort.in_(select(_listed("cohorts", dialect).c.value)),
            fine == 1,
            NodeRow.name.not_in(select(_listed("without", dialect).c.value)),
        )
        .order_by(NodeRow.name)
        .limit(bindparam("wanted"))
    )
    working = (
        select(DeviceRow.node, func.count())
        .join(NodeRow, NodeRow.name == DeviceRow.node)
        .where(among, DeviceRow.kind == "gpu", DeviceRow.present)
        .group_by(DeviceRow.node)
    )
    cohorts = select(NodeRow.cohort).where(among).distinct()
    return _Questions(notable, cohorts, spares, working)


def _listed(name: str, dialect: str) -> TableValuedAlias:
    """A JSON list of names as a table: an expanding list of a thousand parameters costs more than the query."""
    given = bindparam(name, type_=Text)
    if dialect == "postgresql":
        return func.json_array_elements_text(cast(given, JSON)).table_valued("value")
    return func.json_each(given).table_valued("value")


def _fine(*, gpus: bool) -> ColumnElement[int]:
    """1 where no rule over these tables speaks, else 0: ``rules._fine`` in SQL. What is missing is not fine."""
    fine = and_(
        NodeRow.state == HealthState.HEALTHY.value,
        NodeRow.stopped_at.is_(None),
        NodeRow.last_seen_at >= bindparam("since", type_=UnixTime),
        NodeVerdictRow.verdict == Verdict.PASS.value,
        NodeVerdictRow.power >= bindparam("power", type_=Integer),
        NodeVerdictRow.at >= bindparam("valid_since", type_=UnixTime),
    )
    if gpus:
        present = select(func.count()).where(DeviceRow.node == NodeRow.name, DeviceRow.kind == "gpu", DeviceRow.present)
        fine = and_(fine, present.correlate(NodeRow).scalar_subquery() >= bindparam("gpus", type_=Integer))
    return case((fine, 1), else_=0)


class Survey:
    """What is stored, for one question.

    The many nodes of which there is nothing to say are left out by the database; a test holds that against the rules.

    Args:
        session: to read with.
        names: of the nodes that are asked for, each once.
        wish: what is asked of each.
        job: that asks; its own ranks make no node busy.
        occupancy: which jobs run where.
    """

    def __init__(self, session: AnySession, names: Sequence[str], wish: Wish, job: str, occupancy: Occupancy) -> None:
        self._session = session
        self._names = names
        self._wish = wish
        self._questions = _questions(session.get_bind().dialect.name, gpus=wish.gpus is not None)
        self._parameters = {
            "names": json.dumps(names),
            "since": wish.now - wish.silent_after,
            "valid_since": wish.now - wish.max_age_seconds,
            "power": power_of(wish.suite),
        } | ({} if wish.gpus is None else {"gpus": wish.gpus})
        self._pending = set(session.scalars(_PENDING_NODES))
        self._evicting = {
            node: evidence["summary"] for node, evidence in session.execute(_EVICTING_FINDINGS) if node is not None
        }
        self._lost = Counter(node for node, _ in session.execute(_LOST_GPUS))
        busy = occupancy.by_node(session)
        self._busy = {node: jobs for node, jobs in busy.items() if jobs != (job,)}
        self._job = job
        self._special = {*self._pending, *self._evicting, *self._busy, *self._lost} - {None}
        """Nodes of which other tables have something to say."""

    def notable(self) -> dict[str, Known | None]:
        """Nodes that are asked for and of which there may be something to say; None: no node has the name."""
        special = json.dumps(sorted(self._special.intersection(self._names)))
        rows = list(self._session.execute(self._questions.notable, self._parameters | {"special": special}))
        gpus = {} if self._wish.gpus is None else self._working([row[1] for row in rows if row[1] is not None])
        return {row[0]: None if row[1] is None else self._known(*row[1:], gpus=gpus.get(row[0], 0)) for row in rows}

    def _working(self, names: Sequence[str]) -> dict[str, int]:
        """Node -> GPUs that are present and not lost."""
        counted = self._session.execute(self._questions.working, {"names": json.dumps(names)})
        return {node: count - self._lost[node] for node, count in counted}

    def cohorts(self) -> list[str]:
        """Of the nodes that are asked for."""
        return sorted(self._session.scalars(self._questions.cohorts, {"names": self._parameters["names"]}))

    def spares(self, cohorts: Collection[str], wanted: int) -> list[str]:
        """Free nodes of these cohorts of which there is nothing to say, by name."""
        without = json.dumps(sorted(self._special.union(self._names)))
        told = self._parameters | {"cohorts": json.dumps(sorted(cohorts)), "without": without, "wanted": wanted}
        del told["names"]
        return list(self._session.scalars(self._questions.spares, told))

    def _known(  # noqa: PLR0917 - the columns of one row
        self,
        name: str,
        state: str,
        cohort: str,
        stopped: float | None,
        seen: float | None,
        verdict: str | None,
        suite: str | None,
        power: int | None,
        at: float | None,
        *,
        gpus: int,
    ) -> Known:
        wish = self._wish
        return Known(
            node=name,
            state=_STATES[state],
            silent=stopped is not None or seen is None or wish.now - seen > wish.silent_after,
            cohort=cohort,
            verdict=None if verdict is None else _VERDICTS[verdict],
            suite=suite or "",
            power=power or 0,
            validated_at=at,
            pending=name in self._pending,
            gpus=gpus if wish.gpus is not None else None,
            evicting=self._evicting.get(name, ""),
            jobs=tuple(other for other in self._busy.get(name, ()) if other != self._job),
        )
