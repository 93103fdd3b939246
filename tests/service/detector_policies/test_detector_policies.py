"""Policies of detectors over REST: listed with what the code says of each detector, and changed one at a time."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.registry import DETECTORS
from mainstay.probes.ids import uuid7
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.remediation.models import RemediationRow
from tests.service.problems import assert_problem

PATH = "/v1/detector-policies"


def change(client: Any, mode: str, version: int, *, detector: str = "straggler", **changes: Any) -> Any:
    body = {"mode": mode, "reason": "false alarms", "version": version, **changes}
    return client.put(f"{PATH}/{detector}", json=body)


def listed(client: Any) -> dict[str, Any]:
    return {item["name"]: item for item in client.get(PATH).json()["items"]}


def store_findings(service: Any) -> None:
    """Three recent findings of one detector, one of them with a drain, and an old one."""
    now = service.services.clock.now()
    same: dict[str, Any] = {"state": "open", "version": 1, "severity": "critical", "needs_operator": False}
    with service.services.database.session() as session:
        session.add(
            IncidentRow(id="i1", title="t", summary="s", opened_at=now, updated_at=now, ranks=[], kinds=[], **same)
        )
        session.flush()
        for node, age_days, active in (("n1", 1, True), ("n2", 2, True), ("n3", 3, False), ("n4", 40, False)):
            session.add(
                FindingRow(
                    id=uuid7(), key=node, kind="xid", node=node, time=now - age_days * 86_400, severity="critical",
                    detector="xid", confidence=1.0, evidence={"summary": "x", "numbers": {}, "series": []},
                    active=active, recommended_action="reset_gpu", incident_id="i1",
                )
            )  # fmt: skip
        for node, state in (("n1", "done"), ("n2", "dismissed"), ("n4", "done")):
            session.add(
                RemediationRow(
                    id=uuid7(), incident_id="i1", node=node, recommended_action="reset_gpu", state=state,
                    dry_run=False, reason="r", rules=[], tried=[], created_at=now, decided_at=now, decided_by="a",
                )
            )  # fmt: skip


def test_every_detector_is_listed_with_what_it_found(service_anywhere) -> None:
    service_anywhere.hold_still()
    store_findings(service_anywhere)
    found = listed(service_anywhere.client())
    assert list(found) == sorted(DETECTORS)
    xid, straggler = found["xid"], found["straggler"]
    assert (xid["active_findings"], xid["recent_findings"], xid["drains"]) == (2, 3, 1)
    assert xid["about"].startswith("Error codes of the GPU and NVSwitch drivers")
    assert (xid["is_per_job"], straggler["is_per_job"], straggler["kinds"]) == (False, True, ["straggler"])
    limits = {limit["name"]: limit for limit in straggler["limits"]}
    assert limits["least_ratio"]["value"] == "1.01"
    assert limits["least_ratio"]["about"].startswith("Least slowdown worth a word")
    assert (straggler["policy"]["mode"], straggler["policy"]["changed_at"]) == ("default", None)
    assert straggler["effects"]["default"].endswith("a person decides.")
    assert found["imbalance"]["effects"]["record"].startswith("Its findings are recommendations")


def test_a_policy_is_replaced_once_and_recorded(service_anywhere) -> None:
    service_anywhere.hold_still()
    client = service_anywhere.client()
    first = change(client, "record", 0)
    assert first.status_code == 200, first.text
    assert (first.json()["mode"], first.json()["version"], first.json()["changed_by"]) == ("record", 1, "first admin")
    changed = client.get(PATH, params={"changed": True}).json()["items"]
    assert [item["policy"]["mode"] for item in changed] == ["record"]
    assert_problem(change(client, "propose", 0), 409, "detector-policy-changed", "version 1, not 0: read it again")
    second = change(client, "propose", 1, min_confidence=0.5).json()
    assert listed(client)["straggler"]["policy"] == second
    assert change(client, "default", 2, reason="").json()["version"] == 3
    entries = client.get("/v1/audit-log", params={"action": "put_detector_policy"}).json()["items"]
    assert len(entries) == 3
    assert entries[-1]["target"] == f"{PATH}/straggler"
    assert (entries[-1]["detail"]["mode"], entries[-1]["detail"]["reason"]) == ("record", "false alarms")


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"reason": " "}, 422, "reason must not be empty"),
        ({"mode": "default", "min_confidence": 0.5, "reason": ""}, 422, "reason must not be empty"),
        ({"min_confidence": 1.5}, 422, "min_confidence"),
        ({"min_confidence": "0.5"}, 422, "min_confidence"),
        ({"mode": "off"}, 422, "mode"),
        ({"version": True}, 422, "version"),
        ({"detector": "stragler"}, 404, "did you mean 'straggler'?"),
        ({"detector": "q"}, 404, "GET /v1/detector-policies lists all detectors"),
    ],
)
def test_what_is_not_accepted_is_named(lasting_service, changes: dict[str, Any], status: int, words: str) -> None:
    answer = change(lasting_service.client(), **{"mode": "record", "version": 0, **changes})
    assert answer.status_code == status
    assert words in answer.text
