"""Names of metrics: ``benchmark[:annotation]/[run/]metric[:rank]``, and the entries of a rule that select them.

What an entry selects follows SuperBench's ``RuleBase._get_metrics``: the text before the first ``/`` and before ``:``
names the benchmark literally, then the whole entry is an unanchored regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstay.detectors.cli_errors import InputError
from mainstay.probes.benchmarks.result import Better

LONGEST_ENTRY: Final = 1000
"""Characters of one entry: the longest published one has 60."""


def benchmark_of(name: str) -> str | None:
    """The benchmark of a metric or entry; None if it has none (then SuperBench leaves it out)."""
    if "/" not in name:
        return None
    benchmark = name.split("/", maxsplit=1)[0]
    return name.split(":", maxsplit=1)[0] if ":" in benchmark else benchmark


def without_rank(name: str) -> str:
    """A metric's name without its ``:rank``."""
    return name.rpartition(":")[0] or name


def stripped(name: str) -> str:
    """What SuperBench takes for the name without rank: it strips characters, not a suffix, and so may eat more."""
    if ":" not in name:
        return name.split("/", maxsplit=1)[0]
    return name.strip(name.rpartition(":")[2]).strip(":")


_HIGHER: Final = re.compile(r"(_bw|busbw|algbw|flops|iops)$|throughput", re.IGNORECASE)
_LOWER: Final = re.compile(r"(_time|_lat|latency|overhead)$|steptime", re.IGNORECASE)


def direction(metric: str) -> Better | None:
    """Which way a metric improves, by its name without rank; None where the name does not tell."""
    if _HIGHER.search(metric):
        return Better.HIGHER
    return Better.LOWER if _LOWER.search(metric) else None


def by_benchmark(metrics: Sequence[str]) -> dict[str, list[int]]:
    """Benchmark -> places of its metrics in ``metrics``."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(metrics):
        benchmark = benchmark_of(name)
        if benchmark is not None:
            found.setdefault(benchmark, []).append(place)
    return found


@dataclass(frozen=True, slots=True)
class Selection:
    """What the entries of one rule select among the metrics of the results."""

    columns: tuple[int, ...] = ()
    """Places of the metrics, ascending."""
    dead: dict[str, str] = field(default_factory=dict)
    """Entry that selects nothing -> why."""


def select(entries: Iterable[str], metrics: Sequence[str], benchmarks: dict[str, list[int]]) -> Selection:
    """The metrics that a rule's entries select.

    Raises:
        InputError: an entry of a measured benchmark is no regular expression (in other places it is dead).
    """
    chosen: set[int] = set()
    dead: dict[str, str] = {}
    for entry in entries:
        benchmark = benchmark_of(entry)
        if benchmark is None:
            dead[entry] = "it names no benchmark (benchmark/metric)"
        elif benchmark not in benchmarks:
            dead[entry] = f"the results have no benchmark {benchmark!r}"
        else:
            found = [place for place in benchmarks[benchmark] if metrics[place] == entry]
            pattern = compiled(entry)
            found += [place for place in benchmarks[benchmark] if pattern.search(metrics[place])]
            chosen.update(found)
            if not found:
                dead[entry] = f"none of the {len(benchmarks[benchmark])} metrics of {benchmark} matches it"
    return Selection(tuple(sorted(chosen)), dead)


def plain(text: str) -> str:
    """A text on one line, without what moves a terminal's cursor."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def quoted(text: str) -> str:
    """A text as it stands in the file: with ``repr`` every backslash of an expression would be two."""
    return f"'{plain(text)}'"


SHOWN = 3
"""Names that one line of a message lists; the rest is counted."""


def shown(value: object) -> str:
    """A value of a file for a message: short, for any content (by aliases, a little YAML can be a huge value)."""
    if isinstance(value, str):
        return quoted(value if len(value) <= 80 else f"{value[:77]}...")
    return repr(value) if isinstance(value, int | float | None) else f"a {type(value).__name__}"


def counted(number: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def compiled(entry: str) -> re.Pattern[str]:
    """An entry as a regular expression.

    Raises:
        InputError: it is none, or too long.
    """
    if len(entry) > LONGEST_ENTRY:
        raise InputError(f"metrics entry {entry[:40]!r}… has more than {LONGEST_ENTRY} characters")
    try:
        return re.compile(entry)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"metrics entry {quoted(entry)} is no regular expression: {error}") from error
