"""What operators do with nodes and proposals, and what the stored rows and timelines then hold."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from mainstay.probes.core_types import Verdict
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.transitions import TransitionActor, require_transition
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.remediation import service
from mainstay.service.remediation.fleet_view import FleetView
from mainstay.service.validation import service as validations

AUTOMATIC = {"mode": "automatic", "max_drained_ratio": 1.0, "max_drained_per_rack": 99}


def decide(fleet: Any, row: Any, what: str = "accept", who: str = "alice") -> None:
    with fleet.services.database.session() as session:
        service.lock(session)
        found = service.require(session, row.id)
        settings, now = fleet.services.settings, fleet.clock.now()
        if what == "accept":
            survey = FleetView(session, settings.remediation, now)
            service.accept(survey, found, actor=who, reason="seen")
        else:
            service.dismiss(session, found, actor=who, reason="seen", now=now)


def move(fleet: Any, node: str, trigger: NodeTrigger, *, owner: Owner = Owner.OPERATOR, **changes: Any) -> None:
    with fleet.services.database.session() as session:
        row = session.get(NodeRow, node)
        known = NodeFacts(state=row.state, **changes)
        mover = TransitionActor(owner, "bob")
        require_transition(session, row, trigger, reason="by hand", now=fleet.clock.now(), known=known, mover=mover)


def validate(fleet: Any, node: str, verdict: Verdict) -> None:
    """A person orders the check, and it ends."""
    from mainstay.service.fleet import return_to_service

    settings, now = fleet.services.settings, fleet.clock.now()
    with fleet.services.database.session() as session:
        ordered = validations.order(session, settings, node=node, suite="deep", now=now)
        row = session.get(NodeRow, node)
        mover = TransitionActor(Owner.OPERATOR, "bob")
        return_to_service.start_validation(
            session, row, ordered, mover=mover, reason="repaired", now=now, settings=settings
        )
    fleet.end_validation(node, verdict)


def verdicts(row: Any) -> dict[str, str]:
    return {rule["name"]: rule["verdict"] for rule in row.rules}


def texts(fleet: Any, incident: str) -> list[str]:
    from mainstay.service.incidents import repository

    with fleet.services.database.reading() as session:
        return [e.text for e in repository.timeline_of(session, incident) if e.kind == "remediation"]


def given(fleet: Any) -> list[JobRequestRow]:
    """Every migration request, oldest first."""
    with fleet.services.database.reading() as session:
        order = (JobRequestRow.created_at, JobRequestRow.rank)
        return list(session.scalars(select(JobRequestRow).order_by(*order)))


def answer(request: JobRequestRow, state: str, detail: str) -> dict[str, Any]:
    """What a job reports about a request."""
    return {"id": request.id, "state": state, "detail": detail, "seconds": 0.4, "steps_lost": 0}
