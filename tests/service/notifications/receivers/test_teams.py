"""The webhook of a workflow in Teams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.receivers.teams import Teams
from tests.service.notifications.receivers.samples import ACKNOWLEDGE, Courier, fiery, flood, message, trial
from tests.service.notifications.receivers.vendors import TEAMS_PATH, Vendor, teams


@pytest.fixture
def vendor(open_vendor: Callable[..., Vendor]) -> Vendor:
    return open_vendor(teams)


@pytest.fixture
def receiver(vendor: Vendor, courier: Courier) -> Teams:
    return Teams(kind="teams", url_secret=courier.keep("teams", vendor.url + TEAMS_PATH))


def card(vendor: Vendor) -> dict[str, Any]:
    found: dict[str, Any] = vendor.last.json["attachments"][0]["content"]
    return found


def lines(vendor: Vendor) -> list[str]:
    return ["".join(run["text"] for run in block["inlines"]) for block in card(vendor)["body"]]


def test_a_message(vendor: Vendor, receiver: Teams, courier: Courier) -> None:
    receiver.send(message(), courier.delivery())
    title, incident, where, *_ = lines(vendor)
    assert title == "[critical] GPU 3 of n1 fell off the bus"
    assert incident == "GPU 3 of n1 fell off the bus"
    assert where == "Where: node n1 · GPU 3 (serial S-1) · rack r4"
    assert card(vendor)["body"][1]["inlines"][0]["selectAction"]["url"] == "https://mainstay.example/incidents/1"
    assert [action["url"] for action in card(vendor)["actions"]] == [
        "https://mainstay.example/incidents/1",
        ACKNOWLEDGE,
    ]


def test_a_repeat_and_further_incidents_are_shown(vendor: Vendor, receiver: Teams, courier: Courier) -> None:
    receiver.send(flood(NotificationEvent.UPDATED), courier.delivery(2))
    assert lines(vendor)[0] == "[critical] Update: GPU 3 of n1 fell off the bus (and 3999 more) (may be a repeat)"
    assert lines(vendor)[-1] == "3995 more"


def test_a_trial(vendor: Vendor, receiver: Teams, courier: Courier) -> None:
    receiver.send(trial(), courier.delivery())
    assert lines(vendor) == ["[info] Test: ada tests the receiver"]
    assert len(card(vendor)["actions"]) == 1


def test_a_card_that_would_be_too_large_shows_fewer_incidents(
    vendor: Vendor, receiver: Teams, courier: Courier
) -> None:
    receiver.send(fiery(NotificationEvent.OPENED), courier.delivery())
    assert len(vendor.last.body) <= 20_000
    (more,) = [line for line in lines(vendor) if line.endswith(" more")]
    titles = [block for block in card(vendor)["body"] if block.get("separator")]
    assert len(titles) == 5 - int(more.split()[0]) > 0


@pytest.mark.parametrize(
    ("answer", "again", "after"),
    [
        ((404, "WorkflowNotFound", {}), False, None),
        ((400, "TriggerInputSchemaMismatch", {}), False, None),
        ((413, "RequestEntityTooLarge", {}), False, None),
        ((429, "TooManyRequests", {"Retry-After": "17"}), True, 17.0),
        ((502, "NoResponse", {}), True, None),
    ],
)
def test_refusals(
    vendor: Vendor, receiver: Teams, courier: Courier, answer: Any, after: float | None, *, again: bool
) -> None:
    vendor.forced = [answer]
    with pytest.raises(DeliveryError, match=f"answers {answer[0]}: {answer[1]}") as caught:
        receiver.send(message(), courier.delivery())
    assert (caught.value.again, caught.value.after_seconds) == (again, after)


def test_another_signature_is_refused(vendor: Vendor, courier: Courier) -> None:
    made = Teams(kind="teams", url_secret=courier.keep("old", f"{vendor.url}{TEAMS_PATH}changed"))
    with pytest.raises(DeliveryError, match=r"answers 401: .*DirectApiAuthorizationRequired") as caught:
        made.send(message(), courier.delivery())
    assert not caught.value.again
