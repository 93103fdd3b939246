"""What an incident's page says first: where, what it costs, and what happens next."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.service.incidents.impact import next_step
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.remediation.models import RemediationRow

T0 = 1_800_000_000.0


def put(session: Any, **changed: Any) -> IncidentRow:
    row = IncidentRow(
        id="i1", title="t", summary="", version=1, severity="warning", opened_at=T0, updated_at=T0, ranks=[], kinds=[],
        **{"state": "open", "needs_operator": False, "node": "n1", **changed},
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "closes the incident when its findings have ended"),
        ({"needs_operator": True}, "until an operator acts"),
        ({"state": "recovering"}, "recovering the job"),
        ({"state": "recovered"}, "stays healthy"),
    ],
)
def test_what_happens_next(lasting_service, changed: dict[str, Any], said: str) -> None:
    with lasting_service.services.database.session() as session:
        row = put(session, **changed)
        assert said in next_step(session, row)
        session.delete(row)


def test_a_closed_incident_has_no_next_step(lasting_service) -> None:
    with lasting_service.services.database.session() as session:
        row = put(session, state="closed")
        assert next_step(session, row) == ""
        session.delete(row)


def test_a_proposal_waits_for_an_operator(service) -> None:
    service.hold_still()
    with service.services.database.session() as session:
        put(session)
        session.add(RemediationRow(
            id="r1", incident_id="i1", node="n1", state="proposed", recommended_action="drain", created_at=T0,
            dry_run=False, reason="", rules=[], tried=[],
        ))  # fmt: skip
    detail = service.client().get("/v1/incidents/i1").json()
    assert detail["next_step"] == (
        "Node n1 stays as it is until an operator accepts or dismisses the proposal to drain."
    )
    assert detail["where"] == "node n1"
    assert detail["impact"] == ""
