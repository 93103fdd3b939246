"""Versions of the XID policy: tried out, run as a shadow that opens nothing, made active within seconds, retired."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.probes.ids import uuid7
from mainstay.service.app import build_services, close_services
from mainstay.service.common.db import Database
from mainstay.service.events.repository import insert_new
from mainstay.service.fleet.schemas import NodeReportCreate
from mainstay.service.fleet.service import report as report_node
from mainstay.service.incidents import repository as incidents
from mainstay.service.incidents.detection_loop import DetectionLoop
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.xid_policies import live, repository
from mainstay.service.xid_policies.models import PolicyShadowRow
from tests.fakes.clock import ManualClock

START = 1_800_000_000.0
MILD = '[xid.79]\nseverity = "info"\nrecommended_action = "monitor"\n'
STRICT = '[xid.13]\nseverity = "critical"\nrecommended_action = "reset_gpu"\n'


@dataclass
class House:
    """The control plane without its server, turn by turn."""

    settings: Settings
    report: dict[str, Any]
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    services: Services = field(init=False)
    judge: DetectionLoop = field(init=False)

    def open(self) -> None:
        self.services = build_services(self.settings, self.clock)
        self.judge = DetectionLoop(self.services)

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
        self.judge.run_once()

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


@pytest.fixture
def house(tmp_path: Path, report: dict[str, Any]) -> Iterator[House]:
    made = House(Settings(data_dir=tmp_path / "data", migrate=True), report)
    made.open()
    made.enroll("n1", "n2")
    made.run_loop()
    yield made
    close_services(made.services)


# the detection loop


def test_the_active_version_judges_and_what_holds_is_judged_again(house: House) -> None:
    house.xid(79)
    house.run_loop()
    assert house.held() == [("critical", "reboot_node")]
    version = house.put('[xid.79]\nrecommended_action = "inspect_node"', "active")
    house.run_loop()
    assert house.held() == [("critical", "inspect_node")], "within one look"
    house.xid(79, gpu=1)
    house.run_loop()
    assert house.held() == [("critical", "inspect_node")] * 2
    house.put(MILD, "active")
    house.run_loop()
    assert house.held() == []
    assert version == 1


def test_a_restart_keeps_the_active_version_and_the_history(house: House) -> None:
    house.put("[xid.46]\ntries = 1", "active")
    house.run_loop()
    house.xid(46)
    house.run_loop()
    house.clock.advance(3600)
    house.event("node_started", uptime=60.0, boot_id="b2")
    house.run_loop()
    assert house.held() == []
    house.clock.advance(2 * 86_400)
    house.restart()
    house.run_loop()
    house.xid(46)
    house.run_loop()
    assert house.held() == [("critical", "inspect_node")], "the fault of two days ago is remembered"


def test_a_shadow_never_opens_an_incident_and_says_where_it_differs(house: House) -> None:
    house.put(STRICT, "shadow")
    house.run_loop()
    house.xid(13)
    house.xid(79, gpu=1)
    house.run_loop()
    opened = house.rows(IncidentRow)
    assert [row.node for row in opened] == ["n1"]
    assert "XID 79" in opened[0].title
    assert sorted(house.held()) == [("critical", "reboot_node"), ("info", "restart_job")]
    (row,) = house.rows(PolicyShadowRow)
    assert (row.code, row.node, row.device, row.version) == (13, "n1", "GPU-0", 1)
    assert row.live.startswith("info, restart_job: GPU-0 on n1")
    assert row.shadow.startswith("critical, reset_gpu: GPU-0 on n1")
    house.run_loop()
    house.restart()
    house.run_loop()
    assert len(house.rows(PolicyShadowRow)) == 1, "a restart does not say it again"


def test_a_shadow_knows_the_past_when_it_begins(house: House) -> None:
    house.xid(46)
    house.run_loop()
    house.event("node_started", uptime=0.5, boot_id="b2")
    house.run_loop()
    house.put("[xid.46]\ntries = 1", "shadow")
    house.run_loop()
    house.clock.advance(3600)
    house.xid(46)
    house.run_loop()
    (row,) = house.rows(PolicyShadowRow)
    assert row.shadow.startswith("critical, inspect_node")
    assert row.live.startswith("critical, reset_gpu")


def test_what_a_shadow_said_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEPT", 10)
    monkeypatch.setattr(live, "_PRUNE_EVERY", 5)
    house.put(STRICT, "shadow")
    house.run_loop()
    for n in range(40):
        house.xid(13, gpu=n)
    house.run_loop()
    assert 10 <= len(house.rows(PolicyShadowRow)) <= 15


def test_a_judgment_that_fails_writes_no_shadow_and_loses_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.put(STRICT, "shadow")
    house.run_loop()
    house.xid(13)
    broken = pytest.MonkeyPatch()
    broken.setattr(repository, "add_shadow", _fail)
    house.run_loop()  # the event is set aside after it failed alone
    broken.undo()
    assert house.rows(PolicyShadowRow) == []
    house.run_loop(600.0)
    house.xid(13, gpu=1)
    house.run_loop()
    assert len(house.rows(PolicyShadowRow)) == 1, "the detection loop continues"


def _fail(*_: Any) -> None:
    raise RuntimeError("a test")


def test_a_retired_version_leaves_the_built_in_policy(house: House) -> None:
    from mainstay.service.xid_policies import service
    from mainstay.service.xid_policies.schemas import VersionChoice

    version = house.put(MILD, "active")
    house.run_loop()
    house.xid(79)
    house.run_loop()
    assert house.held() == [("info", "monitor")]
    with house.services.database.session() as session:
        service.retire(session, VersionChoice(version=version, reason="r"), actor="t", now=1.0)
    house.run_loop()
    assert house.held() == [("critical", "reboot_node")]


def test_a_version_that_cannot_be_read_any_more_leaves_the_built_in_policy(house: House) -> None:
    from mainstay.service.xid_policies.models import PolicyVersionRow

    house.put(MILD, "active")
    with house.services.database.session() as session:
        row = session.get(PolicyVersionRow, 1)
        assert row is not None
        row.overrides = "[xid.79]\nrecommended_action = 'unheard of'"
    house.run_loop()
    house.xid(79)
    house.run_loop()
    assert house.held() == [("critical", "reboot_node")]


def test_what_a_person_closed_may_be_found_anew(house: House) -> None:
    house.xid(64)
    house.run_loop()
    with house.services.database.session() as session:
        for row in incidents.active_findings(session):
            row.active, row.cleared_at = False, house.clock.now()
    house.run_loop(20.0)
    house.run_loop(20.0)
    house.xid(13)
    house.run_loop()
    assert house.held() == [("info", "restart_job")]


def test_information_ends_by_itself(house: House) -> None:
    house.xid(13)
    house.run_loop()
    assert house.held() == [("info", "restart_job")]
    house.run_loop(3700.0)
    assert house.held() == []


def test_an_application_error_never_makes_a_node_suspect(house: House) -> None:
    house.put('[xid.13]\nseverity = "warning"', "active")
    house.run_loop()
    house.xid(13)
    house.run_loop()
    with house.services.database.reading() as session:
        from mainstay.service.incidents.node_suspicion import suspicions

        assert suspicions(session, ["n1"]) == {}
    house.xid(74, gpu=1)
    house.run_loop()
    with house.services.database.reading() as session:
        assert "XID 74" in suspicions(session, ["n1"])["n1"]


def test_a_flood_is_one_row(house: House) -> None:
    for n in range(300):
        house.xid(45, gpu=n % 8, count=40)
    house.run_loop()
    assert len([row for row in house.rows(FindingRow) if row.kind == "xid"]) == 1
    assert house.rows(IncidentRow) == []


# the interface


@pytest.fixture
def api(service: Any, report: dict[str, Any]) -> httpx.Client:
    """Of an admin, with a node that events may name."""
    client: httpx.Client = service.client()
    assert client.put("/v1/nodes/n1", json=report).status_code == 200
    return client


@pytest.fixture(scope="module")
def untouched(lasting_service: Any) -> httpx.Client:
    """The same of a service that nothing is pushed to."""
    client: httpx.Client = lasting_service.client()
    return client


def put(api: httpx.Client, overrides: str = MILD, mode: str = "shadow", reason: str = "because") -> httpx.Response:
    return api.put("/v1/policies/xid/overrides", json={"overrides": overrides, "mode": mode, "reason": reason})


def test_the_built_in_policy_is_told_whole(api: httpx.Client) -> None:
    told = api.get("/v1/policies/xid").json()
    assert (told["mode"], told["version"], told["shadow"]) == ("builtin", None, None)
    rules = {(r["family"], r["code"]): r for r in told["rules"]}
    assert rules["xid", 79]["recommended_action"] == "reboot_node"
    assert rules["xid", 13]["repeat"].startswith("2 in 24 h (place): warning, monitor")
    assert ("sxid", 20034) in rules
    assert not any(r["overridden"] for r in told["rules"])
    assert len(told["digest"]) == 64


def test_a_version_goes_from_shadow_to_active_to_retired(api: httpx.Client) -> None:
    first = put(api).json()
    assert (first["version"], first["mode"], first["actor"], first["reason"]) == (1, "shadow", "first admin", "because")
    assert api.get("/v1/policies/xid").json()["shadow"]["version"] == 1
    second = put(api, STRICT).json()
    assert api.get("/v1/policies/xid").json()["shadow"]["digest"] == second["digest"]
    active = api.post("/v1/policies/xid:activate", json={"version": 2, "reason": "it was right"}).json()
    assert (active["mode"], active["changed_reason"]) == ("active", "it was right")
    told = api.get("/v1/policies/xid").json()
    assert (told["mode"], told["version"], told["shadow"]) == ("active", 2, None)
    assert [r["code"] for r in told["rules"] if r["overridden"]] == [13]
    third = put(api, MILD, mode="active").json()
    versions = api.get("/v1/policies/xid/versions").json()["items"]
    assert [(v["version"], v["mode"]) for v in versions] == [(3, "active"), (2, "retired"), (1, "draft")]
    assert versions[1]["changed_reason"] == "version 3 took its place"
    retired = api.post("/v1/policies/xid:retire", json={"version": third["version"], "reason": "no"}).json()
    assert retired["mode"] == "retired"
    assert api.get("/v1/policies/xid").json()["mode"] == "builtin"
    assert put(api, "", mode="draft").json()["mode"] == "draft"


def test_versions_come_in_pages(api: httpx.Client) -> None:
    for _ in range(5):
        assert put(api, mode="draft").status_code == 200
    page = api.get("/v1/policies/xid/versions?limit=2").json()
    rest = api.get(f"/v1/policies/xid/versions?limit=10&cursor={page['next_cursor']}").json()
    assert [v["version"] for v in page["items"] + rest["items"]] == [5, 4, 3, 2, 1]


def refused(answer: httpx.Response, status: int, slug: str, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:mainstay:problem:{slug}"
    assert all(word in answer.json()["detail"] for word in words), answer.json()["detail"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("[xid.79", "not TOML"),
        (
            '[xid.79]\nrecommended_action = "explode"',
            "overrides: xid.79.recommended_action: 'explode' is none of none, monitor",
        ),
        (
            '[xid.13]\nrecommended_action = "reset_gpu"',
            "xid.13: recommended action reset_gpu takes the node out of service",
        ),
        ("[xid.9999]\ntries = 1", "xid.9999.title: is missing"),
        ("[xids.1]", "xids: is not a known table"),
    ],
)
@pytest.mark.parametrize("path", ["/overrides", ":test"])
def test_bad_overrides_are_named(untouched: httpx.Client, path: str, overrides: str, words: str) -> None:
    more = {} if path == ":test" else {"mode": "shadow", "reason": "r"}
    method = "POST" if path == ":test" else "PUT"
    answer = untouched.request(method, f"/v1/policies/xid{path}", json={"overrides": overrides, **more})
    refused(answer, 422, "invalid-policy", words)
    assert untouched.get("/v1/policies/xid/versions").json()["items"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"overrides": "", "mode": "maybe", "reason": "r"},
        {"overrides": "", "mode": "shadow", "reason": ""},
        {"overrides": "", "mode": "shadow"},
        {"overrides": "#" * 300_000, "mode": "shadow", "reason": "r"},
        {"overrides": "\x00", "mode": "shadow", "reason": "r"},
        {"overrides": 7, "mode": "shadow", "reason": "r"},
    ],
)
def test_bad_bodies_are_refused(untouched: httpx.Client, body: dict[str, Any]) -> None:
    refused(untouched.put("/v1/policies/xid/overrides", json=body), 422, "invalid")


def test_what_is_not_there_and_what_is_so_already(api: httpx.Client) -> None:
    choice = {"version": 7, "reason": "r"}
    for path in ("activate", "retire"):
        refused(api.post(f"/v1/policies/xid:{path}", json=choice), 404, "unknown-policy-version", "7")
    put(api, mode="active")
    refused(api.post("/v1/policies/xid:activate", json={"version": 1, "reason": "r"}), 409, "policy-version-changed")
    assert api.post("/v1/policies/xid:retire", json={"version": 1, "reason": "r"}).status_code == 200
    refused(api.post("/v1/policies/xid:retire", json={"version": 1, "reason": "r"}), 409, "policy-version-changed")
    refused(api.post("/v1/policies/xid:activate", json={"version": True, "reason": "r"}), 422, "invalid", "version")


def test_only_who_may_act_switches(service: Any) -> None:
    made = service.client().post("/v1/auth/tokens", json={"name": "eye", "scopes": ["read"]}).json()
    eye = service.client(made["token"])
    assert eye.get("/v1/policies/xid").status_code == 200
    assert put(eye).status_code == 403
    for path in ("activate", "retire"):
        assert eye.post(f"/v1/policies/xid:{path}", json={"version": 1, "reason": "r"}).status_code == 403
    assert eye.post("/v1/policies/xid:test", json={"overrides": ""}).status_code == 403


def send(api: httpx.Client, *codes: int, at: float | None = None, first: int = 0) -> None:
    events = [
        {"id": uuid7(), "time": (at or time.time()) + n, "kind": "xid", "node": "n1", "device": f"GPU-{first + n}",
         "data": {"code": code, "uptime": 86_400.0}}
        for n, code in enumerate(codes)
    ]  # fmt: skip
    answer = api.post("/v1/events", json={"items": events})
    assert answer.status_code == 200, answer.text


def test_overrides_are_tried_on_stored_events_and_nothing_is_switched_on(api: httpx.Client) -> None:
    send(api, 13, 79, 31, at=time.time() - 600)
    told = api.post("/v1/policies/xid:test", json={"overrides": STRICT}).json()
    assert told["events"] == 3
    assert told["before"] == {"findings": 1, "drains": 1}
    assert told["after"] == {"findings": 2, "drains": 2}
    (change,) = told["changes"]
    assert (change["code"], change["node"], change["device"]) == (13, "n1", "GPU-0")
    assert change["before"].startswith("info, restart_job")
    assert change["after"].startswith("critical, reset_gpu")
    assert not told["truncated"]
    none = {"overrides": STRICT, "since": 1.0, "until": 2.0}
    assert api.post("/v1/policies/xid:test", json=none).json()["events"] == 0
    refused(api.post("/v1/policies/xid:test", json={**none, "since": 3.0}), 422, "invalid", "since must be earlier")
    assert api.get("/v1/policies/xid/versions").json()["items"] == []


def test_a_try_out_says_when_it_left_events_out(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainstay.service.xid_policies import service

    monkeypatch.setattr(service, "TRIED_EVENTS", 2)
    began = time.time() - 600
    send(api, 13, 79, 31, at=began)
    told = api.post("/v1/policies/xid:test", json={"overrides": STRICT}).json()
    assert (told["events"], told["truncated"]) == (2, True)
    assert told["since"] == pytest.approx(began + 1, abs=0.01)


def test_one_try_out_at_a_time(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from mainstay.service.xid_policies import endpoints

    taken = threading.Lock()
    taken.acquire()
    monkeypatch.setattr(endpoints, "_TRYING", taken)
    refused(api.post("/v1/policies/xid:test", json={"overrides": ""}), 503, "policy-test-running")
    taken.release()
    assert api.post("/v1/policies/xid:test", json={"overrides": ""}).status_code == 200


def eventually(check: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def test_an_activation_is_felt_within_seconds_and_the_shadow_is_told(api: httpx.Client) -> None:
    put(api, STRICT, mode="shadow")
    send(api, 20, 79)

    def incidents_of() -> Any:
        return api.get("/v1/incidents").json()["items"]

    eventually(incidents_of)
    places = itertools.count(10)  # it takes a second until the shadow runs: what it knows already is no news to it
    eventually(lambda: send(api, 13, first=next(places)) or api.get("/v1/policies/xid/shadow").json()["items"])
    shown = api.get("/v1/policies/xid/shadow?limit=1").json()["items"][0]
    assert (shown["code"], shown["node"]) == (13, "n1")
    assert api.post("/v1/policies/xid:activate", json={"version": 1, "reason": "now"}).status_code == 200
    eventually(lambda: any("XID 13" in api.get(f"/v1/incidents/{i['id']}").text for i in incidents_of()))


# two at once, on both databases


def test_two_people_at_once_leave_one_active_version(service_anywhere: Any) -> None:
    api = service_anywhere.client()
    for _ in range(6):
        assert put(api, mode="draft").status_code == 200
    codes: list[int] = []

    def activate(version: int) -> None:
        answer = service_anywhere.client().post("/v1/policies/xid:activate", json={"version": version, "reason": "me"})
        codes.append(answer.status_code)

    threads = [threading.Thread(target=activate, args=(n + 1,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(codes) <= {200, 409}
    versions = api.get("/v1/policies/xid/versions").json()["items"]
    assert len([v for v in versions if v["mode"] == "active"]) == 1


def test_the_shadows_rows_are_pruned_on_both_databases(database_url: str) -> None:
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
