"""A small REST client for the demo: it sees the loop only through the public API, as any user would."""

from __future__ import annotations

import json
from typing import Any

import urllib3

Json = dict[str, Any]


class ApiError(RuntimeError):
    """The service answered with a problem; the message is its title and detail."""


class ApiClient:
    """Bearer-token JSON calls against one service."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._pool = urllib3.PoolManager(timeout=urllib3.Timeout(connect=2.0, read=10.0), retries=False)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ready(self) -> bool:
        """Whether the service answers that it is ready."""
        try:
            return self._pool.request("GET", f"{self.base_url}/readyz").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def get(self, path: str, **query: str | int) -> Json:
        """GET ``/v1`` + path.

        Raises:
            ApiError: any answer but 2xx, or none.
        """
        return self._call("GET", path, fields={k: str(v) for k, v in query.items()})

    def post(self, path: str, body: Json) -> Json:
        """POST JSON to ``/v1`` + path.

        Raises:
            ApiError: any answer but 2xx, or none.
        """
        return self._call("POST", path, json=body)

    def put(self, path: str, body: Json) -> Json:
        """PUT JSON to ``/v1`` + path.

        Raises:
            ApiError: any answer but 2xx, or none.
        """
        return self._call("PUT", path, json=body)

    def _call(self, method: str, path: str, **how: Any) -> Json:
        try:
            answer = self._pool.request(method, f"{self.base_url}/v1{path}", headers=self._headers, **how)
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(f"{method} {path}: {error}") from error
        body: Json = json.loads(answer.data) if answer.data else {}
        if answer.status >= 300:
            raise ApiError(f"{method} {path}: {answer.status} {body.get('title', '')}: {body.get('detail', '')}")
        return body
