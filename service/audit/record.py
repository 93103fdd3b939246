"""Write to the audit log: in the transaction of the act, so that one is not without the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from fastapi import Request

from mainstay.probes.ids import uuid7
from mainstay.service.audit.models import AuditRow
from mainstay.service.auth.tokens import Principal
from mainstay.service.common.db import WriteSession, before_commit

_SECRETS: Final = frozenset({"code", "current_password", "password", "secret", "token"})
_LONGEST: Final = 500
"""Characters of a text that are kept: the text of a policy or a configuration has versions of its own."""
_MOST: Final = 1024
"""Entries of a list or an object that are kept."""
ActorKind = Literal["user", "token", "rule", "link", "command"]


def record_act(
    session: WriteSession,
    *,
    at: float,
    actor: str,
    actor_kind: ActorKind,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
    actor_id: str | None = None,
    address: str | None = None,
) -> None:
    """Add one act; ``at`` in Unix seconds, ``detail`` as JSON of which fields that hold secrets are left out."""
    session.add(
        AuditRow(
            id=uuid7(),
            at=at,
            actor=actor[:200],
            actor_kind=actor_kind,
            actor_id=actor_id,
            action=action,
            target=target[:600],
            detail=_without_secrets(dict(detail or {})),
            address=address,
        )
    )


async def record_request(request: Request, principal: Principal, *, at: float) -> None:
    """Let the write transaction of a request end with the record of it (``common.db.Writing``)."""
    is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    raw, query = await request.body() if is_json else b"", dict(request.query_params)
    operation, path = request.scope["route"].operation_id, request.url.path

    def record(session: WriteSession) -> None:
        record_act(
            session,
            at=at,
            actor=principal.name,
            actor_kind="user" if principal.user_id else "token",
            actor_id=principal.user_id or principal.token_id,
            action=operation,
            target=path,
            detail=query | _body(raw),
            address=None if request.client is None else request.client.host[:64],
        )

    request.state.record_act = record


def attach(request: Request, session: WriteSession) -> None:
    """Let a transaction that a handler opened itself end with the record of the request."""
    before_commit(session, "audit", request.state.record_act)


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw or b"{}")
    except ValueError:  # the handler answers it
        return {}
    return body if isinstance(body, dict) else {"body": body}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        kept = [(str(key)[:_LONGEST], one) for key, one in list(value.items())[:_MOST] if key not in _SECRETS]
        return {key: _without_secrets(one) for key, one in kept}
    if isinstance(value, list):
        return [_without_secrets(one) for one in value[:_MOST]]
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}… ({len(value)} characters)"
    return value
