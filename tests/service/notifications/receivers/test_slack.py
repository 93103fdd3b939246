"""Slack's incoming webhook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.receivers.slack import Slack
from tests.service.notifications.receivers.samples import ACKNOWLEDGE, Courier, hostile, incident, message, trial
from tests.service.notifications.receivers.vendors import SLACK_PATH, Vendor, slack


@pytest.fixture
def vendor(open_vendor: Callable[..., Vendor]) -> Vendor:
    return open_vendor(slack)


@pytest.fixture
def receiver(vendor: Vendor, courier: Courier) -> Slack:
    return Slack(kind="slack", url_secret=courier.keep("slack", vendor.url + SLACK_PATH))


def test_a_message(vendor: Vendor, receiver: Slack, courier: Courier) -> None:
    receiver.send(message(), courier.delivery())
    header, section, actions = vendor.last.json["blocks"]
    assert header["text"]["text"] == "[critical] GPU 3 of n1 fell off the bus"
    assert section["text"]["text"] == "*<https://mainstay.example/incidents/1|GPU 3 of n1 fell off the bus>*"
    assert section["fields"][0]["text"] == "*Where*\nnode n1 · GPU 3 (serial S-1) · rack r4"
    assert [button["url"] for button in actions["elements"]] == ["https://mainstay.example/incidents/1", ACKNOWLEDGE]
    assert vendor.last.json["text"] == "[critical] GPU 3 of n1 fell off the bus"


def test_a_repeat_and_further_incidents_are_shown(vendor: Vendor, receiver: Slack, courier: Courier) -> None:
    receiver.send(message(NotificationEvent.RESOLVED, incidents_total=4), courier.delivery(2))
    header, _, more, actions = vendor.last.json["blocks"]
    assert (
        header["text"]["text"]
        == "[critical] Resolved: GPU 3 of n1 fell off the bus (and 3 more) (may be a repeat)"
        == vendor.last.json["text"]
    )
    assert more["elements"][0]["text"] == "3 more"
    assert len(actions["elements"]) == 1


def test_a_trial(vendor: Vendor, receiver: Slack, courier: Courier) -> None:
    receiver.send(trial(), courier.delivery())
    header, actions = vendor.last.json["blocks"]
    assert header["text"]["text"] == "[info] Test: ada tests the receiver"
    assert actions["type"] == "actions"


def test_nothing_is_read_as_a_mention_or_a_link(vendor: Vendor, receiver: Slack, courier: Courier) -> None:
    receiver.send(hostile(NotificationEvent.OPENED), courier.delivery())
    texts = [vendor.last.json["text"], *(text["text"] for text in _texts(vendor.last.json["blocks"]))]
    assert len(texts) > 20
    for text in texts:
        assert "<!channel>" not in text
        assert "<@U123>" not in text
    assert all(text["type"] == "plain_text" or text["verbatim"] for text in _texts(vendor.last.json["blocks"]))
    assert vendor.last.json["blocks"][1]["text"]["text"].endswith("&amp;…>*"), "no character is cut in two"


def _texts(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [text for block in blocks if "text" in block for text in [block["text"], *block.get("fields", [])]]


def test_an_incident_without_facts_but_its_time(vendor: Vendor, receiver: Slack, courier: Courier) -> None:
    bare = incident(where="", impact="", action="")
    receiver.send(message(incidents=[bare]), courier.delivery())
    assert len(vendor.last.json["blocks"][1]["fields"]) == 1


@pytest.mark.parametrize(
    ("answer", "again", "after"),
    [
        ((404, "no_service", {}), False, None),
        ((403, "action_prohibited", {}), False, None),
        ((410, "channel_is_archived", {}), False, None),
        ((400, "invalid_blocks", {}), False, None),
        ((429, "rate_limited", {"Retry-After": "30"}), True, 30.0),
        ((429, "rate_limited", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}), True, None),
        ((500, "rollup_error", {}), True, None),
        ((302, "moved", {"Location": "/another"}), False, None),
        ((200, "<html>sign in to this network</html>", {}), False, None),
    ],
)
def test_refusals(
    vendor: Vendor, receiver: Slack, courier: Courier, answer: Any, after: float | None, *, again: bool
) -> None:
    vendor.forced = [answer]
    with pytest.raises(DeliveryError, match=answer[1]) as caught:
        receiver.send(message(), courier.delivery())
    assert (caught.value.again, caught.value.after_seconds) == (again, after)
    assert len(vendor.received) == 1


def test_a_webhook_that_was_removed(vendor: Vendor, courier: Courier) -> None:
    made = Slack(kind="slack", url_secret=courier.keep("old", f"{vendor.url}/services/T1/B1/removed-long-ago"))
    with pytest.raises(DeliveryError, match="answers 404: no_service") as caught:
        made.send(message(), courier.delivery())
    assert not caught.value.again


def test_a_secret_that_is_no_url(courier: Courier) -> None:
    made = Slack(kind="slack", url_secret=courier.keep("odd", "hooks.slack.com:services"))
    with pytest.raises(DeliveryError) as caught:
        made.send(message(), courier.delivery())
    assert str(caught.value) == "the URL must be http://HOST… or https://HOST…"
    assert caught.value.again
