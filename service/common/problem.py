"""Errors as RFC 9457 problem documents, from one tree and one handler.

    ProblemError
    ├── BadRequestError 400     ├── NotFoundError 404      ├── PreconditionFailedError 412
    ├── UnauthorizedError 401   ├── ConflictError 409      ├── TooLargeError 413
    ├── ForbiddenError 403      └── UnavailableError 503   ├── WrongContentTypeError 415
    ├── UnprocessableError 422
    └── TooManyRequestsError 429

A feature subclasses one of these and sets ``slug`` and ``title``; the detail names what is wrong with the input.
Nothing about the inside of the service leaks: an unexpected exception is logged and answered by a bare 500.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import ClassVar, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import DataError, OperationalError
from starlette.exceptions import HTTPException
from starlette.routing import Match

_log: Final = logging.getLogger(__name__)
MEDIA_TYPE: Final = "application/problem+json"
_METHODS: Final = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


class ProblemField(BaseModel):
    """One fault in the input."""

    loc: list[str | int]
    msg: str


class Problem(BaseModel):
    """RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemField]


class ProblemError(Exception):
    """An error with a status; ``detail`` is for the person who reads the answer."""

    status: ClassVar[int] = 500
    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[ProblemField] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


class BadRequestError(ProblemError):
    status, slug, title = 400, "invalid-request", "Bad request"


class UnauthorizedError(ProblemError):
    status, slug, title = 401, "unauthorized", "Not signed in"

    def __init__(self, detail: str, *, error: str | None = None) -> None:
        challenge = 'Bearer realm="mainstay"' + (f', error="{error}"' if error else "")
        super().__init__(detail, headers={"WWW-Authenticate": challenge})


class ForbiddenError(ProblemError):
    status, slug, title = 403, "forbidden", "Not allowed"


class NotFoundError(ProblemError):
    status, slug, title = 404, "not-found", "Not found"


class ConflictError(ProblemError):
    status, slug, title = 409, "conflict", "Conflict"


class PreconditionFailedError(ProblemError):
    status, slug, title = 412, "precondition-failed", "Precondition failed"


class TooLargeError(ProblemError):
    status, slug, title = 413, "too-large", "Too large"


class WrongContentTypeError(ProblemError):
    status, slug, title = 415, "wrong-content-type", "Wrong content type"


class UnprocessableError(ProblemError):
    status, slug, title = 422, "invalid", "Invalid input"


class TooManyRequestsError(ProblemError):
    status, slug, title = 429, "too-many-requests", "Too many requests"


class UnavailableError(ProblemError):
    status, slug, title = 503, "unavailable", "Temporarily unavailable"


BY_STATUS: Final[dict[int, type[ProblemError]]] = {
    kind.status: kind
    for kind in (
        BadRequestError, UnauthorizedError, ForbiddenError, NotFoundError, ConflictError, PreconditionFailedError,
        TooLargeError, WrongContentTypeError, UnprocessableError, TooManyRequestsError, UnavailableError,
    )
}  # fmt: skip
"""The first branches of the tree: the meaning of a status without a more exact slug."""


def urn(slug: str) -> str:
    return f"urn:mainstay:problem:{slug}"


def response(
    status: int,
    slug: str,
    title: str,
    detail: str,
    *,
    instance: str = "",
    errors: Sequence[ProblemField] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """The problem document as a response."""
    body = Problem(
        type=urn(slug), title=title, status=status, detail=detail, instance=instance, errors=list(errors)
    ).model_dump()
    return JSONResponse(body, status_code=status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def problem_response(error: ProblemError, instance: str = "") -> JSONResponse:
    return response(
        error.status,
        error.slug,
        error.title,
        error.detail,
        instance=instance,
        errors=error.errors,
        headers=error.headers,
    )


async def _on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return problem_response(error, request.url.path)


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(fault["loc"] == ("body",) and isinstance(fault["input"], bytes) for fault in found):
        return problem_response(_wrong_content_type(request), request.url.path)
    faults = [ProblemField(loc=list(e["loc"]), msg=_printable(e["msg"])) for e in found[:50]]
    first = faults[0] if faults else ProblemField(loc=[], msg="invalid")
    where = ".".join(str(part) for part in first.loc)
    return response(422, "invalid", "Invalid input", f"{where}: {first.msg}", instance=request.url.path, errors=faults)


def _wrong_content_type(request: Request) -> WrongContentTypeError:
    """For a body that FastAPI did not read as JSON because it was not announced as such."""
    announced = request.headers.get("content-type", "")[:100]
    return WrongContentTypeError(f"the body must be application/json, not {announced or 'without a content type'}")


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    phrase = HTTPStatus(status).phrase
    known = BY_STATUS.get(status)
    slug, title = (known.slug, known.title) if known else (phrase.lower().replace(" ", "-"), phrase)
    detail = f"{request.method} {path}: {phrase.lower()}" if error.detail == phrase else str(error.detail)
    if status == BadRequestError.status and error.__cause__ is not None:
        detail = _unreadable(error.__cause__)
    headers = {"Allow": _allowed(request)} if status == HTTPStatus.METHOD_NOT_ALLOWED else error.headers
    return response(status, slug, title, detail, instance=path, headers=headers)


def _unreadable(cause: BaseException) -> str:
    """Why a body could not be parsed, where FastAPI says only that."""
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8: byte {cause.start}"
    if isinstance(cause, RecursionError):
        return "the body is nested too deeply"
    if isinstance(cause, ValueError):  # Python's bound on the digits of an integer
        return "the body holds a number with too many digits"
    return "the body could not be read"


def _allowed(request: Request) -> str:
    """Every method of the path: the router names only those of the first route that fits."""
    routes = request.app.routes
    return ", ".join(
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    )


async def _on_data_error(request: Request, error: Exception) -> JSONResponse:
    # A value passed the schema but not the column: the client's fault, and worth a tighter schema.
    _log.warning("a value was refused by the database at %s: %s", request.url.path, type(error).__name__)
    return response(
        422, "invalid", "Invalid input", "a value cannot be stored: out of range or too long", instance=request.url.path
    )


async def _on_operational(request: Request, error: Exception) -> JSONResponse:
    _log.error("database unavailable at %s: %s", request.url.path, error)
    return response(
        503,
        "database-unavailable",
        "Temporarily unavailable",
        "the database did not answer; try again",
        instance=request.url.path,
        headers={"Retry-After": "1"},
    )


async def _on_unexpected(request: Request, _error: Exception) -> JSONResponse:
    # Starlette re-raises after this, so the server logs the traceback.
    return response(
        500, "internal", "Internal error", "something failed inside the service; its log says what",
        instance=request.url.path,
    )  # fmt: skip


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def install(app: FastAPI) -> None:
    """Register the handlers: every error that leaves ``app`` is a problem document."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(DataError, _on_data_error)
    app.add_exception_handler(OperationalError, _on_operational)
    app.add_exception_handler(Exception, _on_unexpected)
