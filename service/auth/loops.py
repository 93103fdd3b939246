"""Background work of auth: what another process revoked is forgotten here too."""

from __future__ import annotations

from service.auth import repository
from service.kit.loops import Loop
from service.services import Services


def make(services: Services) -> list[Loop]:
    known: list[tuple[float | None, int]] = []

    def look() -> None:
        with services.database.reading() as session:
            now = repository.revocations(session)
        if known != [now]:
            services.tokens.clear()
            known[:] = [now]

    return [Loop("auth-revocations", services.settings.auth.revocation_seconds, look)]
