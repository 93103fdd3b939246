"""``mainstay plan``: a scenario file in, a table or JSON out, and one clear line for a bad file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import recovery.plan_cli
from recovery.plan import Plan, StrategyName
from recovery.plan_cli import read_scenario, run_levels, run_plan
from recovery.situation import Place


def documented() -> dict[str, Any]:
    """The example of the module's own documentation, so that it stays true."""
    text = recovery.plan_cli.__doc__ or ""
    start = text.index("    {")
    value: dict[str, Any] = json.loads(text[start : text.index("\n    }", start) + 6])
    return value


def write(tmp_path: Path, raw: Any) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return path


def test_the_documented_example_is_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, documented())
    assert run_plan(path, as_json=True) == 0
    made = msgspec.json.decode(capsys.readouterr().out, type=Plan)
    assert made.failed_ranks == (2, 3)
    assert {a.strategy for a in made.alternatives} == set(StrategyName)
    out = Console(file=io.StringIO(), width=200)
    assert run_plan(str(path), console=out) == 0
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert made.explanation in shown.replace("\n", " ")
    assert all(name in shown for name in StrategyName)


def test_the_long_forms_say_the_same_as_the_short_ones(tmp_path: Path) -> None:
    short = documented()
    long = short | {
        "ranks": [{"rank": r, "dp": r // 2, "pp": r % 2, "node": f"node-{'ab'[r // 2]}"} for r in range(4)],
        "state_bytes": [24000000000] * 4,
        "live": {"0": 1200, "1": 1200},
        "slots": [{"node": f"node-{'ab'[r // 2]}", "rank": r, "epoch": e} for r in range(4) for e in (1199, 1200)],
        "parity": [{"node": f"node-{n}", "epoch": 1200, "ranks": group} for group in ([0, 2], [1, 3]) for n in "ab"],
        "disk": [{"rank": r, "epoch": 1000} for r in range(4)],
    }
    assert read_scenario(write(tmp_path, long)) == read_scenario(write(tmp_path, short))


def test_the_grid_numbers_ranks_like_the_mesh(tmp_path: Path) -> None:
    grid = {"dp": 2, "pp": 2, "tp": 2, "nodes": ["a", "b"]}
    raw = {k: v for k, v in documented().items() if k not in ("lost_nodes", "standbys", "parity")} | {"ranks": grid}
    ranks = read_scenario(write(tmp_path, raw)).ranks
    assert ranks[6] == Place(rank=6, dp=1, pp=1, tp=0, node="b")
    assert ranks[3] == Place(rank=3, dp=0, pp=1, tp=1, node="a")


def test_nothing_feasible_is_an_answer_with_its_own_exit_code(tmp_path: Path) -> None:
    path = write(tmp_path, documented() | {"standbys": {}})
    assert run_plan(path, console=Console(file=io.StringIO())) == 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("{", "line 1, column 2: not JSON"),
        ('{\n "job": }', "line 2, column 9: not JSON"),
        ("[]", "expected one object"),
        ({"job": 5}, "job: Expected `str`, got `int`"),
        ({"step": None}, "step: Expected `int`"),
        ({"generation": "x"}, "generation: Expected `int`, got `str`"),
        ({"ranks": [{"rank": "0"}]}, "ranks"),
        ({"ranks": {"dp": 3, "pp": 1, "nodes": ["a", "b"]}}, "ranks: dp x pp x tp = 3 ranks do not divide"),
        ({"ranks": {"dp": 0, "pp": 1, "nodes": ["a"]}}, "ranks: dp x pp x tp = 0 ranks"),
        ({"ranks": {"dp": 10**9, "pp": 1, "nodes": ["a"]}}, "more than the 1048576 allowed"),
        ({"stanbys": {}}, "stanbys: unknown field"),
        ({"costs": {"net_bps": 1.0}}, "costs.net_bps: unknown field"),
        ({"costs": {"net_Bps": 0.0}}, "costs: cost net_Bps must be positive"),
        ({"slots": [{"node": "a", "rank": 0, "epoch": 1, "ok": True}]}, r"slots\[0\].ok: unknown field"),
        ({"slots": [{"node": "a", "rank": 0}]}, r"slots\[0\]: Object missing required field `epoch`"),
        ({"parity": {"epochs": [1], "groups": [[0, 77]]}}, "parity.groups names rank 77"),
        ({"failed_ranks": [99]}, "failed_ranks names 99"),
        ({"lost_nodes": ["nowhere"]}, "lost_nodes names 'nowhere'"),
        ({"live": {"a": 1}}, "live"),
        ({"step_seconds": -1}, "must not be negative"),
    ],
)
def test_a_bad_file_gives_one_line_that_names_file_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: Any, words: str
) -> None:
    path = write(tmp_path, documented() | raw if isinstance(raw, dict) else raw)
    assert run_plan(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"mainstay plan: {path}: ")
    with pytest.raises(ValueError, match=words):
        read_scenario(path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    raw = documented()
    del raw["step"]
    with pytest.raises(ValueError, match="missing required field `step`"):
        read_scenario(write(tmp_path, raw))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.json: No such file"):
        read_scenario(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="Is a directory"):
        read_scenario(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_scenario(binary)
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_scenario(deep)


def test_the_levels_of_the_documented_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, documented())
    assert run_levels(path, 6000.0, as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["local slot", "parity", "disk"]
    assert rows[0]["every"] == 1
    assert rows[1]["every"] < rows[2]["every"]
    assert rows[2]["takes_s"] == pytest.approx(24e9 * 2 / 0.5e9)
    said = io.StringIO()
    assert run_levels(path, 6000.0, console=Console(file=said, width=160)) == 0
    assert "failures apart h" in said.getvalue()
    assert "everything in memory" in said.getvalue()
    assert run_levels(path, 0.0) == 2
    assert capsys.readouterr().err == "mainstay plan: --mtbf must be a number of hours above 0, not 0\n"
    assert run_levels(tmp_path / "absent.json", 1.0) == 2
