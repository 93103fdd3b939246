"""A small fleet and its files, made here: what the tests of this folder judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis, diagnose
from mainstay.detectors.superbench.results import Results, read_results
from mainstay.detectors.superbench.rules import RuleFile, read_rules

GOOD = {"mem-bw/h2d_bw:0": 26.0, "mem-bw/h2d_bw:1": 25.5, "gemm-flops/fp16_tc_flops": 300.0, "mem-bw/return_code": 0}
BASELINE = {"mem-bw/h2d_bw": 26, "gemm-flops/fp16_tc_flops": 300.0}
MEMORY = {"function": "variance", "criteria": "lambda x:x<-0.1", "categories": "Mem", "metrics": [r"mem-bw/h2d_bw:\d+"]}


def results(*changes: Mapping[str, Any], **others: Any) -> Results:
    """A node for each change of the good one; a metric that is changed to ``...`` is left out."""
    return read_results(line.encode() for line in lines(*changes, **others).splitlines())


def lines(*changes: Mapping[str, Any], good: Mapping[str, Any] = GOOD) -> str:
    text = ""
    for number, change in enumerate(changes):
        row = {"node": f"n{number}", **good, **change}
        text += json.dumps({key: value for key, value in row.items() if value is not ...}) + "\n"
    return text


def text(**rules: Mapping[str, Any]) -> str:
    return yaml.safe_dump({"version": "v0.12", "superbench": {"rules": rules}}, sort_keys=False)


def rule_file(**rules: Mapping[str, Any]) -> RuleFile:
    return read_rules(text(**rules))


def judged(
    *changes: Mapping[str, Any], rules: RuleFile, baseline: Mapping[str, object] = BASELINE
) -> SuperBenchDiagnosis:
    return diagnose(results(*changes), rules, baseline)


def write(
    folder: Path, *changes: Mapping[str, Any], rules: str, baseline: Mapping[str, object] = BASELINE
) -> list[str]:
    """The three files of a diagnosis, as arguments."""
    (folder / "results.jsonl").write_text(lines(*changes))
    (folder / "rules.yaml").write_text(rules)
    (folder / "baseline.json").write_text(json.dumps(baseline))
    names = {"--results": "results.jsonl", "--rules": "rules.yaml", "--baseline": "baseline.json"}
    return [part for option, name in names.items() for part in (option, str(folder / name))]
