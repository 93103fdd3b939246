"""Background work of auth: what another process revoked is forgotten here too; when tokens were last used."""

from __future__ import annotations

from typing import Final

from mainstay.service.auth import repository
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services

_USE_SECONDS: Final = 30.0
_OVERLAP_SECONDS: Final = 60.0
"""How far apart the clocks of two processes may be, and how long a transaction that revokes may take."""


def make(services: Services) -> list[Loop]:
    known: dict[str, float] = {}

    def reload_revocations() -> None:
        seconds = services.settings.auth.revocation_seconds + _OVERLAP_SECONDS
        with services.database.reading() as session:
            changed = repository.changed_since(session, services.clock.now() - seconds)
        if new := {token for token, at in changed.items() if known.get(token) != at}:
            services.tokens.forget(new)
        known.clear()
        known.update(changed)

    def store_uses() -> None:
        if uses := services.tokens.drain_uses():
            with services.database.session() as session:
                repository.store_uses(session, uses)

    return [
        Loop("auth-revocations", services.settings.auth.revocation_seconds, reload_revocations),
        Loop("auth-last-use", _USE_SECONDS, store_uses),
    ]
