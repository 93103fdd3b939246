"""``mainstay superbench``: find defective nodes in SuperBench results. This module reads and writes the files.

Exit codes of ``diagnose``: 0 every node passes, 1 some are defective, 2 invalid input, 4 some are unknown and none is
defective. UNKNOWN is never a zero.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from cyclopts import App, Parameter

from mainstay.detectors.cli_errors import BAD_INPUT, AsJson, Flag, InputError, naming, one_line, print_json
from mainstay.detectors.superbench.baseline import (
    Generated,
    generate_fixed,
    generate_mean,
    read_baseline,
    write_baseline,
)
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis
from mainstay.detectors.superbench.diagnose import diagnose as diagnose_results
from mainstay.detectors.superbench.lint import lint as check
from mainstay.detectors.superbench.output import Format, write
from mainstay.detectors.superbench.report import as_data, render, render_findings, verdict_of
from mainstay.detectors.superbench.results import Results, read_results
from mainstay.detectors.superbench.rules import LARGEST, RuleFile, read_rules
from mainstay.detectors.superbench.summary import (
    html_of_summary,
    markdown_of,
    read_summary_rules,
    samples_for_baseline,
    summarize,
)
from mainstay.probes.core_types import Verdict

EXIT_CODES: Final = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 4}
INCOMPLETE: Final = 4
_HELP: Final = "Find defective nodes in SuperBench results."

superbench = App(name="superbench", help=_HELP)
T = TypeVar("T")
_one_line = one_line("mainstay superbench", {InputError: BAD_INPUT, OSError: BAD_INPUT})


@superbench.command
@_one_line
def diagnose(
    *,
    results: Path,
    rules: Path,
    baseline: Path | None = None,
    output: Path | None = None,
    form: Annotated[Format | None, Parameter(name="--format")] = None,
    everything: Annotated[bool, Parameter(name="--all", negative=())] = False,
    compat: Flag = False,
    digits: int = 2,
    as_json: AsJson = False,
) -> int:
    """Diagnose the nodes of a results file and report problems of the rules.

    Exit code: 0 every node passes; 1 some are defective; 2 invalid input; 4 some are unknown and none is defective.

    Parameters
    ----------
    results
        Read results-summary.jsonl of SuperBench: one JSON object per node.
    rules
        Read a SuperBench rule file (YAML).
    baseline
        Read a SuperBench baseline (JSON); only variance rules need one.
    output
        Write the diagnosis to this file, in the format of SuperBench.
    form
        Set the format: json, jsonl, md, or html; the default follows from the suffix of --output.
    everything
        Write all nodes with their raw metrics, not only the rejected nodes.
    compat
        Write exactly what SuperBench writes, without unknown nodes; screen and exit code still show them.
    digits
        Set the decimals in md and html.
    as_json
        Print only JSON on standard output.
    """
    if output is not None:
        form = _form(output, form)
    rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
    diagnosis = _judged(results, rules, rule_file, _baseline(baseline))
    findings = check(rule_file, diagnosis)
    if output is not None and form is not None:
        output.write_text(write(diagnosis, form, everything=everything, compat=compat, digits=digits), encoding="utf-8")
    if as_json:
        print_json(as_data(diagnosis, findings))
    else:
        _print(render(diagnosis, findings))
    return EXIT_CODES[verdict_of(diagnosis)]


@superbench.command
@_one_line
def lint(*, results: Path, rules: Path, baseline: Path | None = None, as_json: AsJson = False) -> int:
    """Check a rule file: entries that select nothing, limits that cannot fire, missing baselines.

    Exit code: 0 no problem; 1 problems; 2 invalid input.

    Parameters
    ----------
    results
        Read the results that the rules apply to.
    rules
        Read a SuperBench rule file (YAML).
    baseline
        Read a SuperBench baseline (JSON).
    as_json
        Print only JSON on standard output.
    """
    rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
    findings = check(rule_file, _judged(results, rules, rule_file, _baseline(baseline)))
    if as_json:
        print_json(findings)
    elif findings:
        _print(render_findings(findings))
    else:
        print(f"{rules}: nothing found in {len(rule_file.rules)} rules")
    return 1 if findings else 0


@superbench.command
@_one_line
def summary(
    *,
    results: Path,
    rules: Path,
    output: Path | None = None,
    form: Annotated[Literal["md", "html", "json"], Parameter(name="--format")] = "md",
    digits: int = 2,
) -> int:
    """Summarize a fleet with the summary rules of SuperBench.

    Parameters
    ----------
    results
        Read results-summary.jsonl of SuperBench: one JSON object per node.
    rules
        Read a SuperBench summary rule file (YAML).
    output
        Write to this file instead of the screen.
    form
        Set the format: md, html, or json.
    digits
        Set the decimals (significant digits below 1); 0: print values unchanged.
    """
    summary_rules = _parsed(rules, lambda file: read_summary_rules(_text(file)))
    measured = _results(results)
    with naming(rules):
        lines = summarize(measured, summary_rules, digits)
    text = {
        "md": lambda: markdown_of(lines),
        "html": lambda: html_of_summary(lines),
        "json": lambda: msgspec.json.encode(lines).decode() + "\n",
    }[form]()
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
    return 0


@superbench.command
@_one_line
def baseline(
    *,
    results: Path,
    summary_rules: Path,
    output: Path,
    rules: Path | None = None,
    algorithm: Literal["mean", "fix_threshold"] | None = None,
    previous: Path | None = None,
    digits: int = 2,
) -> int:
    """Generate a baseline from the results of a fleet, as SuperBench does.

    Exit code: 0 done; 2 invalid input; 4 some metrics have no baseline.

    Parameters
    ----------
    results
        Read results-summary.jsonl of SuperBench: one JSON object per node.
    summary_rules
        Read which metrics to use and how to aggregate them (YAML).
    output
        Write the baseline to this file (JSON).
    rules
        Read diagnosis rules (YAML); samples that violate them against the mean are excluded.
    algorithm
        Choose mean or fix_threshold; the default is fix_threshold if rules are given.
    previous
        Keep the values of the metrics of this baseline.
    digits
        Set the decimals (significant digits below 1).
    """
    if algorithm == "fix_threshold" and rules is None:
        raise InputError("--algorithm fix_threshold needs --rules")
    kept = _baseline(previous)
    wanted = _parsed(summary_rules, lambda file: read_summary_rules(_text(file)))
    measured = _results(results)
    with naming(summary_rules):
        samples, whole = samples_for_baseline(measured, wanted)
    if not samples:
        raise InputError(f"{summary_rules}: its rules select nothing in {results}")
    if rules is None or algorithm == "mean":
        made = generate_mean(samples, kept)
    else:
        rule_file = _parsed(rules, lambda file: read_rules(_text(file)))
        with naming(rules):
            made = generate_fixed(samples, rule_file, kept)
    output.write_text(write_baseline(made, whole, digits=digits, kept=kept), encoding="utf-8")
    return _print_baseline(made, output, len(measured.nodes))


def _print_baseline(made: Generated, output: Path, nodes: int) -> int:
    print(f"{output}: baselines of {len(made.values)} metrics from {nodes} nodes")
    for metric, count in sorted(made.dropped.items()):
        print(f"  {metric}: {'1 sample' if count == 1 else f'{count} samples'} left out as outliers")
    for metric, why in sorted(made.refused.items()):
        print(f"  {metric}: no baseline, {why}", file=sys.stderr)
    return INCOMPLETE if made.refused else 0


def _judged(results: Path, rules: Path, rule_file: RuleFile, baseline: dict[str, object]) -> SuperBenchDiagnosis:
    measured = _results(results)
    with naming(rules):
        return diagnose_results(measured, rule_file, baseline)


def _results(file: Path) -> Results:
    def read(path: Path) -> Results:
        with path.open("rb") as lines:
            return read_results(lines)

    return _parsed(file, read)


def _baseline(file: Path | None) -> dict[str, object]:
    return {} if file is None else _parsed(file, lambda path: read_baseline(path.read_bytes()))


def _parsed(file: Path, read: Callable[[Path], T]) -> T:
    """Parse a file; errors name the file."""
    if not file.is_file():
        raise InputError(f"cannot read {file}: {'it is not a file' if file.exists() else 'no such file'}")
    with naming(file):
        return read(file)


def _text(file: Path) -> str:
    if file.stat().st_size > LARGEST:
        raise InputError(f"more than {LARGEST >> 20} MiB is too large for a rule file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8") from error


def _form(output: Path, form: Format | None) -> Format:
    if form is not None:
        return form
    try:
        return Format(output.suffix.lstrip(".").lower())
    except ValueError:
        raise InputError(f"{output} does not end in {', '.join(Format)}: give --format") from None


def _print(shown: Any) -> None:
    from rich.console import Console

    Console(highlight=False).print(shown)
