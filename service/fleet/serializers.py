"""Node rows as answers, with what other features know about a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.fleet.lifecycle import Owner
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.fleet.schemas import DeviceRead, NodeRead
from mainstay.service.incidents.repository import open_by_node
from mainstay.service.validation.models import NodeVerdictRow


@dataclass(frozen=True, slots=True)
class _Context:
    """What other features know, by node name."""

    devices: dict[str, list[DeviceRead]]
    jobs: Mapping[str, Sequence[str]]
    incidents: dict[str, int]
    verdicts: dict[str, NodeVerdictRow]


def serialize_nodes(
    session: AnySession, rows: Sequence[NodeRow], seen: LastSeenCache, jobs: Mapping[str, Sequence[str]], now: float
) -> list[NodeRead]:
    """Answers for ``rows``, in their order; ``jobs`` are the running ones by node."""
    names = [row.name for row in rows]
    verdicts = session.scalars(select(NodeVerdictRow).where(NodeVerdictRow.node.in_(names)))
    context = _Context(
        devices=_devices(session, names),
        jobs=jobs,
        incidents=open_by_node(session, names),
        verdicts={row.node: row for row in verdicts},
    )
    return [_read(row, context, last_word(row, seen), now) for row in rows]


def _devices(session: AnySession, names: Sequence[str]) -> dict[str, list[DeviceRead]]:
    """Node → its devices, the host first. Columns as they are stored: a page of a hundred nodes has a thousand."""
    columns = [getattr(DeviceRow, name) for name in DeviceRead.model_fields]
    statement = select(*columns).where(DeviceRow.node.in_(names))
    statement = statement.order_by(DeviceRow.node, DeviceRow.kind.desc(), DeviceRow.index)
    found: dict[str, list[DeviceRead]] = {name: [] for name in names}
    for row in session.connection().execute(statement).mappings():
        found[row["node"]].append(DeviceRead.model_construct(**row))
    return found


def last_word(row: NodeRow, seen: LastSeenCache) -> float | None:
    """When the node last reported, to this process or to another."""
    times = [t for t in (row.last_seen_at, seen.get(row.name)) if t is not None]
    return max(times, default=None)


def _read(row: NodeRow, context: _Context, last: float | None, now: float) -> NodeRead:
    verdict = context.verdicts.get(row.name)
    return NodeRead(
        name=row.name,
        state=HealthState(row.state),
        state_reason=row.state_reason,
        hostname=row.hostname,
        os=row.os,
        kernel=row.kernel,
        version=row.version,
        boot_id=row.boot_id,
        cohort=row.cohort,
        cpu_count=row.cpu_count,
        memory_bytes=row.memory_bytes,
        devices=context.devices[row.name],
        rack=row.rack,
        switches=row.switches,
        booted_at=row.booted_at,
        started_at=row.started_at,
        last_seen_at=last,
        first_seen_at=row.first_seen_at,
        age_seconds=None if last is None else max(0.0, now - last),
        jobs=list(context.jobs.get(row.name, ())),
        open_incidents=context.incidents.get(row.name, 0),
        last_verdict=None if verdict is None else Verdict(verdict.verdict),
        last_validation_at=None if verdict is None else verdict.at,
        owner=Owner(row.owner),
        actor=row.actor,
        state_since=row.first_seen_at if row.state_since is None else row.state_since,
        state_version=row.state_version,
    )
