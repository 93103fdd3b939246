"""What a diagnosis and a summary say, letter by letter: files, screen, JSON, and columns of integers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench import names
from mainstay.detectors.superbench.diagnose import SuperBenchDiagnosis
from mainstay.detectors.superbench.lint import lint
from mainstay.detectors.superbench.names import compiled, counted, select, shown, stripped
from mainstay.detectors.superbench.output import Format, Table, describe_node, html_of, markdown, write
from mainstay.detectors.superbench.report import as_data, headline, render
from mainstay.detectors.superbench.summary import SummaryLine, markdown_of, read_summary_rules, statistic, summarize
from tests.detectors.superbench.fleet import MEMORY, judged, results, rule_file, text

SLOW = {"mem-bw/h2d_bw:1": 18.0}
LACKS = {"mem-bw/h2d_bw:0": ...}
WHY = "mem-bw/h2d_bw:1(B/L: 26.0000 VAL: 18.0000 VAR: -30.77% Rule:lambda x:x<-0.1)"


def three() -> SuperBenchDiagnosis:
    """The first passes, the second is slow, of the third something is missing."""
    return judged({}, SLOW, LACKS, rules=rule_file(r=MEMORY))


def test_a_diagnosis_as_lines_of_json() -> None:
    slow, lacks = write(three(), Format.JSONL).splitlines()
    assert slow == (
        '{"Category": "Mem", "Defective Details": ' + json.dumps(WHY) + ', "mem-bw/h2d_bw:0": 0, '
        '"mem-bw/h2d_bw:1": -0.3076923077, "index": "n1"}'
    )
    assert lacks == (
        '{"Category": "Unknown", "Defective Details": "mem-bw/h2d_bw:0_miss", "mem-bw/h2d_bw:0": "N/A", '
        '"mem-bw/h2d_bw:1": -0.0192307692, "index": "n2"}'
    )
    assert len(write(three(), Format.JSONL, compat=True).splitlines()) == 1


def test_a_diagnosis_as_json_of_all_nodes() -> None:
    rows = json.loads(write(three(), Format.JSON, everything=True))
    told = [[row["index"], *[row[f"diagnosis/{key}"] for key in ("accept", "issue_num", "category")]] for row in rows]
    assert told == [["n0", True, 0, "N/A"], ["n1", False, 1, "Mem"], ["n2", False, 1, "Unknown"]]
    assert [row["diagnosis/issue_details"] for row in rows] == ["N/A", WHY, "mem-bw/h2d_bw:0_miss"]
    compat = json.loads(write(three(), Format.JSON, everything=True, compat=True))
    assert [row["diagnosis/accept"] for row in compat] == [True, False, True]
    one = write(judged(SLOW, rules=rule_file(r=MEMORY)), Format.JSON).splitlines()
    assert one[:3] == ["[", "    {", '        "index": "n0",']
    assert one[-2:] == ["    }", "]"]
    assert write(judged({}, rules=rule_file(r=MEMORY)), Format.JSON) == "[]"


def test_a_diagnosis_as_tables() -> None:
    assert write(three(), Format.MD).splitlines() == [
        "| index | Category | Defective Details | mem-bw/h2d_bw:0 | mem-bw/h2d_bw:1 |",
        "| --- | --- | --- | --- | --- |",
        f"| n1 | Mem | {WHY} | 0.0% | -30.77% |",
        "| n2 | Unknown | mem-bw/h2d_bw:0_miss | N/A | -1.92% |",
    ]
    assert html_of(Table(["h"], [("<a>",), ("b",)])).splitlines() == [
        "<table>", "<thead>", "<tr>", "<th>h</th>", "</tr>", "</thead>", "<tbody>",
        "<tr>", "<td>&lt;a&gt;</td>", "</tr>", "<tr>", "<td>b</td>", "</tr>", "</tbody>", "</table>",
    ]  # fmt: skip
    assert markdown(Table(["h", "i"], [("a|b", "c\nd")])).splitlines()[2] == "| a\\|b | c d |"
    assert (markdown(Table(["h"], [])), html_of(Table(["h"], []))) == ("", "")


def test_the_worst_stands_first_in_a_file_and_issues_are_counted_by_commas() -> None:
    two = {"mem-bw/h2d_bw:0": 9.0, "mem-bw/h2d_bw:1": 9.0}
    found = judged(
        SLOW, two, LACKS, rules=rule_file(r=MEMORY, z=MEMORY | {"categories": "Zinc", "metrics": ["mem-bw/h2d_bw:0"]})
    )
    rows = json.loads(write(found, Format.JSON))
    assert [row["index"] for row in rows] == ["n1", "n0", "n2"]
    assert [describe_node(found, node).issues for node in range(3)] == [1, 3, 1]


def screen(found: SuperBenchDiagnosis, *issues: Any) -> list[str]:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(render(found, issues))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_diagnosis_on_a_screen() -> None:
    told = screen(three())
    assert told[:2] == ["verdict node category why", "UNKNOWN n2 mem-bw/h2d_bw:0_miss"]
    assert told[-2].startswith("2 of 4 measured metrics are judged; no rule looks at gemm-flops/fp16_tc_flops, ")
    assert told[-1] == "FAIL 1 of 3 nodes defective, 1 unknown, 1 pass."
    assert any(line.startswith("FAIL n1 Mem mem-bw/h2d_bw:1(B/L:") for line in told)
    many = judged(*[SLOW] * 27, rules=rule_file(r=MEMORY))
    rows = screen(many)
    assert rows[1] == "2 more all of them: --output FILE"
    assert sum(line.startswith("FAIL n") for line in rows) == 25
    assert not any("more all" in line for line in screen(judged(*[SLOW] * 25, rules=rule_file(r=MEMORY))))


def test_what_holds_for_all_is_said_once() -> None:
    blind = judged({}, {}, rules=rule_file(r=MEMORY | {"metrics": ["mem-bw/h2d_bw", "no/x"]}))
    told = screen(blind, *lint(rule_file(r=MEMORY | {"metrics": ["mem-bw/h2d_bw", "no/x"]}), blind))
    assert told[0] == "rules finding what is wrong"
    assert told[1].startswith("r dead-entry 'no/x' selects nothing")
    assert "No node could be judged in full: of the rules above some see nothing." in told
    assert "verdict node category why" not in told
    assert told[-1] == "UNKNOWN 2 of 2 nodes could not be judged in full; none is labeled defective, 0 pass."
    assert headline(judged({}, rules=rule_file(r=MEMORY))).plain == "PASS  All of 1 node pass every rule."


def test_a_diagnosis_as_plain_data() -> None:
    assert as_data(three(), ()) == {
        "verdict": "fail",
        "counts": {"pass": 1, "unknown": 1, "fail": 1},
        "nodes": [
            {"node": "n1", "verdict": "fail", "category": "Mem", "details": WHY, "unknown": ()},
            {
                "node": "n2",
                "verdict": "unknown",
                "category": "Unknown",
                "details": "",
                "unknown": ("mem-bw/h2d_bw:0_miss",),
            },
        ],
        "unknown_of_all": (),
        "findings": [],
        "coverage": "2 of 4 measured metrics are judged; no rule looks at gemm-flops/fp16_tc_flops, mem-bw/return_code",
    }


def test_a_failed_check_labels_its_own_node_alone() -> None:
    rule = {
        "function": "failure_check",
        "criteria": "lambda x:x>0",
        "categories": "F",
        "metrics": ["mem-bw/return_code"],
    }
    found = judged({}, {"mem-bw/return_code": None}, {}, rules=rule_file(f=rule))
    assert [str(one) for one in found.verdicts] == ["pass", "fail", "pass"]
    assert [len(details) for details in found.details] == [0, len("mem-bw/return_code_miss"), 0]


# summaries


def values_of(statistics: list[str], digits: int = 2, **samples: list[Any]) -> list[Any]:
    """Metrics m/NAME, one sample a node."""
    rule = {
        "statistics": statistics,
        "categories": "C",
        "aggregate": True,
        "metrics": [f"m/{name}$" for name in samples],
    }
    changes = [{f"m/{name}": values[node] for name, values in samples.items()} for node in range(2)]
    told = summarize(results(*changes), read_summary_rules(text(a=rule)), digits)
    return [line.value for line in told["C"]]


@pytest.mark.parametrize(
    ("statistics", "digits", "samples", "shown"),
    [
        (["min", "max"], 2, {"x": [3, 5], "y": [7, 9]}, ["3", "5", "7", "9"]),
        (["count"], 2, {"x": [3.5, 5], "y": [1, 2]}, ["2", "2"]),
        (["min", "count"], 2, {"x": [3, 5]}, ["3", "2"]),
        (["min", "mean"], 2, {"x": [3, 5]}, ["3.0", "4.0"]),
        (["count", "mean"], 2, {"x": [3, 5]}, ["2.0", "4.0"]),
        (["min"], 2, {"x": [3.5, 5]}, ["3.5"]),
        (["min", "max"], 2, {"x": [3, 5], "y": [0, 7]}, ["3", "5", "0.0", "7.0"]),
        (["min", "max"], 2, {"x": [1, -1]}, ["-1", "1"]),
        (["min", "max"], 0, {"x": [0, 5]}, ["0", "5"]),
        (["mean"], 0, {"x": [1, 2]}, ["1.5"]),
        (["mean"], 3, {"x": [1.23456, 1.23456]}, ["1.235"]),
        (["std", "p1", "p99"], 2, {"x": [10.0, 110.0]}, ["70.71", "11.0", "109.0"]),
    ],
)
def test_columns_of_integers_stay_integers(
    statistics: list[str], digits: int, samples: dict[str, list[Any]], shown: list[str]
) -> None:
    assert [str(value) for value in values_of(statistics, digits, **samples)] == shown


def test_statistics_of_one_sample_and_of_none() -> None:
    one, none = np.array([4.0]), np.zeros(0)
    assert [statistic(one, name) for name in ("count", "mean", "min", "max", "p50")] == [1.0, 4.0, 4.0, 4.0, 4.0]
    assert math.isnan(statistic(one, "std"))
    assert [statistic(none, "count"), *map(math.isnan, (statistic(none, name) for name in ("mean", "std", "p9")))] == [
        0.0, True, True, True,
    ]  # fmt: skip
    empty = {"statistics": ["mean", "max"], "categories": None, "metrics": ["no/x"]}
    told = summarize(results({}), read_summary_rules(text(a=empty)))
    assert (
        markdown_of(told)
        == "## \n| metric | statistics | values |\n| --- | --- | --- |\n|  | mean |  |\n|  | max |  |\n\n"
    )
    assert told == {"": [SummaryLine("", one, None) for one in ("mean", "max")]}


# names


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * 80, f"'{'x' * 80}'"),
        ("x" * 81, f"'{'x' * 77}...'"),
        (3, "3"),
        (None, "None"),
        ([1], "a list"),
        ("a\n", "'a\\n'"),
    ],
)
def test_values_of_a_file_are_shown_short(value: object, said: str) -> None:
    assert shown(value) == said


def test_an_entry_has_at_most_a_thousand_characters() -> None:
    assert compiled("x" * 1000).pattern == "x" * 1000
    with pytest.raises(InputError, match=f"metrics entry '{'x' * 40}'… has more than 1000 characters"):
        compiled("x" * 1001)
    assert names.LONGEST_ENTRY == 1000


def test_places_are_ascending_and_named_once() -> None:
    metrics = ("a/b:0", "c/x", "a/b:1", "a/b(c)")
    groups = names.by_benchmark(metrics)
    assert groups == {"a": [0, 2, 3], "c": [1]}
    chosen = select(["a/b:1", "a/b", "a/b(c)", "a/zz", "d/x", "loose"], metrics, groups)
    assert chosen.columns == (0, 2, 3)
    assert chosen.dead == {
        "a/zz": "none of the 3 metrics of a matches it",
        "d/x": "the results have no benchmark 'd'",
        "loose": "it names no benchmark (benchmark/metric)",
    }
    assert [stripped(name) for name in ("a/b", "a/b:3", "10/b:0")] == ["a", "a/b", "10/b"]
    assert [counted(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
