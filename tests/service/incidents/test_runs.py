"""Jobs on all feeds, from stored frames to incidents, across restarts; and what is read again only when it changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import HealthState, Severity
from mainstay.service.app import close_services
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import finding_ingest
from mainstay.service.incidents.detection_loop import SETTLE_SECONDS
from mainstay.service.incidents.runs import Runs
from mainstay.service.incidents.service import Context
from mainstay.service.settings import Settings
from tests.service.incidents.detection_bench import START, DetectionBench
from tests.service.run_frames import checked, progress_frame

K = FindingKind


@pytest.fixture
def bench(make_settings: Callable[..., Settings], report: dict[str, Any]) -> Iterator[DetectionBench]:
    made = DetectionBench(make_settings(), report)
    made.start()
    made.enroll("n1")
    yield made
    close_services(made.services)


def found(kind: FindingKind, entity: Entity, *, cause: Cause | None = None, **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "time": START, "severity": Severity.WARNING, "detector": "scripted", "confidence": 0.9,
        "evidence": Evidence(summary=f"{kind} was found."), "active": True,
    }  # fmt: skip
    return Finding(kind=kind, entity=entity, cause=cause, **{**fields, **changes})


def ingest(bench: DetectionBench, *findings: Finding) -> None:
    with bench.services.database.session() as session:
        context = Context(session, bench.services.settings, bench.clock.now())
        finding_ingest.ingest_findings(context, findings)


def second(bench: DetectionBench, step: int, *, inside: float = 0.0, ranks: int = 8) -> None:
    """A second of progress of the whole job; then the detection loop runs."""
    values = {"progress_step": step, "in_collective_seconds": inside, "progress_phase": 0.0,
              "dp_enqueued": 10 * step + (inside > 0), "dp_completed": 10 * step}  # fmt: skip
    frame = progress_frame(float(int(bench.clock.now())), values, ranks=ranks, subject="demo")
    bench.services.ingest.keep(checked(frame))
    bench.services.seen.note("n1", bench.clock.now())
    bench.clock.advance(1.0)
    bench.loop.run_once()


def test_a_job_that_stands_still_becomes_an_incident_within_seconds_and_recovers(bench: DetectionBench) -> None:
    bench.run_job()
    for step in range(1, 91):
        second(bench, step)
    assert bench.incidents() == []
    waited = 0
    while not bench.incidents():
        waited += 1
        second(bench, 90, inside=float(waited))
        assert waited < 60, "no detector noticed"
    assert waited <= 15
    (incident,) = bench.incidents()
    assert incident.job == "demo"
    assert set(incident.kinds) <= {K.COMM_HANG, K.NONCOMM_HANG}
    assert bench.node_state() != HealthState.SUSPECT
    for step in range(91, 95):
        second(bench, step)
    assert bench.active() == []


def test_a_hang_that_ended_while_the_service_was_away_is_withdrawn(bench: DetectionBench) -> None:
    bench.run_job()
    for step in range(1, 91):
        second(bench, step)
    for waited in range(60):
        second(bench, 90, inside=float(waited + 1))
    assert any(row.detector == "hang" for row in bench.active())
    bench.restart()
    for step in range(91, 91 + int(SETTLE_SECONDS) + 10):
        second(bench, step)
    assert bench.active() == [], "a job's finding has no node that would have to speak"


def test_the_cause_is_that_of_the_likeliest_root(bench: DetectionBench) -> None:
    bench.run_job()
    rank = Entity(job="demo", rank=3, node="n1")
    ingest(bench, found(K.STRAGGLER, rank))
    (incident,) = bench.incidents()
    assert incident.cause is None
    throttled = Entity(node="n1", device="GPU-3")
    ingest(
        bench, found(K.THERMAL_THROTTLE, throttled, cause=Cause.GPU_THERMAL), found(K.JOB_SLOWDOWN, Entity(job="demo"))
    )
    (incident,) = [row for row in bench.incidents() if row.cause is not None]
    assert incident.cause == Cause.GPU_THERMAL
    assert {K.STRAGGLER, K.THERMAL_THROTTLE} <= set(incident.kinds)


NOT_THE_NODE = [
    (K.COMM_HANG, Entity(job="demo"), None),
    (K.COMM_HANG, Entity(job="demo", rank=1, node="n1"), Cause.NETWORK),
    (K.NONCOMM_HANG, Entity(job="demo", rank=1, node="n1"), None),
    (K.NONCOMM_HANG, Entity(job="demo", rank=1, node="n1"), Cause.SOFTWARE),
    (K.STRAGGLER, Entity(job="demo", rank=1, node="n1"), None),
    (K.STRAGGLER, Entity(job="demo", rank=1, node="n1"), Cause.WORKLOAD),
    (K.CPU_CONTENTION, Entity(node="n1"), None),
    (K.DATA_STALL, Entity(job="demo", rank=1, node="n1"), Cause.STORAGE),
    (K.CONGESTION, Entity(node="n1"), Cause.NETWORK),
    (K.NAN, Entity(job="demo", rank=1, node="n1"), Cause.SOFTWARE),
    (K.LOSS_SPIKE, Entity(job="demo"), None),
    (K.JOB_SLOWDOWN, Entity(job="demo"), None),
    (K.COLLECTIVE_MISMATCH, Entity(job="demo", rank=1, node="n1"), Cause.SOFTWARE),
    (K.STAGE_IMBALANCE, Entity(job="demo", rank=1, node="n1"), Cause.WORKLOAD),
]
THE_NODE = [
    (K.SDC_SUSPECT, Entity(job="demo", rank=1, node="n1"), Cause.SILENT_CORRUPTION),
    (K.STRAGGLER, Entity(job="demo", rank=1, node="n1"), Cause.FAULTY_GPU),
    (K.NONCOMM_HANG, Entity(job="demo", rank=1, node="n1"), Cause.HOST),
    (K.THERMAL_THROTTLE, Entity(node="n1", device="GPU-1"), None),
    (K.NIC_DEGRADED, Entity(node="n1", device="nic:mlx5_0:1"), None),
]


def test_a_node_is_suspect_for_its_machinery_only(bench: DetectionBench) -> None:
    for kind, entity, cause in NOT_THE_NODE:
        ingest(bench, found(kind, entity, cause=cause))
        assert bench.node_state() != HealthState.SUSPECT, (kind, cause)
        ingest(bench, found(kind, entity, cause=cause, active=False))
    for kind, entity, cause in THE_NODE:
        ingest(bench, found(kind, entity, cause=cause))
        assert bench.node_state() == HealthState.SUSPECT, (kind, cause)
        ingest(bench, found(kind, entity, cause=cause, active=False))
        assert bench.node_state() != HealthState.SUSPECT, (kind, cause)


def test_a_run_is_the_same_object_until_something_changes(bench: DetectionBench) -> None:
    runs, switches = Runs(), {"n1": ("leaf-3", "spine-1")}
    database = bench.services.database

    def read(above: dict[str, tuple[str, ...]] = switches) -> Any:
        with database.reading() as session:
            return runs.read(session, above)

    assert read() == ()
    bench.run_job()
    (first,) = read()
    assert first.mesh.switches == (("leaf-3", "spine-1"),) * 8
    bench.clock.advance(5.0)
    bench.run_job()
    assert read()[0] is first, "reported again, nothing new"
    assert read(dict(switches))[0] is first, "the same switches in another dict"
    (other,) = read({"n1": ("leaf-4",)})
    assert other.mesh.switches[0] == ("leaf-4",)
    bench.clock.advance(5.0)
    bench.run_job(ranks=4)
    assert len(read()[0].entities) == 4
    bench.clock.advance(5.0)
    bench.run_job(ranks=4, started_at=START - 1)
    assert read()[0].started_at == START - 1
    bench.clock.advance(5.0)
    bench.run_job(ranks=4, state="finished", finished_at=START)
    assert read() == ()


def test_switches_of_nodes_reach_the_mesh_of_their_job(bench: DetectionBench) -> None:
    with bench.services.database.session() as session:
        row = session.get(NodeRow, "n1")
        assert row is not None
        row.switches = ["leaf-3"]
    bench.run_job()
    second(bench, 1)
    with bench.services.database.reading() as session:
        (run,) = bench.loop._read_fleet(session).runs
    assert run.mesh.switches[0] == ("leaf-3",)
