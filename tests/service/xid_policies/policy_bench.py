"""The control plane without a server, whose detection loop a test runs under versions of the XID policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mainstay.probes.ids import uuid7
from mainstay.service.app import build_services, close_services
from mainstay.service.events.repository import insert_new
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as report_node
from mainstay.service.incidents import repository as incidents
from mainstay.service.incidents.detection_loop import DetectionLoop
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
MILD = '[xid.79]\nseverity = "info"\nrecommended_action = "monitor"\n'
STRICT = '[xid.13]\nseverity = "critical"\nrecommended_action = "reset_gpu"\n'


@dataclass
class PolicyBench:
    """The control plane without its server, iteration by iteration."""

    settings: Settings
    report: dict[str, Any]
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    services: Services = field(init=False)
    loop: DetectionLoop = field(init=False)

    def open(self) -> None:
        self.services = build_services(self.settings, self.clock)
        self.loop = DetectionLoop(self.services)

    def restart(self) -> None:
        close_services(self.services)
        self.open()

    def enroll(self, *names: str) -> None:
        with self.services.database.session() as session:
            for name in names:
                report_node(session, name, NodeReportCreate.model_validate(self.report), now=self.clock.now())

    def event(self, kind: str, *, node: str = "n1", device: str | None = None, **data: Any) -> None:
        row = {
            "id": uuid7(), "time": self.clock.now(), "kind": kind, "node": node, "device": device, "job": None,
            "rank": None, "generation": None, "data": {"uptime": 86_400.0, **data},
            "received_at": self.clock.now(), "judged_at": None,
        }  # fmt: skip
        with self.services.database.session() as session:
            insert_new(session, [row])

    def xid(self, code: int, gpu: int = 0, **data: Any) -> None:
        self.event("xid", device=f"GPU-{gpu}", code=code, source="kernel", **data)

    def run_loop(self, seconds: float = 2.0) -> None:
        self.clock.advance(seconds)
        self.loop.run_once()

    def put(self, overrides: str, mode: str) -> int:
        from mainstay.service.xid_policies import service
        from mainstay.service.xid_policies.schemas import OverridesIn

        with self.services.database.session() as session:
            said = OverridesIn(overrides=overrides, mode=mode, reason="a test")
            return service.store(session, said, actor="tester", now=self.clock.now()).version

    def rows(self, kind: Any) -> list[Any]:
        from sqlalchemy import select

        with self.services.database.reading() as session:
            return list(session.scalars(select(kind)))

    def held(self) -> list[tuple[str, str]]:
        with self.services.database.reading() as session:
            return [
                (row.severity, row.recommended_action)
                for row in incidents.active_findings(session)
                if row.detector == "xid"
            ]
