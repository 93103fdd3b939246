"""A check of error responses."""

from __future__ import annotations

import httpx


def assert_problem(answer: httpx.Response, status: int, slug: str, *words: str) -> None:
    """Assert that a request was refused with a problem of this type whose detail has all ``words``."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"urn:mainstay:problem:{slug}", problem
    assert problem["status"] == status
    told = str(problem["detail"])
    assert all(word in told for word in words), told
