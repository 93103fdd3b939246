"""Alerts to a real Alertmanager, and what it makes of them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from mainstay.probes.core_types import Severity
from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.receivers.alertmanager import Alertmanager
from mainstay.service.notifications.receivers.base import DeliveryError
from tests.service.conftest import wait_until
from tests.service.notifications.receivers.alert_server import AlertServer, alert_server
from tests.service.notifications.receivers.samples import Courier, hostile, incident, message, trial
from tests.service.notifications.receivers.vendors import Answer, Received, Vendor, accept

OpenVendor = Callable[[Callable[[Received], Answer]], Vendor]
OPENED, UPDATED, RESOLVED = NotificationEvent.OPENED, NotificationEvent.UPDATED, NotificationEvent.RESOLVED


@dataclass
class AlertGroup:
    """One group of incidents in an Alertmanager."""

    server: AlertServer
    hook: Vendor
    courier: Courier
    id: str

    def send(self, event: NotificationEvent, attempt: int = 1, **changes: Any) -> None:
        sent = message(event, **{"group": self.id, **changes})
        Alertmanager(kind="alertmanager", url=self.server.url).send(sent, self.courier.delivery(attempt))

    def active(self) -> list[dict[str, Any]]:
        return self.server.active(self.id)

    def labels(self, name: str) -> list[str]:
        return [alert["labels"][name] for alert in self.active()]

    def reports(self) -> list[str]:
        """What the Alertmanager reported of the group, in order."""
        alerts = [alert for received in self.hook.received for alert in received.json["alerts"]]
        return [alert["status"] for alert in alerts if alert["labels"]["group"] == self.id]


@pytest.fixture(scope="module")
def hook() -> Iterator[Vendor]:
    made = Vendor(accept)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(
    hook: Vendor, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[AlertServer]:
    with alert_server(tmp_path_factory.mktemp("alertmanager"), free_port(), hook.url) as made:
        yield made


@pytest.fixture
def group(server: AlertServer, hook: Vendor, courier: Courier) -> AlertGroup:
    return AlertGroup(server, hook, courier, str(uuid.uuid4()))


@pytest.mark.slow
def test_an_incident_is_an_alert_until_it_is_resolved(group: AlertGroup) -> None:
    opened_at = time.time() - 5
    group.send(OPENED, incidents=[incident(opened_at=opened_at)])
    (alert,) = group.active()
    assert alert["labels"] == {
        "alertname": "MainstayIncident", "group": group.id, "incident": "incident-1", "severity": "critical",
        "node": "n1", "job": "llm-7b", "kind": "xid",
    }  # fmt: skip
    assert alert["annotations"]["summary"] == "GPU 3 of n1 fell off the bus"
    assert "Where: node n1 · GPU 3" in alert["annotations"]["description"]
    assert alert["annotations"]["impact"] == "job llm-7b (64 ranks) stands still"
    assert alert["generatorURL"] == "https://mainstay.example/incidents/1"
    assert abs(datetime.fromisoformat(alert["startsAt"]).timestamp() - opened_at) < 0.01
    wait_until(lambda: group.reports() == ["firing"])
    time.sleep(2.5)  # it outlasts resolve_timeout
    assert len(group.active()) == 1
    group.send(RESOLVED, incidents=[incident(opened_at=opened_at)])
    assert not group.active()
    wait_until(lambda: group.reports() == ["firing", "resolved"])


@pytest.mark.slow
def test_an_incident_that_ends_at_once(group: AlertGroup) -> None:
    for event in (OPENED, RESOLVED):
        group.send(event, incidents=[incident(opened_at=time.time())])
    assert not group.active()


@pytest.mark.slow
def test_a_clock_that_is_ahead_ends_an_alert_too(group: AlertGroup) -> None:
    group.send(OPENED)
    made = Alertmanager(kind="alertmanager", url=group.server.url)
    made.send(message(RESOLVED, group=group.id), group.courier.delivery(now=time.time() + 30))
    assert not group.active()


@pytest.mark.slow
def test_labels_that_change_leave_no_alert_behind(group: AlertGroup) -> None:
    group.send(OPENED, incidents=[incident(severity=Severity.WARNING, node=None)])
    group.send(UPDATED, incidents=[incident(kinds=["xid", "hang"])])
    (alert,) = group.active()
    assert (alert["labels"]["severity"], alert["labels"]["kind"]) == ("critical", "xid,hang")
    group.send(RESOLVED, incidents=[incident(job=None)])
    assert not group.active()


@pytest.mark.slow
def test_incidents_that_a_later_message_leaves_out(group: AlertGroup) -> None:
    """Each message has the newest five; only the last one ends the others."""
    group.send(OPENED, incidents=[incident(n) for n in range(5)])
    group.send(UPDATED, incidents=[incident(n) for n in range(5, 10)], incidents_total=10)
    assert sorted(group.labels("incident")) == [f"incident-{n}" for n in range(10)]
    group.send(UPDATED, incidents=[incident(5), incident(6, state="closed")], incidents_total=10)
    assert sorted(group.labels("incident")) == [f"incident-{n}" for n in (0, 1, 2, 3, 4, 5, 7, 8, 9)]
    other = AlertGroup(group.server, group.hook, group.courier, str(uuid.uuid4()))
    other.send(OPENED)
    group.send(RESOLVED, incidents=[incident(9)], incidents_total=10)
    assert not group.active()
    assert len(other.active()) == 1


@pytest.mark.slow
def test_an_acknowledged_incident_stays_an_alert(group: AlertGroup) -> None:
    group.send(OPENED)
    group.send(NotificationEvent.ACKNOWLEDGED, attempt=2)
    (alert,) = group.active()
    assert alert["annotations"]["event"] == "acknowledged"
    assert alert["annotations"]["summary"] == "GPU 3 of n1 fell off the bus (may be a repeat)"


@pytest.mark.slow
def test_a_trial_ends_after_minutes(group: AlertGroup) -> None:
    sent = trial().model_copy(update={"group": group.id})
    Alertmanager(kind="alertmanager", url=group.server.url).send(sent, group.courier.delivery())
    (alert,) = group.active()
    assert alert["labels"] == {"alertname": "MainstayTest", "group": group.id, "severity": "info"}
    assert 200 < datetime.fromisoformat(alert["endsAt"]).timestamp() - time.time() < 400


@pytest.mark.slow
def test_hostile_texts_and_a_group_with_a_quote(group: AlertGroup) -> None:
    group.id = 'a"b\\c & d'
    for event in (OPENED, UPDATED, RESOLVED):
        sent = hostile(event).model_copy(update={"group": group.id})
        Alertmanager(kind="alertmanager", url=group.server.url).send(sent, group.courier.delivery())
    alerts = [alert for received in group.hook.received for alert in received.json["alerts"]]
    assert len([alert for alert in alerts if alert["labels"]["group"] == group.id]) <= 10
    group.send(OPENED)
    group.id = 'a\\"b\\\\c & d'  # as a filter writes it
    assert len(group.active()) == 1


@pytest.mark.slow
def test_what_it_refuses_is_given_up(server: AlertServer, courier: Courier) -> None:
    made = Alertmanager(kind="alertmanager", url=f"{server.url}/another/path/")
    with pytest.raises(DeliveryError, match="answers 404") as caught:
        made.send(message(), courier.delivery())
    assert not caught.value.again


def test_the_token_and_the_path_of_the_base(open_vendor: OpenVendor, courier: Courier) -> None:
    vendor = open_vendor(lambda received: (200, "[]" if received.method == "GET" else "", {}))
    made = Alertmanager(kind="alertmanager", url=f"{vendor.url}/am/", token_secret=courier.keep("token", "abc"))
    made.send(message(UPDATED), courier.delivery())
    found, sent = vendor.received
    assert (found.method, found.path.split("?")[0]) == ("GET", "/am/api/v2/alerts")
    assert (sent.method, sent.path) == ("POST", "/am/api/v2/alerts")
    assert {received.headers["authorization"] for received in vendor.received} == {"Bearer abc"}


@pytest.mark.parametrize("answer", ["", "<html>", "{}", json.dumps([{"labels": 1}])])
def test_another_server(open_vendor: OpenVendor, courier: Courier, answer: str) -> None:
    made = Alertmanager(kind="alertmanager", url=open_vendor(lambda _: (200, answer, {})).url)
    with pytest.raises(DeliveryError, match="not that of the API v2") as caught:
        made.send(message(UPDATED), courier.delivery())
    assert not caught.value.again


@pytest.mark.parametrize("changes", [{}, {"url": "am:9093"}, {"url": "http://a", "token_secret": "/etc/token"}])
def test_configurations_that_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Alertmanager.model_validate({"kind": "alertmanager", **changes})
