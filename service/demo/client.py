"""A small REST client for the demo: it sees the loop only through the public API, as any user would."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from urllib3.exceptions import HTTPError

from mainstay.probes.transport import Transport

Json = dict[str, Any]


class ApiClient(Transport):
    """JSON calls against one service; each raises ``TransportError`` for any answer but 2xx, or none."""

    def ready(self) -> bool:
        """Whether the service answers that it is ready."""
        try:
            return self._pool.request("GET", f"{self.url}/readyz", timeout=10.0).status == 200
        except HTTPError:
            return False

    def get(self, path: str, **query: str | int) -> Json:
        """GET ``/v1`` + path."""
        return self._json("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, body: Json) -> Json:
        """POST JSON to ``/v1`` + path."""
        return self._json("POST", path, body)

    def put(self, path: str, body: Json) -> Json:
        """PUT JSON to ``/v1`` + path."""
        return self._json("PUT", path, body)

    def _json(self, method: str, path: str, body: Json | None = None) -> Json:
        answer: Json = self.json(method, path, body) or {}
        return answer
