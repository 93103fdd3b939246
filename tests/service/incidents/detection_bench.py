"""A service without a server, whose detection loop a test runs step by step on data that it makes."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mainstay.probes.frame import Axis, Frame
from mainstay.probes.ids import uuid7
from mainstay.probes.signals import Catalog, SignalSource, catalog
from mainstay.service.app import build_services, close_services
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import follow_voices, report
from mainstay.service.incidents import repository
from mainstay.service.incidents.detection_loop import DetectionLoop
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.jobs import service as jobs
from mainstay.service.jobs.schemas import JobReport
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.telemetry.catalogs import compile_catalog
from mainstay.service.telemetry.check import check
from mainstay.service.telemetry.frame_batch import join
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
GPUS = 16  # with eight peers the test is rightly too cautious for 34 C


def devices() -> list[dict[str, Any]]:
    host = {
        "id": "host",
        "index": 0,
        "kind": "host",
        "model": "EPYC",
        "serial": None,
        "uuid": None,
        "memory_bytes": None,
    }
    return [host] + [
        {"id": f"GPU-{i}", "index": i, "kind": "gpu", "model": "H100", "serial": f"s{i}", "uuid": f"GPU-{i}",
         "memory_bytes": 2**36}
        for i in range(GPUS)
    ]  # fmt: skip


@dataclass
class DetectionBench:
    """A service without a server, its detection loop, and the data that it is given."""

    settings: Settings
    report: dict[str, Any]
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    sequence: int = 0
    services: Services = field(init=False)
    loop: DetectionLoop = field(init=False)

    def start(self) -> None:
        self.services = build_services(self.settings, self.clock)
        self.loop = DetectionLoop(self.services)

    def restart(self) -> None:
        """As after a crash: memory is gone, the database is not."""
        close_services(self.services)
        self.start()

    def enroll(self, *names: str) -> None:
        with self.services.database.session() as session:
            for name in names:
                said = NodeReportCreate.model_validate(self.report | {"devices": devices(), "cohort": "pod-a"})
                report(session, name, said, now=self.clock.now())

    def run_job(self, ranks: int = 8, job: str = "demo", **changes: Any) -> None:
        places = [
            {"rank": r, "dp": r, "pp": 0, "tp": 0, "node": "n1", "device": f"GPU-{r}", "pid": 1, "state": "running"}
            for r in range(ranks)
        ]
        body = {
            "name": "demo", "state": "running", "generation": 1, "command": "train.py",
            "topology": {"dp": ranks, "pp": 1, "tp": 1, "world_size": ranks, "ranks": places},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []
            },
            "steps_total": None, "last_step": None, "started_at": START - 60, "finished_at": None, **changes,
        }  # fmt: skip
        with self.services.database.session() as session:
            jobs.report(session, job, JobReport.model_validate(body), now=self.clock.now())

    def frame(
        self, made: Catalog, subject: str, axis: Axis, *, entities: tuple[str, ...], t0: float, narrow: Any
    ) -> None:
        self.sequence += 1
        shape = (len(entities), len(made.wide), narrow.shape[2])
        wide = np.full(shape, int(self.clock.now() * 1e9) if axis is Axis.STEP else 0, "<i8").tobytes()
        values = narrow.astype("<f4").tobytes()
        frame = Frame(
            version=1, subject=subject, axis=axis, stream="s", sequence=self.sequence, t0=t0, dt=1.0,
            catalog=made.digest, entities=entities, samples=narrow.shape[2], values=values, wide=wide,
            crc32=zlib.crc32(wide, zlib.crc32(values)),
        )  # fmt: skip
        compiled = compile_catalog(made)
        self.services.ingest.keep(check(frame, compiled) if axis is Axis.STEP else join([frame], compiled))
        if axis is Axis.TIME:
            self.services.seen.note(subject, self.clock.now())

    def second(self, hot: str | None = None, node: str = "n1", late: float = 0.0) -> None:
        """One second of GPU measurements, in which ``hot`` may stand out; then the detection loop runs."""
        made = catalog(SignalSource.GPU)
        narrow = np.full((GPUS, len(made.narrow), 1), np.nan)
        temperature = made.narrow.index("gpu_temperature_celsius")
        for i in range(GPUS):
            narrow[i, temperature, 0] = 95.0 if f"GPU-{i}" == hot else 60.0 + i % 3
        names = tuple(f"GPU-{i}" for i in range(GPUS))
        self.frame(made, node, Axis.TIME, entities=names, t0=float(int(self.clock.now() - late)), narrow=narrow)
        self.clock.advance(1.0)
        follow_voices(
            self.services.database,
            self.services.seen.take_dirty(),
            now=self.clock.now(),
            heartbeat_timeout_seconds=10.0,
        )
        self.loop.run_once()

    def step(
        self, number: int, slow: int | None = None, ranks: int = 8, job: str = "demo", seconds: float = np.nan
    ) -> None:
        """One step of the job, in which one rank may compute for 30 % longer."""
        made = catalog(SignalSource.RANK)
        narrow = np.full((ranks, len(made.narrow), 1), np.nan)
        rng = np.random.default_rng(number)
        for rank in range(ranks):
            own = 0.5 * (1 + 0.003 * rng.standard_normal()) * (1.3 if rank == slow else 1.0)
            narrow[rank, made.narrow.index("compute_time_seconds"), 0] = own
        narrow[:, made.narrow.index("step_time_seconds"), 0] = seconds * (1 + 0.003 * rng.standard_normal())
        entities = tuple(str(rank) for rank in range(ranks))
        self.frame(made, job, Axis.STEP, entities=entities, t0=float(number), narrow=narrow)
        self.services.seen.note("n1", self.clock.now())
        self.clock.advance(0.5)
        self.loop.run_once()

    def event(self, kind: str, **fields: Any) -> str:
        """Store an event as the route would."""
        row = {"node": None, "device": None, "job": "demo", "rank": None, "generation": 1, "data": {}, **fields}
        made = EventRow(id=uuid7(), time=self.clock.now(), kind=kind, received_at=self.clock.now(), **row)
        with self.services.database.session() as session:
            session.add(made)
        return made.id

    def incidents(self) -> list[IncidentRow]:
        with self.services.database.reading() as session:
            return repository.live(session)

    def active(self) -> list[FindingRow]:
        with self.services.database.reading() as session:
            return repository.active_findings(session)

    def node_state(self, name: str = "n1") -> str:
        with self.services.database.reading() as session:
            row = session.get(NodeRow, name)
            assert row is not None
            return row.state
