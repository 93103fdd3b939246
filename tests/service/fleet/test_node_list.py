"""The list of nodes: order, filters, counts and pages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

Json = dict[str, Any]


@pytest.fixture
def admin(service_anywhere: Any, report: Json, run_job: Any, operator: Any) -> httpx.Client:
    """Six nodes in two racks and two cohorts; one is quarantined, two run a job."""
    service_anywhere.hold_still()
    client: httpx.Client = service_anywhere.client()
    for number in range(6):
        where = {"rack": f"r{number % 2}", "cohort": "h100" if number < 4 else "b200", "hostname": f"host-{number}"}
        assert client.put(f"/v1/nodes/n{number}", json=report | where).is_success
    moved = operator(service_anywhere).post("/v1/nodes/n4:quarantine", json={"reason": "test"})
    assert moved.is_success, moved.text
    run_job(service_anywhere, "n1", "n2", dp=2)
    return client


def listed(client: httpx.Client, **query: Any) -> Json:
    answer = client.get("/v1/nodes", params=query)
    assert answer.status_code == 200, answer.text
    told: Json = answer.json()
    return told


def names(told: Json) -> list[str]:
    return [node["name"] for node in told["items"]]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("name", "012345"), ("-name", "543210"), ("state", "401235"), ("-state", "532104"), ("rack", "024135"),
        ("-rack", "531420"), ("cohort", "450123"), ("last_seen", "012345"), ("-last_seen", "543210"),
        ("incidents", "012345"),
    ],
)  # fmt: skip
def test_every_order_is_one_of_all_pages(admin: httpx.Client, sort: str, order: str) -> None:
    walked: list[str] = []
    cursor: str | None = None
    while True:
        told = listed(admin, sort=sort, limit=2, **({"cursor": cursor} if cursor else {}))
        assert told["total"] == 6
        walked += names(told)
        cursor = told["next_cursor"]
        if cursor is None:
            break
    assert walked == [f"n{place}" for place in order]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"rack": "r1"}, "135"), ({"cohort": "b200"}, "45"), ({"state": "quarantined"}, "4"), ({"job": "demo"}, "12"),
        ({"q": "HOST-3"}, "3"), ({"q": "b200"}, "45"), ({"rack": "r0", "job": "demo"}, "2"), ({"rack": "none"}, ""),
    ],
)  # fmt: skip
def test_filters_are_met_all_at_once(admin: httpx.Client, query: Json, found: str) -> None:
    told = listed(admin, facets=True, **query)
    assert names(told) == told["names"] == [f"n{place}" for place in found]
    assert told["total"] == len(found)


def test_counts_say_what_another_choice_would_show(admin: httpx.Client) -> None:
    told = listed(admin, rack="r0", facets=True, limit=1)
    counts = {name: {one["value"]: one["count"] for one in facet} for name, facet in told["facets"].items()}
    assert counts == {
        "state": {"quarantined": 1, "unknown": 2}, "rack": {"r0": 3, "r1": 3}, "cohort": {"b200": 1, "h100": 2},
        "job": {"demo": 1},
    }  # fmt: skip
    assert listed(admin)["facets"] is None
    assert listed(admin, facets=True)["names"] is None, "all: nothing to say"


def test_a_cursor_of_another_order_is_refused(admin: httpx.Client) -> None:
    cursor = listed(admin, sort="state", limit=1)["next_cursor"]
    answer = admin.get("/v1/nodes", params={"sort": "rack", "cursor": cursor})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:mainstay:problem:invalid-cursor")
    assert admin.get("/v1/nodes", params={"sort": "color"}).status_code == 422
