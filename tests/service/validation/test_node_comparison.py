"""A node before and after, over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

Json = dict[str, Any]


@pytest.fixture
def measure(service: Any, admin: httpx.Client, enroll: Callable[..., Any]) -> Callable[..., str]:
    """Validate a node at a scale; the validation's id."""
    nodes: dict[str, Any] = {}

    def run(name: str, scale: float) -> str:
        node = nodes.get(name) or nodes.setdefault(name, enroll(service, name))
        node.scale = scale
        made = admin.post("/v1/validations", json={"node": name, "suite": "quick"}).json()
        (order,) = node.orders()
        assert node.obey(order).status_code == 200
        found: str = made["id"]
        return found

    return run


def test_a_repaired_node_is_held_against_its_own_past(admin: httpx.Client, measure: Any) -> None:
    for i in range(6):
        for scale in (1.0 + i / 50, 1.001 + i / 50):
            measure(f"other{i}", scale)
    before, worse = measure("n1", 1.0), measure("n1", 0.8)
    told = admin.get(f"/v1/validations/{worse}/comparison").json()
    assert (told["node"], told["before"], told["after"], told["verdict"]) == ("n1", before, worse, "fail")
    first = told["changes"][0]
    assert (first["verdict"], first["before"], first["after"]) == ("fail", 100.0, 80.0)
    assert first["worse"] == pytest.approx(0.25)
    same = measure("n1", 1.0)
    told = admin.get(f"/v1/validations/{same}/comparison", params={"before": before}).json()
    assert told["verdict"] == "pass", told["changes"][0]["reason"]


def test_what_cannot_be_compared_is_named(admin: httpx.Client, measure: Any) -> None:
    first, stranger = measure("n1", 1.0), measure("n2", 1.0)
    alone = admin.get(f"/v1/validations/{first}/comparison")
    assert (alone.status_code, alone.json()["type"]) == (404, "urn:mainstay:problem:no-earlier-validation")
    other = admin.get(f"/v1/validations/{stranger}/comparison", params={"before": first})
    assert (other.status_code, other.json()["type"]) == (422, "urn:mainstay:problem:node-mismatch")
    second = admin.get(f"/v1/validations/{measure('n1', 0.5)}/comparison").json()
    assert second["verdict"] == "unknown", "no other node was measured twice"
