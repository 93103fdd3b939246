"""How long requests take, by route and status class; the frame routes, which no middleware sees, count their own."""

from __future__ import annotations

import time
from collections import defaultdict

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstay.service.common.histogram import Histogram

Durations = defaultdict[tuple[str, str], Histogram]
"""(route template, status class) → durations of requests. The event loop alone adds to it."""


class RequestDurations:
    """Pure ASGI middleware: notes in ``durations`` how long each request took, until the end of its answer."""

    def __init__(self, app: ASGIApp, durations: Durations) -> None:
        self.app, self.durations = app, durations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            self.durations[_template(scope), f"{status // 100}xx"].observe(time.monotonic() - started)


def _template(scope: Scope) -> str:
    """The template of the route that answered; ``other`` for files of the dashboard and unknown paths."""
    route = scope.get("route")
    if isinstance(route, APIRoute):
        return route.path
    path: str = scope["path"]
    return path if "endpoint" in scope and not scope.get("path_params") else "other"
