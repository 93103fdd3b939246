"""Directions and limits from a SuperBench rule file: what a criterion states, and criteria that hold it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.rule_limits import RuleLimits
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.result import Better
from mainstay.probes.core_types import Verdict
from tests.commands import run_here as mainstay
from tests.detectors.superbench.test_conversion import node, write

RULE = """
  {name}:
    function: {function}
    criteria: {criteria}
    categories: C
    store: {store}
    metrics: [{entry}]
"""


def rule(name: str, criteria: str, entry: str, function: str = "variance", store: str = "false") -> str:
    text = RULE.format(
        name=name, function=function, criteria=json.dumps(criteria), entry=json.dumps(entry), store=store
    )
    return text.replace("\n", "\n  ")


def rules(folder: Path, *said: str) -> Path:
    file = folder / "rule.yaml"
    file.write_text("superbench:\n  rules:" + "".join(said))
    return file


@pytest.mark.parametrize(
    ("criteria", "function", "better"),
    [
        ("lambda x: x < -0.05", "variance", Better.HIGHER),
        ("lambda x: x >= 0.05", "variance", Better.LOWER),
        ("lambda x: -0.05 > x", "variance", None),
        ("lambda x: x < 20", "value", Better.HIGHER),
        ("lambda x: x > 2e-3", "value", Better.LOWER),
        ("lambda x: x < 0.05", "variance", None),  # it fires at the baseline
        ("lambda x: abs(x) > 0.05", "variance", None),
        ("lambda x: x == 3", "value", None),
        ("lambda x: x < -0.05 or x > 0.1", "variance", None),
        ("lambda x: -1 < x < 1", "value", None),
    ],
)
def test_what_a_criterion_states(tmp_path: Path, criteria: str, function: str, better: Better | None) -> None:
    limits = RuleLimits(rules(tmp_path, rule("r", criteria, r"matmul/no.*", function)))
    assert limits.direction("matmul/nosharding") is better
    assert limits.direction("mem-bw/nosharding") is None


def test_rules_that_disagree_state_nothing(tmp_path: Path) -> None:
    both = [rule("a", "lambda x: x < -0.05", "b/m"), rule("c", "lambda x: x > 0.05", "b/m")]
    assert RuleLimits(rules(tmp_path, *both)).direction("b/m") is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (rule("r", "__import__('os')", "b/m"), "rule 'r': criteria '__import__.*must be a lambda"),
        (rule("r", "lambda x: open(x)", "b/m"), r"rule 'r': criteria calls open\(\)"),
        (rule("r", "lambda x: x < -0.05", "b/("), "no regular expression"),
    ],
)
def test_a_bad_rule_is_named_with_its_file(tmp_path: Path, said: str, words: str) -> None:
    with pytest.raises(InputError, match=rf"rule\.yaml: .*{words}"):
        RuleLimits(rules(tmp_path, said))


def test_criteria_hold_the_limits_of_rules(tmp_path: Path) -> None:
    stated = rules(
        tmp_path,
        rule("shards", "lambda x: x > 0.5", r"matmul/nosharding"),
        rule("slow", "lambda x: x < 25.5", r"mem-bw/h2d_bw:\d+", "value"),
        rule("slower", "lambda x: x < -0.2", r"mem-bw/h2d_bw:\d+"),
        rule("card", "lambda x: x < 100", r"mem-bw/h2d_bw:3", "value"),
        rule("counted", "lambda x: x > 1e9", r"kernel-launch/.*", "value", "true"),
    )
    trusted = write(tmp_path / "trusted.jsonl", [node(i) for i in range(12)])
    criteria = tmp_path / "criteria.json"
    done = mainstay("criteria", "fit", trusted, "--output", criteria, "--rules", stated)
    assert done.returncode == 0, done.stderr
    learned = msgspec.json.decode(criteria.read_bytes(), type=Criteria)
    found = {one.metric: one for one in learned.criteria}
    assert (found["nosharding"].better, found["nosharding"].high, found["nosharding"].source) == (
        Better.LOWER, 1.5, "rule:shards",
    )  # fmt: skip
    assert (found["h2d_bw"].low, found["h2d_bw"].source) == (25.5, "rule:slow")  # the tightest that holds for each rank
    assert found["event_time"].source.startswith("learned:")  # a stored rule labels no node
    assert not learned.refused
    new = write(tmp_path / "new.jsonl", [node(20), node(21, **{"matmul/nosharding": 1.6})])
    done = mainstay("criteria", "check", new, "--criteria", criteria, "--json")
    assert [one["verdict"] for one in json.loads(done.stdout)] == [Verdict.PASS, Verdict.FAIL], done.stderr
