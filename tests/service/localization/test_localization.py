"""Fault localizations over the real API: nodes fetch tasks for pairs and answer what a fault would make them measure,
and a verdict that names it; and nodes that do not fetch, cannot measure, or hang."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from sqlalchemy import select

from mainstay.detectors.localize.findings import findings
from mainstay.detectors.localize.model import LocalizationVerdict as LocalizedAs
from mainstay.detectors.localize.model import LocalizedCulprit
from mainstay.detectors.localize.topology import FabricComponentKind
from mainstay.detectors.validation.verdict import MetricVerdict, RunVerdict
from mainstay.probes.benchmarks.pair_protocol import PAIR, TOOL_SIZES, PairReport, PairTask, Role, bandwidths, metrics
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, MetricValues
from mainstay.probes.core_types import Verdict
from mainstay.service.app import build_services, close_services
from mainstay.service.incidents.finding_retry import store_with_retry
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.localization import findings as localization_findings
from mainstay.service.localization import serializers as localization_serializers
from mainstay.service.localization import service as localization_service
from mainstay.service.localization.schemas import LocalizationCreate, PairReportIn
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation.models import NodeVerdictRow, ValidationRow
from tests.fakes.clock import ManualClock

Json = dict[str, Any]
SPEED = 1e10


def problem(answer: httpx.Response, status: int, slug: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"


def measured(
    order: PairTask, factor: float, state: BenchmarkState = BenchmarkState.OK, error: str | None = None
) -> PairReport:
    values = tuple(
        MetricValues(
            name=m.name, unit=m.unit, better=m.better, values=(SPEED * factor,) if state is BenchmarkState.OK else ()
        )
        for m in metrics(order.sizes)
    )
    result = BenchmarkResult(
        benchmark=order.benchmark, state=state, error=error, seconds=1.0, device=order.gpu or "cpu", metrics=values
    )
    now = time.time()
    return PairReport(started_at=now - 1, finished_at=now, result=result)


@dataclass
class Fleet:
    """Nodes that measure pairs; ``slow`` is what each brings a pair down to."""

    slow: dict[str, float] = field(default_factory=dict)
    deaf: set[str] = field(default_factory=set)
    """Nodes that never fetch an order."""
    broken: set[str] = field(default_factory=set)
    """Nodes that cannot measure; their peers wait for nothing."""
    old: set[str] = field(default_factory=set)
    """Nodes whose daemon measures TCP instead of what the task says."""
    seen: list[PairTask] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, node: str, order: PairTask) -> PairReport:
        with self.lock:
            self.seen.append(order)
        if node in self.old:
            order = msgspec.structs.replace(order, benchmark=PAIR)
        ends = {node, order.peer}
        if node in self.broken:
            return measured(order, 1.0, BenchmarkState.UNSUPPORTED, "torch is not installed")
        if order.peer in self.broken or any(self.slow.get(name) == 0 for name in ends):
            return measured(order, 1.0, BenchmarkState.TIMEOUT, "the transfer did not end")
        seed = zlib.crc32(f"{sorted(ends)} {order.port}".encode())
        noise = np.random.default_rng(seed).normal(0, 0.005)
        return measured(order, min(self.slow.get(name, 1.0) for name in ends) * float(np.exp(noise)))


# over HTTP, with long polls


@contextmanager
def working(fleet: Fleet, clients: dict[str, httpx.Client]) -> Iterator[None]:
    stop = threading.Event()

    def loop(name: str, client: httpx.Client) -> None:
        while not stop.is_set():
            answer = client.get(f"/v1/nodes/{name}/tasks", params={"wait": 1.0})
            for item in answer.json()["items"]:
                order = msgspec.convert(item, PairTask)
                body = msgspec.to_builtins(fleet.answer(name, order))
                posted = client.post(f"/v1/fault-localizations/tasks/{order.id}/results", json=body)
                assert posted.status_code == 200, posted.text

    threads = [threading.Thread(target=loop, args=item, daemon=True) for item in clients.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.slow
def test_a_slow_node_is_named_through_the_real_api(service: Any, report: Json, eventually: Callable[..., Any]) -> None:
    admin = service.client()
    clients = {}
    for number in range(6):
        name = f"n{number}"
        clients[name] = service.node_client(name)
        said = {**report, "hostname": f"host-{number}", "switches": [f"leaf-{number // 3}"]}
        assert clients[name].put(f"/v1/nodes/{name}", json=said).status_code == 200
    fleet = Fleet(slow={"n4": 0.7})
    with working(fleet, clients):
        made = admin.post("/v1/fault-localizations", json={"nodes": sorted(clients), "reason": "job 7 is slow"})
        assert made.status_code == 202, made.text
        path = f"/v1/fault-localizations/{made.json()['id']}"
        done = eventually(lambda: (r := admin.get(path).json())["state"] == "done" and r, 60)
    verdict = done["verdict"]
    assert [(c["kind"], c["nodes"]) for c in verdict["culprits"]] == [("node", ["n4"])]
    assert verdict["culprits"][0]["speed"] == pytest.approx(0.7, abs=0.05)
    assert all("n4" in {w["a"], w["b"]} for w in verdict["culprits"][0]["evidence"])
    assert verdict["good"] == ["n0", "n1", "n2", "n3", "n5"]
    assert done["state_reason"].startswith("Node n4")
    assert [r["number"] for r in done["rounds"]] == list(range(1, verdict["rounds"] + 1))
    assert all(pair["state"] == "ok" for r in done["rounds"] for pair in r["pairs"])
    # both sides of a pair heard of each other at one address and port
    by_port: dict[tuple[str, int, float], list[PairTask]] = {}
    for order in fleet.seen:
        by_port.setdefault((order.address, order.port, order.deadline_at), []).append(order)
    assert all(sorted(o.role for o in both) == [Role.CONNECT, Role.LISTEN] for both in by_port.values())
    listed = admin.get("/v1/fault-localizations").json()["items"]
    assert [(item["id"], item["state"]) for item in listed] == [(done["id"], "done")]


@pytest.fixture
def trio(service: Any, report: Json) -> tuple[httpx.Client, dict[str, httpx.Client]]:
    clients = {f"n{number}": service.node_client(f"n{number}") for number in range(3)}
    for name, client in clients.items():
        assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
    return service.client(), clients


def test_what_cannot_be_is_refused(trio: tuple[httpx.Client, dict[str, httpx.Client]]) -> None:
    admin, clients = trio
    why = {"reason": "to see"}
    problem(admin.post("/v1/fault-localizations", json={"nodes": ["absent", "n0", "n1"], **why}), 404, "unknown-node")
    problem(admin.post("/v1/fault-localizations", json={"nodes": ["n0", "n1"], **why}), 422, "too-few-nodes")
    problem(admin.post("/v1/fault-localizations", json={"nodes": [], **why}), 422, "invalid")
    problem(admin.get("/v1/fault-localizations/none"), 404, "unknown-localization")
    made = admin.post("/v1/fault-localizations", json={"nodes": list(clients), **why})
    assert made.status_code == 202, made.text
    problem(admin.post("/v1/fault-localizations", json={"nodes": list(clients), **why}), 409, "node-busy")
    order = msgspec.convert(
        next(o for c in clients for o in clients[c].get(f"/v1/nodes/{c}/tasks").json()["items"]), PairTask
    )
    path = f"/v1/fault-localizations/tasks/{order.id}/results"
    body = msgspec.to_builtins(measured(order, 1.0))
    wrong = {**body, "result": {**body["result"], "benchmark": "gemm"}}
    other = order.peer
    answers = [client.post(path, json=body).status_code for name, client in clients.items() if name == other]
    assert answers == [403]
    refused = [client.post(path, json=wrong) for client in clients.values()]
    assert sorted(answer.status_code for answer in refused) == [403, 403, 422]
    ended = admin.post(
        f"/v1/fault-localizations/{made.json()['id']}:cancel", json={"reason": "a job wants them"}
    ).json()
    assert (ended["state"], ended["state_reason"], ended["verdict"]) == (
        "cancelled",
        "cancelled: a job wants them",
        None,
    )
    assert all(not client.get(f"/v1/nodes/{name}/tasks").json()["items"] for name, client in clients.items())


# by the clock, without HTTP


@pytest.fixture
def services(make_settings: Callable[..., Settings], database_url: str) -> Iterator[Services]:
    with ExitStack() as stack:
        made = build_services(make_settings(database_url=database_url), ManualClock(1_800_000_000.0))
        stack.callback(close_services, made)
        yield made


def add_nodes(services: Services, report: Json, *names: str, passed: bool = False) -> None:
    from mainstay.service.fleet.models import NodeRow
    from mainstay.service.fleet.schemas import NodeReportCreate
    from mainstay.service.fleet.service import report as say

    now = services.clock.now()
    with services.database.session() as session:
        for name in names:
            say(session, name, NodeReportCreate.model_validate(report), now=now)
            if passed:
                session.flush()
                row = session.get(NodeRow, name)
                assert row is not None
                row.state = "healthy"
                session.add(
                    NodeVerdictRow(
                        node=name, verdict=Verdict.PASS.value, power=2, suite="standard", validation_id="v", at=now
                    )
                )


def start_localization(services: Services, *nodes: str, **changes: Any) -> str:
    with services.database.session() as session:
        body = LocalizationCreate.model_validate({"nodes": list(nodes), "reason": "to see", **changes})
        return localization_service.create(session, body, now=services.clock.now()).id


def play(services: Services, key: str, fleet: Fleet, nodes: list[str]) -> Any:
    """Let the fleet work until the localization ends; unanswered tasks wait until their time is up."""
    clock: Any = services.clock
    for _ in range(40):
        for name in nodes:
            if name in fleet.deaf:
                continue
            with services.database.session() as session:
                jobs = services.occupancy.by_node(session)
                orders = localization_service.claim_node_tasks(session, name, jobs, now=clock.now())
            for given in orders:
                order = msgspec.convert(given.model_dump(mode="json"), PairTask)
                body = PairReportIn.model_validate(msgspec.to_builtins(fleet.answer(name, order)))
                with services.database.session() as session:
                    side = localization_service.require_order(session, order.id)
                    row = localization_service.accept(session, side, body, now=clock.now())
                    session.flush()
                    localization_findings.ended(session, row, now=clock.now(), settings=services.settings)
        with services.database.session() as session:
            row = localization_service.require(session, key)
            if row.state != "running":
                return row
        clock.advance(localization_service.ROUND_SECONDS + 1)
        with services.database.session() as session:
            late = localization_service.tick(session, now=clock.now())
            session.flush()
            for row in late:
                localization_findings.ended(session, row, now=clock.now(), settings=services.settings)
    raise AssertionError("it did not end")


def names(row: Any) -> list[str]:
    return [node for culprit in row.verdict["culprits"] for node in culprit["nodes"]]


def test_known_good_partners_join_and_are_not_judged(services: Services, report: Json) -> None:
    add_nodes(services, report, "bad", "fine")
    add_nodes(services, {**report, "cohort": "other"}, "stranger", passed=True)
    add_nodes(services, report, "p1", "p2", "p3", "p4", passed=True)
    key = start_localization(services, "bad", "fine")
    everybody = ["bad", "fine", "p1", "p2", "p3", "p4", "stranger"]
    row = play(services, key, Fleet(slow={"bad": 0.5}), everybody)
    assert row.partners == ["p1", "p2", "p3", "p4"]
    assert names(row) == ["bad"]
    assert row.verdict["good"] == ["fine"]
    assert row.verdict["settled"]


def test_a_node_that_hangs_is_named_by_its_pairs(services: Services, report: Json) -> None:
    nodes = [f"n{number}" for number in range(6)]
    add_nodes(services, report, *nodes)
    row = play(services, start_localization(services, *nodes), Fleet(slow={"n2": 0.0}), nodes)
    assert names(row) == ["n2"]
    assert row.verdict["culprits"][0]["speed"] is None


def test_a_node_is_named_by_another_benchmark_and_an_old_daemon_stays_unknown(services: Services, report: Json) -> None:
    nodes = [f"n{number}" for number in range(7)]
    add_nodes(services, report, *nodes)
    fleet = Fleet(slow={"n2": 0.6}, old={"n6"})
    row = play(services, start_localization(services, *nodes, benchmark="all_reduce_pair"), fleet, nodes)
    assert {order.benchmark for order in fleet.seen} == {"all_reduce_pair"}
    assert {order.sizes for order in fleet.seen} == {TOOL_SIZES["all_reduce_pair"]}
    assert (names(row), list(row.verdict["unknown"])) == (["n2"], ["n6"])
    with services.database.reading() as session:
        read = localization_serializers.read(session, localization_service.require(session, row.id))
    assert read.benchmark == "all_reduce_pair"
    assert any("older node daemon" in pair.note for given in read.rounds for pair in given.pairs)


@pytest.mark.parametrize("how", ["deaf", "broken"])
def test_who_does_not_measure_stays_unknown_and_blames_nobody(services: Services, report: Json, how: str) -> None:
    nodes = [f"n{number}" for number in range(6)]
    add_nodes(services, report, *nodes)
    fleet = Fleet(**{how: {"n3"}})
    row = play(services, start_localization(services, *nodes), fleet, nodes)
    assert names(row) == []
    assert list(row.verdict["unknown"]) == ["n3"]
    assert row.verdict["good"] == ["n0", "n1", "n2", "n4", "n5"]


def test_a_second_answer_changes_nothing_and_a_lost_order_comes_again(services: Services, report: Json) -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    add_nodes(services, report, *nodes)
    start_localization(services, *nodes)
    clock: Any = services.clock
    with services.database.session() as session:
        (first,) = localization_service.claim_node_tasks(session, "n0", {}, now=clock.now())
        assert localization_service.claim_node_tasks(session, "n0", {}, now=clock.now()) == []
    clock.advance(localization_service.REDELIVER_SECONDS)
    with services.database.session() as session:
        assert localization_service.nodes_with_orders(session, nodes, clock.now()) == set(nodes)
        (again,) = localization_service.claim_node_tasks(session, "n0", {}, now=clock.now())
        assert again == first
    order = msgspec.convert(first.model_dump(mode="json"), PairTask)
    for factor in (1.0, 0.1):
        body = PairReportIn.model_validate(msgspec.to_builtins(measured(order, factor)))
        with services.database.session() as session:
            localization_service.accept(
                session, localization_service.require_order(session, order.id), body, now=clock.now()
            )
    with services.database.reading() as session:
        kept = msgspec.convert(localization_service.require_order(session, order.id).result, BenchmarkResult)
        assert set(bandwidths(kept).values()) == {SPEED}


# what it says of them


def stored_findings(services: Services) -> list[FindingRow]:
    with services.database.reading() as session:
        return list(session.scalars(select(FindingRow).order_by(FindingRow.time)))


def test_a_culprit_opens_an_incident_that_a_later_localization_feeds_and_then_ends(
    services: Services, report: Json
) -> None:
    nodes = [f"n{number}" for number in range(6)]
    add_nodes(services, report, *nodes)
    for _ in range(2):
        play(services, start_localization(services, *nodes), Fleet(slow={"n4": 0.6}), nodes)
    (finding,) = stored_findings(services)
    assert (finding.kind, finding.node, finding.active) == ("fault_localized", "n4", True)
    assert "60% of the usual speed" in finding.evidence["summary"]
    assert finding.evidence["numbers"]["witnesses"] >= 2
    with services.database.reading() as session:
        (incident,) = session.scalars(select(IncidentRow))
        assert (incident.node, incident.kinds) == ("n4", ["fault_localized"])
    # one without a result about n4 proves nothing; one that measured it sound ends the finding
    play(services, start_localization(services, *nodes), Fleet(slow={"n4": 1.0}, deaf={"n4"}), nodes)
    assert stored_findings(services)[0].active
    play(services, start_localization(services, *nodes), Fleet(), nodes)
    assert not stored_findings(services)[0].active


@pytest.mark.parametrize(("looked", "over"), [("gemm", False), ("perftest", True)])
def test_only_a_validation_that_looked_where_it_points_takes_it_back(
    services: Services, report: Json, looked: str, over: bool
) -> None:
    add_nodes(services, report, "n1", passed=True)
    now = services.clock.now()
    nic = LocalizedCulprit(
        kind=FabricComponentKind.NIC,
        name=("n1", "mlx5_0"),
        nodes=("n1",),
        speed=0.5,
        sizes=(),
        odds=12.0,
        evidence=(),
        summary="slow",
    )
    verdict = LocalizedAs(culprits=(nic,), good=(), unknown={}, rounds=3, noise=0.01, settled=True)
    passed = MetricVerdict(
        benchmark=looked, metric="m", verdict=Verdict.PASS, reason="", device="", unit="s", value=1.0, criterion=None
    )
    judged = RunVerdict(verdict=Verdict.PASS, reason="", verdicts=(passed,))
    row = ValidationRow(node="n1", suite="deep")
    with services.database.session() as session:
        store_with_retry(session, lambda: findings(verdict, time=now), now=now, settings=services.settings)
        taken_back = localization_findings.validated(session, row, judged, now=now + 1)
    told = [(f.entity.node, f.entity.device, f.active) for f in taken_back]
    assert told == ([("n1", "mlx5_0", False)] if over else [])
