"""``/v1/silences``: what no message is sent about, by whom, why, and until when."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from sqlalchemy import select

from mainstay.probes.ids import uuid7
from mainstay.service.auth.guard import Reader
from mainstay.service.common.clock import Now
from mainstay.service.common.db import AnySession, Reading
from mainstay.service.common.openapi import problems
from mainstay.service.common.pagination import Page, Paging, paginate
from mainstay.service.common.problem import ConflictError, NotFoundError, UnprocessableError
from mainstay.service.common.rows import compare_and_set, require_row
from mainstay.service.common.schemas import Name
from mainstay.service.fleet.directory import Fleet
from mainstay.service.incidents import service as incidents
from mainstay.service.operation import Responding
from mainstay.service.services import ServicesDep
from mainstay.service.silences import repository
from mainstay.service.silences.models import SilenceRow
from mainstay.service.silences.schemas import MAX_DAYS, SilenceCreate, SilenceEnd, SilenceRead

router = APIRouter(prefix="/v1", tags=["silences"])
_DAY: Final = 86_400.0


class SilencePage(Page[SilenceRead]):
    """Silences, newest first."""


class UnknownSilenceError(NotFoundError):
    slug, title = "unknown-silence", "Unknown silence"


class SilenceOverError(ConflictError):
    slug, title = "silence-over", "The silence is over"


@router.get("/silences", operation_id="list_silences", responses=problems(404))
def list_silences(
    _: Reader,
    session: Reading,
    services: ServicesDep,
    page: Paging,
    now: Now,
    *,
    all: bool = False,  # noqa: A002 - the name in the query
    node: Annotated[Name | None, Query()] = None,
    incident: Annotated[Name | None, Query()] = None,
) -> SilencePage:
    """Silences that are not over, newest first; with ``all``, past ones too.

    ``node`` finds active ones that cover the node, ``incident`` the active ones that cover all findings of it.
    """
    fleet = services.fleet.current(session)
    if node is not None or incident is not None:
        found = _covering(session, fleet, node, incident, now)
        return SilencePage(items=[_read(row, fleet, now) for row in found], next_cursor=None)
    statement = select(SilenceRow) if all else repository.unfinished(now)
    rows, cursor = paginate(session, statement, keys=(SilenceRow.created_at, SilenceRow.id), page=page)
    return SilencePage(items=[_read(row, fleet, now) for row in rows], next_cursor=cursor)


def _covering(
    session: AnySession, fleet: Fleet, node: str | None, incident: str | None, now: float
) -> list[SilenceRow]:
    found = repository.active(session, now)
    if incident is not None:
        found = repository.silences_of(session, incidents.require(session, incident).id, found)
    if node is not None:
        known = fleet.nodes.get(node)
        place = (known.rack, known.cohort, known.switches) if known else ("", "", [])
        found = [silence for silence in found if silence.covers_node(node, *place)]
    return [session.get_one(SilenceRow, silence.id) for silence in found]


@router.post("/silences", operation_id="create_silence", status_code=201)
def create_silence(body: SilenceCreate, acting: Responding) -> SilenceRead:
    """Silence findings for a time: they are recorded, and incidents open, but no message is sent about them."""
    now = acting.now
    starts_at = now if body.starts_at is None else body.starts_at
    if body.ends_at <= max(starts_at, now):
        raise UnprocessableError("body.ends_at: must be later than now and than the start")
    if body.ends_at > now + MAX_DAYS * _DAY:
        raise UnprocessableError(f"body.ends_at: must be within {MAX_DAYS} days")
    values = body.model_dump(mode="json", exclude={"starts_at"})
    row = SilenceRow(id=uuid7(), actor=acting.principal.name, created_at=now, starts_at=starts_at, **values)
    acting.session.add(row)
    acting.session.flush()
    return acting.remember(_read(row, acting.services.fleet.current(acting.session), now), 201)


@router.post("/silences/{id}:end", operation_id="end_silence", responses=problems(404, 409))
def end_silence(silence: Annotated[Name, Path(alias="id")], _: SilenceEnd, acting: Responding) -> SilenceRead:
    """End a silence now. Incidents that it covered and that are not over are sent."""
    missing = UnknownSilenceError(f"no silence has the id {silence!r}")
    row = require_row(acting.session, SilenceRow, silence, missing)
    now = acting.now
    values: dict[str, Any] = {"ends_at": now, "starts_at": min(row.starts_at, now), "ended_by": acting.principal.name}
    if not compare_and_set(acting.session, row, SilenceRow.ends_at > now, **values):
        raise SilenceOverError(f"silence {silence} is over")
    return acting.remember(_read(row, acting.services.fleet.current(acting.session), now))


def _read(row: SilenceRow, fleet: Fleet, now: float) -> SilenceRead:
    silence = row.silence
    matched = sum(
        silence.covers_node(node.name, node.rack, node.cohort, node.switches) for node in fleet.nodes.values()
    )
    state = "over" if row.ends_at <= now else "active" if silence.is_active(now) else "pending"
    values = {name: getattr(row, name) for name in SilenceRead.model_fields if name not in {"state", "nodes_matched"}}
    return SilenceRead(**values, state=state, nodes_matched=matched)
