"""The fleet in memory: what lists, maps, counts and the gate ask of every node.

Invariant: ``FleetDirectory.current`` is at least as new as the transaction that asks. Whoever changes a node or its
verdict records a change of topic ``node`` in the same transaction; ``current`` reads the changes since the last call
and then those nodes alone. One query when nothing changed.

Not followed by changes: when a node last reported (``LastSeenCache`` knows it, ``follow_reports`` asks for what other
processes heard), and what jobs and findings say of a node.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from sys import intern
from typing import Any, Final

from sqlalchemy import Select, case, select

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.stream.changes import Topic, newest_id
from mainstay.service.stream.models import ChangeRow
from mainstay.service.validation.models import NodeVerdictRow

_Rows = Select[*tuple[Any, ...]]
_CHUNK: Final = 500
"""Names in one query."""
_NODES: Final = (
    select(
        NodeRow.name, NodeRow.state, NodeRow.cohort, NodeRow.rack, NodeRow.hostname, NodeRow.gpus, NodeRow.stopped_at,
        NodeRow.last_seen_at, NodeRow.switches, NodeRow.version,
        NodeVerdictRow.verdict, NodeVerdictRow.suite, NodeVerdictRow.power, NodeVerdictRow.at,
    )
    .outerjoin(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
    .order_by(NodeRow.name)
)  # fmt: skip
_DEVICES: Final = (
    select(
        DeviceRow.node, DeviceRow.id, DeviceRow.kind, DeviceRow.uuid, DeviceRow.model, DeviceRow.serial,
        DeviceRow.facts, DeviceRow.memory_bytes,
    )
    .where(DeviceRow.present)
    .order_by(DeviceRow.node, DeviceRow.kind.desc(), DeviceRow.index, DeviceRow.id)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """A device of a node's latest report."""

    id: str
    kind: str
    uuid: str
    """Its own, or the node's name and the device's."""
    model: str
    serial: str
    pci: str
    driver: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class FleetNode:
    """What is stored of a node, without what it says about its operating system."""

    name: str
    state: str
    cohort: str
    rack: str
    hostname: str
    gpus: int
    stopped_at: float | None
    last_seen_at: float | None
    """As stored; ``LastSeenCache`` may know better."""
    verdict: str | None
    suite: str | None
    power: int | None
    validated_at: float | None
    text: str
    """What a search looks in."""
    version: str
    """Of the daemon, or the name of the exporter that speaks for the node."""
    switches: tuple[str, ...] = ()
    devices: tuple[FleetDevice, ...] = ()
    """Ports, the host, GPUs; each in the order of their index."""


class Fleet:
    """All nodes in the order of their names. Never changed: a change makes another."""

    def __init__(self, nodes: Mapping[str, FleetNode], layout: int) -> None:
        self.nodes = nodes
        self.layout = layout
        """Grows when a node comes, or its devices, rack, cohort, or switches change."""

    @cached_property
    def states(self) -> Mapping[str, int]:
        """How many nodes are in each state; states without nodes are absent."""
        return Counter(node.state for node in self.nodes.values())

    @cached_property
    def devices(self) -> int:
        """How many devices the latest reports name."""
        return sum(len(node.devices) for node in self.nodes.values())


@dataclass
class FleetDirectory:
    """The newest ``Fleet`` of this process.

    Args:
        keep_changes: how many changes are kept; further behind, everything is read again.
    """

    keep_changes: int
    _fleet: Fleet = field(default_factory=lambda: Fleet({}, 0), init=False, repr=False)
    _last: int | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def current(self, session: AnySession) -> Fleet:
        """The fleet as ``session`` sees it, or newer."""
        with self._lock:
            if self._last is None:
                self._read_all(session)
                return self._fleet
            of_nodes = case((ChangeRow.topic == Topic.NODE.value, ChangeRow.data))
            statement = select(ChangeRow.id, of_nodes).where(ChangeRow.id > self._last).order_by(ChangeRow.id)
            rows = session.connection().execute(statement).all()
            if rows and rows[-1][0] - self._last >= self.keep_changes:
                self._read_all(session)
            elif rows:
                self._read(session, {data["id"]: None for _, data in rows if data is not None})
                self._last = rows[-1][0]
            return self._fleet

    def follow_reports(self, session: AnySession) -> None:
        """Take over when nodes last reported to other processes."""
        fleet = self.current(session)
        newest = max((node.last_seen_at or 0.0 for node in fleet.nodes.values()), default=0.0)
        statement = select(NodeRow.name, NodeRow.last_seen_at).where(NodeRow.last_seen_at > newest)
        heard = session.connection().execute(statement).all()
        with self._lock:
            nodes = self._fleet.nodes
            self._put({name: replace(nodes[name], last_seen_at=at) for name, at in heard if name in nodes})

    def _read_all(self, session: AnySession) -> None:
        self._last = newest_id(session)
        self._fleet = Fleet({}, self._fleet.layout + 1)
        self._put(_load(session, _NODES, _DEVICES))

    def _read(self, session: AnySession, names: Collection[str]) -> None:
        ordered = sorted(names)
        for start in range(0, len(ordered), _CHUNK):
            some = ordered[start : start + _CHUNK]
            nodes, devices = _NODES.where(NodeRow.name.in_(some)), _DEVICES.where(DeviceRow.node.in_(some))
            self._put(_load(session, nodes, devices))

    def _put(self, found: Mapping[str, FleetNode]) -> None:
        if not found:
            return
        old, layout = self._fleet.nodes, self._fleet.layout
        layout += any(_place(old.get(name)) != _place(node) for name, node in found.items())
        nodes = {**old, **found}
        if len(nodes) > len(old):
            nodes = dict(sorted(nodes.items()))
        self._fleet = Fleet(nodes, layout)


def _place(node: FleetNode | None) -> tuple[Any, ...] | None:
    return None if node is None else (node.rack, node.cohort, node.switches, node.devices)


def _load(session: AnySession, nodes: _Rows, devices: _Rows) -> dict[str, FleetNode]:
    connection = session.connection()
    found: dict[str, list[FleetDevice]] = {}
    for row in connection.execute(devices):
        found.setdefault(row.node, []).append(_device(row))
    return {row.name: _node(row, found.get(row.name, [])) for row in connection.execute(nodes)}


def _node(row: Any, devices: list[FleetDevice]) -> FleetNode:
    text = f"{row.name}\n{row.hostname}\n{row.rack}\n{row.cohort}".lower()
    return FleetNode(
        name=row.name,
        state=row.state,
        cohort=intern(row.cohort),
        rack=intern(row.rack),
        hostname=row.hostname,
        gpus=row.gpus,
        stopped_at=row.stopped_at,
        last_seen_at=row.last_seen_at,
        verdict=row.verdict,
        suite=row.suite,
        power=row.power,
        validated_at=row.at,
        text=text,
        version=intern(row.version),
        switches=tuple(map(intern, row.switches or ())),
        devices=tuple(devices),
    )


def _device(row: Any) -> FleetDevice:
    """Most of the text is the same on every node: kept once."""
    return FleetDevice(
        id=intern(row.id),
        kind=intern(row.kind),
        uuid=row.uuid or f"{row.node}/{row.id}",
        model=intern(row.model),
        serial=row.serial or "",
        pci=intern(row.facts.get("pci", "")),
        driver=intern(row.facts.get("driver", "")),
        memory_bytes=row.memory_bytes,
    )
