"""``mainstay validate`` and ``mainstay criteria``. This module reads and writes the files; the layers below are pure.

Exit codes of every verdict: 0 all PASS or WARN, 1 a metric FAILs, 2 invalid input, 3 torch is missing, 4 a metric is
UNKNOWN and no metric fails. UNKNOWN is never a zero.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, InputError, one_line, print_json, print_unfolded, read_json
from mainstay.detectors.superbench.conversion import read_runs, unread_metrics
from mainstay.detectors.validation.criteria import judge_suite, worst
from mainstay.detectors.validation.criterion_learning import FALSE_ALARMS, learn_criteria, samples_of
from mainstay.detectors.validation.remeasurement import confirm_failures
from mainstay.detectors.validation.sessions import ONE_SESSION, by_day, by_time
from mainstay.detectors.validation.verdict import Criteria, SuiteVerdict
from mainstay.probes.benchmarks.result import SuiteResult, contention_note
from mainstay.probes.core_types import Verdict

if TYPE_CHECKING:
    from mainstay.probes.benchmarks.suites import Suite

EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 4}
Files = Annotated[list[Path], Parameter(consume_multiple=True)]

criteria = App(name="criteria", help="Learn and apply validation criteria.")


@one_line("mainstay validate")
def validate(
    *,
    suite: str = "quick",
    criteria: Path | None = None,
    device: str = "auto",
    disk_test_dir: Path | None = None,
    benchmarks: str = "",
    output: Path | None = None,
    log: Path | None = None,
    remeasure: int = 0,
    as_json: AsJson = False,
) -> int:
    """Benchmark this machine and print a verdict per metric.

    SIGTERM or Ctrl-C ends the command within 5 s and keeps completed results.

    Exit code: 0 all PASS or WARN; 1 some FAIL; 2 invalid input; 3 torch is missing; 4 some UNKNOWN and none FAIL.

    Parameters
    ----------
    suite
        Choose the suite: quick (seconds), standard (a minute), or deep (minutes).
    criteria
        Read criteria that `mainstay criteria fit` wrote. Without them every verdict is UNKNOWN.
    device
        Choose the device: auto (GPUs if present), cpu, or cuda.
    disk_test_dir
        Test the disk in this directory; the default is the directory for temporary files.
    benchmarks
        Run only these benchmarks of the suite, separated by commas; the default is all.
    output
        Write the result, as JSON, to this file.
    log
        Append each benchmark result to this file as a JSON line when it is complete.
    remeasure
        Repeat a failed measurement up to N times; a metric fails only if every attempt fails. Use on shared machines.
    as_json
        Print only JSON on standard output.
    """
    from mainstay.probes.benchmarks.runner import BenchmarkForkServerError, run_suite
    from mainstay.probes.benchmarks.suites import SUITES

    chosen = _chosen(SUITES, suite)
    _check_request(device, disk_test_dir, remeasure)
    known = read_json(criteria, Criteria) if criteria else Criteria(criteria=())
    part = _part(chosen, benchmarks)
    _check_writable(output)
    _check_writable(log)
    run = partial(run_suite, chosen, device=device, directory=str(disk_test_dir or ""))
    try:
        result = _measure(run, known, part, remeasure, log, quiet=as_json)
    except BenchmarkForkServerError as error:
        print(f"mainstay validate: no benchmark can run: {error}; pip install 'mainstay[bench]'", file=sys.stderr)
        return 3
    judged = judge_suite(result, known)
    if output is not None:
        _write(output, judged)
    _show([judged], as_json=as_json, document=judged)
    return EXIT_CODES[judged.verdict]


def _measure(
    run: Callable[..., SuiteResult],
    known: Criteria,
    part: tuple[str, ...],
    remeasure: int,
    log: Path | None,
    *,
    quiet: bool,
) -> SuiteResult:
    """Run the suite, and again what is slower than it may be; SIGTERM or SIGINT ends it with what there is."""
    from mainstay.probes.benchmarks.cancellation import cancel_on_signals
    from mainstay.probes.benchmarks.progress import logged, watching

    with cancel_on_signals() as interrupt, watching(quiet=quiet) as watcher, logged(log, watcher) as told:
        run = partial(run, watcher=told, interrupt=interrupt)
        return confirm_failures(run(only=part), known, lambda names: run(only=names), remeasure)


def _chosen(suites: Mapping[str, Suite], name: str) -> Suite:
    suite = suites.get(name)
    if suite is None:
        raise InputError(f"unknown suite {name!r}: choose {', '.join(suites)}")
    return suite


def _check_request(device: str, directory: Path | None, remeasure: int) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown device {device!r}: choose auto, cpu, or cuda")
    if directory is not None and not directory.is_dir():
        raise InputError(f"--disk-test-dir {directory} is not a directory: name an existing one")
    if remeasure < 0:
        raise InputError(f"--remeasure must be at least 0, not {remeasure}")


def _part(suite: Suite, benchmarks: str) -> tuple[str, ...]:
    """The benchmarks named on the command line, checked."""
    names = tuple(name.strip() for name in benchmarks.split(",") if name.strip())
    try:
        suite.benchmarks("cpu", only=names)
    except ValueError as error:
        raise InputError(str(error)) from None
    return names


@criteria.command
@one_line("mainstay criteria", {ValueError: BAD_INPUT})
def fit(
    files: list[Path],
    /,
    *,
    output: Path,
    false_alarms: float = FALSE_ALARMS,
    method: Literal["auto", "cdf", "robust"] = "auto",
    sessions: Literal["time", "day", "folder", "machine", "none"] = "time",
    rules: Path | None = None,
    as_json: AsJson = False,
) -> int:
    """Learn criteria from result files of trusted machines: at least five runs of each cohort, over several hours.

    Parameters
    ----------
    files
        Read results that `mainstay validate --output` or SuperBench wrote (of SuperBench, one hardware model).
    output
        Write the criteria to this file.
    false_alarms
        Set the probability that a healthy machine fails a run, over all of its metrics together.
    method
        Choose cdf (similarity of the distribution to the most typical run; metrics with low repeatability get no
        criterion), robust (limits on the median), or auto (cdf where a metric is repeatable enough, else robust).
    sessions
        Choose which runs of a machine share conditions, so that limits hold for future sessions: time (half an hour
        apart, at most one hour), day (UTC), folder, machine (all runs), none (unknown: all runs are independent).
    rules
        Read directions and limits of SuperBench metrics from this SuperBench rule file (YAML).
    as_json
        Print only JSON on standard output.
    """
    from mainstay.detectors.superbench.rule_limits import RuleLimits
    from mainstay.detectors.validation.criterion_limits import LimitEstimator, RobustLimits
    from mainstay.detectors.validation.validator import BestLimits, Validator

    _check_budget(false_alarms)
    limits = RuleLimits(rules)
    runs = [(file, result) for file in files for result in read_runs(file, limits.direction)]
    results = [result for _, result in runs]
    samples = (
        sample
        for result, session in zip(results, _sessions(sessions, runs), strict=True)
        for sample in samples_of(
            result.benchmarks, cohort=result.cohort, time=result.finished_at, machine=result.host, session=session
        )
    )
    estimators: dict[str, type[LimitEstimator]] = {"auto": BestLimits, "cdf": Validator, "robust": RobustLimits}
    learned = learn_criteria(samples, false_alarms=false_alarms, estimator=estimators[method])
    every = (*learned.refused, *unread_metrics(results))
    learned = limits.apply(msgspec.structs.replace(learned, refused=every), results)
    if not learned.criteria:
        reason = next((refused.reason for refused in every), "the files hold no measurement")
        raise InputError(f"no criterion can be learned from {len(files)} files: {reason}")
    _write(output, learned)
    if as_json:
        print_json(learned)
    else:
        _show_learned(learned, output, results)
    return 0


def _show_learned(learned: Criteria, output: Path, results: Sequence[SuiteResult]) -> None:
    """Print the table and how good its limits are."""
    from mainstay.detectors.validation.report import criteria_table

    busy = sum(any(map(contention_note, result.benchmarks)) for result in results)
    print_unfolded(criteria_table(learned), width=160)
    print(f"\n{len(learned.criteria)} criteria written to {output}; {len(learned.refused)} metrics stay UNKNOWN.")
    if busy:
        print(f"{busy} of {len(results)} runs were taken on a busy machine: idle runs give tighter limits.")
    if any(one.sessions is not None and one.sessions.between is None for one in learned.criteria):
        print(f"WARN: {ONE_SESSION}. Add runs of other hours or days; their spread is unknown.")


def _sessions(by: str, runs: Sequence[tuple[Path, SuiteResult]]) -> list[str]:
    """The session of each run, by ``--sessions``; empty: unknown."""
    hosts = [result.host for _, result in runs]
    if by in ("time", "day"):
        return (by_time if by == "time" else by_day)(hosts, [result.finished_at for _, result in runs])
    if by == "folder":
        return [f"{result.host}@{file.absolute().parent}" for file, result in runs]
    return hosts if by == "machine" else [""] * len(runs)


@criteria.command
@one_line("mainstay criteria")
def check(files: list[Path], /, *, criteria: Path, as_json: AsJson = False) -> int:
    """Evaluate result files with criteria; the exit codes are those of `mainstay validate`.

    Parameters
    ----------
    files
        Read results that `mainstay validate --output` or SuperBench wrote.
    criteria
        Read criteria that `mainstay criteria fit` wrote.
    as_json
        Print only a JSON list, one entry per run, on standard output.
    """
    known = read_json(criteria, Criteria)
    better = {f"{c.benchmark.partition(' from ')[0]}/{c.metric}": c.better for c in known.criteria}
    runs = (run for file in files for run in read_runs(file, lambda name: better.get(re.sub(r":\d+$", "", name))))
    judged = [judge_suite(result, known) for result in runs]
    _show(judged, as_json=as_json, document=judged)
    if len(judged) > 1 and not as_json:
        from mainstay.detectors.validation.criteria_files import slow_groups

        for shared in slow_groups(judged):
            if len(shared.devices) > 1:
                print(f"\n{shared.description}: look for one fault that they share, not for {len(shared.devices)}.")
    return EXIT_CODES[worst(one.verdict for one in judged)]


@criteria.command
@one_line("mainstay criteria")
def repeatability(files: list[Path], /, *, as_json: AsJson = False) -> int:
    """Compute the repeatability of each metric on the same device; below 0.98 a metric gets no criterion.

    Exit code: 0 all metrics are repeatable; 1 some are not; 2 invalid input; 4 some were not repeated.

    Parameters
    ----------
    files
        Read results of two or more runs on the same machines, as `mainstay validate --output` wrote them.
    as_json
        Print only a JSON list, one entry per metric, on standard output.
    """
    from mainstay.detectors.validation.criteria_files import repeats

    found = repeats(result for file in files for result in read_runs(file))
    if not found:
        raise InputError(f"the {len(files)} files hold no measurement")
    rows = [
        (one.cohort, one.benchmark, one.metric, str(one.runs), _digits(one.similarity), one.reason) for one in found
    ]
    names = ("cohort", "benchmark", "metric", "runs", "similarity", "")
    _report(names, rows, found, as_json=as_json)
    return EXIT_CODES[worst(one.verdict for one in found)]


@criteria.command
@one_line("mainstay criteria")
def compare(*, before: Files, after: Files, false_alarms: float = FALSE_ALARMS, as_json: AsJson = False) -> int:
    """Compare results before and after a driver or firmware update: did all devices change, or only some?

    Exit code: 0 no metric became slower; 1 a metric did; 2 invalid input; 4 some metrics cannot be compared.

    Parameters
    ----------
    before
        Read results from before the update, as `mainstay validate --output` wrote them.
    after
        Read results from after the update, of the same machines if possible.
    false_alarms
        Set the probability that an update without effect is reported, over all metrics together.
    as_json
        Print only a JSON list, one entry per metric, on standard output.
    """
    from mainstay.detectors.validation.criteria_files import shifts

    _check_budget(false_alarms)
    early, late = ([result for file in files for result in read_runs(file)] for files in (before, after))
    found = shifts(early, late, false_alarms=false_alarms)
    if not found:
        raise InputError("the files hold no measurement to compare")
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
        print_json(document)
        return
    from mainstay.detectors.validation.report import rows_table

    print_unfolded(rows_table(names, rows), width=160)


def _check_writable(output: Path | None) -> None:
    """Check the path before the measurements, which take minutes."""
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise InputError(
            f"cannot write {output}: {'it is a directory' if output.is_dir() else 'its directory does not exist'}"
        )


def _write(output: Path, document: object) -> None:
    try:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from error


def _show(judged: list[SuiteVerdict], *, as_json: bool, document: object) -> None:
    if as_json:
        print_json(document)
        return
    from mainstay.detectors.validation.report import render

    print_unfolded(*map(render, judged), width=160)
