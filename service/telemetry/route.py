"""The frame routes, answered before any middleware, since per-request Python is what ingest costs (measured).

Authorization, size bounds, and every rejection are the same as in other routes. What is skipped are the middleware, the
router, the dependencies, and pydantic.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import FastAPI
from sqlalchemy.exc import OperationalError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mainstay.probes.bundle import MAX_BUNDLE_BYTES
from mainstay.service import services as running
from mainstay.service.auth import guard
from mainstay.service.common.back_pressure import BusyError
from mainstay.service.common.body import read_body
from mainstay.service.common.openapi import problems
from mainstay.service.common.problem import ProblemError, TooLargeError, UnavailableError, problem_response
from mainstay.service.services import Services
from mainstay.service.telemetry.ingest import Ingest

_log: Final = logging.getLogger(__name__)
FRAMES: Final = "/v1/telemetry/frames"
BUNDLES: Final = "/v1/telemetry/bundles"
_NO_CONTENT: Final = {"type": "http.response.start", "status": 204, "headers": []}
_DUPLICATE: Final = {"type": "http.response.start", "status": 204, "headers": [(b"x-mainstay-duplicate", b"1")]}
_END: Final = {"type": "http.response.body", "body": b""}


class FrameTooLargeError(TooLargeError):
    slug, title = "frame-too-large", "Frame too large"


class FrameGateway(FastAPI):
    """An app that answers the frame routes itself, before its middleware, and everything else as FastAPI does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in {FRAMES, BUNDLES}:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        request = Request(scope, receive)
        services = running.services_of(request)
        ingest: Ingest = services.ingest
        try:
            if scope["path"] == FRAMES:
                await _store_frame(request, ingest, send)
            else:
                answer = await _store_bundle(request, ingest)
                await answer(scope, receive, send)
        except ProblemError as error:
            await refuse(services, error, scope, receive, send)
        except OperationalError:
            _log.exception("the database did not answer at %s", scope["path"])
            away = UnavailableError("the database did not answer; try again", headers={"Retry-After": "1"})
            await problem_response(away, scope["path"])(scope, receive, send)


async def refuse(services: Services, error: ProblemError, scope: Scope, receive: Receive, send: Send) -> None:
    """Count a refused frame or bundle, and answer why."""
    services.ingest.refused[error.slug] += 1
    if isinstance(error, UnavailableError):
        services.pressure.shed.note("frames of jobs" if isinstance(error, BusyError) else "frames")
    await problem_response(error, scope["path"])(scope, receive, send)


async def _store_frame(request: Request, ingest: Ingest, send: Send) -> None:
    principal = await guard.identify(request)
    guard.refuse_join_token(principal)
    body = await read_body(request.receive, ingest.settings.max_frame_bytes, FrameTooLargeError)
    is_new = await ingest.accept(principal, body)
    await send(_NO_CONTENT if is_new else _DUPLICATE)
    await send(_END)


async def _store_bundle(request: Request, ingest: Ingest) -> Response:
    principal = await guard.identify(request)
    guard.refuse_join_token(principal)
    body = await read_body(request.receive, MAX_BUNDLE_BYTES, FrameTooLargeError)
    refused = await ingest.accept_bundle(principal, body)
    if not refused:
        return Response(status_code=204)
    members = []
    for subject, sequence, error in refused:
        ingest.refused[error.slug] += 1
        members.append({"subject": subject, "sequence": sequence, "slug": error.slug, "detail": error.detail})
    return JSONResponse({"rejected": members})


async def _answered_before(_request: Request) -> Response:
    raise AssertionError("the gateway answers POST before the router")


ROUTES: Final = [Route(path, _answered_before, methods=["POST"]) for path in (FRAMES, BUNDLES)]
"""So that the router knows the paths: other methods are answered 405."""


def document(schema: dict[str, Any]) -> None:
    """Add the routes to an OpenAPI ``schema``: they are not FastAPI's, so FastAPI does not know them."""
    body = {
        "required": True,
        "content": {"application/msgpack": {"schema": {"type": "string", "format": "binary"}}},
    }
    problem_answers = {str(status): answer for status, answer in problems(404, 409, 503).items()}
    stored = "Stored durably. X-Mainstay-Duplicate is 1 if it was stored before."
    schema["paths"][FRAMES] = {
        "post": {
            "tags": ["telemetry"],
            "summary": "Store one telemetry frame",
            "description": "The body is one frame (probes/frame.py): msgpack envelope, raw little-endian payload.",
            "operationId": "post_frame",
            "requestBody": body,
            "responses": {"204": {"description": stored}, **problem_answers},
        }
    }
    member = {"type": "object", "additionalProperties": True}
    rejected = {"type": "object", "properties": {"rejected": {"type": "array", "items": member}}}
    schema["paths"][BUNDLES] = {
        "post": {
            "tags": ["telemetry"],
            "summary": "Store the frames of up to 128 nodes",
            "description": "The body is one bundle (probes/bundle.py), as a rack relay sends it.",
            "operationId": "post_bundle",
            "requestBody": body,
            "responses": {
                "204": {"description": "All frames are durable."},
                "200": {
                    "description": "All frames are durable but those listed: subject, sequence, slug, detail.",
                    "content": {"application/json": {"schema": rejected}},
                },
                **problem_answers,
            },
        }
    }
