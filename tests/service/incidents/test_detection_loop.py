"""The detection loop on measurements, and after a kill: driven step by step with a clock that the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import HealthState, Severity
from mainstay.service.app import close_services
from mainstay.service.common.db import WriteSession
from mainstay.service.events import repository as events
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.models import NodeRow
from mainstay.service.incidents import repository
from mainstay.service.incidents.detection_loop import SETTLE_SECONDS
from mainstay.service.incidents.findings import to_row
from mainstay.service.settings import Settings
from tests.service.conftest import wait_until
from tests.service.incidents.detection_bench import START, DetectionBench


@pytest.fixture
def bench(make_settings: Callable[..., Settings], report: dict[str, Any]) -> Iterator[DetectionBench]:
    made = DetectionBench(make_settings(incidents={"clear_after_seconds": 5.0, "close_after_seconds": 5.0}), report)
    made.start()
    made.enroll("n1")
    yield made
    close_services(made.services)


def test_a_hot_gpu_becomes_an_incident_with_evidence_and_its_node_suspect(bench: DetectionBench) -> None:
    for _ in range(20):
        bench.second()
    assert not bench.incidents()
    for _ in range(10):
        bench.second(hot="GPU-3")
    (incident,) = bench.incidents()
    assert (incident.node, incident.device, incident.kinds) == ("n1", "GPU-3", [FindingKind.SIGNAL_OUTLIER])
    (finding,) = bench.active()
    series = finding.evidence["series"][0]
    assert series["name"] == "gpu_temperature_celsius"
    assert max(series["y"]) == 95.0
    assert len(series["peers"]) == len(series["x"]) == len(series["y"])
    assert bench.node_state() == HealthState.SUSPECT


def test_what_cools_down_is_verified_by_time_and_closes(bench: DetectionBench) -> None:
    for count in range(30):
        bench.second(hot="GPU-3" if count >= 20 else None)
    states = []
    for _ in range(60):
        bench.second()
        live = bench.incidents()
        states.append(live[0].state if live else "closed")
    assert list(dict.fromkeys(states)) == ["open", "recovered", "verified", "closed"]
    assert bench.node_state() == HealthState.HEALTHY


def test_what_comes_back_before_it_closed_is_the_same_incident(bench: DetectionBench) -> None:
    for count in range(30):
        bench.second(hot="GPU-3" if count >= 20 else None)
    (first,) = bench.incidents()
    while bench.incidents()[0].state == "open":
        bench.second()
    while bench.incidents()[0].state != "open":
        bench.second(hot="GPU-3")
    (again,) = bench.incidents()
    assert again.id == first.id


def test_a_slow_rank_is_named_by_steps_alone(bench: DetectionBench) -> None:
    bench.run_job()
    for number in range(1, 60):
        bench.step(number, slow=5 if number > 40 else None)
    (incident,) = bench.incidents()
    assert (incident.kinds, incident.ranks, incident.job) == ([FindingKind.STRAGGLER], [5], "demo")
    assert bench.node_state() != HealthState.SUSPECT, "a slow rank is no broken machine"


def test_a_slow_rank_of_a_job_that_ended_is_withdrawn(bench: DetectionBench) -> None:
    bench.run_job()
    for number in range(1, 60):
        bench.step(number, slow=5 if number > 40 else None)
    bench.run_job(state="finished", finished_at=bench.clock.now())
    bench.clock.advance(2.0)
    bench.loop.run_once()
    assert not bench.active()


def test_a_silent_node_is_lost_and_heard_again(bench: DetectionBench) -> None:
    for _ in range(20):
        bench.second()
    for _ in range(20):
        bench.clock.advance(1.0)
        bench.loop.run_once()
    (incident,) = bench.incidents()
    assert (incident.kinds, incident.node) == ([FindingKind.NODE_LOST], "n1")
    for _ in range(5):
        bench.second()
    assert not bench.active()


def test_a_restart_between_event_and_judgment_loses_nothing(bench: DetectionBench) -> None:
    bench.run_job()
    bench.event("process_exit", rank=1, node="n1", data={"signal": 9, "expected": False})
    bench.restart()
    bench.loop.run_once()
    (incident,) = bench.incidents()
    assert incident.ranks == [1]


def test_a_programs_own_error_explains_its_exit_and_opens_nothing_by_itself(bench: DetectionBench) -> None:
    bench.enroll("n1")
    bench.run_job()
    bench.event("xid", node="n1", device="GPU-1", job=None, data={"code": 31, "source": "kernel", "text": "MMU Fault"})
    bench.loop.run_once()
    assert not bench.incidents(), "a bug of the user opens no incident until a process dies of it"
    bench.clock.advance(2.0)
    bench.event("process_exit", rank=1, node="n1", data={"signal": 6, "expected": False})
    bench.loop.run_once()
    (incident,) = bench.incidents()
    assert incident.kinds == [FindingKind.XID, FindingKind.PROCESS_EXIT]
    assert {row.incident_id for row in bench.active()} == {incident.id}
    (xid,) = (row for row in bench.active() if row.kind == "xid")
    assert xid.evidence["numbers"]["code"] == 31, "what the detector counted is kept"
    with bench.services.database.reading() as session:
        node = session.get(NodeRow, "n1")
        assert node is not None
        assert node.state != HealthState.SUSPECT


def test_an_old_error_explains_no_new_exit(bench: DetectionBench) -> None:
    bench.run_job()
    bench.event("xid", node="n1", device="GPU-1", job=None, data={"code": 31, "source": "kernel", "text": "MMU Fault"})
    bench.loop.run_once()
    bench.clock.advance(120.0)
    bench.event("process_exit", rank=1, node="n1", data={"signal": 6, "expected": False})
    bench.loop.run_once()
    (incident,) = bench.incidents()
    assert incident.kinds == [FindingKind.PROCESS_EXIT]


def test_a_restart_in_the_middle_of_an_incident_opens_no_second_one(bench: DetectionBench) -> None:
    bench.run_job()
    bench.event("process_exit", rank=1, node="n1", data={"signal": 9, "expected": False})
    bench.loop.run_once()
    (before,) = bench.incidents()
    bench.restart()
    bench.loop.run_once()
    bench.event("recovery_completed", data={"recovery": "r1", "seconds": {"spawn": 0.1}, "steps_lost": 0})
    bench.loop.run_once()
    (after,) = bench.incidents()
    assert (after.id, after.state) == (before.id, "recovered")
    assert not bench.active(), "the detector was shown the exit again, so it knows what has recovered"


def test_an_outlier_seen_by_both_judges_is_one_incident(bench: DetectionBench) -> None:
    for count in range(30):
        bench.second(hot="GPU-3" if count >= 20 else None)
    (before,) = bench.incidents()
    bench.restart()
    for _ in range(int(SETTLE_SECONDS) + 10):
        bench.second(hot="GPU-3")
    (after,) = bench.incidents()
    assert (after.id, after.state) == (before.id, "open")
    assert len(bench.active()) == 1


def test_what_ended_while_nobody_judged_is_withdrawn_after_a_while(bench: DetectionBench) -> None:
    for count in range(30):
        bench.second(hot="GPU-3" if count >= 20 else None)
    bench.restart()
    bench.second()
    assert len(bench.active()) == 1, "unknown is not healthy: it holds until the detectors have looked"
    for _ in range(int(SETTLE_SECONDS) + 5):
        bench.second()
    assert not bench.active()


def test_late_data_does_not_end_a_finding_after_a_restart(bench: DetectionBench) -> None:
    for count in range(30):
        bench.second(hot="GPU-3" if count >= 20 else None)
    bench.restart()
    for _ in range(int(SETTLE_SECONDS) + 30):  # the node sends what it kept during an outage: half a minute late
        bench.second(late=30.0)
    assert len(bench.active()) == 1, "the detectors evaluate no second that arrives so late"
    for _ in range(int(SETTLE_SECONDS) + 30):
        bench.second()
    assert not bench.active()


def test_a_trend_outlives_a_restart_for_as_long_as_it_takes_to_see_it_again(bench: DetectionBench) -> None:
    with bench.services.database.session() as session:
        for detector in ("drift", "throttle"):
            said = Finding(
                kind=FindingKind.PCIE_DEGRADED, entity=Entity(node="n1", device="GPU-3"), time=START,
                severity=Severity.WARNING, detector=detector, confidence=0.9, evidence=Evidence(summary="It rises."),
            )  # fmt: skip
            session.add(to_row(said, None))
    bench.restart()
    for _ in range(int(SETTLE_SECONDS) + 5):
        bench.second()
    assert [row.detector for row in bench.active()] == ["drift"]


def test_the_same_data_gives_the_same_findings(tmp_path: Path, report: dict[str, Any]) -> None:
    stories = []
    for name in ("one", "two"):
        made = DetectionBench(Settings(data_dir=tmp_path / name), report)
        made.start()
        made.enroll("n1")
        made.run_job()
        for number in range(1, 50):
            made.step(number, slow=2 if number > 35 else None)
            made.second(hot="GPU-1" if number > 35 else None)
        stories.append([(row.key, row.time, row.evidence) for row in made.active()])
        close_services(made.services)
    assert stories[0] == stories[1]
    assert stories[0]


def test_a_poisoned_event_does_not_stop_the_others(bench: DetectionBench, caplog: pytest.LogCaptureFixture) -> None:
    bench.run_job()
    # The route refuses such a plan; a row written by an older version may still hold one.
    bench.event("no_such_kind")
    bench.event("recovery_planned", data={"plan": {"chosen": 7}})
    bench.event("process_exit", rank=1, node="n1", data={"signal": 9, "expected": False})
    bench.loop.run_once()
    assert [incident.ranks for incident in bench.incidents()] == [[1]]
    assert "set aside" in caplog.text
    with bench.services.database.reading() as session:
        assert session.query(EventRow).filter(EventRow.judged_at.is_(None)).count() == 0


def test_a_human_at_the_same_moment_costs_a_retry_not_an_event(
    bench: DetectionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The incident changes between read and write: the next iteration evaluates the event."""
    bench.run_job()
    bench.event("process_exit", rank=1, node="n1", data={"signal": 9, "expected": False})
    bench.loop.run_once()
    real, calls = repository.live_of_job, []

    def stale(session: Any, job: str) -> Any:
        row = real(session, job)
        if not calls:
            calls.append(row)
            row.version += 7  # as if read before a change by another process
            session.expunge(row)
        return row

    monkeypatch.setattr(repository, "live_of_job", stale)
    bench.event("recovery_completed", data={"recovery": "r1", "seconds": {}, "steps_lost": 0})
    bench.loop.run_once()
    bench.loop.run_once()
    (incident,) = bench.incidents()
    assert incident.state == "recovered"


def test_a_flood_of_the_same_fact_is_one_finding_and_a_short_timeline(bench: DetectionBench) -> None:
    for _ in range(200):
        bench.event("xid", node="n1", job=None, device="GPU-1", data={"code": 79})
        bench.clock.advance(0.2)
    bench.loop.run_once()
    (incident,) = bench.incidents()
    assert len(bench.active()) == 1
    with bench.services.database.reading() as session:
        assert len(repository.timeline_of(session, incident.id)) < 20


def test_large_batches_that_fail_become_small_ones_that_do_not(
    bench: DetectionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that fails each minute, or a slow one that ends long transactions, must not stop detection."""
    claim, sizes = events.claim, list[int]()

    def fail_when_large(session: WriteSession, ids: list[str], now: float) -> set[str]:
        sizes.append(len(ids))
        if len(ids) > 10:
            raise OperationalError("COMMIT", None, ConnectionError("it took too long"))
        return claim(session, ids, now)

    monkeypatch.setattr(events, "claim", fail_when_large)
    for _ in range(64):
        bench.event("job_started", data={})
    for _ in range(30):
        with suppress(OperationalError):
            bench.loop.run_once()
    assert sizes[:4] == [64, 32, 16, 8]
    with bench.services.database.reading() as session:
        assert not events.unjudged(session)


@pytest.mark.postgres
def test_a_batch_of_events_locks_its_nodes_in_one_order(
    make_settings: Callable[..., Settings], report: dict[str, Any], databases: Any, migrated_template: str
) -> None:
    """Else it holds a node and waits for another, whose holder, a writer of many nodes, waits for the first.

    An event of a job between those of nodes has findings stored in several steps.
    """
    url = databases.make(template=migrated_template)
    made, plain = DetectionBench(make_settings(database_url=url), report), url.replace("+psycopg", "")
    made.start()
    made.enroll("n1", "n2")
    for node in ("n2", None, "n1"):
        xid = {"code": 79, "source": "nvml", "text": "fallen off the bus", "pci": None, "uptime": 1.0}
        if node is None:
            made.event("job_finished", data={"state": "finished"})
        else:
            made.event("xid", node=node, device="GPU-0", job=None, data=xid)
        made.clock.advance(0.1)
    turn = threading.Thread(target=made.loop.run_once)
    with psycopg.connect(plain) as other, psycopg.connect(plain, autocommit=True) as watch:
        other.execute("SELECT FROM nodes WHERE name = 'n1' FOR UPDATE")
        turn.start()
        waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: watch.execute(waits).fetchall())
        other.execute("SELECT FROM nodes WHERE name = 'n2' FOR UPDATE NOWAIT")
    turn.join(60.0)
    assert {finding.node for finding in made.active()} == {"n1", "n2"}
    close_services(made.services)
    databases.drop(url)
