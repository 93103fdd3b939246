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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from sys import intern
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import RowMapping, Select, case, select

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import DeviceRow, NodeRow
from mainstay.service.stream.changes import AFTER, ORDER, SETTLED, Topic, newest
from mainstay.service.stream.models import ChangeRow
from mainstay.service.stream.position import Position
from mainstay.service.validation.models import NodeVerdictRow

_Rows = Select[*tuple[Any, ...]]
_CHUNK: Final = 500
"""Names in one query."""
REPORTED: Final = "reported"
"""Reason of a change with which a node's devices may have changed. With others they are not read: in an outage, nodes
change by the thousand, and each has nine devices."""
_NODES: Final = (
    select(
        *(column for column in NodeRow.__table__.c if column.name not in {"drain_deadline_at", "validation_id"}),
        *(getattr(NodeVerdictRow, name) for name in ("verdict", "suite", "power")),
        NodeVerdictRow.at.label("validated_at"),
    )
    .outerjoin(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
    .order_by(NodeRow.name)
)
_DEVICES: Final = select(*DeviceRow.__table__.c).order_by(
    DeviceRow.node, DeviceRow.kind.desc(), DeviceRow.index, DeviceRow.id
)
_CHANGES: Final = (
    select(*ORDER, SETTLED.label("settled"), case((ChangeRow.topic == Topic.NODE.value, ChangeRow.data)).label("data"))
    .where(AFTER)
    .order_by(*ORDER)
)
"""Built once: it is asked for with every request. Not only what is settled: a node that was drained just now counts."""


_COLUMN: Final = np.dtype(
    [("fit", "?"), ("power", "i4"), ("gpus", "i4"), ("validated_at", "f8"), ("last_seen_at", "f8")]
)


@dataclass(frozen=True, slots=True)
class FleetDevice:
    """What is stored of a device."""

    id: str
    node: str
    index: int
    kind: str
    model: str
    serial: str | None
    uuid: str | None
    memory_bytes: int | None
    present: bool
    """In the node's latest report."""
    previous_node: str | None
    """Node where the same hardware was seen before."""
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class FleetNode:
    """What is stored of a node: the columns of ``NodeRow``, its current verdict, its devices."""

    name: str
    state: str
    state_reason: str
    state_version: int
    state_since: float | None
    owner: str
    actor: str
    hostname: str
    os: str
    kernel: str
    version: str
    boot_id: str
    cohort: str
    cpu_count: int
    gpus: int
    memory_bytes: int
    rack: str
    switches: list[str]
    power_domain: str
    booted_at: float | None
    stopped_at: float | None
    started_at: float | None
    first_seen_at: float
    last_seen_at: float | None
    """As stored; ``LastSeenCache`` may know better."""
    verdict: str | None
    suite: str | None
    power: int | None
    validated_at: float | None
    all_devices: tuple[FleetDevice, ...]
    """Ports, the host, GPUs; each in the order of their index."""
    text: str
    """What a search looks in."""

    @property
    def devices(self) -> list[FleetDevice]:
        """Those in its latest report."""
        return [device for device in self.all_devices if device.present]


class FleetColumns:
    """What the admission check asks of every node, as arrays: to ask 1,024 objects took most of its time.

    One row a node, in the order of their names. Never changed: a change makes another.

    Args:
        nodes: all of them.
        before: of an earlier fleet. Nodes that have not changed since are not read again.
    """

    nodes: list[FleetNode]
    names: tuple[str, ...]
    rows: dict[str, int]
    """Node → its row."""
    values: NDArray[np.void]
    """[node] ``fit``: healthy, passed its last validation, and not stopped. Times are Unix seconds, 0 for never."""

    def __init__(self, nodes: Iterable[FleetNode], before: FleetColumns | None = None) -> None:
        self.nodes = list(nodes)
        if before is not None and len(before.nodes) == len(self.nodes):  # no node is ever removed
            self.names, self.rows = before.names, before.rows
            self.values = before.values.copy()
            pairs = enumerate(zip(before.nodes, self.nodes, strict=True))
            changed = [row for row, (old, new) in pairs if old is not new]
            if changed:
                self.values[changed] = np.array([_column_values(self.nodes[row]) for row in changed], _COLUMN)
            return
        self.names = tuple(node.name for node in self.nodes)
        self.rows = {name: row for row, name in enumerate(self.names)}
        self.values = np.array([_column_values(node) for node in self.nodes], _COLUMN)


def _column_values(node: FleetNode) -> tuple[bool, int, int, float, float]:
    validated = node.validated_at is not None
    fit = node.state == HealthState.HEALTHY.value and node.verdict == Verdict.PASS.value and validated
    return (
        fit and node.stopped_at is None, node.power or 0, node.gpus, node.validated_at or 0.0, node.last_seen_at or 0.0
    )  # fmt: skip


class Fleet:
    """All nodes in the order of their names. Never changed: a change makes another."""

    def __init__(self, nodes: Mapping[str, FleetNode], layout: int, known: FleetColumns | None = None) -> None:
        self.nodes = nodes
        self.layout = layout
        """Grows when a node comes, or its devices, rack, cohort, or switches change."""
        self.known_columns = known
        """Of this fleet or an earlier one."""

    @cached_property
    def columns(self) -> FleetColumns:
        self.known_columns = FleetColumns(self.nodes.values(), self.known_columns)
        return self.known_columns

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
    _last: Position | None = field(default=None, init=False)
    _ahead: set[int] = field(default_factory=set, init=False, repr=False)
    """Ids of changes after ``_last`` that were read before they were settled."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def current(self, session: AnySession) -> Fleet:
        """The fleet as ``session`` sees it, or newer."""
        with self._lock:
            if self._last is None:
                self._read_all(session)
                return self._fleet
            rows = session.connection().execute(_CHANGES, asdict(self._last)).all()
            settled = [row for row in rows if row.settled]
            if len(settled) >= self.keep_changes:  # others may have been pruned
                self._read_all(session)
            elif rows:
                self._read(session, [row.data for row in rows if row.data is not None and row.id not in self._ahead])
                self._last = Position(*settled[-1][:2]) if settled else self._last
                self._ahead = {row.id for row in rows if not row.settled}
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
        self._last = newest(session)
        self._ahead = {row.id for row in session.connection().execute(_CHANGES, asdict(self._last))}
        self._fleet = Fleet({}, self._fleet.layout + 1)
        self._put({node.name: node for node in _load(session, _NODES, _DEVICES)})

    def _read(self, session: AnySession, changes: Iterable[Mapping[str, Any]]) -> None:
        names, whole = set[str](), set[str]()
        for change in changes:
            names.add(change["id"])
            if change.get("reason", REPORTED) == REPORTED or change["id"] not in self._fleet.nodes:
                whole.add(change["id"])
        session.flush()
        for some in _chunks(whole):
            self._put({node.name: node for node in read_nodes(session, some)})
        for some in _chunks(names - whole):
            rows = session.connection().execute(_NODES.where(NodeRow.name.in_(some))).mappings()
            nodes = self._fleet.nodes
            self._put({row["name"]: _node(row, nodes[row["name"]].all_devices) for row in rows})

    def _put(self, found: Mapping[str, FleetNode]) -> None:
        if not found:
            return
        old, layout = self._fleet.nodes, self._fleet.layout
        layout += any(_place(old.get(name)) != _place(node) for name, node in found.items())
        nodes = {**old, **found}
        if len(nodes) > len(old):
            nodes = dict(sorted(nodes.items()))
        self._fleet = Fleet(nodes, layout, self._fleet.known_columns)


def _chunks(names: Collection[str]) -> Iterator[list[str]]:
    ordered = sorted(names)
    return (ordered[start : start + _CHUNK] for start in range(0, len(ordered), _CHUNK))


def _place(node: FleetNode | None) -> tuple[Any, ...] | None:
    return None if node is None else (node.rack, node.cohort, node.switches, node.power_domain, node.all_devices)


def read_nodes(session: AnySession, names: Collection[str]) -> list[FleetNode]:
    """These nodes as the session sees them, by name; unknown ones are left out."""
    session.flush()
    return _load(session, _NODES.where(NodeRow.name.in_(names)), _DEVICES.where(DeviceRow.node.in_(names)))


def _load(session: AnySession, nodes: _Rows, devices: _Rows) -> list[FleetNode]:
    connection = session.connection()
    found: dict[str, list[FleetDevice]] = {}
    for row in connection.execute(devices).mappings():
        found.setdefault(row["node"], []).append(_device(row))
    return [_node(row, tuple(found.get(row["name"], ()))) for row in connection.execute(nodes).mappings()]


def _node(row: RowMapping, devices: tuple[FleetDevice, ...]) -> FleetNode:
    known: dict[str, Any] = {name: intern(value) if type(value) is str else value for name, value in row.items()}
    text = "\n".join(known[name] for name in ("name", "hostname", "rack", "cohort")).lower()
    return FleetNode(**known, all_devices=devices, text=text)


def _device(row: RowMapping) -> FleetDevice:
    """Most of the text is the same on every node: kept once."""
    return FleetDevice(
        node=intern(row["node"]),
        id=intern(row["id"]),
        index=row["index"],
        kind=intern(row["kind"]),
        model=intern(row["model"]),
        serial=row["serial"],
        uuid=row["uuid"],
        memory_bytes=row["memory_bytes"],
        present=row["present"],
        previous_node=row["previous_node"],
        facts={intern(name): intern(value) for name, value in row["facts"].items()},
    )
