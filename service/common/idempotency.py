"""``Idempotency-Key``: a repeated request that acts is answered from memory, not done twice.

A key is claimed in its own transaction before the handler runs, and remembered in the handler's transaction together
with its effect. So: the same key and body again gets the first answer; while the first is in flight, 409; with another
body, 422; and a handler that failed gives the key back. A claim whose process died expires after ``CLAIM_SECONDS``.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import String, delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, Database, UnixTime, WriteSession
from mainstay.service.common.problem import ConflictError, UnprocessableError

CLAIM_SECONDS = 60.0
KEEP_SECONDS = 86_400.0
ModelT = TypeVar("ModelT", bound=BaseModel)


class IdempotencyRow(Base):
    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    """Digest of who asked, what, and the key."""
    fingerprint: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(UnixTime, index=True)
    status: Mapped[int | None]
    body: Mapped[dict[str, Any] | None]


class KeyInFlightError(ConflictError):
    slug, title = "idempotency-in-flight", "Still being done"


class KeyReusedError(UnprocessableError):
    slug, title = "idempotency-mismatch", "Key used for another request"


class StoredResponse(Exception):  # noqa: N818 - it ends a request early and is no error
    """Not a fault: the answer is known already."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"replayed {status}")
        self.status, self.body = status, body


@dataclass
class IdempotencyGuard:
    """Lent to a handler; it calls ``remember`` once, in the transaction of its effect."""

    scope: str | None = None
    remembered: bool = field(default=False, init=False)

    def remember(self, session: WriteSession, answer: ModelT, status: int = 200) -> ModelT:
        """Store ``answer`` under the key, if the client sent one, and hand it back."""
        if self.scope is not None:
            values = {"status": status, "body": answer.model_dump(mode="json", by_alias=True)}
            session.execute(update(IdempotencyRow).where(IdempotencyRow.scope == self.scope).values(**values))
            self.remembered = True
        return answer


def claim(database: Database, *, scope: str, fingerprint: str, now: float) -> None:
    """Take the key for one run.

    Raises:
        ReplayError: it was done; here is the answer.
        KeyInFlightError, KeyReusedError: it may not be taken.
    """
    with database.session(first=True) as session:
        row = session.get(IdempotencyRow, scope)
        if row is not None and _expired(row, now):
            session.delete(row)
            session.flush()
            row = None
        if row is not None:
            _judge(row, fingerprint)
        session.add(IdempotencyRow(scope=scope, fingerprint=fingerprint, created_at=now, status=None, body=None))
        try:
            session.flush()
        except IntegrityError as error:
            raise KeyInFlightError("another request with this Idempotency-Key came at the same moment") from error


def _expired(row: IdempotencyRow, now: float) -> bool:
    return now - row.created_at > (CLAIM_SECONDS if row.status is None else KEEP_SECONDS)


def _judge(row: IdempotencyRow, fingerprint: str) -> None:
    if row.fingerprint != fingerprint:
        raise KeyReusedError("this Idempotency-Key was used for a request with another body")
    if row.status is None or row.body is None:
        raise KeyInFlightError("the first request with this Idempotency-Key is still being done")
    raise StoredResponse(row.status, row.body)


def release(database: Database, scope: str) -> None:
    """Give back a claimed key whose handler failed."""
    with database.session(first=True) as session:
        session.execute(delete(IdempotencyRow).where(IdempotencyRow.scope == scope, IdempotencyRow.status.is_(None)))


def prune(session: WriteSession, now: float) -> None:
    """Forget answers older than ``KEEP_SECONDS``."""
    session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < now - KEEP_SECONDS))


async def _fingerprint(request: Request) -> str:
    return hashlib.sha256(await request.body()).hexdigest()


async def _guard(
    request: Request,
    fingerprint: Annotated[str, Depends(_fingerprint)],
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> AsyncIterator[IdempotencyGuard]:
    if idempotency_key is None:
        yield IdempotencyGuard()
        return
    database: Database = request.app.state.database
    caller = request.headers.get("authorization") or request.headers.get("cookie") or ""
    parts = (caller, request.method, request.url.path, idempotency_key)
    scope = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    now = request.app.state.clock.now()
    async with database.claims.hold_turn():
        await run_in_threadpool(claim, database, scope=scope, fingerprint=fingerprint, now=now)
    guard = IdempotencyGuard(scope)
    try:
        yield guard
    finally:
        if not guard.remembered:
            async with database.claims.hold_turn():
                await run_in_threadpool(release, database, scope)


Idempotency = Annotated[IdempotencyGuard, Depends(_guard, scope="function")]
"""Dependency of a POST that acts. Name it before the session in the handler's parameters."""


async def _on_replay(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StoredResponse)
    return JSONResponse(error.body, status_code=error.status, headers={"Idempotency-Replayed": "true"})


def install(app: FastAPI) -> None:
    app.add_exception_handler(StoredResponse, _on_replay)
