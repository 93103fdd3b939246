"""Routes of telemetry other than the frame route."""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.probes.signals import SIGNALS, Catalog, SignalKind
from mainstay.service.auth.guard import Reader, Reporter
from mainstay.service.common.clock import Now
from mainstay.service.common.db import Reading, Reporting
from mainstay.service.common.openapi import problems
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.common.schemas import QuerySeconds
from mainstay.service.fleet.service import require_node
from mainstay.service.history.query import SeriesLine
from mainstay.service.history.series import SeriesQuery
from mainstay.service.services import ServicesDep
from mainstay.service.telemetry.envelope import as_json
from mainstay.service.telemetry.schemas import CatalogWrite, QueryRead, SeriesRead, SignalList, SignalRead

router = APIRouter(prefix="/v1", tags=["telemetry"])
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
NameQuery = Annotated[str, Query(pattern=NAME_PATTERN)]


class BadCatalogError(UnprocessableError):
    slug, title = "invalid-catalog", "Not an acceptable catalog"


class UnknownSignalError(UnprocessableError):
    slug, title = "unknown-signal", "Unknown signal"


@router.get("/signals", operation_id="list_signals")
async def list_signals(_reader: Reader) -> SignalList:
    """Every signal that can be measured, with unit and kind."""
    return SignalList(items=[SignalRead.model_validate(signal) for signal in SIGNALS.values()])


@router.put("/telemetry/catalogs/{digest}", status_code=204, operation_id="put_catalog", response_class=Response)
def put_catalog(
    digest: Digest, body: CatalogWrite, _reporter: Reporter, services: ServicesDep, session: Reporting, now: Now
) -> None:
    """Announce the names of the signals behind a digest in frames."""
    try:
        made = Catalog(tuple(body.narrow), tuple(body.wide))
    except ValueError as error:
        raise BadCatalogError(str(error)) from error
    if not made.narrow and not made.wide:
        raise BadCatalogError("a catalog needs at least one signal")
    if made.digest != digest:
        raise BadCatalogError(f"these names have the digest {made.digest}, not {digest}")
    services.ingest.catalogs.store_catalog(session, made, now)


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
    """Series of one node, thinned to at most ``points`` buckets (default: the last five minutes).

    Older samples come from roll-ups: lows and highs stay exact, and buckets may be wider than asked for.
    """
    require_node(session, node)
    end = now + 1.0 if stop is None else stop
    begin = end - 300.0 if start is None else start
    if not begin < end:
        raise UnprocessableError("from must be earlier than to")
    unknown = [name for name in signal if name not in SIGNALS]
    if unknown:
        raise UnknownSignalError(f"signal {unknown[0][:128]!r} is not in the table: see /v1/signals")
    names = tuple(dict.fromkeys(signal))
    question = SeriesQuery(node=node, device=device, signals=names, start=begin, stop=end, points=points)
    buckets, lines = services.history.answer(question, math.floor(now))
    return QueryRead(t=buckets.times.tolist(), series=[_series(node, line) for line in lines])


def _series(node: str, line: SeriesLine) -> SeriesRead:
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
