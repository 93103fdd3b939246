"""Background work of auth: what another process revoked is forgotten here too."""

from __future__ import annotations

from mainstay.service.auth import repository
from mainstay.service.common.loops import Loop
from mainstay.service.services import Services


def make(services: Services) -> list[Loop]:
    known: list[tuple[float | None, int]] = []

    def reload_revocations() -> None:
        with services.database.reading() as session:
            now = repository.revocations(session)
        if known != [now]:
            services.tokens.clear()
            known[:] = [now]

    return [Loop("auth-revocations", services.settings.auth.revocation_seconds, reload_revocations)]
