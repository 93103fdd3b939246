"""The frame route: a bare Starlette route, because per-request Python is what ingest costs (measured).

Authorization, the size bound and every rejection are the same as in other routes; only pydantic validation is skipped.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainstay.service import services as running
from mainstay.service.auth import guard
from mainstay.service.common.body import read_body
from mainstay.service.common.openapi import problems
from mainstay.service.common.problem import ProblemError, TooLargeError
from mainstay.service.telemetry.ingest import Ingest

PATH: Final = "/v1/telemetry/frames"
_DUPLICATE: Final = {"X-Mainstay-Duplicate": "1"}


class FrameTooLargeError(TooLargeError):
    slug, title = "frame-too-large", "Frame too large"


async def _post(request: Request) -> Response:
    services = running.services_of(request)
    ingest: Ingest = services.ingest
    try:
        principal = await guard.identify(request)
        guard.refuse_join_token(principal)
        body = await read_body(request, services.settings.telemetry.max_frame_bytes, FrameTooLargeError)
        fresh = await ingest.accept(principal, body)
    except ProblemError as error:
        ingest.refused[error.slug] += 1
        raise
    return Response(status_code=204, headers=None if fresh else _DUPLICATE)


ROUTE: Final = Route(PATH, _post, methods=["POST"])


def document(schema: dict[str, Any]) -> None:
    """Add the route to an OpenAPI ``schema``: it is not FastAPI's, so FastAPI does not know it."""
    answers: dict[str, Any] = {
        "204": {"description": "Stored durably. X-Mainstay-Duplicate is 1 if it was stored before."},
        **{str(status): answer for status, answer in problems(404, 409, 503).items()},
    }
    schema["paths"][PATH] = {
        "post": {
            "tags": ["telemetry"],
            "summary": "Store one telemetry frame",
            "description": "The body is one frame (probes/frame.py): msgpack envelope, raw little-endian payload.",
            "operationId": "post_frame",
            "requestBody": {
                "required": True,
                "content": {"application/msgpack": {"schema": {"type": "string", "format": "binary"}}},
            },
            "responses": answers,
        }
    }
