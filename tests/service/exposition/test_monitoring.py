"""The rules and the dashboard in docs/monitoring ask for nothing that a running service does not have."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mainstay.probes.ids import uuid7
from tests.service.exposition.fleet import Fleet

DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitoring"
RULES = [rule for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana-fleet.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SELECTOR = re.compile(r"\b(mainstay_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"[^"]*"')
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)")
EVERYWHERE = {"job", "instance"}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"panel {panel['title']} {target['refId']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]


EXPRESSIONS = list(expressions())


@pytest.fixture(scope="module")
def exposed(lasting_service: Any, any_report: dict[str, Any]) -> dict[str, set[str]]:
    """Series name → labels, of a service that has one of everything."""
    Fleet(lasting_service, any_report).add_one_of_everything()
    xid = {"id": uuid7(), "time": time.time(), "kind": "xid", "node": "n1", "device": "gpu0", "data": {"code": 79}}
    lost = {"id": uuid7(), "time": time.time(), "kind": "node_lost", "node": "n1", "job": "train", "rank": 0}
    for event in (xid, lost):
        assert lasting_service.client().post("/v1/events", json={"items": [event]}).status_code == 200
    deadline = time.monotonic() + 60
    while True:
        found = read(lasting_service)
        if found.get("mainstay_incidents_by_kind") and found.get("mainstay_findings_active_by_kind"):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(service: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    text = service.client("").get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        found.setdefault(name, set())  # a family that has no series yet
    return found


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_only_names_and_labels_that_are_there(exposed: dict[str, set[str]], where: str, expression: str) -> None:
    selectors = SELECTOR.findall(expression)
    assert selectors, "it asks for nothing of ours"
    labels = set(EVERYWHERE)
    for name, matchers in selectors:
        assert name in exposed, name
        labels |= exposed[name]
        if exposed[name]:  # known only where there is a series
            assert set(MATCHER.findall(matchers)) <= exposed[name] | EVERYWHERE, name
    if all(exposed[name] for name, _ in selectors):
        for named in GROUPING.findall(expression):
            assert {label.strip() for label in named.split(",") if label.strip()} <= labels, expression


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_expressions_are_closed(where: str, expression: str) -> None:
    plain = re.sub(r'"[^"]*"', '""', expression)
    for open_, close in ("()", "[]", "{}"):
        assert plain.count(open_) == plain.count(close), where
    for window in re.findall(r"\[([^\]]*)\]", plain):
        assert re.fullmatch(r"\d+[smhd]|\$__\w+", window), where
    for metric in re.findall(r"(?:rate|increase)\(\s*(\w+)", plain):
        assert metric.endswith("_total"), f"{metric} is no counter"


def test_every_rule_says_how_bad_and_what() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]


@pytest.mark.parametrize(
    "topic",
    [
        "node_state",
        "probe_unresponsive",
        "needing_operator",
        "breaker_open",
        "rejected",
        "data_age",
        "thermal",
        "ecc",
        "xid",
    ],
)
def test_what_must_wake_somebody_has_a_rule(topic: str) -> None:
    assert any(topic in rule["expr"] for rule in RULES)


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    assert DASHBOARD["uid"] == "mainstay-fleet"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    kinds = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert kinds["datasource"] == "datasource"
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert {v for t in panel["targets"] for v in re.findall(r"\$(\w+)", t["expr"])} <= {*kinds}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
