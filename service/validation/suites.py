"""What the suites are: read from ``mainstay.probes.benchmarks``, which describes them without torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from mainstay.probes.benchmarks.suites import SuiteInfo, describe
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.settings import ValidationSettings


class UnknownSuiteError(UnprocessableError):
    slug, title = "unknown-suite", "Unknown suite"


class UnknownBenchmarkError(UnprocessableError):
    slug, title = "unknown-benchmark", "Unknown benchmark"


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


def require_part(suite: SuiteInfo, benchmarks: Sequence[str] | None) -> None:
    """Check that the suite has all of these benchmarks.

    Raises:
        UnknownBenchmarkError: it lacks one; the message names it.
    """
    known = [benchmark.name for benchmark in suite.benchmarks]
    if strangers := sorted(set(benchmarks or ()) - set(known)):
        raise UnknownBenchmarkError(
            f"suite {suite.name!r} has no benchmark {', '.join(strangers)}: it has {', '.join(known)}"
        )


def is_exclusive(name: str, part: Sequence[str] | None = None) -> bool:
    """Whether the suite, or this part of it, needs a node without running jobs; so does one that is unknown here."""
    suite = suites().get(name)
    return suite is None or any(b.exclusive for b in suite.benchmarks if part is None or b.name in part)


def seconds_for(suite: SuiteInfo, benchmarks: Sequence[str] | None, settings: ValidationSettings) -> float:
    """How long a validation may take from its order to its result."""
    return max(settings.deadline_seconds, settings.deadline_factor * expected_seconds(suite, benchmarks))


def expected_seconds(suite: SuiteInfo, benchmarks: Sequence[str] | None) -> float:
    """How long the suite, or a part of it, takes on a node by its own estimate."""
    return sum(b.expected_seconds for b in suite.benchmarks if benchmarks is None or b.name in benchmarks)


def expected_benchmarks(name: str, part: Sequence[str] | None = None) -> tuple[str, ...]:
    """Benchmarks that a result of the suite, or of a part of it, must hold: optional ones only where they are named."""
    suite = suites().get(name)
    if suite is None:
        return tuple(part or ())
    return tuple(b.name for b in suite.benchmarks if (not b.optional if part is None else b.name in part))
