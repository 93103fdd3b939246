"""Progress of a suite for an operator who waits, on standard error only: standard output belongs to the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One benchmark begins (``result`` is None) or has ended."""

    index: int
    """Counted from 0."""
    total: int
    benchmark: str
    device: str
    result: BenchmarkResult | None = None


Watcher = Callable[[Progress], None]


@contextmanager
def logged(file: Path | None, watcher: Watcher) -> Iterator[Watcher]:
    """A watcher that also appends every step to ``file``, a line of JSON each, as soon as it is known.

    However this process ends, what was measured until then can be read there (``read_log``).
    """
    if file is None:
        yield watcher
        return
    with file.open("ab", buffering=0) as log:

        def record_step(step: Progress) -> None:
            log.write(msgspec.json.encode(step) + b"\n")
            watcher(step)

        yield record_step


def read_log(content: bytes) -> list[Progress]:
    """The whole lines of a log, in order; the last one may be half written."""
    lines = content.split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Progress) for line in lines]


@contextmanager
def watching(*, quiet: bool) -> Iterator[Watcher]:
    """A watcher for ``run_suite``: a moving line on a terminal, a line per benchmark in a log, nothing if quiet.

    A terminal is never quiet: whoever sits there sees it, and a program that reads the result does not.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status("Starting: looking for devices") as status:
            yield lambda step: status.update(_doing(step)) if step.result is None else _done(console, step)
    elif quiet:
        yield lambda _: None
    else:
        yield lambda step: _done(console, step)


def _doing(step: Progress) -> str:
    return f"{step.index + 1} of {step.total}: {step.benchmark} on {step.device}"


def _done(console: Console, step: Progress) -> None:
    """A benchmark that ended well leaves its time and what was amiss all the same, any other its reason."""
    if step.result is None:
        return
    result = step.result
    parts = (f"{result.seconds:.1f} s" if result.state is BenchmarkState.OK else result.state.value, result.error)
    console.print(f"{_doing(step)}: {': '.join(filter(None, parts))}", markup=False, soft_wrap=True)
