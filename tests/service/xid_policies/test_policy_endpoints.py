"""Versions of the XID policy over REST: tried out, run as a shadow, made active within seconds, retired."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import httpx
import pytest

from mainstay.probes.ids import uuid7
from tests.service.conftest import wait_until
from tests.service.problems import assert_problem
from tests.service.xid_policies.policy_bench import MILD, STRICT


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


def test_the_built_in_policy_is_returned_whole(api: httpx.Client) -> None:
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
    assert_problem(answer, 422, "invalid-policy", words)
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
    assert_problem(untouched.put("/v1/policies/xid/overrides", json=body), 422, "invalid")


def test_what_is_not_there_and_what_is_so_already(api: httpx.Client) -> None:
    choice = {"version": 7, "reason": "r"}
    for path in ("activate", "retire"):
        assert_problem(api.post(f"/v1/policies/xid:{path}", json=choice), 404, "unknown-policy-version", "7")
    put(api, mode="active")
    assert_problem(
        api.post("/v1/policies/xid:activate", json={"version": 1, "reason": "r"}), 409, "policy-version-changed"
    )
    assert api.post("/v1/policies/xid:retire", json={"version": 1, "reason": "r"}).status_code == 200
    assert_problem(
        api.post("/v1/policies/xid:retire", json={"version": 1, "reason": "r"}), 409, "policy-version-changed"
    )
    assert_problem(
        api.post("/v1/policies/xid:activate", json={"version": True, "reason": "r"}), 422, "invalid", "version"
    )


def test_only_the_act_scope_may_change_versions(service: Any) -> None:
    made = service.client().post("/v1/auth/tokens", json={"name": "reader", "scopes": ["read"]}).json()
    reader = service.client(made["token"])
    assert reader.get("/v1/policies/xid").status_code == 200
    assert put(reader).status_code == 403
    for path in ("activate", "retire"):
        assert reader.post(f"/v1/policies/xid:{path}", json={"version": 1, "reason": "r"}).status_code == 403
    assert reader.post("/v1/policies/xid:test", json={"overrides": ""}).status_code == 403


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
    assert_problem(
        api.post("/v1/policies/xid:test", json={**none, "since": 3.0}), 422, "invalid", "since must be earlier"
    )
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
    assert_problem(api.post("/v1/policies/xid:test", json={"overrides": ""}), 503, "policy-test-running")
    taken.release()
    assert api.post("/v1/policies/xid:test", json={"overrides": ""}).status_code == 200


def test_an_activation_takes_effect_within_seconds_and_shadow_findings_are_listed(api: httpx.Client) -> None:
    put(api, STRICT, mode="shadow")
    send(api, 20, 79)

    def incidents_of() -> Any:
        return api.get("/v1/incidents").json()["items"]

    wait_until(incidents_of)
    places = itertools.count(10)  # it takes a second until the shadow runs: what it knows already is no news to it
    wait_until(lambda: send(api, 13, first=next(places)) or api.get("/v1/policies/xid/shadow").json()["items"])
    shown = api.get("/v1/policies/xid/shadow?limit=1").json()["items"][0]
    assert (shown["code"], shown["node"]) == (13, "n1")
    assert api.post("/v1/policies/xid:activate", json={"version": 1, "reason": "now"}).status_code == 200
    wait_until(lambda: any("XID 13" in api.get(f"/v1/incidents/{i['id']}").text for i in incidents_of()))


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
