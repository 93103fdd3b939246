"""``mainstay plan``: a scenario file in, a table or JSON out, and one clear line for a bad file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import mainstay.recovery.scenario_file
from mainstay.recovery.cost_inputs import FaultKind
from mainstay.recovery.plan_cli import run_plan, run_tiers
from mainstay.recovery.planner_input import FailureCase, RankPlacement
from mainstay.recovery.recovery_plan import RecoveryPlan, RecoveryStrategyName, RestoreStrategyName
from mainstay.recovery.scenario_assumptions import cost_inputs_of
from mainstay.recovery.scenario_file import read_scenario
from tests.commands import run_here
from tests.stored import assert_stored


def documented() -> dict[str, Any]:
    """The example of the module's own documentation, so that it stays true."""
    text = mainstay.recovery.scenario_file.__doc__ or ""
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
    made = msgspec.json.decode(capsys.readouterr().out, type=RecoveryPlan)
    assert made.failed_ranks == (2, 3)
    assert {a.strategy for a in made.alternatives} == set(RestoreStrategyName)
    out = Console(file=io.StringIO(), width=200)
    assert run_plan(path, console=out) == 0
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert made.explanation in shown.replace("\n", " ")
    assert all(name in shown for name in RestoreStrategyName)


def test_the_cost_inputs_evaluate_every_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, documented())
    assert run_plan(path, as_json=True) == 0
    decision = json.loads(capsys.readouterr().out)["decision"]
    assert {option["strategies"][0] for option in decision["options"]} == set(RecoveryStrategyName)
    assert decision["chosen"] == decision["options"][0]["strategies"]
    out = Console(file=io.StringIO(), width=200)
    assert run_plan(path, console=out) == 0
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "Every recovery strategy" in shown
    assert all(name in shown for name in RecoveryStrategyName)
    plain = write(tmp_path, {name: value for name, value in documented().items() if name != "cost_inputs"})
    assert run_plan(plain, as_json=True) == 0
    assert "decision" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "over", "cost_inputs"),
    [
        ("node", {}, {}),
        ("process", {"lost_nodes": [], "failed_ranks": [2]}, {"fault": "process"}),
        ("error", {"lost_nodes": [], "failed_ranks": [2]}, {"fault": "error"}),
        ("slow", {"lost_nodes": [], "failed_ranks": []}, {"fault": "slow", "concerns": [1], "speed": 0.6}),
        ("notice", {"lost_nodes": [], "failed_ranks": []}, {"fault": "notice", "concerns": [1], "confidence": 0.7}),
        ("nothing spare", {"standbys": {}, "replicated": False, "slots": {"epochs": []}}, {"able": []}),
        ("wide", {
            "ranks": {"dp": 4, "pp": 4, "tp": 1, "nodes": [f"node-{k}" for k in range(8)]},
            "lost_nodes": ["node-3"], "standbys": {"node-0": 2},
            "parity": {"epochs": [1200], "groups": [[0, 4, 8, 12]]},
        }, {"schemes": [{"data": 2, "extra": 1, "every_s": 9}], "repairs": [[0.5, 600.0], [0.5, 90000.0]]}),
    ],
)  # fmt: skip
def test_plans_are_the_stored_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, over: dict[str, Any], cost_inputs: dict[str, Any]
) -> None:
    raw = documented() | over
    raw["cost_inputs"] = raw["cost_inputs"] | cost_inputs
    code = run_plan(write(tmp_path, raw), as_json=True)
    told = capsys.readouterr()
    decision = json.loads(told.out) if told.out else told.err
    assert_stored(Path(__file__).parent / "stored" / f"plan_{name.replace(' ', '_')}.json", [code, decision])


def test_the_cost_inputs_follow_from_the_situation_and_the_assumptions(tmp_path: Path) -> None:
    raw = documented() | {
        "cost_inputs": {"micro_batches": 16, "layers": 32, "schemes": [{"data": 2, "extra": 1, "every_s": 9}]}
    }
    situation, assumptions = mainstay.recovery.scenario_file.read_file(write(tmp_path, raw))
    assert assumptions is not None
    cost_inputs = cost_inputs_of(FailureCase(situation), assumptions)
    assert (cost_inputs.lost, cost_inputs.broken, cost_inputs.fault) == ((1, 1), 1, FaultKind.NODE)
    assert (cost_inputs.pool.standbys, cost_inputs.state_bytes) == (2, 48e9)
    assert (cost_inputs.held.local_s, cost_inputs.held.peer_s, cost_inputs.held.parity_losses) == (None, 2.0, 2)
    assert cost_inputs.held.disk_s == pytest.approx(200.5 * 4.0)
    assert cost_inputs.step_s == pytest.approx(4.0)
    slow = cost_inputs_of(FailureCase(situation), replace(assumptions, fault=FaultKind.SLOW, concerns=(1,), speed=0.5))
    assert (slow.lost, slow.speed) == ((0, 1), 0.5)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"micro_batches": 0}, "cost_inputs: dp, pp, tp and micro-batches are at least 1"),
        ({"micro_batches": "x"}, "cost_inputs.micro_batches: Expected `int`"),
        ({"layers": 1}, "cost_inputs: layers: 1 layers do not make 2 stages"),
        ({"able": ["fly"]}, r"cost_inputs.able\[0\]: Invalid enum value 'fly'"),
        ({"confidence": 2}, r"cost_inputs: confidence lies in 0\.\.1, not 2"),
        ({"repairs": [[0.5, 1]]}, "cost_inputs: repairs: shares sum to 1, not 0.5"),
        ({"mtbf_hours": 0}, "cost_inputs: mtbf_hours is above 0, not 0"),
        ({"fault": "slow", "concerns": [9]}, "cost_inputs: concerns names rank 9"),
        ({"fault": "slow"}, "cost_inputs: nothing failed"),
        ({"able_": []}, "cost_inputs.able_: unknown field"),
        ({"samples": [{"w": 1}]}, r"cost_inputs.samples\[0\].w: unknown field"),
        ({"schemes": [{"data": 0, "extra": 1, "every_s": 1}]}, r"cost_inputs.schemes\[0\]: data and extra at least 1"),
    ],
)
def test_a_bad_cost_inputs_gives_one_line_that_names_file_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], over: dict[str, Any], words: str
) -> None:
    path = write(tmp_path, documented() | {"cost_inputs": {"micro_batches": 16, "layers": 32} | over})
    assert run_plan(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"mainstay plan: {path}: cost_inputs")
    assert re.search(words, err)


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
    assert ranks[6] == RankPlacement(rank=6, dp=1, pp=1, tp=0, node="b")
    assert ranks[3] == RankPlacement(rank=3, dp=0, pp=1, tp=1, node="a")


def test_nothing_feasible_is_an_answer_with_its_own_exit_code(tmp_path: Path) -> None:
    raw = documented() | {"standbys": {}}
    del raw["cost_inputs"]
    assert run_plan(write(tmp_path, raw), console=Console(file=io.StringIO())) == 1


@pytest.mark.parametrize(
    ("over", "chosen", "decided", "said"),
    [
        ({"standbys": {}}, None, ["drop_and_heal"], "drop_and_heal is possible"),
        ({"ranks": {"dp": 2, "pp": 1, "tp": 2, "nodes": ["node-a", "node-b", "node-c", "node-d"]}, "slots": [],
          "lost_nodes": ["node-b", "node-c"], "standbys": {"node-a": 2}, "parity": []},
         "disk_restart", None, "Rank by rank, disk_restart is."),
    ],
)  # fmt: skip
def test_plan_and_decision_give_one_answer(  # noqa: PLR0917 - parameters of the test
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    over: dict[str, Any],
    chosen: str | None,
    decided: list[str] | None,
    said: str,
) -> None:
    path = write(tmp_path, documented() | over)
    assert run_plan(path, as_json=True) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["chosen"], plan["decision"]["chosen"]) == (chosen, decided)
    out = Console(file=io.StringIO(), width=500)
    assert run_plan(path, console=out) == 0
    for told in (plan["explanation"] + plan["decision"]["explanation"], out.file.getvalue()):  # type: ignore[attr-defined]
        assert said in told
        assert "operator is needed" not in told


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
        ({"step_seconds": 1e-320}, "step_seconds: expected a number from 1e-12 to 1e"),
        ({"state_bytes": 10**400}, "state_bytes: expected a number from .* not one of 401 digits"),
        ({"costs": {"net_Bps": float("inf")}}, "costs.net_Bps: expected a number from .* not inf"),
        ({"live": {"0": float("nan")}}, "live.0: expected a number from .* not nan"),
        ({"ranks": {"dp": 1, "pp": 1, "nodes": ["\ud800"]}}, r"ranks.nodes\[0\]: '.ud800' is no text that can be"),
        ({"a\nb": 1}, r"'a.nb' is no text"),
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


HOSTILE = (None, True, -1, 0, 0.5, float("nan"), 10**400, 10**12, 1e-320, "", "\ud800", [], {}, [-1], [[0, 0]])


def places(value: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    yield above
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, *above, key)


@pytest.mark.parametrize("place", [*places(documented())][1:], ids=str)
def test_whatever_stands_anywhere_the_answer_is_a_plan_or_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[str | int, ...]
) -> None:
    for value in HOSTILE:
        raw: Any = documented()
        inner = raw
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path = write(tmp_path, raw)
        for command in (partial(run_plan, path), partial(run_tiers, path, 100.0)):
            code = command(as_json=True)
            out, err = capsys.readouterr()
            said = err.splitlines()
            assert code in {0, 1, 2}
            assert all(line.startswith(f"mainstay plan: {path}: ") and len(line) < 400 for line in said), said
            assert (len(said) == 1) is (code == 2) is (not out)


def test_levels_are_counted_in_steps_that_take_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, documented() | {"step_seconds": 0})
    assert run_tiers(path, 100.0) == 2
    assert capsys.readouterr().err == (
        f"mainstay plan: {path}: step_seconds: saves are counted in steps, which must take time\n"
    )


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
    assert run_tiers(path, 6000.0, as_json=True) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["local slot", "parity", "disk"]
    assert rows[0]["every"] == 1
    assert rows[1]["every"] < rows[2]["every"]
    assert rows[2]["takes_s"] == pytest.approx(24e9 * 2 / 0.5e9)
    said = io.StringIO()
    assert run_tiers(path, 6000.0, console=Console(file=said, width=160)) == 0
    assert "failures apart h" in said.getvalue()
    assert "everything in memory" in said.getvalue()
    assert run_tiers(path, 0.0) == 2
    assert capsys.readouterr().err == "mainstay plan: --node-mtbf-hours must be above 0, not 0\n"
    assert run_tiers(tmp_path / "absent.json", 1.0) == 2


@pytest.mark.parametrize("form", [("plan", "{file}"), ("plan", "--scenario", "{file}")])
def test_the_file_is_an_argument_or_an_option(tmp_path: Path, form: tuple[str, ...]) -> None:
    path = write(tmp_path, documented())
    done = run_here(*(word.format(file=path) for word in form), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed_ranks"] == [2, 3]
