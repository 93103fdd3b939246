"""The control plane without its server, driven second by second: a story plays, then says what must have come of it.

The database, rings, detectors, detection loop, life cycle and remediation are the real ones; only the clock
is moved by hand and frames are handed over without HTTP.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select, text

from mainstay.probes.core_types import EventKind
from mainstay.probes.ids import uuid7
from mainstay.service.app import LOOPS, build_services, close_services
from mainstay.service.common import migrate
from mainstay.service.common.db import Database, normalize_url
from mainstay.service.common.loops import Loop
from mainstay.service.events.models import EventRow
from mainstay.service.events.schemas import EventIn
from mainstay.service.events.service import store
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.frame_batch import join
from tests.fakes.clock import ManualClock
from tests.scenarios.health.fleet import CATALOG, Node, Thing, frames, make_nodes
from tests.shared_statements import share_statements

share_statements()
START = 1_800_000_000.0
_COMPILED = compile_catalog(CATALOG)
_SETTLED_S = 86_400.0
CALM_PACE_S = 20
"""Between passes of the loops in quiet times: telemetry comes each second, but the detection loop is late, as in a
busy service is. Detectors do not care how a chunk is cut (``tests/detectors/test_conformance.py``); stories about nodes
that stop reporting turn each second, because how soon a silence stands out is learned from the turns."""
_TOLD = 40
"""Lines of a failed scenario: more is not useful."""
_NEEDS_A_SERVER = frozenset({"mainstay.service.sources.loops"})
"""Features whose loops belong to an event loop that serves."""


@dataclass
class Stage:
    """A fleet, a control plane, and a clock."""

    directory: Path
    count: int = 8
    racks: int = 2
    seed: int = 7
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    nodes: dict[str, Node] = field(init=False)
    services: Services = field(init=False)
    loops: list[Loop] = field(init=False)
    _next: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)
        self.nodes = {node.name: node for node in make_nodes(self.count, self.racks, START - _SETTLED_S)}
        self.open()
        self.enroll(*self.nodes.values())

    def open(self) -> None:
        lay_migrated(self.directory)
        self.services = build_services(Settings(data_dir=self.directory, migrate=True), self.clock)
        makers = [make for make in LOOPS if make.__module__ not in _NEEDS_A_SERVER]
        self.loops = [loop for make in makers for loop in make(self.services)]

    def close(self) -> None:
        close_services(self.services)

    def restart(self) -> None:
        """As after a crash of the service: memory is gone, the database is not."""
        self.close()
        self._next.clear()
        self.open()

    @property
    def now(self) -> float:
        return self.clock.now()

    # what the world does

    def enroll(self, *nodes: Node) -> None:
        with self.services.database.session() as session:
            for node in nodes:
                report(session, node.name, _report(node), now=self.now)

    def event(self, kind: EventKind, node: Node, device: str | None = None, **data: Any) -> None:
        """A fact, as the node's daemon would send it now."""
        data.setdefault("uptime", self.now - node.booted_at)
        said = EventIn(id=uuid7(), time=self.now, kind=kind, node=node.name, device=device, data=data)
        with self.services.database.session() as session:
            store(session, self.services.wakers, [said], now=self.now)

    def xid(self, node: Node, gpu: int, code: int, text: str = "", **data: Any) -> None:
        data = {"source": "kernel", "text": text, **data}
        self.event(EventKind.XID, node, node.gpus[gpu].id, code=code, **data)

    def shut_down(self, node: Node, reason: str = "shutdown") -> None:
        self.event(EventKind.NODE_STOPPING, node, reason=reason)
        node.up = False

    def vanish(self, node: Node) -> None:
        """It is gone without a word."""
        node.up = False

    def boot(self, node: Node) -> None:
        node.booted_at, node.up = self.now - 40.0, True
        node.reset_counters()
        self.enroll(node)
        self.event(EventKind.NODE_STARTED, node, boot_id=f"boot-{self.now:.0f}")

    def run(self, seconds: int, each: Callable[[int], None] | None = None, *, pace: int = 1) -> None:
        """Let ``seconds`` pass: telemetry of every node that is up, then (each ``pace``, and at last) due loops."""
        for n in range(seconds):
            self.clock.advance(1.0)
            if each is not None:
                each(n)
            self._telemetry()
            if (n + 1) % pace == 0 or n + 1 == seconds:
                self._turn()

    def until(self, happened: Callable[[], bool], seconds: int, *, pace: int = 1) -> float | None:
        """Run until it happened; the seconds it took, to the next ``pace``, or None when it did not."""
        for n in range(0, seconds, pace):
            self.run(pace, pace=pace)
            if happened():
                return float(n + pace)
        return None

    def _telemetry(self) -> None:
        """A second of every node that is up, side by side, as a relay brings them."""
        up = [node for node in self.nodes.values() if node.up]
        if up:
            self.services.ingest.keep(join(frames(up, self.now, self.chance), _COMPILED))
            self.services.seen.note_all([node.name for node in up], self.now)

    def _turn(self) -> None:
        for loop in self.loops:
            if self.now >= self._next.get(loop.name, 0.0):
                self._next[loop.name] = self.now + max(1.0, loop.interval)
                loop.run_once()

    # what came of it

    def findings(self, kind: str | None = None, *, active: bool | None = None) -> list[FindingRow]:
        with self.services.database.reading() as session:
            rows = list(session.scalars(select(FindingRow).order_by(FindingRow.time)))
        return [r for r in rows if kind in {None, r.kind} and active in {None, r.active}]

    def incidents(self) -> list[IncidentRow]:
        with self.services.database.reading() as session:
            return list(session.scalars(select(IncidentRow).order_by(IncidentRow.opened_at)))

    def drains(self) -> list[Any]:
        """Everything that the machine ever proposed to do."""
        with self.services.database.reading() as session:
            return list(session.execute(text("SELECT node, recommended_action, reason FROM remediations")))

    def state(self, node: Node) -> str:
        with self.services.database.reading() as session:
            row = session.get(NodeRow, node.name)
            assert row is not None
            return row.state

    def stored_events(self) -> int:
        with self.services.database.reading() as session:
            return len(list(session.scalars(select(EventRow.id))))

    def describe(self) -> str:
        """Everything found, for a message when it should not have been."""
        lines = [
            f"{f.time - START:7.1f} {f.severity} {f.kind} {f.node} {f.device}: {f.evidence['summary']}"
            for f in self.findings()
        ]
        lines += [f"incident {i.severity} {i.state} {i.title}" for i in self.incidents()]
        return "\n".join([*lines[:_TOLD], *map(str, self.drains()[:_TOLD])])


@cache
def _migrated() -> bytes:
    """A SQLite database with today's schema and nothing in it: each story spared the way through all migrations."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        database = Database(settings.resolved_database_url)
        migrate.upgrade(database)
        database.close()
        return Path(database.url.database or "").read_bytes()


def lay_migrated(directory: Path) -> None:
    """Put it where a service in ``directory`` looks for its own, unless there is one; it still looks for migrations."""
    path = Path(normalize_url(Settings(data_dir=directory).resolved_database_url).database or "")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_migrated())


@contextmanager
def stage(directory: Path, **settings: Any) -> Iterator[Stage]:
    made = Stage(directory, **settings)
    try:
        yield made
    finally:
        made.close()


def _report(node: Node) -> NodeReportCreate:
    kinds = {"host": "host", "GPU": "gpu", "nic": "nic"}
    return NodeReportCreate.model_validate(
        {
            "hostname": node.name, "os": "Debian 12", "kernel": "6.1", "version": "0.1.0",
            "boot_id": f"boot-{node.booted_at:.0f}", "cohort": "8x-H100", "rack": node.rack, "cpu_count": 128,
            "memory_bytes": 2**41, "booted_at": node.booted_at, "started_at": node.booted_at + 30,
            "devices": [_device(n, thing, kinds) for n, thing in zip(itertools.count(), node.things(), strict=False)],
            "catalog": {"narrow": list(CATALOG.narrow), "wide": list(CATALOG.wide)},
        }
    )  # fmt: skip


def _device(index: int, thing: Thing, kinds: dict[str, str]) -> dict[str, Any]:
    kind = kinds[thing.id.replace("-", ":").split(":")[0]]
    serial = f"serial-{thing.id}" if kind == "gpu" else None
    model = {"host": "EPYC 9654", "gpu": "NVIDIA H100 80GB HBM3", "nic": "MT4129"}[kind]
    uuid = thing.id if kind == "gpu" else None
    return {"id": thing.id, "index": index, "kind": kind, "model": model, "serial": serial, "uuid": uuid,
            "memory_bytes": None, "facts": {}}  # fmt: skip
