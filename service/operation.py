"""What a request that changes something for a person acts with: one dependency of a handler instead of five."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from mainstay.service.auth.guard import Actor, Responder
from mainstay.service.auth.tokens import Principal
from mainstay.service.common.clock import Now
from mainstay.service.common.db import WriteSession, Writing, after_commit
from mainstay.service.common.idempotency import Idempotency, IdempotencyGuard
from mainstay.service.services import Services, ServicesDep

_Answer = TypeVar("_Answer", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Operation:
    """A request of a person with the scope to act, or to respond."""

    idempotency: IdempotencyGuard
    principal: Principal
    session: WriteSession
    services: Services
    now: float

    def wake(self, waker: str) -> None:
        """Wake a loop once the change is committed."""
        after_commit(self.session, lambda: self.services.wakers.wake(waker))

    def remember(self, answer: _Answer, status: int = 200) -> _Answer:
        """Keep the answer for a repeated request, and hand it back."""
        return self.idempotency.remember(self.session, answer, status)


def _operation(
    idempotency: Idempotency, principal: Actor, session: Writing, services: ServicesDep, now: Now
) -> Operation:
    return Operation(idempotency, principal, session, services, now)


def _response(
    idempotency: Idempotency, principal: Responder, session: Writing, services: ServicesDep, now: Now
) -> Operation:
    return Operation(idempotency, principal, session, services, now)


Acting = Annotated[Operation, Depends(_operation)]
"""Dependency of a handler that acts for a person."""
Responding = Annotated[Operation, Depends(_response)]
"""The same of a handler for which the scope to respond is enough."""
