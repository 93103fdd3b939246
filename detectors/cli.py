"""``mainstay validate`` and ``mainstay criteria``: the shell around a pure floor. Only here are files read and written.

Exit codes of whatever judges: 0 all PASS or WARN, 1 something FAILs, 2 bad input, 3 torch is missing, 4 something is
UNKNOWN and nothing fails. An unknown is never a zero.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from detectors.confirm import confirmed
from detectors.criteria import FALSE_ALARMS, Criteria, JudgedSuite, judge_suite, learn, samples_of, worst
from detectors.sessions import ONE_SESSION, by_day, by_time
from detectors.shell import AsJson, InputError, one_line
from probes.benchmarks.result import SuiteResult, disturbance
from probes.decoding import UNREADABLE
from probes.words import Verdict

if TYPE_CHECKING:
    from probes.benchmarks.suites import Suite

EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 4}
Files = Annotated[list[Path], Parameter(consume_multiple=True)]

criteria = App(name="criteria", help="Learn criteria from result files; judge results by them.")

_one_line = one_line("mainstay")
T = TypeVar("T")


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
    again: int = 0,
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
    again
        How often to measure again what is slower than it may be; it fails if it does every time. For busy machines.
    as_json
        Print the result as JSON, and nothing else, on standard output.
    """
    from probes.benchmarks.runner import NurseryError
    from probes.benchmarks.suites import SUITES

    chosen = _chosen(SUITES, suite)
    _check_wish(device, directory, again)
    known = _load(criteria, Criteria) if criteria else Criteria(criteria=())
    part = _part(chosen, only)
    _check_writable(out)
    _check_writable(log)
    wish = _Wish(device=device, directory=directory, part=part, again=again, log=log, quiet=as_json)
    try:
        result = _measure(chosen, known, wish)
    except NurseryError as error:
        print(f"mainstay: no benchmark can run: {error}; pip install 'mainstay[train]'", file=sys.stderr)
        return 3
    judged = judge_suite(result, known)
    if out is not None:
        _write(out, judged)
    _show([judged], as_json=as_json, document=judged)
    return EXIT_CODES[judged.verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """How a suite is to be measured."""

    device: str
    directory: Path | None
    part: tuple[str, ...]
    again: int
    log: Path | None
    quiet: bool


def _measure(suite: Suite, known: Criteria, wish: _Wish) -> SuiteResult:
    """Run the suite, and again what is slower than it may be; SIGTERM or SIGINT ends it with what there is."""
    from probes.benchmarks.interrupt import interruptible
    from probes.benchmarks.progress import logged, watching
    from probes.benchmarks.runner import run_suite

    with interruptible() as interrupt, watching(quiet=wish.quiet) as watcher, logged(wish.log, watcher) as told:
        run = partial(
            run_suite,
            suite,
            device=wish.device,
            directory=str(wish.directory or ""),
            watcher=told,
            interrupt=interrupt,
        )
        return confirmed(run(only=wish.part), known, lambda names: run(only=names), wish.again)


def _chosen(suites: Mapping[str, Suite], name: str) -> Suite:
    suite = suites.get(name)
    if suite is None:
        raise InputError(f"unknown suite {name!r}: choose {', '.join(suites)}")
    return suite


def _check_wish(device: str, directory: Path | None, again: int) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {device!r}: choose auto, cpu or cuda")
    if directory is not None and not directory.is_dir():
        raise InputError(f"{directory}: not a directory")
    if again < 0:
        raise InputError(f"--again must be at least 0, not {again}")


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
def fit(
    files: list[Path],
    /,
    *,
    out: Path,
    false_alarms: float = FALSE_ALARMS,
    method: Literal["auto", "cdf", "robust"] = "auto",
    sessions: Literal["time", "day", "folder", "machine", "none"] = "time",
    as_json: AsJson = False,
) -> int:
    """Learn criteria from result files of machines that you trust: five runs or more of each cohort, of several hours.

    Parameters
    ----------
    files
        Results, as `mainstay validate --out` writes them.
    out
        Where to write the criteria.
    false_alarms
        Chance that a healthy machine fails a run, over all of its metrics together.
    method
        cdf: similarity of the whole distribution to the most typical run; metrics that repeat too badly for it get no
        criterion. robust: limits on the median. auto: cdf where a metric repeats well enough, else robust.
    sessions
        Which runs of a machine share conditions, so that limits hold for sessions to come. time: runs within half an
        hour of each other, one hour at most; day: of one day (UTC); folder: in one folder; machine: all of them;
        none: nobody knows, all runs are taken to be independent.
    as_json
        Print the criteria as JSON, and nothing else, on standard output.
    """
    from detectors.limits import RobustLimits
    from detectors.validator import BestLimits, Validator

    _check_budget(false_alarms)
    results = [_load(file, SuiteResult) for file in files]
    samples = (
        sample
        for result, session in zip(results, _sessions(sessions, files, results), strict=True)
        for sample in samples_of(
            result.benchmarks, cohort=result.cohort, time=result.finished_at, machine=result.host, session=session
        )
    )
    estimator = {"auto": BestLimits, "cdf": Validator, "robust": RobustLimits}[method]
    try:
        learned = learn(samples, false_alarms=false_alarms, estimator=estimator)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not learned.criteria:
        reason = learned.refused[0].reason if learned.refused else "the files hold no measurement"
        raise InputError(f"no criterion can be learned from {len(files)} files: {reason}")
    _write(out, learned)
    if as_json:
        print(msgspec.json.encode(learned).decode())
    else:
        busy = sum(any(map(disturbance, result.benchmarks)) for result in results)
        _show_learned(learned, out, f"{busy} of {len(results)}" if busy else "")
    return 0


def _show_learned(learned: Criteria, out: Path, busy: str) -> None:
    """The table, and what there is to say of how good its limits are."""
    from detectors.report import criteria_table

    _print(criteria_table(learned))
    print(f"\n{len(learned.criteria)} criteria written to {out}; {len(learned.refused)} metrics stay UNKNOWN.")
    if busy:
        print(f"{busy} runs were taken on a busy machine: idle runs give tighter limits.")
    if any(one.sessions is not None and one.sessions.between is None for one in learned.criteria):
        print(f"WARN: {ONE_SESSION}. Add runs of other hours or days: nobody knows yet what those bring.")


def _sessions(by: str, files: Sequence[Path], results: Sequence[SuiteResult]) -> list[str]:
    """The session of each file, as ``--sessions`` says; empty: not known."""
    hosts = [result.host for result in results]
    if by in ("time", "day"):
        return (by_time if by == "time" else by_day)(hosts, [result.finished_at for result in results])
    if by == "folder":
        return [f"{host}@{file.absolute().parent}" for host, file in zip(hosts, files, strict=True)]
    return hosts if by == "machine" else [""] * len(files)


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
    if len(judged) > 1 and not as_json:
        from detectors.criteria_files import slow_groups

        for shared in slow_groups(judged):
            if len(shared.devices) > 1:
                print(f"\n{shared.words}: look for one fault that they share, not for {len(shared.devices)}.")
    return EXIT_CODES[worst(one.verdict for one in judged)]


@criteria.command
@_one_line
def repeatability(files: list[Path], /, *, as_json: AsJson = False) -> int:
    """How well each metric repeats on the same device: below 0.98 it is no gate.

    Exit code: 0 all may be gates; 1 some may not; 2 bad input; 4 some were not repeated.

    Parameters
    ----------
    files
        Results of two runs or more on the same machines, as `mainstay validate --out` writes them.
    as_json
        Print a JSON list, one entry per metric, and nothing else, on standard output.
    """
    from detectors.criteria_files import repeats

    found = repeats(_load(file, SuiteResult) for file in files)
    if not found:
        raise InputError(f"the {len(files)} files hold no measurement")
    rows = [
        (one.cohort, one.benchmark, one.metric, str(one.runs), _digits(one.similarity), one.reason) for one in found
    ]
    names = ("cohort", "benchmark", "metric", "runs", "similarity", "")
    _report(names, rows, found, as_json=as_json)
    return EXIT_CODES[worst(one.verdict for one in found)]


@criteria.command
@_one_line
def drift(*, before: Files, after: Files, false_alarms: float = FALSE_ALARMS, as_json: AsJson = False) -> int:
    """What an update of driver or firmware did: to all devices (blame the update) or to some (blame them).

    Exit code: 0 nothing became slower; 1 something did; 2 bad input; 4 some metrics cannot be compared.

    Parameters
    ----------
    before
        Results from before the update, as `mainstay validate --out` writes them.
    after
        Results from after it; of the same machines if possible.
    false_alarms
        Chance to blame an update that did nothing, over all metrics together.
    as_json
        Print a JSON list, one entry per metric, and nothing else, on standard output.
    """
    from detectors.criteria_files import shifts

    _check_budget(false_alarms)
    early, late = ([_load(file, SuiteResult) for file in files] for files in (before, after))
    found = shifts(early, late, false_alarms=false_alarms)
    if not found:
        raise InputError("the files hold no measurement that could drift")
    rows = [(one.verdict.value.upper(), one.cohort, one.benchmark, one.metric, one.reason) for one in found]
    _report(("verdict", "cohort", "benchmark", "metric", "why"), rows, found, as_json=as_json)
    return EXIT_CODES[worst(one.verdict for one in found)]


def _check_budget(false_alarms: float) -> None:
    if not 0 < false_alarms < 0.5:
        raise InputError(f"--false-alarms must lie between 0 and 0.5, not {false_alarms:g}")


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _report(names: Sequence[str], rows: Sequence[Sequence[str]], document: object, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(document).decode())
        return
    from detectors.report import rows_table

    _print(rows_table(names, rows))


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
