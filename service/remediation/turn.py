"""One look at everything that waits: findings become proposals, drained nodes empty, repaired ones come back.

Nothing is remembered between turns: what is due stands in the database, so a restart loses nothing, and a second
process that looks at the same time finds it done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from probes.words import HealthState, Remedy, Verdict
from service.fleet import returning, situation
from service.fleet.life_cycle import Facts, Owner, Trigger
from service.fleet.models import MACHINE, NodeRow, TransitionRow
from service.fleet.moves import THE_MACHINE, IllegalMoveError, NodeMovedError, propose
from service.kit.db import AnySession, WriteSession, after_commit
from service.remediation import moving, repository, service
from service.remediation.models import RemediationRow
from service.remediation.repository import Candidate
from service.remediation.schemas import UNDECIDED, RemediationState
from service.remediation.survey import Survey
from service.services import Services
from service.settings import RemediationSettings, Settings
from service.validation import service as validations
from service.validation.models import NodeVerdictRow

BATCH: Final = 25
"""Candidates judged in one transaction: other writers wait for tenths of a second, not for a whole burst."""
_BY_ITSELF: Final = frozenset({Remedy.RESET_GPU.value, Remedy.REBOOT_NODE.value})
"""Remedies that a reboot carries out; for the others a person has to say when it is time to look again."""


def run(services: Services) -> None:
    """One turn, in short transactions; nothing is written, nor a lock taken, when there is nothing to do."""
    settings = services.settings
    with services.database.reading() as session:
        found = _found(session, settings.remediation)
        if not (found or repository.open_ones(session) or repository.draining(session)):
            return
    with _deciding(services) as survey:
        _empty(survey)
        _follow(survey)
        _supersede(survey, {(candidate.incident, candidate.node) for candidate in found})
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
    found = repository.candidates(session, limits.min_confidence)
    if limits.migrate == "off":
        return found
    drained = {(candidate.incident, candidate.node) for candidate in found}
    moves = moving.candidates(session, limits.min_confidence)
    return [*found, *(one for one in moves if (one.incident, one.node) not in drained)]


@contextmanager
def _deciding(services: Services) -> Iterator[Survey[WriteSession]]:
    """One transaction in which nobody else decides."""
    with services.database.session() as session:
        service.lock(session)
        # The clock is read now: what we waited for happened before.
        yield Survey(session, services.settings.remediation, services.clock.now())


# drains


def _empty(survey: Survey[WriteSession]) -> None:
    """Quarantine drained nodes that work has left, or whose deadline has passed."""
    session, now = survey.session, survey.now
    for row in repository.draining(session):
        jobs = survey.jobs_on(row.name)
        known = Facts(state=HealthState.DRAINING, jobs=jobs)
        if row.owner == Owner.MACHINE and not jobs:
            propose(session, row, Trigger.EMPTIED, reason=_keep(row, "no work is left"), now=now, known=known)
        elif row.drain_deadline_at is not None and row.drain_deadline_at <= now:
            left = f"its deadline has passed; still on it: {', '.join(jobs[:5])}" if jobs else "its deadline has passed"
            propose(session, row, Trigger.OVERDUE, reason=_keep(row, left), now=now, known=known)


def _keep(row: NodeRow, more: str) -> str:
    return f"{row.state_reason[:350]} ({more})"


# what became of accepted ones


def _follow(survey: Survey[WriteSession]) -> None:
    """Bring accepted remediations in line with what happened to their nodes since."""
    for row, move in repository.news(survey.session):
        if row.state == RemediationState.ACCEPTED:  # an earlier move may have ended it
            row.version_seen = move.version
            _follow_one(survey.session, row, move, survey.now)
    for row in repository.moving(survey.session):
        ended = moving.outcome(survey.session, row)
        if ended is not None:
            service.end(survey.session, row, ended[0], ended[1], now=survey.now)


def _follow_one(session: WriteSession, row: RemediationRow, move: TransitionRow, now: float) -> None:
    if move.trigger == Trigger.PASSED:
        service.end(session, row, RemediationState.DONE, f"back in service: {move.reason}.", now=now)
    elif move.trigger == Trigger.UNDRAIN:
        why = f"{move.actor} put it back without a validation: {move.reason}."
        service.end(session, row, RemediationState.SUPERSEDED, why, now=now)
    elif move.trigger == Trigger.FAILED and _has_failed(session, row.node):
        service.failed(session, row, now=now)


def _has_failed(session: AnySession, node: str) -> bool:
    """An unknown verdict says nothing about the remedy."""
    standing = session.get(NodeVerdictRow, node)
    return standing is not None and standing.verdict == Verdict.FAIL


# proposals


def _supersede(survey: Survey[WriteSession], found: Collection[tuple[str, str]]) -> None:
    for row in repository.open_ones(survey.session):
        if RemediationState(row.state) in UNDECIDED and (row.incident_id, row.node) not in found:
            why = "what was found no longer holds."
            if row.remedy == Remedy.MIGRATE:
                why = "what was found no longer holds, or no rank is there any more."
            service.end(survey.session, row, RemediationState.SUPERSEDED, why, now=survey.now)


def _propose(survey: Survey[WriteSession], found: Sequence[Candidate], first: dict[str, str]) -> None:
    """Propose, judge anew, or take; ``first`` remembers whose proposal an incident waits for."""
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
            if row.remedy != Remedy.MIGRATE:
                accepted[candidate.node] = row
        else:
            first[candidate.incident] = candidate.node


def _one(survey: Survey[WriteSession], found: Candidate, first: str | None) -> RemediationRow | None:
    """The proposal for one candidate, new or judged anew; None when people have decided about it already."""
    session = survey.session
    row = repository.latest_of(session, found.incident, found.node)
    if row is None or _further(row, found):
        return service.propose(session, survey, found, first=first)
    gone = row.state == RemediationState.SUPERSEDED and row.decided_at is None  # and there again
    if RemediationState(row.state) not in UNDECIDED and not gone:
        return None
    service.reconsider(session, survey, row, found, first=first)
    return row


def _further(row: RemediationRow, found: Candidate) -> bool:
    """Whether what an incident proposes for a node is over, and more has to follow."""
    if row.remedy == Remedy.MIGRATE:  # once an incident; to empty the node is another question
        over = RemediationState(row.state) not in (*UNDECIDED, RemediationState.ACCEPTED)
        return over and found.remedy is not Remedy.MIGRATE
    return row.state == RemediationState.DONE  # mended and back again: the next rung


def _take(survey: Survey[WriteSession], row: RemediationRow) -> bool:
    """Accept what every rule allows, where the site lets the machine do so. A dry-run's proposals stay people's."""
    if row.dry_run or not service.acts(survey.limits, Remedy(row.remedy)):
        return False
    try:
        with survey.session.begin_nested():
            service.accept(survey.session, survey, row, actor=MACHINE, reason="every rule allows it")
    except (service.AlreadyDecidedError, service.DeniedError, NodeMovedError, IllegalMoveError):
        return False  # somebody was faster; the next turn sees what they did
    return True


# the way back


def _validate(survey: Survey[WriteSession], settings: Settings) -> bool:
    """Order the check for nodes that rebooted in quarantine, as their remedy asks; whether there was one."""
    session, ordered = survey.session, False
    for row in repository.open_ones(session):
        node = session.get(NodeRow, row.node)
        if row.state == RemediationState.ACCEPTED and node is not None and _is_ready(row, node, survey, settings):
            ordered |= _order(session, node, survey, settings)
    return ordered


def _is_ready(row: RemediationRow, node: NodeRow, survey: Survey[WriteSession], settings: Settings) -> bool:
    if row.remedy not in _BY_ITSELF or node.owner != Owner.MACHINE or node.state != HealthState.QUARANTINED:
        return False
    if situation.is_silent(node, survey.now, settings.fleet.silent_after) or node.booted_at is None:
        return False
    up = survey.now - node.booted_at
    return node.booted_at > (node.state_since or 0.0) and up >= survey.limits.boot_grace_seconds


def _order(session: WriteSession, node: NodeRow, survey: Survey[WriteSession], settings: Settings) -> bool:
    suite = returning.suite_for(session.get(NodeVerdictRow, node.name), settings)
    try:
        with session.begin_nested():
            ordered = validations.order(session, settings, node=node.name, suite=suite, now=survey.now)
            returning.begin(
                session, node, ordered, mover=THE_MACHINE, reason="it rebooted, as its remedy asks", now=survey.now,
                settings=settings,
            )  # fmt: skip
    except (NodeMovedError, IllegalMoveError):
        return False  # work is on it again, or somebody moved it
    return True
