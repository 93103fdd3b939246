"""Nodes as answers, with what other features know about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetDevice, FleetNode
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.fleet.lifecycle import Owner
from mainstay.service.fleet.schemas import DeviceRead, NodeRead
from mainstay.service.incidents.repository import open_by_node


def serialize_nodes(
    session: AnySession, nodes: Sequence[FleetNode], seen: LastSeenCache, jobs: Mapping[str, Sequence[str]], now: float
) -> list[NodeRead]:
    """Answers for ``nodes``, in their order; ``jobs`` are the running ones by node."""
    incidents = open_by_node(session, [node.name for node in nodes])
    return [
        _read(node, incidents.get(node.name, 0), jobs.get(node.name, ()), last_word(node, seen), now) for node in nodes
    ]


def last_word(node: FleetNode, seen: LastSeenCache) -> float | None:
    """When the node last reported, to this process or to another."""
    times = [t for t in (node.last_seen_at, seen.get(node.name)) if t is not None]
    return max(times, default=None)


def _read(row: FleetNode, incidents: int, jobs: Sequence[str], last: float | None, now: float) -> NodeRead:
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
        devices=[_device(device) for device in row.all_devices],
        rack=row.rack,
        switches=row.switches,
        booted_at=row.booted_at,
        started_at=row.started_at,
        last_seen_at=last,
        first_seen_at=row.first_seen_at,
        age_seconds=None if last is None else max(0.0, now - last),
        jobs=list(jobs),
        open_incidents=incidents,
        last_verdict=None if row.verdict is None else Verdict(row.verdict),
        last_validation_at=row.validated_at,
        owner=Owner(row.owner),
        actor=row.actor,
        state_since=row.first_seen_at if row.state_since is None else row.state_since,
        state_version=row.state_version,
    )


def _device(device: FleetDevice) -> DeviceRead:
    """Not checked again: a page of a hundred nodes has a thousand devices."""
    return DeviceRead.model_construct(
        id=device.id,
        node=device.node,
        index=device.index,
        kind=device.kind,
        model=device.model,
        serial=device.serial,
        uuid=device.uuid,
        memory_bytes=device.memory_bytes,
        present=device.present,
        previous_node=device.previous_node,
        facts=dict(device.facts),
    )
