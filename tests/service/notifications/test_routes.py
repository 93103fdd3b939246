"""Routes: which incidents they take, when, and which incidents are one group."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mainstay.probes.core_types import Severity
from mainstay.service.notifications.config import InvalidConfigError, parse
from mainstay.service.notifications.routes import Hours, Route, RoutedIncident

RECEIVERS = '[receivers.oncall]\nkind = "webhook"\nurl = "https://hooks.example/a"\n'


def incident(**changes: Any) -> RoutedIncident:
    values: dict[str, Any] = {"id": "i1", "severity": Severity.CRITICAL, "needs_operator": False}
    return RoutedIncident(**values | changes)


def route(**changes: Any) -> Route:
    return Route.model_validate({"name": "r", "receivers": ["oncall"]} | changes)


@pytest.mark.parametrize(
    ("conditions", "about", "taken"),
    [
        ({}, {}, True),
        ({}, {"severity": Severity.INFO}, False),
        ({"min_severity": "info"}, {"severity": Severity.INFO}, True),
        ({"min_severity": "critical"}, {"severity": Severity.WARNING}, False),
        ({"needs_operator": True}, {}, False),
        ({"needs_operator": True}, {"needs_operator": True}, True),
        ({"kinds": ["xid", "node_lost"]}, {"kinds": frozenset({"node_lost"})}, True),
        ({"kinds": ["xid"]}, {"kinds": frozenset({"node_lost"})}, False),
        ({"kinds": ["xid"]}, {}, False),
        ({"causes": ["network"]}, {"cause": "network"}, True),
        ({"causes": ["network"]}, {"cause": None}, False),
        ({"racks": ["r1*", "r20"]}, {"racks": frozenset({"r7", "r12"})}, True),
        ({"racks": ["r1"]}, {"racks": frozenset({"r12"})}, False),
        ({"racks": ["*"]}, {}, False),
        ({"nodes": ["n?"], "jobs": ["llm-*"]}, {"nodes": frozenset({"n1"})}, False),
        ({"nodes": ["n?"], "jobs": ["llm-*"]}, {"nodes": frozenset({"n1"}), "jobs": frozenset({"llm-70b"})}, True),
        ({"cohorts": ["h100"]}, {"cohorts": frozenset({"H100"})}, False),
    ],
)
def test_all_conditions_must_hold(conditions: dict[str, Any], about: dict[str, Any], *, taken: bool) -> None:
    assert route(**conditions).matches(incident(**about), 0.0) is taken


@pytest.mark.parametrize(
    ("hours", "moment", "inside"),
    [
        ("Mon-Fri 09:00-18:00", (2026, 11, 27, 9, 0), True),  # a Friday
        ("Mon-Fri 09:00-18:00", (2026, 11, 27, 18, 0), False),
        ("Mon-Fri 09:00-18:00", (2026, 11, 28, 12, 0), False),
        ("Mon-Fri 22:00-06:00", (2026, 11, 28, 5, 59), True),  # what began on Friday
        ("Mon-Fri 22:00-06:00", (2026, 11, 29, 5, 0), False),
        ("Sat-Mon 00:00-24:00", (2026, 11, 30, 23, 59), True),
        ("Sat-Mon 00:00-24:00", (2026, 12, 1, 0, 0), False),
        ("Sun 10:00-12:00", (2026, 11, 29, 10, 30), True),
    ],
)
def test_hours(hours: str, moment: tuple[int, ...], *, inside: bool) -> None:
    year, month, day, hour, minute = moment
    assert Hours.parse(hours).contains(datetime(year, month, day, hour, minute, tzinfo=UTC)) is inside


def test_hours_are_those_of_the_time_zone() -> None:
    nine = datetime(2026, 11, 27, 8, 30, tzinfo=UTC).timestamp()
    assert route(hours="Mon-Fri 09:00-18:00", timezone="Europe/Berlin").matches(incident(), nine)
    assert not route(hours="Mon-Fri 09:00-18:00").matches(incident(), nine)


def test_the_first_route_that_matches_takes_the_incident() -> None:
    config = parse(
        RECEIVERS
        + """
[[routes]]
name = "copy"
receivers = ["oncall"]
continue = true
[[routes]]
name = "network"
receivers = []
causes = ["network"]
[[routes]]
name = "rest"
receivers = ["oncall"]
"""
    )
    assert [one.name for one in config.routes_of(incident(cause="network"), 0.0)] == ["copy", "network"]
    assert [one.name for one in config.routes_of(incident(), 0.0)] == ["copy", "rest"]


def test_groups() -> None:
    one = incident(racks=frozenset({"b", "a"}), kinds=frozenset({"xid"}))
    assert route().group_key(one) == "incident=i1"
    assert route(group_by=["rack", "kind"]).group_key(one) == "rack=a,b; kind=xid"
    assert route(group_by=[]).group_key(one) == ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("routes = ", "this is not TOML"),
        ('[[routes]]\nname = "a"\nreceivers = ["x"]', "route 'a' names the receiver 'x'"),
        ("[[routes]]\nreceivers = []", "routes.0.name: Field required"),
        ('[[routes]]\nname = "a"\nreceivers = []\nracs = ["r1"]', "routes.0.racs: Extra inputs are not permitted"),
        ('[[routes]]\nname = "a"\nreceivers = []\nkinds = ["xyz"]', "routes.0.kinds"),
        ('[[routes]]\nname = "a"\nreceivers = []\nhours = "9 to 5"', "is not of the form 'Mon-Fri 09:00-18:00'"),
        ('[[routes]]\nname = "a"\nreceivers = []\nhours = "Mon 25:00-26:00"', "names no time of day"),
        ('[[routes]]\nname = "a"\nreceivers = []\ntimezone = "Mars"', "is no time zone"),
        ('[[routes]]\nname = "a"\nreceivers = []\nescalate_minutes = 5', "go together"),
        ('[[routes]]\nname = "a"\nreceivers = []\n[[routes]]\nname = "a"\nreceivers = []', "two routes have the name"),
        ('[receivers.x]\nkind = "pigeon"', "receivers.x"),
        ('[receivers.x]\nkind = "webhook"\nurl = "https://h.example/secret-path"\nbad = 1', "receivers.x.webhook.bad"),
    ],
)
def test_a_fault_is_named_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse(text)
    assert fault in str(caught.value)
    assert "secret-path" not in str(caught.value)
