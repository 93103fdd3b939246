"""One look at everything that waits: findings become proposals, drained nodes empty, repaired ones come back.

Nothing is remembered between turns: what is due stands in the database, so a restart loses nothing, and a second
process that looks at the same time finds it done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from mainstay.probes.core_types import HealthState, RecommendedAction, Verdict
from mainstay.service.common.db import AnySession, WriteSession, after_commit
from mainstay.service.common.loops import Loop
from mainstay.service.fleet import lifecycle_facts, return_to_service
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import MACHINE, NodeRow, TransitionRow
from mainstay.service.fleet.transitions import THE_MACHINE, IllegalMoveError, NodeStateChangedError, propose
from mainstay.service.remediation import rank_migration, repository, service, speed_checks
from mainstay.service.remediation.fleet_view import JOB_SECONDS, FleetView
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.remediation.repository import Candidate
from mainstay.service.remediation.schemas import UNDECIDED, RemediationState
from mainstay.service.services import Services
from mainstay.service.settings import RemediationSettings, Settings
from mainstay.service.validation import service as validations
from mainstay.service.validation.models import NodeVerdictRow

BATCH: Final = 25
"""Candidates evaluated in one transaction: other writers wait for tenths of a second, not for a whole burst."""
MOST: Final = 50
"""Candidates of one incident: what strikes more nodes at once is not repaired node by node, and the breaker lets far
fewer be drained. The others follow when these are over."""
_BY_ITSELF: Final = frozenset({RecommendedAction.RESET_GPU.value, RecommendedAction.REBOOT_NODE.value})
"""Remedies that a reboot carries out; for the others a person has to say when it is time to look again."""


def reconcile(services: Services) -> None:
    """One turn, in short transactions; nothing is written, nor a lock taken, when there is nothing to do."""
    settings = services.settings
    with services.database.reading() as session:
        found = _found(session, settings.remediation)
        unsure = speed_checks.uncertain(session, settings.remediation, services.clock.now())
        if not (found or unsure or repository.open_ones(session) or repository.draining(session)):
            return
    with _deciding(services) as survey:
        _empty(survey)
        _follow(survey)
        _supersede(survey, {(candidate.incident, candidate.node) for candidate in found})
        speed_checks.request_checks(survey.session, survey.limits, survey.now)
    first: dict[str, str] = {}
    for start in range(0, len(found), BATCH):
        with _deciding(services) as survey:
            _propose(survey, found[start : start + BATCH], first)
    if settings.remediation.mode == "automatic":
        with _deciding(services) as survey:
            if _validate(survey, settings):
                after_commit(survey.session, lambda: services.wakers.wake("orders"))


def _found(session: AnySession, limits: RemediationSettings) -> list[Candidate]:
    """One a node and incident: to be emptied, else to be left by the ranks that are there."""
    found = _first_of_each(repository.candidates(session, limits))
    if limits.migrate == "off":
        return found
    drained = {(candidate.incident, candidate.node) for candidate in found}
    moves = _first_of_each(rank_migration.candidates(session, limits))
    return [*found, *(one for one in moves if (one.incident, one.node) not in drained)]


def _first_of_each(found: Sequence[Candidate]) -> list[Candidate]:
    """At most ``MOST`` of each incident, the first by name."""
    count: Counter[str] = Counter()
    kept = []
    for candidate in found:
        count[candidate.incident] += 1
        if count[candidate.incident] <= MOST:
            kept.append(candidate)
    return kept


@contextmanager
def _deciding(services: Services) -> Iterator[FleetView[WriteSession]]:
    """One transaction in which no other process decides."""
    with services.database.session() as session:
        service.lock(session)
        # The clock is read now: what we waited for happened before.
        yield FleetView(session, services.settings.remediation, services.clock.now())


# drains


def _empty(survey: FleetView[WriteSession]) -> None:
    """Quarantine drained nodes that work has left, or whose deadline has passed.

    A drain that no operator accepted never takes the node from a job that cannot continue without it.
    """
    session, now, waiting = survey.session, survey.now, list[str]()
    for row in repository.draining(session):
        jobs = survey.jobs_on(row.name)
        known = NodeFacts(state=HealthState.DRAINING, jobs=jobs)
        if row.owner == Owner.SYSTEM and not jobs and not repository.is_migrating(session, row.name):
            propose(session, row, NodeTrigger.EMPTIED, reason=_keep(row, "no work is left"), now=now, known=known)
        elif row.drain_deadline_at is None or row.drain_deadline_at > now:
            waiting.append(row.name)
        elif row.actor != MACHINE or not survey.depending(row.name, now - JOB_SECONDS):
            left = f"its deadline has passed; still on it: {', '.join(jobs[:5])}" if jobs else "its deadline has passed"
            propose(session, row, NodeTrigger.OVERDUE, reason=_keep(row, left), now=now, known=known)
    for remediation in repository.accepted(session, waiting).values():
        service.advise_again(survey, remediation)


def _keep(row: NodeRow, more: str) -> str:
    return f"{row.state_reason[:350]} ({more})"


# what became of accepted ones


def _follow(survey: FleetView[WriteSession]) -> None:
    """Bring accepted remediations in line with what happened to their nodes since."""
    for row, move in repository.news(survey.session):
        if row.state == RemediationState.ACCEPTED:  # an earlier move may have ended it
            row.version_seen = move.version
            _follow_one(survey.session, row, move, survey.now)
    for row in repository.moving(survey.session):
        ended = rank_migration.outcome(survey.session, row)
        if ended is not None:
            service.end(survey.session, row, ended[0], ended[1], now=survey.now)


def _follow_one(session: WriteSession, row: RemediationRow, move: TransitionRow, now: float) -> None:
    if move.trigger == NodeTrigger.PASSED:
        service.end(session, row, RemediationState.DONE, f"back in service: {move.reason}.", now=now)
    elif move.trigger == NodeTrigger.UNDRAIN:
        why = f"{move.actor} put it back without a validation: {move.reason}."
        service.end(session, row, RemediationState.SUPERSEDED, why, now=now)
    elif move.trigger == NodeTrigger.FAILED and _has_failed(session, row.node):
        service.failed(session, row, now=now)


def _has_failed(session: AnySession, node: str) -> bool:
    """An unknown verdict says nothing about the action."""
    current_verdict = session.get(NodeVerdictRow, node)
    return current_verdict is not None and current_verdict.verdict == Verdict.FAIL


# proposals


def _supersede(survey: FleetView[WriteSession], found: Collection[tuple[str, str]]) -> None:
    for row in repository.open_ones(survey.session):
        if RemediationState(row.state) in UNDECIDED and (row.incident_id, row.node) not in found:
            why = "what was found no longer holds, or is only recorded now."
            if row.recommended_action == RecommendedAction.MIGRATE_RANKS:
                why = "what was found no longer holds or is only recorded now, or no rank is there any more."
            service.end(survey.session, row, RemediationState.SUPERSEDED, why, now=survey.now)


def _propose(survey: FleetView[WriteSession], found: Sequence[Candidate], first: dict[str, str]) -> None:
    """Propose, evaluate again, or withdraw; ``first`` remembers whose proposal an incident waits for."""
    session = survey.session
    holding = repository.holding(session, found)
    accepted = repository.accepted(session, [candidate.node for candidate in found])
    for candidate in found:
        if candidate.finding not in holding:
            continue
        if candidate.node in accepted:
            service.strengthen(session, accepted[candidate.node], candidate, now=survey.now)
            continue
        row = _one(survey, candidate, first.get(candidate.incident))
        if row is None or row.state != RemediationState.PROPOSED:
            continue
        if _take(survey, row):
            if row.recommended_action != RecommendedAction.MIGRATE_RANKS:
                accepted[candidate.node] = row
        else:
            first[candidate.incident] = candidate.node


def _one(survey: FleetView[WriteSession], found: Candidate, first: str | None) -> RemediationRow | None:
    """The proposal for one candidate, new or evaluated again; None when an operator has already decided."""
    session = survey.session
    row = repository.latest_of(session, found.incident, found.node)
    if row is None or _further(row, found):
        return service.propose(survey, found, first=first)
    gone = row.state == RemediationState.SUPERSEDED and row.decided_at is None  # and there again
    if RemediationState(row.state) not in UNDECIDED and not gone:
        return None
    service.reconsider(survey, row, found, first=first)
    return row


def _further(row: RemediationRow, found: Candidate) -> bool:
    """Whether what an incident proposes for a node is over, and more has to follow."""
    if (
        row.recommended_action == RecommendedAction.MIGRATE_RANKS
    ):  # once an incident; to empty the node is another question
        over = RemediationState(row.state) not in (*UNDECIDED, RemediationState.ACCEPTED)
        return over and found.recommended_action is not RecommendedAction.MIGRATE_RANKS
    return row.state == RemediationState.DONE  # repaired and back again: the next action


def _take(survey: FleetView[WriteSession], row: RemediationRow) -> bool:
    """Accept what every rule allows, where the site lets the machine do so. A dry-run's proposals stay people's."""
    if row.dry_run or not service.is_automatic(survey.limits, RecommendedAction(row.recommended_action)):
        return False
    try:
        with survey.session.begin_nested():
            service.accept(survey, row, actor=MACHINE, reason="every rule allows it")
    except (service.AlreadyDecidedError, service.DeniedError, NodeStateChangedError, IllegalMoveError):
        return False  # another process was first; the next iteration sees its result
    return True


# return to service


def _validate(survey: FleetView[WriteSession], settings: Settings) -> bool:
    """Order the check for nodes that rebooted in quarantine, as their action asks; whether there was one."""
    session, ordered = survey.session, False
    for row in repository.open_ones(session):
        node = session.get(NodeRow, row.node)
        if row.state == RemediationState.ACCEPTED and node is not None and _is_ready(row, node, survey, settings):
            ordered |= _order(session, node, survey, settings)
    return ordered


def _is_ready(row: RemediationRow, node: NodeRow, survey: FleetView[WriteSession], settings: Settings) -> bool:
    if row.recommended_action not in _BY_ITSELF or node.owner != Owner.SYSTEM or node.state != HealthState.QUARANTINED:
        return False
    if lifecycle_facts.is_silent(node, survey.now, settings.fleet.heartbeat_timeout_seconds) or node.booted_at is None:
        return False
    up = survey.now - node.booted_at
    return node.booted_at > (node.state_since or 0.0) and up >= survey.limits.boot_grace_seconds


def _order(session: WriteSession, node: NodeRow, survey: FleetView[WriteSession], settings: Settings) -> bool:
    suite = return_to_service.suite_for(session.get(NodeVerdictRow, node.name), settings)
    try:
        with session.begin_nested():
            ordered = validations.order(session, settings, node=node.name, suite=suite, now=survey.now)
            return_to_service.start_validation(
                session, node, ordered, mover=THE_MACHINE, reason="it rebooted, as its action asks", now=survey.now,
                settings=settings,
            )  # fmt: skip
    except (NodeStateChangedError, IllegalMoveError):
        return False  # work is on it again, or another process moved it
    return True


def make_loops(services: Services) -> list[Loop]:
    """One loop, woken when a person moves a node."""
    turn = services.leases.elect("remediation", lambda: partial(reconcile, services))
    loop = Loop("remediation", services.settings.remediation.interval_seconds, turn)
    services.wakers.listen("remediation", loop.wake)
    return [loop]
