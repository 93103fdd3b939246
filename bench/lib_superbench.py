"""Replays of SuperBench's recorded answers: which are the same, which deviate, and what the lint finds in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.baseline import generate_fixed, read_baseline, write_baseline
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis, diagnose
from mainstay.detectors.superbench.lint import lint
from mainstay.detectors.superbench.output import Format, write
from mainstay.detectors.superbench.results import Results, read_results
from mainstay.detectors.superbench.rules import read_rules
from mainstay.detectors.superbench.summary import (
    html_of_summary,
    markdown_of,
    read_summary_rules,
    samples_for_baseline,
    summarize,
)
from mainstay.probes.core_types import Verdict

DEVIATIONS: Final = {
    "c03_unmatched_metric": "UNKNOWN instead of a silent pass",
    "c05_missing_metric_only": "UNKNOWN instead of a silent pass of the node that lacks a metric",
    "c06_no_baseline_for_metric": "UNKNOWN instead of an abort",
    "c07_zero_baseline": "UNKNOWN instead of an abort",
    "c10_multi_forward_reference": "judged after the rule it reads instead of an abort",
    "c11_store_false_without_function": "refused at load, naming rule and field, instead of a bare KeyError",
    "s02_two_rules_one_category": "both rules are kept instead of the last",
}
"""As docs/how-to/superbench.md lists them."""
_QUICKSCAN: Final = Path("superbench-results/v0.4.0/Azure-NDv4-A100-quickscan")


def _results(file: Path) -> Results:
    with file.open("rb") as lines:
        return read_results(lines)


def _judged(results: Path, rules: Path, baseline: Path | None) -> SuperBenchDiagnosis:
    values = {} if baseline is None else read_baseline(baseline.read_bytes())
    return diagnose(_results(results), read_rules(rules.read_text()), values)


def golden_alike(data: Path) -> dict[str, bool]:
    """Case -> whether the whole answer is SuperBench's: labels, texts, cells, and nothing else."""
    folder = data / "superbench" / "golden"
    cases: dict[str, Mapping[str, Any]] = json.loads((folder / "cases.json").read_text())
    return {name: _alike(folder, case) for name, case in cases.items()}


def _alike(folder: Path, case: Mapping[str, Any]) -> bool:
    if "summary_rule" in case:
        return _tables_alike(folder, case)
    baseline = folder / case["baseline"] if case["baseline"] else None
    try:
        found = _judged(folder / case["data"], folder / case["rule"], baseline)
    except InputError as error:  # a bare key is no message: there a deviation is wanted
        raised = str(case.get("raises", ""))
        return bool(raised) and not raised.endswith("'function'") and "rule 'a'" in str(error)
    if "raises" in case or Verdict.UNKNOWN in found.verdicts:
        return False
    expected = json.loads((folder / case["expected_full"]).read_text())
    return bool(json.loads(write(found, Format.JSON)) == expected)


def _tables_alike(folder: Path, case: Mapping[str, Any]) -> bool:
    results, rules = _results(folder / case["data"]), read_summary_rules((folder / case["summary_rule"]).read_text())
    if "expected_md" in case:
        return bool(markdown_of(summarize(results, rules, 4)) == (folder / case["expected_md"]).read_text())
    made = _generated(folder / case["data"], folder / case["summary_rule"], folder / case["diagnosis_rule"])
    return bool(made == (folder / case["expected"]).read_text().rstrip("\n"))


def _generated(data: Path, summary_rules: Path, diagnosis_rules: Path) -> str:
    samples, whole = samples_for_baseline(_results(data), read_summary_rules(summary_rules.read_text()))
    return write_baseline(generate_fixed(samples, read_rules(diagnosis_rules.read_text()), {}), whole, kept={})


def files_alike(data: Path) -> dict[str, bool]:
    """Name of an expected file of SuperBench's own tests -> whether ours has the same bytes."""
    inputs, outputs = data / "superbench" / "tests_analyzer", data / "superbench" / "tests_data"
    found = _judged(inputs / "test_results.jsonl", inputs / "test_rules.yaml", inputs / "test_baseline.json")
    rules = read_summary_rules((inputs / "test_summary_rules.yaml").read_text())
    summary = summarize(_results(inputs / "test_results.jsonl"), rules)
    made: dict[str, Callable[[], str]] = {
        "diagnosis_summary_json.json": lambda: write(found, Format.JSON),
        "diagnosis_summary.json": lambda: write(found, Format.JSON, everything=True),
        "diagnosis_summary.jsonl": lambda: write(found, Format.JSONL),
        "diagnosis_summary.md": lambda: write(found, Format.MD),
        "diagnosis_summary.html": lambda: write(found, Format.HTML),
        "results_summary.md": lambda: markdown_of(summary),
        "results_summary.html": lambda: html_of_summary(summary),
    }
    return {name: make() == (outputs / name).read_text() for name, make in made.items()}


def lint_faults(data: Path) -> dict[str, bool]:
    """Known fault -> whether the lint finds it: the published file's, and those of four recorded cases."""
    golden, published = data / "superbench" / "golden", data / _QUICKSCAN

    def codes(rules: Path, baseline: Path) -> set[tuple[str, str]]:
        found = _judged(golden / "mini8.jsonl", rules, baseline)
        return {(one.rule, one.code) for one in lint(read_rules(rules.read_text()), found)}

    quick = codes(published / "rule.yaml", published / "baseline.json")
    return {
        "dead tensor_core expression": ("tensor_core", "dead-entry") in quick,
        "launch limit of 1 ms against 0.006 ms": ("kernel_launch", "never-fires") in quick,
        "c03": ("r", "dead-entry") in codes(golden / "c03_unmatched_metric.rule.yaml", published / "baseline.json"),
        "c05": ("r", "missing-metric")
        in codes(golden / "c05_missing_metric_only.rule.yaml", published / "baseline.json"),
        "c06": ("r", "missing-baseline")
        in codes(golden / "c06_no_baseline_for_metric.rule.yaml", golden / "c06_no_baseline_for_metric.baseline.json"),
        "c07": ("r", "invalid-baseline")
        in codes(golden / "c07_zero_baseline.rule.yaml", golden / "c07_zero_baseline.baseline.json"),
    }
