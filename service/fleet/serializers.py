"""Nodes as answers, with what other features know about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.directory import FleetDevice, FleetNode
from mainstay.service.fleet.last_seen import LastSeenCache
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
    told = {name: getattr(row, name) for name in NodeRead.model_fields if hasattr(row, name)}
    return NodeRead.model_validate(
        told
        | {
            "devices": [_device(device) for device in row.all_devices],
            "last_seen_at": last,
            "age_seconds": None if last is None else max(0.0, now - last),
            "jobs": list(jobs),
            "open_incidents": incidents,
            "last_verdict": row.verdict,
            "last_validation_at": row.validated_at,
            "state_since": row.first_seen_at if row.state_since is None else row.state_since,
        }
    )


def _device(device: FleetDevice) -> DeviceRead:
    """Not checked again: a page of a hundred nodes has a thousand devices."""
    told = {name: getattr(device, name) for name in DeviceRead.model_fields}
    return DeviceRead.model_construct(**told | {"facts": dict(device.facts)})
