"""The dashboard's files, and the headers that keep a browser honest.

Only GETs outside the API reach this (``{path:web}``): a file of the build, or its index for every other path, because
each view of the dashboard is a URL. Without a build there is one plain page that says how to make it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainstay.service.common import compression

DIST: Final = Path(__file__).parents[2] / "dashboard"
_INLINE_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_NOT_BUILT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Mainstay</title>
<body style="font-family:system-ui;max-width:40rem;margin:4rem auto;line-height:1.5">
<h1>Mainstay is running</h1><p>The dashboard is not built. Run <code>make web</code> in the checkout and load this page
again. The API is under <a href="/openapi.json">/openapi.json</a>.</p></body></html>"""


class WebPath(Convertor[str]):
    """Every path but the API's: an unknown one there is 404, and a wrong method 405."""

    regex = r"(?!v1(?:/|$)|metrics$|healthz$|readyz$).*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("web", WebPath())


class Dashboard:
    """Serves a built single-page application from ``dist``."""

    def __init__(self, dist: Path = DIST) -> None:
        self.dist = dist.resolve()

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        index = self.dist / "index.html"
        if not index.is_file():
            return HTMLResponse(_NOT_BUILT, headers={"Cache-Control": "no-store"})
        file = self._file(path)
        if file is not None:
            # Vite names assets by their content: they never change.
            fresh = "public, max-age=31536000, immutable" if path.startswith("/assets/") else "no-cache"
            return _answer(file, request.headers.get("Accept-Encoding", ""), {"Cache-Control": fresh})
        if "." in path.rsplit("/", 1)[-1] and path.startswith("/assets/"):
            raise HTTPException(404)
        html = index.read_text()
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": content_policy(html)}
        return HTMLResponse(html, headers=headers)

    def _file(self, path: str) -> Path | None:
        wanted = (self.dist / path.lstrip("/")).resolve() if "\x00" not in path else self.dist
        return wanted if wanted.is_relative_to(self.dist) and wanted.is_file() and wanted.name != "index.html" else None


def _answer(file: Path, accept: str, headers: dict[str, str]) -> FileResponse:
    """The file; compressed where the build left it so and the client accepts that."""
    packed = file.with_name(f"{file.name}.br")
    if not packed.is_file():
        return FileResponse(file, headers=headers)
    encoding = compression.choose(accept, ("br",))
    headers |= compression.headers(encoding)
    return FileResponse(packed if encoding else file, headers=headers, media_type=guess_type(file.name)[0])


def content_policy(html: str = "") -> str:
    """Scripts come from us alone; those written into ``html`` are allowed by their digest."""
    digests = (hashlib.sha256(found.encode()).digest() for found in _INLINE_SCRIPT.findall(html))
    inline = "".join(f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'self'; script-src 'self'{inline}; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
        " object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


class SecurityHeaders:
    """Pure ASGI middleware: the same careful headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["X-Frame-Options"] = "DENY"
                headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers)
