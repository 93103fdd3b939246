"""``mainstay superbench diagnose`` as a user types it: files in, a screen or a file out, and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainstay.detectors.superbench.cli import superbench
from mainstay.detectors.superbench.rules import LARGEST
from tests.detectors.superbench.fleet import MEMORY, text, write

ROOT = Path(__file__).resolve().parents[3]
RULES = text(r=MEMORY)
SLOW = {"mem-bw/h2d_bw:1": 18.0}
LACKS = {"mem-bw/h2d_bw:0": ...}
SUMMARY = text(s={"statistics": "mean", "categories": "Mem", "aggregate": True, "metrics": ["mem-bw/h2d_bw"]})


def call(*arguments: str) -> int:
    words = arguments if arguments[0] in {"diagnose", "lint", "summary", "baseline"} else ("diagnose", *arguments)
    code = superbench(list(words), result_action="return_value", exit_on_error=False)
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    ("changes", "code", "last"),
    [
        (({}, {}), 0, "PASS  All of 2 nodes pass every rule."),
        (({}, SLOW, LACKS), 1, "FAIL  1 of 3 nodes defective, 1 unknown, 1 pass."),
        (({}, LACKS), 4, "UNKNOWN  1 of 2 nodes could not be judged in full; none is labeled defective, 1 pass."),
    ],
)
def test_the_last_line_and_the_exit_code_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: tuple[dict[str, Any], ...], code: int, last: str
) -> None:
    assert call(*write(tmp_path, *changes, rules=RULES)) == code
    assert " ".join(capsys.readouterr().out.split()).endswith(" ".join(last.split()))


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*write(tmp_path, {}, SLOW, LACKS, rules=RULES), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"pass": 1, "unknown": 1, "fail": 1}
    assert [(node["node"], node["verdict"]) for node in told["nodes"]] == [("n1", "fail"), ("n2", "unknown")]
    assert told["nodes"][1]["unknown"] == ["mem-bw/h2d_bw:0_miss"]
    assert [finding["code"] for finding in told["findings"]] == ["missing-metric"]


def test_files_have_superbenchs_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write(tmp_path, {}, SLOW, LACKS, rules=RULES)
    for name in ("all.json", "some.json", "some.jsonl", "some.md", "some.html"):
        more = ["--all"] if name.startswith("all") else []
        assert call(*arguments, "--output", str(tmp_path / name), *more) == 1
    some = json.loads((tmp_path / "some.json").read_text())
    assert [row["index"] for row in some] == ["n1", "n2"]
    assert some[0]["diagnosis/category"] == "Mem"
    assert some[0]["mem-bw/h2d_bw:1"] == -0.3076923077
    assert some[1]["diagnosis/category"] == "Unknown"
    assert some[1]["mem-bw/h2d_bw:0"] == "N/A"
    everything = json.loads((tmp_path / "all.json").read_text())
    assert [row["diagnosis/accept"] for row in everything] == [True, False, False]
    assert everything[0]["gemm-flops/fp16_tc_flops"] == 300
    rows = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert [row["Defective Details"] for row in rows] == [row["diagnosis/issue_details"] for row in some]
    assert "| n1 | Mem |" in (tmp_path / "some.md").read_text()
    assert "-30.77%" in (tmp_path / "some.html").read_text()
    assert capsys.readouterr().err == ""


def test_compat_writes_what_superbench_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write(tmp_path, {}, LACKS, rules=RULES)
    assert call(*arguments, "--compat", "--output", str(tmp_path / "out.json")) == 4, "the exit code still tells"
    assert (tmp_path / "out.json").read_text() == "[]"
    assert call(*arguments, "--compat", "--all", "--output", str(tmp_path / "all.json")) == 4
    assert [row["diagnosis/accept"] for row in json.loads((tmp_path / "all.json").read_text())] == [True, True]
    assert "UNKNOWN" in capsys.readouterr().out


def test_what_a_node_calls_itself_cannot_break_a_file(tmp_path: Path) -> None:
    arguments = write(tmp_path, SLOW | {"node": "<b>|x\ny</b>"}, rules=RULES)
    assert call(*arguments, "--output", str(tmp_path / "out.html")) == 1
    assert "<td>&lt;b&gt;" in (tmp_path / "out.html").read_text()
    assert call(*arguments, "--output", str(tmp_path / "out.md")) == 1
    assert len((tmp_path / "out.md").read_text().splitlines()) == 3


def test_a_long_list_is_cut_on_the_screen_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*write(tmp_path, *[SLOW] * 40, rules=RULES), "--output", str(tmp_path / "out.json")) == 1
    assert "15 more" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())) == 40


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("results.jsonl", "{", "results.jsonl: line 1: no JSON"),
        ("rules.yaml", text(r=MEMORY | {"function": "abb"}), "rules.yaml: rule 'r': function 'abb'"),
        ("rules.yaml", text(r=MEMORY | {"metrics": ["mem-bw/("]}), "rules.yaml: rule 'r': metrics entry"),
        ("rules.yaml", b"\xff\xff", "rules.yaml: is not UTF-8"),
        ("baseline.json", "[]", "baseline.json: no JSON object but list"),
        ("baseline.json", None, "baseline.json: no such file"),
    ],
)
def test_bad_input_gives_one_line_and_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | bytes | None, why: str
) -> None:
    arguments = write(tmp_path, {}, rules=RULES)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    assert call(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert why in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["diagnose", "lint", "summary", "baseline"])
def test_every_command_refuses_a_missing_file_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arguments = write(tmp_path, {}, rules=RULES)
    (tmp_path / "summary.yaml").write_text(SUMMARY)
    arguments = {
        "summary": [*arguments[:2], "--rules", str(tmp_path / "summary.yaml")],
        "baseline": [*arguments[:2], "--summary-rules", str(tmp_path / "summary.yaml"), "--output", "x"],
    }.get(command, arguments)
    (tmp_path / "results.jsonl").unlink()
    assert call(command, *arguments) == 2
    said = f"mainstay superbench: cannot read {tmp_path / 'results.jsonl'}: no such file\n"
    assert capsys.readouterr() == ("", said)


def test_a_baseline_that_lacks_a_metric_is_told_by_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = text(r=MEMORY | {"metrics": ["mem-bw/h2d_bw", "mem-bw/gone"]})
    made = write(tmp_path, {}, {}, SLOW, rules=rules)
    (tmp_path / "summary.yaml").write_text(SUMMARY)
    new = str(tmp_path / "new.json")
    arguments = ["baseline", *made[:2], "--summary-rules", str(tmp_path / "summary.yaml"), *made[2:4], "--output", new]
    assert call(*arguments) == 4
    told = capsys.readouterr()
    assert told.err == "  mem-bw/gone: no baseline, none of the 1 metrics of mem-bw matches it\n"
    assert told.out.startswith(f"{new}: baselines of 1 metrics from 3 nodes\n")
    assert call(*arguments, "--algorithm", "mean") == 0, "which reads no rules"
    assert json.loads(Path(new).read_text()) == {"mem-bw/h2d_bw": 24.5}


def test_a_rule_file_has_a_largest_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write(tmp_path, {}, rules=RULES)
    with (tmp_path / "rules.yaml").open("ab") as file:
        file.truncate(LARGEST)
    assert call(*arguments) == 2
    assert "too large for a rule file" not in capsys.readouterr().err, "it is read: it has bytes of zero"
    with (tmp_path / "rules.yaml").open("ab") as file:
        file.truncate(LARGEST + 1)
    assert call(*arguments) == 2
    assert f"more than {LARGEST // 2**20} MiB is too large for a rule file" in capsys.readouterr().err


def test_an_output_that_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write(tmp_path, {}, rules=RULES)
    assert call(*arguments, "--output", str(tmp_path / "out.xlsx")) == 2
    assert "give --format" in capsys.readouterr().err
    assert call(*arguments, "--output", str(tmp_path / "no" / "out.json")) == 2
    assert "No such file" in capsys.readouterr().err


def test_lint_says_what_is_wrong_with_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("lint", *write(tmp_path, {}, {}, rules=RULES)) == 0
    assert "nothing found" in capsys.readouterr().out
    arguments = write(tmp_path, {}, {}, rules=text(r=MEMORY | {"metrics": ["mem-bw/*_foo"]}))
    assert call("lint", *arguments, "--json") == 1
    assert [found["code"] for found in json.loads(capsys.readouterr().out)] == ["dead-entry"]
    assert call("lint", *arguments) == 1
    assert "dead-entry" in capsys.readouterr().out


def test_a_summary_and_a_baseline_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = write(tmp_path, {}, {}, SLOW, rules=RULES.replace(r":\\d+", "").replace(r":\d+", ""))
    (tmp_path / "summary.yaml").write_text(SUMMARY)
    results, summary = made[:2], str(tmp_path / "summary.yaml")
    assert call("summary", *results, "--rules", summary) == 0
    assert "| mem-bw/h2d_bw | mean | 24.5 |" in capsys.readouterr().out
    assert call("summary", *results, "--rules", summary, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["Mem"][0]["value"] == 24.5
    new = tmp_path / "new.json"
    assert call("baseline", *results, "--summary-rules", summary, *made[2:4], "--output", str(new)) == 0
    assert json.loads(new.read_text()) == {"mem-bw/h2d_bw": 25.8}
    assert "mem-bw/h2d_bw: 1 sample left out" in capsys.readouterr().out
    plain = ["baseline", *results, "--summary-rules", summary, "--output", str(new)]
    assert call(*plain, "--algorithm", "mean") == 0
    assert json.loads(new.read_text()) == {"mem-bw/h2d_bw": 24.5}
    assert call(*plain, "--algorithm", "fix_threshold") == 2, "which needs rules"


def test_the_command_stands_in_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mainstay", "superbench", "diagnose", *write(tmp_path, {}, SLOW, rules=RULES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "1 of 2 nodes defective" in done.stdout
