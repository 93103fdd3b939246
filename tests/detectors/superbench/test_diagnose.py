"""The diagnosis: SuperBench's labels, categories and texts, and UNKNOWN where it says nothing or gives up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.rules import Function
from mainstay.probes.core_types import Verdict
from tests.detectors.superbench.fleet import BASELINE, GOOD, MEMORY, judged, rule_file

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN
SLOW = {"mem-bw/h2d_bw:1": 18.0}
FAILED = {
    "function": "failure_check",
    "criteria": "lambda x:x>0",
    "categories": "Failed",
    "metrics": ["mem-bw/return_code"],
}


def test_a_variance_beyond_the_limit_labels_the_node() -> None:
    found = judged({}, SLOW, rules=rule_file(r=MEMORY))
    assert found.verdicts == (PASS, FAIL)
    assert found.categories == ("", "Mem")
    assert found.details[1] == "mem-bw/h2d_bw:1(B/L: 26.0000 VAL: 18.0000 VAR: -30.77% Rule:lambda x:x<-0.1)"
    assert found.metrics == ("mem-bw/h2d_bw:0", "mem-bw/h2d_bw:1")
    assert np.allclose(found.cells, [[0, 25.5 / 26 - 1], [0, 18 / 26 - 1]])


def test_a_value_is_judged_without_a_baseline() -> None:
    rule = {"function": "value", "criteria": "lambda x:x<20", "categories": None, "metrics": ["mem-bw/h2d_bw"]}
    found = judged({}, SLOW, rules=rule_file(r=rule), baseline={})
    assert found.verdicts == (PASS, FAIL)
    assert found.categories[1] == ""
    assert found.details[1] == "mem-bw/h2d_bw:1(VAL: 18.0000 Rule:lambda x:x<20)"
    assert found.kinds["mem-bw/h2d_bw:0"] is Function.VALUE


def test_categories_and_details_of_several_rules_are_sorted_and_joined() -> None:
    absolute = {"function": "value", "criteria": "lambda x:x<20", "categories": "Abs", "metrics": ["mem-bw/h2d_bw:1"]}
    found = judged(SLOW, rules=rule_file(b=MEMORY, a=absolute))
    assert found.categories == ("Abs,Mem",)
    assert found.details[0].split("),") == [
        "mem-bw/h2d_bw:1(B/L: 26.0000 VAL: 18.0000 VAR: -30.77% Rule:lambda x:x<-0.1",
        "mem-bw/h2d_bw:1(VAL: 18.0000 Rule:lambda x:x<20)",
    ]
    assert found.cells[0, 1] == 18.0, "the last rule wrote the cell"


def test_a_stored_rule_labels_nobody_and_its_count_can_be_combined() -> None:
    combined = {"function": "multi_rules", "criteria": 'lambda label: bool(label["a"] >= 2)', "categories": "Both"}
    rules = rule_file(a=MEMORY | {"store": True}, c=combined)
    found = judged(SLOW, SLOW | {"mem-bw/h2d_bw:0": 9.0}, rules=rules)
    assert found.verdicts == (PASS, FAIL)
    assert found.categories == ("", "Both"), "a stored rule's own category does not count"
    assert 'c:lambda label: bool(label["a"] >= 2)' in found.details[1]
    assert "mem-bw/h2d_bw:0(B/L" in found.details[1], "the text of a stored rule stays"


def test_stored_values_can_be_combined() -> None:
    values = {"store": True, "categories": "C", "metrics": ["mem-bw/h2d_bw"]}
    spread = 'lambda label: bool(min(label["v"].values()) / max(label["v"].values()) < 0.95)'
    rules = rule_file(v=values, c={"function": "multi_rules", "criteria": spread, "categories": "Spread"})
    found = judged({}, SLOW, rules=rules)
    assert found.verdicts == (PASS, FAIL)
    assert np.isnan(found.cells).all()


def test_failure_check_labels_what_failed_and_what_is_missing() -> None:
    rules = rule_file(f=FAILED | {"metrics": ["mem-bw/return_code", "gemm-flops/return_code"]})
    found = judged({}, {"mem-bw/return_code": 3}, {"mem-bw/return_code": None}, rules=rules)
    assert found.verdicts == (FAIL, FAIL, FAIL), "no node measured gemm-flops/return_code"
    assert found.details[0] == "gemm-flops/return_code_miss"
    assert found.details[1] == "gemm-flops/return_code_miss,mem-bw/return_code(VAL: 3.0000 Rule:lambda x:x>0)"
    assert found.details[2] == "gemm-flops/return_code_miss,mem-bw/return_code_miss"
    assert found.categories == ("Failed", "Failed", "Failed,FailedTest")


def test_failure_check_removes_duplicate_details() -> None:
    missing = {"mem-bw/h2d_bw:0": ..., "mem-bw/return_code": 1}
    twice = judged(missing, {}, rules=rule_file(a=MEMORY, b=MEMORY | {"categories": "Again"}, f=FAILED))
    assert twice.details[0].count("mem-bw/h2d_bw:0_miss") == 1
    kept = judged(missing, {}, rules=rule_file(f=FAILED, a=MEMORY, b=MEMORY))
    assert kept.details[0].count("mem-bw/h2d_bw:0_miss") == 2


@pytest.mark.parametrize("gone", [..., None, "25.9", "NaN"])
def test_a_missing_metric_leaves_its_node_unknown(gone: Any) -> None:
    """As c05: SuperBench accepts the node."""
    found = judged({}, {"mem-bw/h2d_bw:0": gone}, rules=rule_file(r=MEMORY))
    assert found.verdicts == (PASS, UNKNOWN)
    assert found.unknown[1] == ("mem-bw/h2d_bw:0_miss",)
    assert found.details[1] == "mem-bw/h2d_bw:0_miss"
    assert found.categories[1] == "FailedTest"


def test_a_defective_node_stays_defective_when_something_else_is_missing() -> None:
    found = judged({}, SLOW | {"mem-bw/h2d_bw:0": ...}, rules=rule_file(r=MEMORY))
    assert found.verdicts == (PASS, FAIL)
    assert found.categories[1] == "FailedTest,Mem"


@pytest.mark.parametrize(
    ("baseline", "why"),
    [
        ({}, "has no baseline"),
        ({"mem-bw/h2d_bw": 0}, "has the baseline 0"),
        ({"mem-bw/h2d_bw": "fast"}, "which is no finite number"),
        ({"mem-bw/h2d_bw": None}, "has no baseline"),
        ({"mem-bw/h2d_bw": True}, "which is no finite number"),
        ({"mem-bw/h2d_bw": float("inf")}, "which is no finite number"),
    ],
)
def test_an_unusable_baseline_leaves_its_metric_unknown_and_the_rest_judged(
    baseline: dict[str, object], why: str
) -> None:
    """As c06 and c07: SuperBench aborts the diagnosis of all nodes."""
    failure = {**FAILED, "function": "value"}
    found = judged({}, {"mem-bw/return_code": 1}, rules=rule_file(r=MEMORY, f=failure), baseline=baseline)
    assert found.verdicts == (UNKNOWN, FAIL)
    assert why in found.unknown[0][0]
    assert np.isnan(found.cells[:, :2]).all()


def test_deterministic_metrics_may_have_a_zero_baseline() -> None:
    name = "model-benchmarks/deterministic_config_seed"
    rule = {"function": "variance", "criteria": "lambda x: x != 0", "categories": "SDC", "metrics": [name]}
    found = judged({name: 0}, {name: 7}, {name: -7}, rules=rule_file(r=rule), baseline={name: 0})
    assert found.verdicts == (PASS, FAIL, FAIL)


def test_an_entry_that_selects_nothing_leaves_all_nodes_unknown() -> None:
    """As c03: SuperBench passes them without a word."""
    found = judged({}, SLOW, rules=rule_file(r=MEMORY | {"metrics": [*MEMORY["metrics"], "gemm-flops/*_tc_.*"]}))
    assert found.verdicts == (UNKNOWN, FAIL)
    assert "'gemm-flops/*_tc_.*' selects nothing" in found.unknown_of_all[0]


def test_a_reference_to_a_later_rule_is_judged() -> None:
    """As c10: SuperBench aborts."""
    combined = {"function": "multi_rules", "criteria": 'lambda label: bool(label["z"] >= 1)', "categories": "C"}
    found = judged({}, SLOW, rules=rule_file(c=combined, z=MEMORY | {"store": True}))
    assert found.verdicts == (PASS, FAIL)
    assert found.categories[1] == "C"


@pytest.mark.parametrize(
    ("criteria", "why"),
    [
        ('lambda label: label["v"] >= 3', "not supported between"),
        ('lambda label: min(label["v"].values()) < 30', "wrap it in bool"),
        ('lambda label: len(label["v"])', "gives int instead of True or False"),
        ('lambda label: bool(label["v"]["gone"] > 1)', "'gone' is not there"),
    ],
)
def test_a_combination_without_an_answer_leaves_nodes_unknown(criteria: str, why: str) -> None:
    """SuperBench takes no answer for a pass."""
    values = {"store": True, "categories": "C", "metrics": ["mem-bw/h2d_bw"]}
    rules = rule_file(v=values, c={"function": "multi_rules", "criteria": criteria, "categories": "C"})
    found = judged({}, {}, rules=rules)
    assert found.verdicts == (UNKNOWN, UNKNOWN)
    assert why in found.unknown[0][0]
    assert found.unanswered["c"][0] == 2


def test_a_criterion_without_an_answer_for_one_value_leaves_one_node_unknown() -> None:
    rule = {"function": "value", "criteria": "lambda x: 1/x > 5", "categories": "C", "metrics": ["mem-bw/h2d_bw:0"]}
    found = judged({}, {"mem-bw/h2d_bw:0": 0}, {"mem-bw/h2d_bw:0": 0.1}, rules=rule_file(r=rule))
    assert found.verdicts == (PASS, UNKNOWN, FAIL)


def test_a_rule_that_stands_twice_leaves_all_nodes_unknown() -> None:
    from mainstay.detectors.superbench.rules import read_rules
    from tests.detectors.superbench.fleet import text

    doubled = read_rules(text(r=MEMORY) + "    r:\n" + text(r=MEMORY).split("    r:\n")[1])
    assert judged({}, rules=doubled).verdicts == (UNKNOWN,)


def test_a_broken_expression_is_refused_with_its_rule() -> None:
    with pytest.raises(InputError, match="rule 'r': metrics entry 'mem-bw/\\(' is no regular expression"):
        judged({}, rules=rule_file(r=MEMORY | {"metrics": ["mem-bw/("]}))


def test_each_rank_may_have_its_own_baseline() -> None:
    own = BASELINE | {"mem-bw/h2d_bw:1": 18.0}
    assert judged(SLOW, rules=rule_file(r=MEMORY), baseline=own).verdicts == (PASS,)


def test_a_quoted_baseline_is_a_number() -> None:
    """SuperBench writes "1.2e-05", and aborts when it reads it."""
    assert judged({}, SLOW, rules=rule_file(r=MEMORY), baseline={"mem-bw/h2d_bw": "2.6e1"}).verdicts == (PASS, FAIL)


def test_the_order_of_nodes_and_metrics_does_not_matter() -> None:
    turned = dict(reversed(GOOD.items()))
    one = judged({}, SLOW, {"mem-bw/h2d_bw:0": ...}, rules=rule_file(r=MEMORY))
    two = judged(turned, turned | SLOW, {"mem-bw/h2d_bw:0": ...}, rules=rule_file(r=MEMORY))
    assert (one.verdicts, one.details, one.metrics) == (two.verdicts, two.details, two.metrics)
