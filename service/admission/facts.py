"""What is stored of nodes, for the gate: a handful of queries whatever their number."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import JSON, Text, bindparam, cast, func, select
from sqlalchemy.sql import ColumnElement

from detectors.finding import FindingKind
from probes.words import HealthState, Verdict
from service.admission.rules import Known
from service.fleet.models import DeviceRow, NodeRow
from service.fleet.situation import EVICTING
from service.incidents.models import FindingRow
from service.jobs.models import JobRow
from service.jobs.repository import RUNNING
from service.kit.db import AnySession
from service.validation.models import NodeVerdictRow, ValidationRow
from service.validation.service import PENDING

_STATES = {state.value: state for state in HealthState}
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_LOST = (FindingKind.GPU_LOST.value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asks, and when."""

    now: float
    """Unix seconds."""
    silent_after: float
    """Seconds without a word after which a node is silent."""
    job: str = ""
    """That wants the nodes; its own ranks make no node busy."""
    gpus: bool = False
    """Also count the GPUs that work."""


@dataclass
class Occupancy:
    """Which running jobs have ranks on a node. A job's places change with its generation only, so they are kept."""

    _places: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def by_node(self, session: AnySession) -> dict[str, list[str]]:
        """Node -> ids of running jobs."""
        running = select(JobRow.id, JobRow.generation).where(JobRow.state.in_(RUNNING)).order_by(JobRow.id)
        keys = [(job, generation) for job, generation in session.execute(running)]
        with self._lock:
            known = {key: places for key in keys if (places := self._places.get(key)) is not None}
        for key in keys:
            if key not in known:
                topology = session.scalar(select(JobRow.topology).where(JobRow.id == key[0])) or {"ranks": []}
                known[key] = frozenset(place["node"] for place in topology["ranks"])
        with self._lock:
            self._places = known
        found: dict[str, list[str]] = defaultdict(list)
        for (job, _), nodes in known.items():
            for node in nodes:
                found[node].append(job)
        return found


def gather(session: AnySession, names: Sequence[str], occupancy: Occupancy, asked: Asked) -> dict[str, Known]:
    """Node -> what is known of it; names without a node are absent."""
    return _known(session, _among(session, NodeRow.name, tuple(dict.fromkeys(names))), occupancy, asked)


def candidates(session: AnySession, cohorts: Collection[str], occupancy: Occupancy, asked: Asked) -> list[Known]:
    """Nodes of these cohorts that are healthy and have a pass, by name."""
    rule = (
        NodeRow.cohort.in_(sorted(cohorts))
        & (NodeRow.state == HealthState.HEALTHY.value)
        & NodeRow.name.in_(select(NodeVerdictRow.node).where(NodeVerdictRow.verdict == Verdict.PASS.value))
    )
    known = _known(session, rule, occupancy, asked)
    return [known[name] for name in sorted(known)]


def _among(session: AnySession, column: Any, names: Sequence[str]) -> ColumnElement[bool]:
    """``column in names`` with one parameter: an expanding list of a thousand costs more than the query."""
    given = bindparam("names", json.dumps(names), Text, unique=True)
    if session.get_bind().dialect.name == "postgresql":
        inside: Any = select(func.json_array_elements_text(cast(given, JSON)))
    else:
        inside = select(func.json_each(given).table_valued("value").c.value)
    found: ColumnElement[bool] = column.in_(inside)
    return found


def _known(session: AnySession, rule: ColumnElement[bool], occupancy: Occupancy, asked: Asked) -> dict[str, Known]:
    statement = (
        select(
            NodeRow.name, NodeRow.state, NodeRow.cohort, NodeRow.stopped_at, NodeRow.last_seen_at,
            NodeVerdictRow.verdict, NodeVerdictRow.suite, NodeVerdictRow.power, NodeVerdictRow.at,
        )
        .outerjoin(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
        .where(rule)
    )  # fmt: skip
    pending = set(session.scalars(select(ValidationRow.node).distinct().where(ValidationRow.state.in_(PENDING))))
    evicting = _evicting(session)
    busy = occupancy.by_node(session)
    working = _gpus(session, rule) if asked.gpus else {}
    return {
        name: Known(
            node=name,
            state=_STATES[state],
            silent=stopped is not None or seen is None or asked.now - seen > asked.silent_after,
            cohort=cohort,
            verdict=None if verdict is None else _VERDICTS[verdict],
            suite=suite or "",
            power=power or 0,
            validated_at=at,
            pending=name in pending,
            gpus=working.get(name, 0) if asked.gpus else None,
            evicting=evicting.get(name, ""),
            jobs=tuple(other for other in busy.get(name, ()) if other != asked.job),
        )
        for name, state, cohort, stopped, seen, verdict, suite, power, at in session.execute(statement)
    }


def _evicting(session: AnySession) -> dict[str, str]:
    """Node -> the first active finding that wants work off it. Few nodes have one: all are read."""
    statement = (
        select(FindingRow.node, FindingRow.evidence)
        .where(FindingRow.active, FindingRow.remedy.in_(EVICTING), FindingRow.kind != FindingKind.NODE_LOST.value)
        .order_by(FindingRow.time.desc())
    )
    return {node: evidence["summary"] for node, evidence in session.execute(statement) if node is not None}


def _gpus(session: AnySession, rule: ColumnElement[bool]) -> dict[str, int]:
    lost = select(FindingRow.node, FindingRow.device).where(FindingRow.active, FindingRow.kind.in_(_LOST))
    gone = {(node, device) for node, device in session.execute(lost)}
    statement = (
        select(DeviceRow.node, func.count())
        .join(NodeRow, NodeRow.name == DeviceRow.node)
        .where(rule, DeviceRow.kind == "gpu", DeviceRow.present)
        .group_by(DeviceRow.node)
    )
    return {node: count - sum(where == node for where, _ in gone) for node, count in session.execute(statement)}
