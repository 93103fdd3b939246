"""``/v1/notifications`` on a real service: configuration, tests of receivers, the log, and links."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.service.conftest import Running

Json = dict[str, Any]


class Receiver(ThreadingHTTPServer):
    """Accepts webhooks on a free port."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join(20)
    server.server_close()


def text(receiver: Receiver) -> str:
    return (
        f'[receivers.hook]\nkind = "webhook"\nurl = "{receiver.url}"\nsigning_secret = "sign"\n'
        '[[routes]]\nname = "all"\nreceivers = ["hook"]\n'
    )


def add_secret(service: Running) -> None:
    directory = service.settings.secrets_dir
    directory.mkdir(mode=0o700)
    file = directory / "sign"
    file.touch(mode=0o600)
    file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")


def test_an_event_becomes_a_message_and_its_link_acknowledges(
    service_anywhere: Running, receiver: Receiver, eventually: Callable[..., Any], any_report: Json
) -> None:
    service = service_anywhere
    add_secret(service)
    admin = service.client()
    stored = admin.put("/v1/notifications/config", json={"text": text(receiver), "replaces": 0})
    assert stored.status_code == 200, stored.text
    assert stored.json()["version"] == 1
    assert stored.json()["receivers"][0]["missing_secrets"] == []
    node = service.node_client("n1")
    assert node.put("/v1/nodes/n1", json=any_report).status_code == 200
    event = {"id": "01890000-0000-7000-8000-000000000001", "time": service.services.clock.now(), "kind": "xid",
             "node": "n1", "device": None, "data": {"code": 79, "source": "nvml"}}  # fmt: skip
    assert node.post("/v1/events", json={"items": [event]}).status_code == 200
    [message] = eventually(lambda: receiver.messages)
    assert message["event"] == "opened"
    assert message["incidents"][0]["where"] == "node n1"
    incident = message["incidents"][0]["id"]
    [row] = eventually(lambda: _delivered(admin, incident))
    assert (row["receiver"], row["attempts"], row["error"]) == ("hook", 1, "")

    token = message["acknowledge_url"].split("#")[1]
    stranger = service.client("")
    answer = stranger.post("/v1/notifications:acknowledge", json={"token": token})
    assert answer.status_code == 200, answer.text
    assert [one["acknowledged_by"] for one in answer.json()["incidents"]] == ["receiver hook"]
    again = stranger.post("/v1/notifications:acknowledge", json={"token": token})
    assert again.json() == answer.json()
    detail = admin.get(f"/v1/incidents/{incident}").json()
    assert detail["acknowledged_by"] == "receiver hook"
    assert [entry["kind"] for entry in detail["timeline"]].count("acknowledged") == 1
    assert stranger.get("/v1/notifications").status_code == 401


def _delivered(admin: Any, incident: str) -> list[Json]:
    rows: list[Json] = admin.get(f"/v1/notifications?incident={incident}").json()["items"]
    return [row for row in rows if row["state"] == "delivered"]


def test_a_test_message_goes_through_the_outbox(
    service: Running, receiver: Receiver, eventually: Callable[..., Any]
) -> None:
    admin = service.client()
    assert admin.post("/v1/notifications:test", json={"receiver": "hook"}).status_code == 404
    admin.put("/v1/notifications/config", json={"text": text(receiver), "replaces": 0})
    sent = admin.post("/v1/notifications:test", json={"receiver": "hook"})
    assert sent.status_code == 202, sent.text
    config = admin.get("/v1/notifications/config").json()
    assert config["receivers"][0]["missing_secrets"] == ["sign"]
    found = eventually(lambda: _with_error(admin, sent.json()["id"]))
    assert "sign" in found["error"]
    add_secret(service)
    eventually(lambda: receiver.messages)
    assert receiver.messages[0]["event"] == "test"
    assert receiver.messages[0]["attempt"] >= 2


def _with_error(admin: Any, message: str) -> Json | None:
    rows = admin.get("/v1/notifications?receiver=hook").json()["items"]
    return next((row for row in rows if row["id"] == message and row["error"]), None)


def test_a_fault_in_the_text_leaves_the_version_before_in_force(service: Running, receiver: Receiver) -> None:
    admin = service.client()
    good = {"text": text(receiver), "replaces": 0}
    admin.put("/v1/notifications/config", json=good)
    bad = admin.put("/v1/notifications/config", json={"text": "[[routes]]\nname = 1", "replaces": 1})
    assert bad.status_code == 422
    assert "routes.0" in bad.json()["detail"]
    assert admin.put("/v1/notifications/config", json=good).status_code == 409, "another version is in force"
    assert admin.get("/v1/notifications/config").json()["version"] == 1


def test_only_an_administrator_changes_the_configuration(service: Running, receiver: Receiver) -> None:
    admin = service.client()
    made = admin.post("/v1/auth/tokens", json={"name": "ops", "scopes": ["read", "act"]})
    operator = service.client(made.json()["token"])
    body = {"text": text(receiver), "replaces": 0}
    assert operator.put("/v1/notifications/config", json=body).status_code == 403
    assert operator.get("/v1/notifications/config").status_code == 200


@pytest.mark.parametrize("token", ["x", "abc.def", "a" * 1000])
def test_a_wrong_link_changes_nothing(service: Running, receiver: Receiver, token: str) -> None:
    service.client().put("/v1/notifications/config", json={"text": text(receiver), "replaces": 0})
    answer = service.client("").post("/v1/notifications:acknowledge", json={"token": token})
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith("invalid-link")
