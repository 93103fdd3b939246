"""Routes of telemetry other than the frame route."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from probes.signals import SIGNALS, Catalogue, SignalKind
from probes.words import NAME_PATTERN
from service.auth.guard import Reader, Reporter
from service.fleet.service import require_node
from service.kit.clock import Now
from service.kit.db import Reading, Writing
from service.kit.openapi import problems
from service.kit.problem import UnprocessableError
from service.kit.schemas import QuerySeconds
from service.services import ServicesDep
from service.telemetry.envelope import as_json
from service.telemetry.history import Line, Question
from service.telemetry.schemas import CatalogueWrite, QueryRead, SeriesRead, SignalList, SignalRead

router = APIRouter(tags=["telemetry"])
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
NameQuery = Annotated[str, Query(pattern=NAME_PATTERN)]


class BadCatalogueError(UnprocessableError):
    slug, title = "bad-catalogue", "Not an acceptable catalogue"


class UnknownSignalError(UnprocessableError):
    slug, title = "unknown-signal", "Unknown signal"


@router.get("/signals", operation_id="list_signals")
async def list_signals(_reader: Reader) -> SignalList:
    """Every signal that can be measured, with unit and kind."""
    return SignalList(items=[SignalRead.model_validate(signal) for signal in SIGNALS.values()])


@router.put("/telemetry/catalogues/{digest}", status_code=204, operation_id="put_catalogue", response_class=Response)
def put_catalogue(
    digest: Digest, body: CatalogueWrite, _reporter: Reporter, services: ServicesDep, session: Writing, now: Now
) -> None:
    """Announce the signals behind a digest that frames carry."""
    try:
        made = Catalogue(tuple(body.narrow), tuple(body.wide))
    except ValueError as error:
        raise BadCatalogueError(str(error)) from error
    if not made.narrow and not made.wide:
        raise BadCatalogueError("a catalogue needs at least one signal")
    if made.digest != digest:
        raise BadCatalogueError(f"these names have the digest {made.digest}, not {digest}")
    services.ingest.catalogues.add(session, made, now)


@router.get("/telemetry/query", operation_id="query_telemetry", responses=problems(404))
def query(
    _reader: Reader,
    *,
    services: ServicesDep,
    session: Reading,
    now: Now,
    node: NameQuery,
    signal: Annotated[list[Annotated[str, Query(max_length=128)]], Query(min_length=1, max_length=32)],
    device: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    start: Annotated[QuerySeconds | None, Query(alias="from", allow_inf_nan=False)] = None,
    stop: Annotated[QuerySeconds | None, Query(alias="to", allow_inf_nan=False)] = None,
    points: Annotated[int, Query(ge=1, le=4000)] = 300,
) -> QueryRead:
    """Series of one node, thinned to at most ``points`` buckets (default: the last five minutes)."""
    require_node(session, node)
    end = now + 1.0 if stop is None else stop
    begin = end - 300.0 if start is None else start
    if not begin < end:
        raise UnprocessableError("from must be earlier than to")
    unknown = [name for name in signal if name not in SIGNALS]
    if unknown:
        raise UnknownSignalError(f"signal {unknown[0][:128]!r} is not in the table: see /v1/signals")
    names = tuple(dict.fromkeys(signal))
    question = Question(node=node, device=device, signals=names, start=begin, stop=end, points=points)
    buckets, lines = services.history.answer(question, math.floor(now))
    return QueryRead(t=buckets.times.tolist(), series=[_series(node, line) for line in lines])


def _series(node: str, line: Line) -> SeriesRead:
    signal = SIGNALS[line.signal]
    return SeriesRead(
        node=node,
        device=line.device,
        signal=signal.name,
        unit=f"{signal.unit}/s" if signal.kind is SignalKind.COUNTER else signal.unit,
        kind=signal.kind.value,
        mean=as_json(line.envelope.mean),
        low=as_json(line.envelope.low),
        high=as_json(line.envelope.high),
    )
