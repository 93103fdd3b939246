"""``mainstay diagnose``: SuperBench's files in, its diagnosis out. Only here are files read and written.

Exit codes of whatever judges: 0 every node passes, 1 some are defective, 2 bad input, 4 some are unknown and none is
defective. An unknown is never a zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from detectors.shell import BAD_INPUT, AsJson, one_line
from detectors.superbench.baseline import (
    Generated,
    generate_fixed,
    generate_mean,
    read_baseline,
    write_baseline,
)
from detectors.superbench.diagnose import Diagnosis
from detectors.superbench.diagnose import diagnose as judge
from detectors.superbench.lint import lint as check
from detectors.superbench.names import InputError
from detectors.superbench.output import Format, write
from detectors.superbench.results import Results, read_results
from detectors.superbench.rules import LARGEST, RuleFile, read_rules
from detectors.superbench.show import as_data, findings_data, render, render_findings, verdict_of
from detectors.superbench.summary import (
    html_of_summary,
    markdown_of,
    plain_of,
    read_summary_rules,
    samples_for_baseline,
    summarise,
)
from probes.words import Verdict

EXIT_CODES: Final = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 4}
INCOMPLETE: Final = 4
_HELP: Final = "SuperBench's results, rules and baseline in; which nodes are defective out."
_CODES: Final = (
    """Exit code: 0 every node passes; 1 some are defective; 2 bad input; 4 some are unknown and none is defective."""
)

diagnose = App(name="diagnose", help=_HELP, help_epilogue=_CODES)
T = TypeVar("T")
Flag = Annotated[bool, Parameter(negative=())]
_one_line = one_line("mainstay diagnose", {InputError: BAD_INPUT, OSError: BAD_INPUT})


@diagnose.default
@_one_line
def run(
    *,
    results: Path,
    rules: Path,
    baseline: Path | None = None,
    out: Path | None = None,
    form: Annotated[Format | None, Parameter(name="--format")] = None,
    everything: Annotated[bool, Parameter(name="--all", negative=())] = False,
    compat: Flag = False,
    digits: int = 2,
    as_json: AsJson = False,
) -> int:
    """Judge the nodes of a results file, with what is wrong with the rules.

    Exit code: 0 every node passes; 1 some are defective; 2 bad input; 4 some are unknown and none is defective.

    Parameters
    ----------
    results
        results-summary.jsonl of SuperBench: one JSON object a node.
    rules
        A SuperBench rule file (YAML).
    baseline
        A SuperBench baseline (JSON); only variance rules need one.
    out
        Write the diagnosis to this file, in SuperBench's shape.
    form
        json, jsonl, md or html; otherwise the ending of --out tells.
    everything
        Write all nodes with their raw metrics, not only those that are not accepted.
    compat
        Write exactly what SuperBench writes: without unknown nodes. Screen and exit code still tell.
    digits
        Decimals in md and html.
    as_json
        Print JSON, and nothing else, on standard output.
    """
    if out is not None:
        form = _form(out, form)
    rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
    diagnosis = _judged(results, rules, rule_file, _baseline(baseline))
    findings = check(rule_file, diagnosis)
    if out is not None and form is not None:
        out.write_text(write(diagnosis, form, everything=everything, compat=compat, digits=digits), encoding="utf-8")
    if as_json:
        print(msgspec.json.encode(as_data(diagnosis, findings)).decode())
    else:
        _print(render(diagnosis, findings))
    return EXIT_CODES[verdict_of(diagnosis)]


@diagnose.command
@_one_line
def lint(*, results: Path, rules: Path, baseline: Path | None = None, as_json: AsJson = False) -> int:
    """What is wrong with a rule file: entries that select nothing, limits that cannot fire, missing baselines.

    Exit code: 0 nothing; 1 something; 2 bad input.

    Parameters
    ----------
    results
        Results that the rules are meant for.
    rules
        A SuperBench rule file (YAML).
    baseline
        A SuperBench baseline (JSON).
    as_json
        Print JSON, and nothing else, on standard output.
    """
    rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
    findings = check(rule_file, _judged(results, rules, rule_file, _baseline(baseline)))
    if as_json:
        print(msgspec.json.encode(findings_data(findings)).decode())
    elif findings:
        _print(render_findings(findings))
    else:
        print(f"{rules}: nothing found in {len(rule_file.rules)} rules")
    return 1 if findings else 0


@diagnose.command
@_one_line
def summary(
    *,
    results: Path,
    rules: Path,
    out: Path | None = None,
    form: Annotated[Literal["md", "html", "json"], Parameter(name="--format")] = "md",
    digits: int = 2,
) -> int:
    """Statistics over a fleet, by SuperBench's summary rules.

    Parameters
    ----------
    results
        results-summary.jsonl of SuperBench: one JSON object a node.
    rules
        A SuperBench summary rule file (YAML).
    out
        Write to this file instead of the screen.
    form
        md, html or json.
    digits
        Decimals; significant digits below 1. 0: as they are.
    """
    summary_rules = _parsed(rules, lambda file: read_summary_rules(_text(file)))
    lines = _named(rules, lambda: summarise(_results(results), summary_rules, digits))
    text = {
        "md": lambda: markdown_of(lines),
        "html": lambda: html_of_summary(lines),
        "json": lambda: msgspec.json.encode(plain_of(lines)).decode() + "\n",
    }[form]()
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")
    return 0


@diagnose.command
@_one_line
def baseline(
    *,
    results: Path,
    summary_rules: Path,
    out: Path,
    rules: Path | None = None,
    algorithm: Literal["mean", "fix_threshold"] | None = None,
    previous: Path | None = None,
    digits: int = 2,
) -> int:
    """A baseline from the results of a fleet, as SuperBench generates one.

    Exit code: 0 done; 2 bad input; 4 some metrics got no baseline.

    Parameters
    ----------
    results
        results-summary.jsonl of SuperBench: one JSON object a node.
    summary_rules
        Which metrics, and how they are aggregated (YAML).
    out
        Where the baseline goes (JSON).
    rules
        Diagnosis rules (YAML): what violates them against the mean is left out of it.
    algorithm
        mean or fix_threshold; otherwise fix_threshold if rules are given.
    previous
        A baseline whose metrics keep their values.
    digits
        Decimals; significant digits below 1.
    """
    if algorithm == "fix_threshold" and rules is None:
        raise InputError("--algorithm fix_threshold needs --rules")
    kept = _baseline(previous)
    wanted = _parsed(summary_rules, lambda file: read_summary_rules(_text(file)))
    measured = _results(results)
    samples, whole = _named(summary_rules, lambda: samples_for_baseline(measured, wanted))
    if not samples:
        raise InputError(f"{summary_rules}: its rules select nothing in {results}")
    if rules is None or algorithm == "mean":
        made = generate_mean(samples, kept)
    else:
        rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
        made = _named(rules, lambda: generate_fixed(samples, rule_file, kept))
    out.write_text(write_baseline(made, whole, digits=digits, kept=kept), encoding="utf-8")
    return _tell(made, out, len(measured.nodes))


def _tell(made: Generated, out: Path, nodes: int) -> int:
    print(f"{out}: baselines of {len(made.values)} metrics from {nodes} nodes")
    for metric, count in sorted(made.dropped.items()):
        print(f"  {metric}: {'1 sample' if count == 1 else f'{count} samples'} left out as outliers")
    for metric, why in sorted(made.refused.items()):
        print(f"  {metric}: no baseline, {why}", file=sys.stderr)
    return INCOMPLETE if made.refused else 0


def _judged(results: Path, rules: Path, rule_file: RuleFile, baseline: dict[str, object]) -> Diagnosis:
    measured = _results(results)
    return _named(rules, lambda: judge(measured, rule_file, baseline))


def _results(file: Path) -> Results:
    def read(path: Path) -> Results:
        with path.open("rb") as lines:
            return read_results(lines)

    return _parsed(file, read)


def _baseline(file: Path | None) -> dict[str, object]:
    return {} if file is None else _parsed(file, lambda path: read_baseline(path.read_bytes()))


def _parsed(file: Path, read: Callable[[Path], T]) -> T:
    """What a file holds; errors name the file."""
    if not file.is_file():
        raise InputError(f"{file} is no file")
    return _named(file, lambda: read(file))


def _named(file: Path, do: Callable[[], T]) -> T:
    try:
        return do()
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST:
        raise InputError(f"more than {LARGEST >> 20} MiB is no rule file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8") from error


def _form(out: Path, form: Format | None) -> Format:
    if form is not None:
        return form
    try:
        return Format(out.suffix.lstrip(".").lower())
    except ValueError:
        raise InputError(f"{out} does not end in {', '.join(Format)}: give --format") from None


def _print(shown: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(shown)
