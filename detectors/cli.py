"""``mainstay validate`` and ``mainstay criteria``: the shell around a pure floor. Only here are files read and written.

Exit codes of whatever judges: 0 all PASS or WARN, 1 something FAILs, 2 bad input, 3 torch is missing, 4 something is
UNKNOWN and nothing fails. An unknown is never a zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import msgspec
from cyclopts import App, Parameter

from detectors.criteria import FALSE_ALARMS, Criteria, JudgedSuite, judge_suite, learn, samples_of, worst
from probes.benchmarks.result import SuiteResult, disturbance
from probes.decoding import UNREADABLE
from probes.words import Verdict

if TYPE_CHECKING:
    from probes.benchmarks.suites import Suite

EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 4}
BAD_INPUT = 2

AsJson = Annotated[bool, Parameter(name="--json", negative=())]

criteria = App(name="criteria", help="Learn criteria from result files; judge results by them.")

P = ParamSpec("P")
T = TypeVar("T")


class InputError(ValueError):
    """What the user gave cannot be used; the message is one line and names what is wrong."""


def _one_line(command: Callable[P, int]) -> Callable[P, int]:
    """Bad input ends a command with one clear line on standard error and exit code 2."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            print(f"mainstay: {error}", file=sys.stderr)
            return BAD_INPUT

    return wrapped


@_one_line
def validate(
    *,
    suite: str = "quick",
    criteria: Path | None = None,
    device: str = "auto",
    directory: Path | None = None,
    only: str = "",
    out: Path | None = None,
    log: Path | None = None,
    as_json: AsJson = False,
) -> int:
    """Benchmarks on this machine, a verdict per metric.

    SIGTERM or Ctrl-C ends it within five seconds, with what was measured until then.

    Exit code: 0 all PASS or WARN; 1 some FAIL; 2 bad input; 3 torch is missing; 4 some UNKNOWN and none FAIL.

    Parameters
    ----------
    suite
        quick (seconds), standard (a minute) or deep (minutes).
    criteria
        What to judge by, as `mainstay criteria fit` writes it. Without it everything is UNKNOWN.
    device
        auto (GPUs if there are any), cpu or cuda.
    directory
        Where the disk is tested; otherwise the directory for temporary files.
    only
        Benchmarks of the suite, with commas between them; otherwise all.
    out
        Also write the result, as JSON, to this file.
    log
        Append each benchmark's result, as a line of JSON, to this file as soon as it is known.
    as_json
        Print the result as JSON, and nothing else, on standard output.
    """
    from probes.benchmarks.interrupt import interruptible
    from probes.benchmarks.progress import logged, watching
    from probes.benchmarks.runner import NurseryError, run_suite
    from probes.benchmarks.suites import SUITES

    chosen = SUITES.get(suite)
    if chosen is None:
        raise InputError(f"unknown suite {suite!r}: choose {', '.join(SUITES)}")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {device!r}: choose auto, cpu or cuda")
    if directory is not None and not directory.is_dir():
        raise InputError(f"{directory}: not a directory")
    known = _load(criteria, Criteria) if criteria else Criteria(criteria=())
    part = _part(chosen, only)
    _check_writable(out)
    _check_writable(log)
    try:
        with interruptible() as interrupt, watching(quiet=as_json) as watcher, logged(log, watcher) as told:
            result = run_suite(
                chosen,
                device=device,
                directory=str(directory or ""),
                only=part,
                watcher=told,
                interrupt=interrupt,
            )
    except NurseryError as error:
        print(f"mainstay: no benchmark can run: {error}; pip install 'mainstay[train]'", file=sys.stderr)
        return 3
    judged = judge_suite(result, known)
    if out is not None:
        _write(out, judged)
    _show([judged], as_json=as_json, document=judged)
    return EXIT_CODES[judged.verdict]


def _part(suite: Suite, only: str) -> tuple[str, ...]:
    """The benchmarks named on the command line, checked."""
    names = tuple(name.strip() for name in only.split(",") if name.strip())
    try:
        suite.benchmarks("cpu", only=names)
    except ValueError as error:
        raise InputError(str(error)) from None
    return names


@criteria.command
@_one_line
def fit(files: list[Path], /, *, out: Path, false_alarms: float = FALSE_ALARMS, as_json: AsJson = False) -> int:
    """Learn criteria from result files of machines that you trust: five runs or more of each cohort.

    Parameters
    ----------
    files
        Results, as `mainstay validate --out` writes them.
    out
        Where to write the criteria.
    false_alarms
        Chance that a healthy machine fails a run, over all of its metrics together.
    as_json
        Print the criteria as JSON, and nothing else, on standard output.
    """
    if not 0 < false_alarms < 0.5:
        raise InputError(f"--false-alarms must lie between 0 and 0.5, not {false_alarms:g}")
    results = [_load(file, SuiteResult) for file in files]
    samples = (
        sample
        for result in results
        for sample in samples_of(result.benchmarks, cohort=result.cohort, time=result.finished_at)
    )
    try:
        learned = learn(samples, false_alarms=false_alarms)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not learned.criteria:
        reason = learned.refused[0].reason if learned.refused else "the files hold no measurement"
        raise InputError(f"no criterion can be learned from {len(files)} files: {reason}")
    _write(out, learned)
    if as_json:
        print(msgspec.json.encode(learned).decode())
    else:
        from detectors.report import criteria_table

        _print(criteria_table(learned))
        print(f"\n{len(learned.criteria)} criteria written to {out}; {len(learned.refused)} metrics stay UNKNOWN.")
        if busy := sum(any(map(disturbance, result.benchmarks)) for result in results):
            print(f"{busy} of {len(results)} runs were taken on a busy machine: idle runs give tighter limits.")
    return 0


@criteria.command
@_one_line
def check(
    files: list[Path],
    /,
    *,
    criteria: Path,
    as_json: AsJson = False,
) -> int:
    """Judge result files by criteria; exit codes as those of `mainstay validate`.

    Parameters
    ----------
    files
        Results, as `mainstay validate --out` writes them.
    criteria
        What to judge by, as `mainstay criteria fit` writes it.
    as_json
        Print a JSON list, one entry per file, and nothing else, on standard output.
    """
    known = _load(criteria, Criteria)
    judged = [judge_suite(_load(file, SuiteResult), known) for file in files]
    _show(judged, as_json=as_json, document=judged)
    return EXIT_CODES[worst(one.verdict for one in judged)]


def _load(path: Path, shape: type[T]) -> T:
    """A JSON file of a known shape.

    Raises:
        InputError: names the file and, where the content is wrong, the field.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: not JSON: {error}") from error


def _check_writable(out: Path | None) -> None:
    """Better now than after a minute of measuring."""
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError(f"{out}: {'is a directory' if out.is_dir() else 'its directory does not exist'}")


def _write(out: Path, document: object) -> None:
    try:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}") from error


def _show(judged: list[JudgedSuite], *, as_json: bool, document: object) -> None:
    if as_json:
        print(msgspec.json.encode(document).decode())
        return
    from detectors.report import render

    for one in judged:
        _print(render(one))


def _print(what: object) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160  # a log is not folded to the eighty columns of a terminal that is not there
    console.print(what)
