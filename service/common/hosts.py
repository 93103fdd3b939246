"""Requests are answered only under names that the site chose: a foreign page cannot reach us by a name of its own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from mainstay.service.common.outgoing import is_address
from mainstay.service.common.problem import BadRequestError, problem_response

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound


class WrongHostError(BadRequestError):
    slug, title = "wrong-host", "Host not allowed"


class AllowedHosts:
    """Pure ASGI middleware that checks the Host header.

    Args:
        app: what answers allowed requests.
        bound: the address that the service listens on. Where that is every address, any address will do, and so will
            the name of this machine: a page that wants to reach us by DNS rebinding needs a name of its own.
        names: further names; ``*.example`` stands for all below, ``*`` for all.
    """

    def __init__(self, app: ASGIApp, bound: str, names: Sequence[str]) -> None:
        self.app = app
        self._any_address = bound in _WILDCARDS
        own = (socket.gethostname(), socket.getfqdn()) if self._any_address else (bound,)
        allowed = {name.lower().rstrip(".") for name in (*_LOOPBACK, *own, *names)}
        self._names = frozenset(name for name in allowed if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in allowed if name.startswith("*"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allows(scope):
            await self.app(scope, receive, send)
            return
        error = WrongHostError(
            "the service does not answer under the name in the Host header: add it to the setting allowed_hosts"
        )
        await problem_response(error, scope["path"])(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        header = next((value for key, value in scope["headers"] if key == b"host"), b"").decode("latin-1")
        try:
            host = (urlsplit(f"//{header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return host in self._names or host.endswith(self._suffixes) or (self._any_address and is_address(host))
