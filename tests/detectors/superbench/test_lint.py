"""The lint: every rule that can see nothing is found when the file is loaded, and a clean file has no finding."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import join_names
from mainstay.detectors.superbench.diagnose import diagnose
from mainstay.detectors.superbench.lint import LintIssue, coverage, lint
from mainstay.detectors.superbench.names import SHOWN
from mainstay.detectors.superbench.rules import RuleFile, read_rules
from tests.detectors.superbench.fleet import BASELINE, MEMORY, judged, results, rule_file, text

TENSOR = {
    "function": "variance",
    "criteria": "lambda x:x<-0.1",
    "categories": "Tensor",
    "metrics": ["gemm-flops/.*_tc_.*"],
}
CODES = {
    "function": "value",
    "criteria": "lambda x:x>0",
    "categories": "Failed",
    "metrics": ["mem-bw/return_code"],
}
LAUNCH = {"function": "value", "criteria": "lambda x:x>1", "categories": "Launch", "metrics": ["kernel-launch/.*_time"]}
KERNEL = {"kernel-launch/event_time:0": 0.006}
ADD = {"function": "multi_rules", "criteria": 'lambda label: bool(label["r"] > 1)', "categories": "C"}


def findings(
    *changes: dict[str, Any], rules: RuleFile, baseline: dict[str, object] | None = None
) -> tuple[LintIssue, ...]:
    return lint(rules, diagnose(results(*changes), rules, BASELINE if baseline is None else baseline))


def test_a_clean_file_has_no_finding() -> None:
    rules = rule_file(memory=MEMORY, tensor=TENSOR, codes=CODES, stored=MEMORY | {"store": True}, both=_reads("stored"))
    assert findings({}, {"mem-bw/h2d_bw:0": 9.0}, {}, rules=rules) == ()


def _reads(name: str) -> dict[str, Any]:
    return ADD | {"criteria": f'lambda label: bool(label["{name}"] > 1)'}


@pytest.mark.parametrize(
    ("rule", "baseline", "code", "said"),
    [
        (TENSOR | {"metrics": [r"gemm-flops/*_tc_.*:\d*"]}, None, "dead-entry", r"'gemm-flops/*_tc_.*:\d*' selects"),
        (TENSOR | {"metrics": ["gemm-flops/*_tc_.*"]}, None, "dead-entry", "did you mean 'gemm-flops/.*_tc_.*'"),
        (MEMORY | {"metrics": ["no-such/foo"]}, None, "dead-entry", "no benchmark 'no-such'"),
        (MEMORY | {"metrics": ["membw/h2d_bw"]}, None, "dead-entry", "did you mean 'mem-bw'?"),
        (MEMORY | {"metrics": [r"mem-bw/H2D_bw:\d+"]}, None, "dead-entry", "the nearest one is 'mem-bw/h2d_bw'"),
        (MEMORY | {"metrics": ["h2d_bw"]}, None, "dead-entry", "names no benchmark"),
        (MEMORY | {"metrics": []}, None, "dead-entry", "lists no metrics"),
        (MEMORY, {}, "missing-baseline", "2 metrics have no baseline: mem-bw/h2d_bw:0, mem-bw/h2d_bw:1"),
        (MEMORY, {"mem-bw/h2d_bw": 0}, "invalid-baseline", "2 metrics have the baseline 0"),
        (MEMORY | {"criteria": "lambda x:x<-1.5"}, None, "never-fires", "halves or doubles"),
        (MEMORY | {"criteria": "lambda x:x>-0.1"}, None, "always-fires", "equals its baseline"),
        (MEMORY | {"criteria": "lambda x:x>0.1"}, None, "wrong-side", "only where mem-bw/h2d_bw gets better"),
        (CODES | {"criteria": "lambda x:x>1"}, None, "never-fires", "return code 1 passes"),
        (CODES | {"metrics": ["mem-bw/h2d_bw"]}, None, "always-fires", "fires at what is typical"),
        (MEMORY | {"criterias": 1}, None, "unknown-field", "did you mean 'criteria'?"),
        (MEMORY | {"store": True}, None, "unread-store", "labels no node"),
    ],
)
def test_a_fault_is_found(rule: dict[str, Any], baseline: dict[str, object] | None, code: str, said: str) -> None:
    (found,) = findings({}, {}, {}, rules=rule_file(r=rule), baseline=baseline)
    assert (found.code, found.rule) == (code, "r")
    assert said in found.message


def test_a_limit_that_can_never_fire_is_found() -> None:
    """1 ms against launches of 0.006 ms, as in the published file; with a baseline, one node is enough."""
    rules = rule_file(r=LAUNCH)
    (found,) = findings(KERNEL, KERNEL, KERNEL, rules=rules)
    assert found.code == "never-fires"
    assert "kernel-launch/event_time:0 (typically 0.006)" in found.message
    assert len(findings(KERNEL, rules=rules, baseline={"kernel-launch/event_time": 0.006})) == 1
    assert findings(KERNEL, rules=rules) == (), "one node tells nothing of what is typical"
    assert findings(*[KERNEL] * 3, rules=rule_file(r=LAUNCH | {"criteria": "lambda x:x>0.01"})) == ()


@pytest.mark.parametrize("factor", [0.1, 0.2, 0.3, 0.5, 0.8, 1.25, 2.0, 3.0, 5.0, 10.0])
def test_a_limit_on_a_value_may_fire_near_one_multiple_of_what_is_typical(factor: float) -> None:
    narrow = f"lambda x:x>{factor * 0.01 * 0.99} and x<{factor * 0.01 * 1.01}"
    told = {"kernel-launch/event_time": 0.01}
    assert findings(KERNEL, rules=rule_file(r=LAUNCH | {"criteria": narrow}), baseline=told) == ()


@pytest.mark.parametrize("change", [-0.5, -0.4, -0.3, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])
def test_a_limit_on_a_variance_may_fire_near_one_change_for_the_worse(change: float) -> None:
    """Less bandwidth is worse, more time is; where names do not tell, both are."""
    narrow = f"lambda x:x>{change - 0.005} and x<{change + 0.005}"
    for name, worse in (("a/x_bw", change < 0), ("a/x_time", change > 0), ("a/x", True)):
        rule = MEMORY | {"criteria": narrow, "metrics": [name]}
        codes = [one.code for one in findings({name: 1.0}, rules=rule_file(r=rule), baseline={name: 1.0})]
        assert codes == ([] if worse else ["wrong-side"]), name


@pytest.mark.parametrize(("names", "said"), [("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 more"), ("", "")])
def test_a_list_of_names_is_a_line(names: str, said: str) -> None:
    assert join_names(names, SHOWN) == said


def test_a_metric_that_one_node_lacks_is_found() -> None:
    (found,) = findings({}, {"mem-bw/h2d_bw:0": ...}, rules=rule_file(r=MEMORY))
    assert (found.code, found.message) == ("missing-metric", "1 node (n1) without mem-bw/h2d_bw:0")


def test_a_late_reference_and_a_rule_without_an_answer_are_found() -> None:
    values = {"store": True, "categories": "C", "metrics": ["mem-bw/h2d_bw"]}
    bare = ADD | {"criteria": 'lambda label: label["r"] > 1'}
    codes = [one.code for one in findings({}, rules=rule_file(c=bare, r=values))]
    assert codes == ["late-reference", "no-answer"]


def test_a_rule_that_stands_twice_is_found() -> None:
    doubled = read_rules(text(r=MEMORY) + "    r:\n" + text(r=MEMORY).split("    r:\n")[1])
    (found,) = findings({}, rules=doubled)
    assert found.code == "defined-twice"
    assert "r (line 10)" in found.message


def test_coverage_names_what_no_rule_looks_at() -> None:
    told = coverage(judged({}, rules=rule_file(r=MEMORY)))
    assert told == "2 of 4 measured metrics are judged; no rule looks at gemm-flops/fp16_tc_flops, mem-bw/return_code"


def test_return_codes_do_not_hide_the_metrics_after_them() -> None:
    rules = rule_file(r=CODES | {"criteria": "lambda x:x>1e9", "metrics": ["mem-bw/return_code", "mem-bw/zz"]})
    (found,) = findings(*[{"mem-bw/zz": 1.0}] * 3, rules=rules)
    assert found.message.endswith(": mem-bw/return_code (return code 1 passes), mem-bw/zz (typically 1)")
