"""Time is injected: nothing in the service reads the wall clock except through a ``Clock``."""

from __future__ import annotations

import time
from typing import Annotated, Protocol

from fastapi import Depends, Request


class Clock(Protocol):
    """Where the service reads the time."""

    def now(self) -> float:
        """Unix seconds, UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()


async def _now(request: Request) -> float:
    clock: Clock = request.app.state.clock
    return clock.now()


Now = Annotated[float, Depends(_now)]
"""The time of the request, Unix seconds."""
