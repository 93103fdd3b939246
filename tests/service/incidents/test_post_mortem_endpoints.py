"""Post-mortems of a real service, and links that show one without signing in."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from mainstay.service.common.signed_links import sign
from mainstay.service.incidents import service as incidents
from mainstay.service.incidents.opening import open_incident
from mainstay.service.notifications import config
from mainstay.service.notifications.links import AcknowledgeLink
from mainstay.service.stream import changes
from tests.fakes.clock import ManualClock
from tests.service.conftest import Running

Json = dict[str, Any]
START = 1_800_000_000.0
DAY = 86_400


def put_incident(service: Running, title: str = "XID 79") -> str:
    with service.services.database.session() as session:
        context = incidents.Context(session, service.settings, service.services.clock.now())
        return open_incident(
            context, kinds=["xid"], severity="critical", job=None, node="n1", device=None, ranks=[], title=title,
            summary=title,
        ).id  # fmt: skip


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def running(start: Callable[..., Running], clock: ManualClock, database_url: str) -> Running:
    url = "https://mainstay.example"
    return start(clock, database_url=database_url, notifications={"dashboard_url": url})


def share(service: Running, incident: str, **body: Any) -> httpx.Response:
    return service.client().post(f"/v1/incidents/{incident}:share", json=body)


def shown(service: Running, url: str) -> httpx.Response:
    return service.client("").post("/v1/shared-incidents", json={"token": url.partition("#")[2]})


def test_the_post_mortem_of_a_recovered_job(job: Any) -> None:
    job.kill()
    job.wait_for("open")
    plan = job.plan()
    job.recover(plan["id"])
    job.verify(plan["id"])
    incident = job.wait_for("verified")["id"]
    job.client.post(f"/v1/incidents/{incident}:comment", json={"text": "GPU 1 was warm | **very**"})
    found: Json = job.client.get(f"/v1/incidents/{incident}/post-mortem").json()
    assert found["times"]["recovery_seconds"] >= 0
    assert found["times"]["detection_seconds"] == 0.05
    assert (found["impact"]["gpus"], found["impact"]["steps_lost"]) == (4, 0), "no step was lost, as reported"
    assert found["impact"]["idle_gpu_hours"] > 0
    assert [one["strategy"] for one in found["plan"]["alternatives"]] == ["peer_copy", "disk_restart"]
    assert found["recoveries"][0]["predicted_seconds"] == 0.8
    assert [one["kind"] for one in found["findings"]] == ["process_exit"]
    assert [one["text"] for one in found["comments"]] == ["GPU 1 was warm | **very**"]

    answer = job.client.get(f"/v1/incidents/{incident}/post-mortem.md")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="post-mortem-{incident}.md"'
    assert "| peer copy (chosen) | yes | 0.8 s | 0.8 s | a peer holds it |" in answer.text
    assert "> GPU 1 was warm \\| \\*\\*very\\*\\*" in answer.text
    assert "## Follow-up actions" in answer.text


def test_a_link_shows_one_incident_until_it_expires(running: Running, clock: ManualClock) -> None:
    incident, other = put_incident(running), put_incident(running, "another one")
    made = share(running, incident, expires_in=3600)
    assert made.status_code == 200, made.text
    url, expires_at = made.json()["url"], made.json()["expires_at"]
    assert url.startswith("https://mainstay.example/shared#")
    assert expires_at == START + 3600
    answer = shown(running, url)
    assert answer.status_code == 200, answer.text
    assert answer.json()["incident"]["id"] == incident
    assert other not in answer.text
    assert answer.json() == running.client().get(f"/v1/incidents/{incident}/post-mortem").json()
    entry = running.client().get(f"/v1/incidents/{incident}").json()["timeline"][-1]
    assert entry["kind"] == "shared"
    assert entry["text"].endswith("made a link to the post-mortem, valid until 2027-01-15T09:00:00.000Z.")
    assert entry["data"] == {"actor": entry["text"].split(" made")[0], "expires_at": expires_at}
    clock.advance(3600)
    assert shown(running, url).status_code == 200
    clock.advance(1)
    late = shown(running, url)
    assert (late.status_code, late.json()["type"]) == (422, "urn:mainstay:problem:invalid-link")
    assert "has expired" in late.json()["detail"]


def test_a_link_is_valid_for_a_week_unless_asked_otherwise(running: Running) -> None:
    incident = put_incident(running)
    assert share(running, incident).json()["expires_at"] == START + 7 * DAY
    assert share(running, incident, expires_in=30 * DAY).status_code == 200
    for wrong in (30 * DAY + 1, 59, 0, -1, True, "3600", 3600.5, None):
        refused = share(running, incident, expires_in=wrong)
        assert refused.status_code == 422, wrong
        assert "expires_in" in refused.text
    assert share(running, "absent").status_code == 404


def test_other_tokens_show_nothing(running: Running) -> None:
    assert shown(running, "#abc.def").status_code == 422, "no link was made yet"
    incident = put_incident(running)
    url = share(running, incident).json()["url"]
    with running.services.database.reading() as session:
        key = config.link_key(session)
    acknowledges = sign(AcknowledgeLink(group=incident, receiver="r", expires_at=int(START) + 60), key)
    for token in ("nonsense", acknowledges, url.partition("#")[2][:-2]):
        answer = shown(running, f"#{token}")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:mainstay:problem:invalid-link"), token
    assert running.client("").post("/v1/shared-incidents", json={"token": ""}).status_code == 422


def test_many_wrong_tokens_are_refused(running: Running) -> None:
    limit = running.settings.auth.sign_in_failures
    answers = [shown(running, "#wrong").status_code for _ in range(limit + 1)]
    assert answers == [422] * limit + [429]


def test_who_may_only_read_shares_nothing(running: Running) -> None:
    incident = put_incident(running)
    body = {"name": "viewer", "kind": "user", "scopes": ["read"]}
    viewer = running.client(running.client().post("/v1/auth/tokens", json=body).json()["token"])
    assert viewer.get(f"/v1/incidents/{incident}/post-mortem").status_code == 200
    assert viewer.post(f"/v1/incidents/{incident}:share", json={}).status_code == 403
    assert running.client("").get(f"/v1/incidents/{incident}/post-mortem").status_code == 401


def is_settled(running: Running) -> bool:
    """Transactions of other tests on the same PostgreSQL hold back all changes."""
    with running.services.database.reading() as session:
        return changes.delay(session, math.inf) == 0.0


def test_a_link_before_the_first_configuration_sends_no_old_incident(running: Running, eventually: Any) -> None:
    """Both use the same row: its cursor starts with the configuration."""
    old = put_incident(running, "old")
    url = share(running, old).json()["url"]
    text = '[receivers.a]\nkind = "webhook"\nurl = "http://127.0.0.1:9/a"\n[[routes]]\nname = "a"\nreceivers = ["a"]\n'
    eventually(lambda: is_settled(running))
    running.services.clock.advance(1)  # type: ignore[attr-defined]
    admin = running.client()
    assert admin.put("/v1/notifications/config", json={"text": text, "replaces": 0}).status_code == 200
    put_incident(running, "new")
    items = eventually(lambda: admin.get("/v1/notifications").json()["items"])
    assert [one["title"] for one in items] == ["[critical] new"]
    assert shown(running, url).status_code == 200, "the key stays"
