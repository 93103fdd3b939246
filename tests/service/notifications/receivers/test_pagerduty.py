"""PagerDuty's Events API v2."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mainstay.probes.core_types import Severity
from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.receivers.pagerduty import PagerDuty
from tests.service.notifications.receivers.samples import (
    ACKNOWLEDGE,
    EVENTS,
    GROUP,
    Courier,
    flood,
    incident,
    message,
    trial,
)  # fmt: skip
from tests.service.notifications.receivers.vendors import ROUTING_KEY, Vendor, pagerduty


@pytest.fixture
def vendor(open_vendor: Callable[..., Vendor]) -> Vendor:
    return open_vendor(pagerduty)


@pytest.fixture
def receiver(vendor: Vendor, courier: Courier) -> PagerDuty:
    key = courier.keep("pagerduty", ROUTING_KEY)
    return PagerDuty(kind="pagerduty", routing_key_secret=key, url=f"{vendor.url}/v2/enqueue")


def test_a_message(vendor: Vendor, receiver: PagerDuty, courier: Courier) -> None:
    sent = message()
    receiver.send(sent, courier.delivery())
    event = vendor.last.json
    payload = event.pop("payload")
    assert event == {
        "routing_key": ROUTING_KEY, "event_action": "trigger", "dedup_key": GROUP, "client": "Mainstay",
        "client_url": sent.url,
        "links": [
            {"href": sent.url, "text": "Open in Mainstay"},
            {"href": ACKNOWLEDGE, "text": "Acknowledge in Mainstay"},
        ],
    }  # fmt: skip
    assert payload.pop("custom_details")["incident-1"]["Impact"] == "job llm-7b (64 ranks) stands still"
    moment = datetime.fromisoformat(payload.pop("timestamp"))
    assert moment.tzinfo is UTC
    assert abs(moment.timestamp() - sent.created_at) < 0.001
    assert payload == {
        "summary": "[critical] GPU 3 of n1 fell off the bus", "severity": "critical", "source": "n1", "class": "xid",
        "component": "node n1 · GPU 3 (serial S-1) · rack r4",
    }  # fmt: skip


def test_every_event_has_an_action_and_the_key_of_its_group(
    vendor: Vendor, receiver: PagerDuty, courier: Courier
) -> None:
    for event in EVENTS:
        receiver.send(message(event), courier.delivery())
    assert {received.json["dedup_key"] for received in vendor.received} == {GROUP}
    actions = dict(zip(EVENTS, (received.json["event_action"] for received in vendor.received), strict=True))
    assert actions.pop(NotificationEvent.ACKNOWLEDGED) == "acknowledge"
    assert actions.pop(NotificationEvent.RESOLVED) == "resolve"
    assert set(actions.values()) == {"trigger"}
    assert PagerDuty.tracks_groups


@pytest.mark.parametrize("severity", list(Severity))
def test_every_severity_is_one_of_theirs(
    vendor: Vendor, receiver: PagerDuty, courier: Courier, severity: Severity
) -> None:
    receiver.send(message(severity=severity), courier.delivery())
    assert vendor.last.json["payload"]["severity"] == severity.value


@pytest.mark.parametrize(
    ("places", "source"),
    [({"node": "n7"}, "n7"), ({"node": None}, "llm-7b"), ({"node": None, "job": None}, "mainstay")],
)
def test_the_source_is_never_empty(
    vendor: Vendor, receiver: PagerDuty, courier: Courier, places: dict[str, Any], source: str
) -> None:
    receiver.send(message(incidents=[incident(**places, where="")]), courier.delivery())
    assert vendor.last.json["payload"]["source"] == source
    assert "component" not in vendor.last.json["payload"]


def test_a_trial_and_a_repeat(vendor: Vendor, receiver: PagerDuty, courier: Courier) -> None:
    receiver.send(trial(), courier.delivery(2))
    assert vendor.last.json["payload"]["summary"] == "[info] Test: ada tests the receiver (may be a repeat)"
    assert vendor.last.json["payload"]["custom_details"] == {"incidents": 0}


def test_further_incidents_are_counted(vendor: Vendor, receiver: PagerDuty, courier: Courier) -> None:
    receiver.send(flood(NotificationEvent.ESCALATED), courier.delivery())
    details = vendor.last.json["payload"]["custom_details"]
    assert details.pop("incidents") == 4000
    assert len(details) == 5


@pytest.mark.parametrize(
    ("answer", "again", "after"),
    [
        ((400, "Event object is invalid", {}), False, None),
        ((429, "", {"Retry-After": "120"}), True, 120.0),
        ((500, "", {}), True, None),
        ((503, "", {}), True, None),
    ],
)
def test_refusals(
    vendor: Vendor, receiver: PagerDuty, courier: Courier, answer: Any, after: float | None, *, again: bool
) -> None:
    vendor.forced = [answer]
    with pytest.raises(DeliveryError, match=f"answers {answer[0]}") as caught:
        receiver.send(message(), courier.delivery())
    assert (caught.value.again, caught.value.after_seconds) == (again, after)


def test_another_key_is_refused_and_not_shown(vendor: Vendor, receiver: PagerDuty, courier: Courier) -> None:
    courier.keep("pagerduty", "f" * 32)
    with pytest.raises(DeliveryError, match=r"answers 400: .*'routing_key' is invalid: \*\*\*") as caught:
        receiver.send(message(), courier.delivery())
    assert not caught.value.again
