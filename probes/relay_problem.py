"""What a relay answers when it does not take a request: a problem document as the service's."""

from __future__ import annotations

from http import HTTPStatus

import msgspec


def problem_document(status: HTTPStatus, slug: str, detail: str) -> bytes:
    """The body of an answer (RFC 9457), with the fields that the service's have."""
    return msgspec.json.encode(
        {
            "type": f"urn:mainstay:problem:{slug}",
            "title": status.phrase,
            "status": status.value,
            "detail": detail,
            "instance": "",
            "errors": [],
        }
    )


class RelayProblemError(Exception):
    """A request that was not accepted; ``retry_after`` is in seconds, 0 leaves the header out."""

    def __init__(self, status: HTTPStatus, slug: str, detail: str, *, retry_after: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.retry_after = retry_after

    def document(self) -> bytes:
        """The answer's body (RFC 9457)."""
        return problem_document(self.status, self.slug, str(self))


def unavailable(slug: str, detail: str) -> RelayProblemError:
    """Return the problem of a relay that cannot take a request now: the node sends to the service directly."""
    return RelayProblemError(HTTPStatus.SERVICE_UNAVAILABLE, slug, detail, retry_after=2)
