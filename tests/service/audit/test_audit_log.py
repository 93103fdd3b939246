"""The audit log: every act, in the transaction of its effect, without secrets, never changed."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from mainstay.service.audit.record import record_act


def entries(service: Any, **wanted: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.client().get("/v1/audit-log", params=wanted).json()["items"]
    return found


def test_an_act_is_recorded_with_who_what_and_from_where(service_anywhere) -> None:
    service = service_anywhere
    made = service.client().post("/v1/auth/tokens", json={"name": "ci", "scopes": ["act"]}).json()
    silence = {"nodes": ["n1"], "ends_at": time.time() + 600, "reason": "fan"}
    service.client(made["token"]).post("/v1/silences", json=silence)
    newest, first = entries(service)[:2]
    assert (newest["actor"], newest["actor_kind"], newest["actor_id"]) == ("ci", "token", made["id"])
    assert (newest["action"], newest["target"]) == ("create_silence", "/v1/silences")
    assert (newest["detail"]["reason"], newest["address"]) == ("fan", "127.0.0.1")
    assert (first["actor"], first["action"]) == ("first admin", "create_token")
    assert entries(service, actor="ci") == [newest]
    assert entries(service, action="create_token") == [first]


def test_what_fails_and_what_only_reads_is_not_recorded(service) -> None:
    service.hold_still()
    admin = service.client()
    assert admin.post("/v1/incidents/none:acknowledge", json={"reason": "x"}).status_code == 404
    assert admin.post("/v1/silences", json={"ends_at": -1}).status_code == 422
    admin.get("/v1/nodes")
    assert entries(service) == []


def test_a_repeated_request_is_recorded_once(service) -> None:
    client = service.client(**{"Idempotency-Key": "k1"})
    silence = {"nodes": ["n1"], "ends_at": time.time() + 600, "reason": "fan"}
    first, second = (client.post("/v1/silences", json=silence) for _ in range(2))
    assert first.json() == second.json()
    assert len(entries(service, action="create_silence")) == 1


def test_an_act_beside_a_question_is_recorded(service, report) -> None:
    assert service.node_client("n1").put("/v1/nodes/n1", json=report).status_code == 200
    question = {"job": "j", "nodes": ["n1"]}
    assert service.client().post("/v1/admission", json=question).status_code == 200
    assert entries(service, action="admit") == []
    assert service.client().post("/v1/admission", json=question | {"preempt": True}).status_code == 200
    assert [entry["detail"]["nodes"] for entry in entries(service, action="admit")] == [["n1"]]


def test_what_nodes_and_jobs_report_is_no_act(service, report) -> None:
    assert service.node_client("n1").put("/v1/nodes/n1", json=report).status_code == 200
    assert {act["action"] for act in entries(service)} <= {"create_token", "enroll_node"}


def test_no_secret_is_recorded(service) -> None:
    admin = service.client()
    password = "a password that is long"
    admin.post("/v1/users", json={"name": "bob", "password": password, "role": "viewer"})
    admin.put("/v1/users/bob/password", json={"password": f"{password} 2"})
    browser = service.client("", Origin=service.url)
    assert browser.post("/v1/auth/session", json={"name": "bob", "password": f"{password} 2"}).status_code == 204
    change = {"current_password": f"{password} 2", "password": f"{password} 3"}
    assert browser.put("/v1/auth/password", json=change).status_code == 204
    secret = admin.post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]}).json()["token"]
    assert service.client("").post("/v1/auth/session", json={"token": secret}).status_code == 204
    everything = json.dumps(entries(service))
    assert len(entries(service)) == 6
    assert password not in everything
    assert secret not in everything


def test_the_log_cannot_be_changed(service_anywhere) -> None:
    service_anywhere.client().post("/v1/auth/tokens", json={"name": "t", "scopes": ["read"]})
    before = entries(service_anywhere)
    for statement in ("UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log"):
        with (
            pytest.raises(DBAPIError, match="append-only"),
            service_anywhere.services.database.session() as session,
        ):
            session.execute(text(statement))
    assert entries(service_anywhere) == before


def test_it_is_exported_whole_and_runs_no_formula(service) -> None:
    with service.services.database.session() as session:
        for number in range(1500):
            record_act(
                session, at=float(number), actor="=1+1", actor_kind="rule", action="a", target="t", detail={"n": number}
            )
    answer = service.client().get("/v1/audit-log.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [json.loads(row["detail"])["n"] for row in rows] == list(range(1500))
    assert rows[1]["at"] == "1970-01-01T00:00:01.000+00:00"
    assert {row["actor"] for row in rows} == {"'=1+1"}
    some = service.client().get("/v1/audit-log.csv", params={"since": 10, "until": 12}).text
    assert len(some.splitlines()) == 3
