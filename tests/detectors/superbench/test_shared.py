"""SuperBench's own test files and recorded answers: the same labels, the same bytes, and only the deviations we list.

Over shared data, skipped where it is absent; the other files of this folder make their own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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

QUICKSCAN = "superbench-results/v0.4.0/Azure-NDv4-A100-quickscan"


def measured(file: Path) -> Results:
    with file.open("rb") as lines:
        return read_results(lines)


def judged(results: Path, rules: Path, baseline: Path | None) -> SuperBenchDiagnosis:
    values = {} if baseline is None else read_baseline(baseline.read_bytes())
    return diagnose(measured(results), read_rules(rules.read_text()), values)


def golden(test_data: Path, case: str) -> SuperBenchDiagnosis:
    folder = test_data / "superbench" / "golden"
    told = json.loads((folder / "cases.json").read_text())[case]
    baseline = folder / told["baseline"] if told["baseline"] else None
    return judged(folder / told["data"], folder / told["rule"], baseline)


@pytest.mark.parametrize("compat", [True, False])
@pytest.mark.parametrize(
    ("name", "form", "everything"),
    [
        ("diagnosis_summary_json.json", Format.JSON, False),
        ("diagnosis_summary.json", Format.JSON, True),
        ("diagnosis_summary.jsonl", Format.JSONL, False),
        ("diagnosis_summary.md", Format.MD, False),
        ("diagnosis_summary.html", Format.HTML, False),
    ],
)
def test_every_byte_of_superbenchs_own_diagnosis(
    test_data: Path, name: str, form: Format, everything: bool, compat: bool
) -> None:
    folder = test_data / "superbench" / "tests_analyzer"
    found = judged(folder / "test_results.jsonl", folder / "test_rules.yaml", folder / "test_baseline.json")
    expected = test_data / "superbench" / "tests_data" / name
    assert write(found, form, everything=everything, compat=compat) == expected.read_text()


@pytest.mark.parametrize("case", ["c03_unmatched_metric", "c05_missing_metric_only", "c08_store_and_multi"])
def test_recorded_labels_and_values(test_data: Path, case: str) -> None:
    expected = json.loads((test_data / "superbench" / "golden" / f"{case}.expected.json").read_text())
    assert json.loads(write(golden(test_data, case), Format.JSON, compat=True)) == expected


def test_c14_the_cell_holds_what_the_last_rule_wrote(test_data: Path) -> None:
    test_recorded_labels_and_values(test_data, "c14_value_and_variance_same_metric")


def test_c12_is_refused_as_superbench_does(test_data: Path) -> None:
    with pytest.raises(InputError, match="rule 'a': criteria 'lambda x:x' must answer True or False"):
        golden(test_data, "c12_criteria_not_bool")


@pytest.mark.parametrize(
    ("case", "unknown"),
    [
        ("c03_unmatched_metric", 8),
        ("c05_missing_metric_only", 1),
        ("c06_no_baseline_for_metric", 8),
        ("c07_zero_baseline", 8),
        ("c10_multi_forward_reference", 8),
    ],
)
def test_deviations_are_unknown_where_superbench_passes_or_aborts(test_data: Path, case: str, unknown: int) -> None:
    found = golden(test_data, case)
    assert len(found.nodes(Verdict.UNKNOWN)) == unknown
    assert Verdict.FAIL not in found.verdicts or case == "c05_missing_metric_only"


def test_deviation_c11_names_rule_and_field(test_data: Path) -> None:
    with pytest.raises(InputError, match="rule 'a': function is missing"):
        golden(test_data, "c11_store_false_without_function")


def test_deviation_s02_keeps_both_rules(test_data: Path) -> None:
    folder = test_data / "superbench" / "golden"
    rules = read_summary_rules((folder / "s02.summary-rule.yaml").read_text())
    told = markdown_of(summarize(measured(folder / "mini8.jsonl"), rules, 4)).splitlines()
    assert set((folder / "s02.expected.md").read_text().splitlines()) < set(told)
    assert any(line.startswith("| mem-bw/h2d_bw | mean |") for line in told)


def test_summary_and_baseline_are_superbenchs(test_data: Path) -> None:
    inputs, outputs = test_data / "superbench" / "tests_analyzer", test_data / "superbench" / "tests_data"
    rules = read_summary_rules((inputs / "test_summary_rules.yaml").read_text())
    lines = summarize(measured(inputs / "test_results.jsonl"), rules)
    assert markdown_of(lines) == (outputs / "results_summary.md").read_text()
    assert html_of_summary(lines) == (outputs / "results_summary.html").read_text()
    wanted = read_summary_rules((inputs / "test_generate_baseline_summary_rules.yaml").read_text())
    samples, whole = samples_for_baseline(measured(inputs / "test_generate_baseline_results.jsonl"), wanted)
    diagnosis = read_rules((inputs / "test_generate_baseline_diagnosis_rules.yaml").read_text())
    made = write_baseline(generate_fixed(samples, diagnosis, {}), whole, kept={})
    assert made == (test_data / "superbench" / "golden" / "b01_repo_sample.expected.json").read_text()


def test_the_published_rule_file_is_found_to_be_half_blind(test_data: Path) -> None:
    rules = read_rules((test_data / QUICKSCAN / "rule.yaml").read_text())
    results = measured(test_data / "superbench" / "golden" / "mini8.jsonl")
    found = diagnose(results, rules, read_baseline((test_data / QUICKSCAN / "baseline.json").read_bytes()))
    told = {(one.rule, one.code) for one in lint(rules, found)}
    assert {("tensor_core", "dead-entry"), ("kernel_launch", "never-fires"), ("mem_bw", "missing-metric")} <= told
    assert Verdict.PASS not in found.verdicts


@pytest.mark.parametrize("case", ["c08_store_and_multi", "c14_value_and_variance_same_metric"])
def test_clean_files_have_no_finding(test_data: Path, case: str) -> None:
    folder = test_data / "superbench" / "golden"
    assert lint(read_rules((folder / f"{case}.rule.yaml").read_text()), golden(test_data, case)) == ()
