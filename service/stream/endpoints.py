"""``/v1/watch``: what changes, as it changes, by server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from mainstay.service.auth.guard import Reader
from mainstay.service.common.problem import UnavailableError, UnprocessableError
from mainstay.service.services import Services, ServicesDep
from mainstay.service.stream import changes
from mainstay.service.stream.changes import Topic
from mainstay.service.stream.hub import RESET, Message, Watcher, message_of, reset
from mainstay.service.stream.position import Position

router = APIRouter(prefix="/v1", tags=["stream"])
RETRY_MS: Final = 1000
_REPLAY: Final = 2000
_OF_JOBS: Final = frozenset({Topic.JOB, Topic.INCIDENT})
"""What someone hears of whose scopes hold for some jobs only: that one changed, and not which."""


class TooManyWatchersError(UnavailableError):
    slug, title = "too-many-watchers", "Too many streams"


@router.get(
    "/watch",
    operation_id="watch",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def watch(
    reader: Reader,
    services: ServicesDep,
    topics: Annotated[str, Query(max_length=200)] = "incident,node,job,validation,event",
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> StreamingResponse:
    """Stream changes as events named by topic; ``data`` is a small JSON object with an ``id``.

    A stream ends after ten minutes. The browser reconnects with ``Last-Event-ID`` and misses nothing. After an
    event ``reset``, the client must read everything again.
    """
    wanted = _topics(topics) if reader.seen_jobs is None else _topics(topics) & _OF_JOBS
    resume = _resume(last_event_id)
    if services.hub.watchers >= services.settings.stream.max_watchers or services.hub.closed:
        raise TooManyWatchersError(f"{services.hub.watchers} streams are open; try again", headers={"Retry-After": "5"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _stream(services, wanted, resume, bare=reader.seen_jobs is not None),
        headers=headers,
        media_type="text/event-stream",
    )


def _topics(text: str) -> frozenset[Topic]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in set(Topic)]
    if unknown or not names:
        raise UnprocessableError(f"topic {(unknown or [text])[0][:50]!r} is none of {', '.join(Topic)}")
    return frozenset(Topic(name) for name in names)


def _resume(header: str | None) -> Position | None:
    if header is None or not header.strip():
        return None
    try:
        return Position.parse(header)
    except ValueError as error:
        raise UnprocessableError("Last-Event-ID must be an id that this stream gave") from error


async def _stream(
    services: Services, topics: frozenset[Topic], resume: Position | None, *, bare: bool = False
) -> AsyncIterator[bytes]:
    settings = services.settings.stream
    loop = asyncio.get_running_loop()
    ends = loop.time() + settings.max_lifetime_seconds
    watcher = Watcher(topics, loop)
    format_message = _format_bare if bare else _format
    try:
        joined = await run_in_threadpool(services.hub.join, watcher)
        yield f"retry: {RETRY_MS}\n: mainstay\n\n".encode()
        if resume is not None:
            for message in await run_in_threadpool(_missed, services, resume, joined):
                if message.topic in topics or message.topic == RESET:
                    yield format_message(message)
        while (left := ends - loop.time()) > 0:
            try:
                next_message = await asyncio.wait_for(watcher.queue.get(), min(settings.keep_alive, left))
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            if next_message is None:
                return
            yield format_message(next_message)
    finally:
        services.hub.leave(watcher)


def _missed(services: Services, resume: Position, joined: Position) -> list[Message]:
    """What was committed after ``resume`` up to ``joined``; one ``reset`` when that cannot be told any more."""
    with services.database.reading() as session:
        rows = changes.after(session, resume, _REPLAY + 1) if resume <= joined else None
    missed = None if rows is None else [message_of(row) for row in rows if row.position <= joined]
    return [reset(joined)] if missed is None or len(missed) > _REPLAY else missed


def _format_bare(message: Message) -> bytes:
    return _format(replace(message, data="{}"))


def _format(message: Message) -> bytes:
    head = "" if message.id is None else f"id: {message.id}\n"
    return f"{head}event: {message.topic}\ndata: {message.data}\n\n".encode()
