"""Baselines and summaries: SuperBench's arithmetic, without what makes it lose or garble them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.baseline import (
    Generated,
    generate_fixed,
    generate_mean,
    look_up,
    read_baseline,
    rounded,
    variances,
    write_baseline,
)
from mainstay.detectors.superbench.summary import (
    html_of_summary,
    markdown_of,
    read_summary_rules,
    samples_for_baseline,
    summarize,
)
from tests.detectors.superbench.fleet import MEMORY, results, rule_file, text

BANDWIDTH = {"statistics": "mean", "categories": "Mem", "aggregate": True, "metrics": ["mem-bw/h2d_bw"]}
FALLS = rule_file(r=MEMORY | {"metrics": ["mem-bw/h2d_bw"]})


def test_the_baseline_of_all_ranks_serves_each() -> None:
    baseline = {"a/x": 1, "a/x:1": 2, "b": 3}
    assert [look_up(baseline, name) for name in ("a/x:0", "a/x:1", "b/y", "c/y")] == [1, 2, 3, None]


def test_fix_threshold_drops_what_violates_until_nothing_does() -> None:
    samples = {"mem-bw/h2d_bw": np.array([100.0, 101, 99, 60, 85, math.nan]), "other/x": np.array([1.0])}
    made = generate_fixed(samples, FALLS, {})
    assert made.values == {"mem-bw/h2d_bw": 100.0}, "85 violates only once 60 is gone"
    assert made.dropped == {"mem-bw/h2d_bw": 2}


def test_values_violating_their_rule_are_dropped_once() -> None:
    rule = {"function": "value", "criteria": "lambda x:x>50", "categories": "C", "metrics": ["a/x"]}
    assert generate_fixed({"a/x": np.array([1.0, 3, 99])}, rule_file(r=rule), {}).values == {"a/x": 2.0}


def test_rules_without_a_limit_of_their_own_are_passed_over() -> None:
    stored = {"store": True, "categories": "C", "metrics": ["mem-bw/h2d_bw"]}
    combined = {"function": "multi_rules", "criteria": 'lambda label: bool(label["s"])', "categories": "C"}
    rules = rule_file(s=stored, m=combined, r=MEMORY | {"metrics": ["mem-bw/h2d_bw", "no/x"]})
    made = generate_fixed({"mem-bw/h2d_bw": np.array([100.0, 60, 100, 100])}, rules, {})
    assert (made.values, made.dropped) == ({"mem-bw/h2d_bw": 100.0}, {"mem-bw/h2d_bw": 1})
    assert made.refused == {"no/x": "the results have no benchmark 'no'"}


@pytest.mark.parametrize(
    ("values", "baseline", "expected"),
    [
        ([9.0, 11, 10], 10.0, [-0.1, 0.1, 0.0]),
        ([0.0, 1, -1], 0.0, [0.0, math.inf, -math.inf]),
        ([-11.0, 9], -10.0, [0.1, -1.9]),
    ],
)
def test_a_variance_is_a_share_of_the_baseline(values: list[float], baseline: float, expected: list[float]) -> None:
    assert variances(np.array(values), baseline) == pytest.approx(expected)


def test_samples_around_zero_have_no_outliers() -> None:
    made = generate_fixed({"mem-bw/h2d_bw": np.array([1.0, -1.0])}, FALLS, {})
    assert (made.values, made.dropped) == ({"mem-bw/h2d_bw": 0.0}, {})


def test_a_previous_baseline_is_kept_and_added_to() -> None:
    """SuperBench writes no file if it covers one of the metrics."""
    samples = {"mem-bw/h2d_bw": np.array([100.0]), "mem-bw/d2h_bw": np.array([50.0])}
    previous = {"mem-bw/h2d_bw": 26.123, "old/x": 1}
    assert generate_mean(samples, previous).values == {"mem-bw/h2d_bw": 26.123, "old/x": 1, "mem-bw/d2h_bw": 50.0}
    assert generate_fixed(samples, FALLS, previous).values == {"mem-bw/h2d_bw": 26.123, "old/x": 1}


def test_what_has_no_sample_left_gets_no_baseline() -> None:
    everything = rule_file(r=MEMORY | {"function": "value", "criteria": "lambda x:x>0", "metrics": ["mem-bw/.*"]})
    made = generate_fixed({"mem-bw/a": np.array([1.0, 2]), "mem-bw/b": np.array([math.nan])}, everything, {})
    assert made.values == {}
    assert made.refused == {"mem-bw/a": "all 2 samples violate the rule", "mem-bw/b": "there is no finite sample"}


@pytest.mark.parametrize(
    ("value", "shown"), [(26.0719, 26.07), (0.0055412, 0.0055), (0.999, 1.0), (-0.12345, -0.12), (1234.5, 1234.5)]
)
def test_numbers_have_two_decimals_or_digits(value: float, shown: float) -> None:
    assert rounded(value, 2) == shown


def test_integers_and_fingerprints_keep_all_digits() -> None:
    made = Generated({"a/count": 10 / 3, "a/deterministic_loss": 1.23456789, "a/x": 1.23456789, "a/tiny": 1.234e-7})
    assert write_baseline(Generated({"b": 1.23456, "a": 1.23456}), {}, kept={"a": 0}) == (
        '{\n  "a": 1.23456,\n  "b": 1.23\n}'
    )
    written = json.loads(write_baseline(made, {"a/count": True}, kept={}))
    assert written == {
        "a/count": 10 / 3,
        "a/deterministic_loss": 1.23456789,
        "a/x": 1.23,
        "a/tiny": 1.2e-7,
    }


@pytest.mark.parametrize("content", ["", "[1]", "{", "5"])
def test_what_is_no_baseline_file_is_refused(content: str) -> None:
    with pytest.raises(InputError, match="no JSON"):
        read_baseline(content)


def summary(*changes: dict[str, Any], digits: int = 2, **rules: dict[str, Any]) -> str:
    return markdown_of(summarize(results(*changes), read_summary_rules(text(**rules)), digits))


def test_statistics_over_ranks_and_nodes() -> None:
    wanted = ["count", "mean", "min", "max", "std", "p50", "p90"]
    told = summary({}, {"mem-bw/h2d_bw:0": 27.0, "mem-bw/h2d_bw:1": None}, a=BANDWIDTH | {"statistics": wanted})
    assert told == (
        "## Mem\n| metric | statistics | values |\n| --- | --- | --- |\n"
        "| mem-bw/h2d_bw | count | 3.0 |\n| mem-bw/h2d_bw | mean | 26.17 |\n| mem-bw/h2d_bw | min | 25.5 |\n"
        "| mem-bw/h2d_bw | max | 27.0 |\n| mem-bw/h2d_bw | std | 0.76 |\n| mem-bw/h2d_bw | p50 | 26.0 |\n"
        "| mem-bw/h2d_bw | p90 | 26.8 |\n\n"
    )


def test_two_rules_of_one_category_are_both_kept() -> None:
    """As s02: SuperBench loses the first."""
    told = summary({}, a=BANDWIDTH, b=BANDWIDTH | {"statistics": "max", "metrics": ["gemm-flops/fp16"]})
    assert told.count("## Mem") == 1
    assert "| mem-bw/h2d_bw | mean | 25.75 |" in told
    assert "| gemm-flops/fp16_tc_flops | max | 300.0 |" in told, "a metric without a rank keeps its name"


def test_a_pattern_aggregates_over_its_groups() -> None:
    nics = {f"ib/write_{number}_bw:{rank}": 10.0 * number + rank for number in (1, 2) for rank in (0, 1)}
    told = summary(nics, a=BANDWIDTH | {"aggregate": r"ib/write_(\d+)_bw:(\d+)", "metrics": ["ib/write"]})
    assert "| ib/write_*_bw:* | mean | 15.5 |" in told


def test_a_summary_that_selects_nothing_says_so() -> None:
    assert "|  | mean |  |" in summary({}, a=BANDWIDTH | {"metrics": ["no/x"]})


def test_names_from_nodes_are_escaped_in_html() -> None:
    evil = {"mem-bw/<script>alert(1)</script>": 1.0}
    rules = read_summary_rules(text(a=BANDWIDTH | {"metrics": ["mem-bw/.*script"], "aggregate": False}))
    told = html_of_summary(summarize(results(evil), rules))
    assert "<script>" not in told
    assert "&lt;script&gt;" in told


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"statistics": "median"}, "rule 'a': statistics 'median'"),
        ({"statistics": "p100"}, "rule 'a': statistics 'p100'"),
        ({"statistics": []}, "rule 'a': statistics"),
        ({"aggregate": "no group"}, "rule 'a': aggregate"),
        ({"aggregate": "("}, "rule 'a': aggregate"),
        ({"metrics": None}, "rule 'a': metrics"),
    ],
)
def test_a_broken_summary_rule_is_refused_by_name_and_field(change: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_summary_rules(text(a=BANDWIDTH | change))


def test_samples_for_a_baseline_stand_under_each_name_of_a_pattern() -> None:
    read = results({}, {})
    samples, whole = samples_for_baseline(read, read_summary_rules(text(a=BANDWIDTH)))
    assert {name: len(values) for name, values in samples.items()} == {"mem-bw/h2d_bw": 4}
    assert whole == {"mem-bw/h2d_bw": False}
    pattern = BANDWIDTH | {"aggregate": r"h2d_bw:(\d+)"}
    samples, _whole = samples_for_baseline(read, read_summary_rules(text(a=pattern)))
    assert {name: len(values) for name, values in samples.items()} == {"mem-bw/h2d_bw:0": 4, "mem-bw/h2d_bw:1": 4}


def test_samples_are_integers_where_no_other_metric_has_more() -> None:
    """pandas fills the shorter columns with NaN, which makes floats of them."""
    wanted = read_summary_rules(text(a=BANDWIDTH | {"metrics": ["a/two", "a/one", "a/half"]}))
    read = results({"a/two:0": 1, "a/two:1": 2, "a/one:0": 3, "a/half:0": 1.5, "a/half:1": 2}, {})
    samples, whole = samples_for_baseline(read, wanted)
    assert {name: len(values) for name, values in samples.items()} == {"a/two": 4, "a/one": 2, "a/half": 4}
    assert whole == {"a/two": False, "a/one": False, "a/half": False}, "the second node has none"
    read = results({"a/two:0": 1, "a/two:1": 2, "a/one:0": 3, "a/half:0": 1.5, "a/half:1": 2})
    assert samples_for_baseline(read, wanted)[1] == {"a/two": True, "a/one": False, "a/half": False}
