"""Errors as RFC 9457 problem documents, from one tree and one handler.

    ProblemError
    ├── BadRequestError 400     ├── NotFoundError 404      ├── PreconditionFailedError 412
    ├── UnauthorizedError 401   ├── ConflictError 409      ├── TooLargeError 413
    ├── ForbiddenError 403      └── UnavailableError 503   ├── WrongContentTypeError 415
    ├── MisdirectedError 421    ├── UnprocessableError 422
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
        self.headers = headers


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


class MisdirectedError(ProblemError):
    status, slug, title = 421, "misdirected", "Wrong process"


class UnprocessableError(ProblemError):
    status, slug, title = 422, "invalid", "Invalid input"


class TooManyRequestsError(ProblemError):
    status, slug, title = 429, "too-many-requests", "Too many requests"


class UnavailableError(ProblemError):
    status, slug, title = 503, "unavailable", "Temporarily unavailable"


class DatabaseUnavailableError(UnavailableError):
    slug = "database-unavailable"


BY_STATUS: Final[dict[int, type[ProblemError]]] = {
    kind.status: kind
    for kind in (
        BadRequestError, UnauthorizedError, ForbiddenError, NotFoundError, ConflictError, PreconditionFailedError,
        TooLargeError, WrongContentTypeError, MisdirectedError, UnprocessableError, TooManyRequestsError,
        UnavailableError,
    )
}  # fmt: skip
"""The first branches of the tree: the meaning of a status without a more exact slug."""


def urn(slug: str) -> str:
    return f"urn:mainstay:problem:{slug}"


def problem_response(error: ProblemError, instance: str = "") -> JSONResponse:
    """The problem document as a response."""
    body = Problem(
        type=urn(error.slug),
        title=error.title,
        status=error.status,
        detail=error.detail,
        instance=instance,
        errors=list(error.errors),
    ).model_dump()
    return JSONResponse(body, status_code=error.status, headers=error.headers, media_type=MEDIA_TYPE)


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
    return problem_response(UnprocessableError(f"{where}: {first.msg}", errors=faults), request.url.path)


def _wrong_content_type(request: Request) -> WrongContentTypeError:
    """For a body that FastAPI did not read as JSON because it was not announced as such."""
    announced = request.headers.get("content-type", "")[:100]
    return WrongContentTypeError(f"the body must be application/json, not {announced or 'without a content type'}")


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, request.url.path
    phrase = HTTPStatus(status).phrase
    detail = f"{request.method} {path}: {phrase.lower()}" if error.detail == phrase else str(error.detail)
    if status == BadRequestError.status and error.__cause__ is not None:
        detail = _unreadable(error.__cause__)
    problem = _kind_of(status, phrase)(detail)
    problem.headers = {"Allow": _allowed(request)} if status == HTTPStatus.METHOD_NOT_ALLOWED else error.headers
    return problem_response(problem, path)


def _kind_of(status: int, phrase: str) -> type[ProblemError]:
    """The branch of the tree for a status; one of its own, by the phrase of HTTP, for a status that the tree lacks."""
    names = {"status": status, "slug": phrase.lower().replace(" ", "-"), "title": phrase}
    return BY_STATUS.get(status) or type("HttpError", (ProblemError,), names)


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
    unstorable = UnprocessableError("a value cannot be stored: out of range or too long")
    return problem_response(unstorable, request.url.path)


async def _on_operational(request: Request, error: Exception) -> JSONResponse:
    _log.error("database unavailable at %s: %s", request.url.path, error)
    away = DatabaseUnavailableError("the database did not answer; try again", headers={"Retry-After": "1"})
    return problem_response(away, request.url.path)


async def _on_unexpected(request: Request, _error: Exception) -> JSONResponse:
    # Starlette re-raises after this, so the server logs the traceback.
    failed = ProblemError("something failed inside the service; its log says what")
    return problem_response(failed, request.url.path)


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
