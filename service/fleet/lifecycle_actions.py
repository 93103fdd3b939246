"""What an operator does to one node: shared by the routes of one node and by those of many."""

from __future__ import annotations

from mainstay.service.fleet import return_to_service
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.schemas import DrainOptions
from mainstay.service.fleet.transitions import TransitionActor, require_transition
from mainstay.service.jobs import job_requests
from mainstay.service.jobs.models import JobRequestRow
from mainstay.service.operation import Operation
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow


def drain_owner(options: DrainOptions) -> Owner:
    """Who decides the drain."""
    return Owner.EXTERNAL if options.external else Owner.OPERATOR


def drain(
    acting: Operation,
    row: NodeRow,
    options: DrainOptions,
    *,
    reason: str,
    known: NodeFacts,
    expected_version: int | None = None,
) -> list[JobRequestRow]:
    """Drain a node; with ``mode: migrate``, return one request for each job on it.

    Raises:
        NodeStateChangedError, IllegalMoveError: as ``require_transition``.
    """
    deadline_at = None if options.deadline_seconds is None else acting.now + options.deadline_seconds
    require_transition(
        acting.session, row, NodeTrigger.DRAIN, expected_version=expected_version, reason=reason, now=acting.now,
        known=known, mover=TransitionActor(drain_owner(options), acting.principal.name), deadline_at=deadline_at,
    )  # fmt: skip
    migration = job_requests.migration(row.name, reason)
    return [
        job_requests.create(acting.session, job, migration, actor=acting.principal.name, now=acting.now)
        for job in (sorted(known.jobs) if options.mode == "migrate" else ())
    ]


def undrain(
    acting: Operation, row: NodeRow, *, reason: str, known: NodeFacts, expected_version: int | None = None
) -> None:
    """End a drain and withdraw the requests that no job has started.

    Raises:
        NodeStateChangedError, NotOurDrainError, IllegalMoveError: as ``require_transition``.
    """
    require_transition(
        acting.session, row, NodeTrigger.UNDRAIN, expected_version=expected_version, reason=reason, now=acting.now,
        known=known, mover=TransitionActor(Owner.OPERATOR, acting.principal.name),
    )  # fmt: skip
    why = f"{acting.principal.name} took the drain of {row.name} back"
    job_requests.withdraw(acting.session, row.name, why, now=acting.now)


def validate(
    acting: Operation,
    row: NodeRow,
    suite: str | None,
    *,
    reason: str,
    known: NodeFacts | None = None,
    expected_version: int | None = None,
) -> None:
    """Order the validation that ends a quarantine; ``suite`` None: the usual one, or one that is strong enough.

    Raises:
        NodeStateChangedError, IllegalMoveError: as ``require_transition``.
    """
    session, settings = acting.session, acting.services.settings
    chosen = suite or return_to_service.suite_for(session.get(NodeVerdictRow, row.name), settings)
    ordered = validations.order(session, settings, node=row.name, suite=chosen, now=acting.now)
    return_to_service.start_validation(
        session, row, ordered, mover=TransitionActor(Owner.OPERATOR, acting.principal.name), reason=reason,
        now=acting.now, settings=settings, expected_version=expected_version, known=known,
    )  # fmt: skip
