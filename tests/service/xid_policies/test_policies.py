"""Versions of the XID policy in the detection loop: a shadow opens nothing, the active version decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.app import close_services
from mainstay.service.common.db import Database
from mainstay.service.incidents import repository as incidents
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.settings import Settings
from mainstay.service.xid_policies import live, repository
from mainstay.service.xid_policies.models import PolicyShadowRow
from tests.service.xid_policies.policy_bench import MILD, STRICT, PolicyBench


@pytest.fixture
def bench(tmp_path: Path, report: dict[str, Any]) -> Iterator[PolicyBench]:
    made = PolicyBench(Settings(data_dir=tmp_path / "data", migrate=True), report)
    made.open()
    made.enroll("n1", "n2")
    made.run_loop()
    yield made
    close_services(made.services)


def test_the_active_version_decides_and_active_findings_are_decided_again(bench: PolicyBench) -> None:
    bench.xid(79)
    bench.run_loop()
    assert bench.held() == [("critical", "reboot_node")]
    version = bench.put('[xid.79]\nrecommended_action = "inspect_node"', "active")
    bench.run_loop()
    assert bench.held() == [("critical", "inspect_node")], "within one look"
    bench.xid(79, gpu=1)
    bench.run_loop()
    assert bench.held() == [("critical", "inspect_node")] * 2
    bench.put(MILD, "active")
    bench.run_loop()
    assert bench.held() == []
    assert version == 1


def test_a_restart_keeps_the_active_version_and_the_history(bench: PolicyBench) -> None:
    bench.put("[xid.46]\ntries = 1", "active")
    bench.run_loop()
    bench.xid(46)
    bench.run_loop()
    bench.clock.advance(3600)
    bench.event("node_started", uptime=60.0, boot_id="b2")
    bench.run_loop()
    assert bench.held() == []
    bench.clock.advance(2 * 86_400)
    bench.restart()
    bench.run_loop()
    bench.xid(46)
    bench.run_loop()
    assert bench.held() == [("critical", "inspect_node")], "the fault of two days ago is remembered"


def test_a_shadow_never_opens_an_incident_and_says_where_it_differs(bench: PolicyBench) -> None:
    bench.put(STRICT, "shadow")
    bench.run_loop()
    bench.xid(13)
    bench.xid(79, gpu=1)
    bench.run_loop()
    opened = bench.rows(IncidentRow)
    assert [row.node for row in opened] == ["n1"]
    assert "XID 79" in opened[0].title
    assert sorted(bench.held()) == [("critical", "reboot_node"), ("info", "restart_job")]
    (row,) = bench.rows(PolicyShadowRow)
    assert (row.code, row.node, row.device, row.version) == (13, "n1", "GPU-0", 1)
    assert row.live.startswith("info, restart_job: GPU-0 on n1")
    assert row.shadow.startswith("critical, reset_gpu: GPU-0 on n1")
    bench.run_loop()
    bench.restart()
    bench.run_loop()
    assert len(bench.rows(PolicyShadowRow)) == 1, "a restart does not say it again"


def test_a_shadow_knows_the_past_when_it_begins(bench: PolicyBench) -> None:
    bench.xid(46)
    bench.run_loop()
    bench.event("node_started", uptime=0.5, boot_id="b2")
    bench.run_loop()
    bench.put("[xid.46]\ntries = 1", "shadow")
    bench.run_loop()
    bench.clock.advance(3600)
    bench.xid(46)
    bench.run_loop()
    (row,) = bench.rows(PolicyShadowRow)
    assert row.shadow.startswith("critical, inspect_node")
    assert row.live.startswith("critical, reset_gpu")


def test_the_rows_of_a_shadow_are_bounded(bench: PolicyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEPT", 10)
    monkeypatch.setattr(live, "_PRUNE_EVERY", 5)
    bench.put(STRICT, "shadow")
    bench.run_loop()
    for n in range(40):
        bench.xid(13, gpu=n)
    bench.run_loop()
    assert 10 <= len(bench.rows(PolicyShadowRow)) <= 15


def test_an_iteration_that_fails_writes_no_shadow_and_loses_none(
    bench: PolicyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(STRICT, "shadow")
    bench.run_loop()
    bench.xid(13)
    broken = pytest.MonkeyPatch()
    broken.setattr(repository, "add_shadow", _fail)
    bench.run_loop()  # the event is set aside after it failed alone
    broken.undo()
    assert bench.rows(PolicyShadowRow) == []
    bench.run_loop(600.0)
    bench.xid(13, gpu=1)
    bench.run_loop()
    assert len(bench.rows(PolicyShadowRow)) == 1, "the detection loop continues"


def _fail(*_: Any) -> None:
    raise RuntimeError("a test")


def test_a_retired_version_leaves_the_built_in_policy(bench: PolicyBench) -> None:
    from mainstay.service.xid_policies import service
    from mainstay.service.xid_policies.schemas import VersionChoice

    version = bench.put(MILD, "active")
    bench.run_loop()
    bench.xid(79)
    bench.run_loop()
    assert bench.held() == [("info", "monitor")]
    with bench.services.database.session() as session:
        service.retire(session, VersionChoice(version=version, reason="r"), actor="t", now=1.0)
    bench.run_loop()
    assert bench.held() == [("critical", "reboot_node")]


def test_a_version_that_cannot_be_read_any_more_leaves_the_built_in_policy(bench: PolicyBench) -> None:
    from mainstay.service.xid_policies.models import PolicyVersionRow

    bench.put(MILD, "active")
    with bench.services.database.session() as session:
        row = session.get(PolicyVersionRow, 1)
        assert row is not None
        row.overrides = "[xid.79]\nrecommended_action = 'unheard of'"
    bench.run_loop()
    bench.xid(79)
    bench.run_loop()
    assert bench.held() == [("critical", "reboot_node")]


def test_what_a_person_closed_may_be_found_anew(bench: PolicyBench) -> None:
    bench.xid(64)
    bench.run_loop()
    with bench.services.database.session() as session:
        for row in incidents.active_findings(session):
            row.active, row.cleared_at = False, bench.clock.now()
    bench.run_loop(20.0)
    bench.run_loop(20.0)
    bench.xid(13)
    bench.run_loop()
    assert bench.held() == [("info", "restart_job")]


def test_information_ends_by_itself(bench: PolicyBench) -> None:
    bench.xid(13)
    bench.run_loop()
    assert bench.held() == [("info", "restart_job")]
    bench.run_loop(3700.0)
    assert bench.held() == []


def test_an_application_error_never_makes_a_node_suspect(bench: PolicyBench) -> None:
    bench.put('[xid.13]\nseverity = "warning"', "active")
    bench.run_loop()
    bench.xid(13)
    bench.run_loop()
    with bench.services.database.reading() as session:
        from mainstay.service.incidents.node_suspicion import suspicions

        assert suspicions(session, ["n1"]) == {}
    bench.xid(74, gpu=1)
    bench.run_loop()
    with bench.services.database.reading() as session:
        assert "XID 74" in suspicions(session, ["n1"])["n1"]


def test_a_flood_is_one_row(bench: PolicyBench) -> None:
    for n in range(300):
        bench.xid(45, gpu=n % 8, count=40)
    bench.run_loop()
    assert len([row for row in bench.rows(FindingRow) if row.kind == "xid"]) == 1
    assert bench.rows(IncidentRow) == []


def test_shadow_rows_are_pruned_on_both_databases(database_url: str) -> None:
    from mainstay.detectors.policy.comparison import StatementChange
    from mainstay.service.common import migrate

    database = Database(database_url)
    migrate.upgrade(database)
    changes = [
        StatementChange(time=float(n), node="n1", device=None, code=13, before="a", after="b", event="e")
        for n in range(30)
    ]
    with database.session() as session:
        repository.add_shadow(session, 1, changes)
        session.flush()
        repository.prune_shadow(session, 10)
    with database.session() as session:
        left = [row.time for row in session.query(PolicyShadowRow)]
    assert sorted(left) == [float(n) for n in range(20, 30)]
    database.close()
