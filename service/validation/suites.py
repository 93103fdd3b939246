"""What the suites are: read from ``probes.benchmarks``, which describes them without torch."""

from __future__ import annotations

from functools import cache

from probes.benchmarks.suites import SuiteInfo, describe
from service.kit.problem import UnprocessableError
from service.settings import ValidationSettings


class UnknownSuiteError(UnprocessableError):
    slug, title = "unknown-suite", "Unknown suite"


@cache
def suites() -> dict[str, SuiteInfo]:
    """Suite name → what it holds."""
    return {suite.name: suite for suite in describe()}


def require_suite(name: str) -> SuiteInfo:
    """The suite.

    Raises:
        UnknownSuiteError: there is none of this name; the message lists those there are.
    """
    suite = suites().get(name)
    if suite is None:
        raise UnknownSuiteError(f"no suite is called {name!r}: there are {', '.join(sorted(suites()))}")
    return suite


def deadline(suite: SuiteInfo, settings: ValidationSettings, *, now: float) -> float:
    """When a validation ordered now expires."""
    return now + max(settings.deadline_seconds, settings.deadline_factor * suite.expected_seconds)


def expected_benchmarks(name: str) -> tuple[str, ...]:
    """Benchmarks that a result of the suite must hold."""
    suite = suites().get(name)
    return () if suite is None else tuple(benchmark.name for benchmark in suite.benchmarks)
