"""Background work of auth: what another process revoked is forgotten here too."""

from __future__ import annotations

from typing import Final

from mainstay.service.auth import repository
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services

_OVERLAP_SECONDS: Final = 60.0
"""How far apart the clocks of two processes may be, and how long a transaction that revokes may take."""


def make(services: Services) -> list[Loop]:
    known: set[str] = set()

    def reload_revocations() -> None:
        seconds = services.settings.auth.revocation_seconds + _OVERLAP_SECONDS
        with services.database.reading() as session:
            revoked = repository.revoked_since(session, services.clock.now() - seconds)
        if new := revoked - known:
            services.tokens.forget(new)
        known.clear()
        known.update(revoked)

    return [Loop("auth-revocations", services.settings.auth.revocation_seconds, reload_revocations)]
