"""``mainstay simulate``: a table, JSON, a picture, and one clear line for what cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainstay.recovery.simulate.cli import SimulateOptions, _scenario, simulate
from tests.commands import run_here

SMALL: dict[str, Any] = {"nodes": 24, "dp": 6, "pp": 4, "days": 10.0, "seeds": 5, "node_mtbf_hours": 240.0}


def asked(**options: Any) -> dict[str, Any]:
    """Options of the command that are its own, and the rest as its dataclass."""
    own = {name: options.pop(name) for name in ("trace", "plot", "as_json") if name in options}
    return {"options": SimulateOptions(**{**SMALL, **options}), "quiet": True, **own}


def test_policies_are_compared(capsys) -> None:
    assert simulate(**asked()) == 0
    out = capsys.readouterr().out
    assert "swap to a warm standby" in out
    assert "ETTR" in out


def test_json_carries_the_interval_and_the_exact_value(capsys) -> None:
    given = asked(
        mtbf_hours=1.0, days=30.0, seeds=50, spares=24, save_seconds=30.0, restart_seconds=300.0, as_json=True
    )
    assert simulate(**given) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["policies"]
    assert row["policy"]["name"] == "own"
    assert row["interval_s"] == pytest.approx(445.0, abs=1.0)
    assert row["ettr"]["low"] < row["exact"] < row["ettr"]["high"]
    assert found["failures"] == pytest.approx(720.0, rel=0.05)
    assert found["scenario"]["mtbf_hours"] == 24.0


def test_the_same_seed_gives_the_same_figures(capsys) -> None:
    said = []
    for _ in range(2):
        simulate(**asked(seed=3, as_json=True))
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_replicas_fill_the_nodes_unless_they_are_given(capsys) -> None:
    simulate(**asked(dp=None, as_json=True))
    assert json.loads(capsys.readouterr().out)["scenario"]["dp"] == 6


def test_a_sweep_is_a_second_table(capsys) -> None:
    simulate(**asked(sweep="spares", spares=4))
    out = capsys.readouterr().out
    assert "the same by spares" in out
    assert [line.split()[0] for line in out.splitlines()[-7:] if line.strip()][-5:] == ["0", "1", "2", "4", "8"]


def test_a_policy_that_cannot_be_followed_is_told_with_its_reason(capsys) -> None:
    simulate(**asked(dp=1, pp=24))
    out = " ".join(capsys.readouterr().out.split())
    assert "impossible" in out
    assert "swap to a warm standby: a node holds a stage of every replica" in out


def test_a_plot_is_written(tmp_path, capsys) -> None:
    file = tmp_path / "what-if.svg"
    assert simulate(**asked(plot=file)) == 0
    assert file.read_text().startswith("<svg ")
    assert simulate(**asked(plot=tmp_path / "nowhere" / "what-if.svg")) == 2
    err = capsys.readouterr().err
    assert "No such file or directory" in err
    assert err.count("\n") == 1


def test_a_recorded_trace_takes_the_place_of_chance(tmp_path, capsys) -> None:
    file = tmp_path / "trace.csv"
    # Losses 100 s and 200 s after the first change, the end (a loss that ends the run) at 300 s.
    file.write_text("5000,add,a\n5000,add,b\n5000,add,c\n105000,remove,a\n205000,remove,b\n305000,remove,c\n")
    simulate(
        **asked(trace=file, seeds=1, save_seconds=0.0, restart_seconds=10.0, save_interval_seconds=30.0, as_json=True)
    )
    found = json.loads(capsys.readouterr().out)
    (row,) = found["policies"]
    # 0..100: 90; 100..200: 90 s of room, 90; 200..300: 90 to the end.
    assert row["ettr"]["mean"] == pytest.approx(270.0 / 300.0)
    assert (found["failures"], row["exact"]) == (2.0, None)


def test_no_bar_is_drawn_where_nobody_looks(capsys) -> None:
    given = asked()
    del given["quiet"]
    simulate(**given)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mtbf_hours": 0.0}, "--mtbf-hours times --nodes: expected a number from 0.01 to 1e+08, not 0"),
        ({"node_mtbf_hours": 0.0}, "--node-mtbf-hours: expected a number from 0.01 to 1e+08, not 0"),
        ({"step_seconds": -1.0}, "--step-seconds: expected a number from 0.001 to 86400, not -1"),
        ({"save_seconds": 1.0}, "--save-seconds and --restart-seconds: give both, or neither"),
        ({"days": 0.0}, "--days: expected a number from 0.001 to 3650, not 0"),
        ({"save_seconds": -1.0, "restart_seconds": 1.0}, "--save-seconds: expected a number from 0 to 1e+07, not -1"),
        ({"save_interval_seconds": 0.0}, "--save-interval-seconds: expected a number from 0.001 to 1e+07, not 0"),
        (
            {"dp": None, "nodes": 3},
            "--nodes: 24 GPUs do not fill whole pipelines of --pp x --tp = 32 ranks: change one of them",
        ),
        (
            {"pp": 0, "dp": None},
            "--nodes: 192 GPUs do not fill whole pipelines of --pp x --tp = 0 ranks: change one of them",
        ),
        ({"dp": 10**400}, "--dp: expected a number from 1 to 100000, not one of 401 digits"),
        (
            {"dp": 5, "nodes": 10**400, "mtbf_hours": 9.0},
            "--nodes: expected a number from 1 to 100000, not one of 401 digits",
        ),
        ({"dp": 5}, "--dp: dp x pp x tp: 5 x 4 x 8 is 160 ranks, but the nodes have 192 GPUs"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, said, capsys) -> None:
    assert simulate(**asked(**options)) == 2
    err = capsys.readouterr().err
    assert err == f"mainstay simulate: {said}\n"


def test_a_bad_trace_names_file_line_and_field(tmp_path, capsys) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("0,add,a\n5,gone,a\n")
    assert simulate(**asked(trace=file)) == 2
    assert capsys.readouterr().err == (
        f"mainstay simulate: {file}: line 2: event: expected add or remove, not 'gone'\n"
    )
    file.write_text("0,add,a\n")
    assert simulate(**asked(trace=file)) == 2
    assert "all changes come at one instant" in capsys.readouterr().err
    file.write_text("0,add,a\n1000,remove,a\n")
    assert simulate(**asked(trace=file, sweep="mtbf_hours")) == 2
    assert "how often nodes fail is recorded" in capsys.readouterr().err


def test_a_large_job_gets_fewer_runs_unless_they_are_given() -> None:
    job: dict[str, Any] = {"pp": 16, "tp": 8}
    assert _scenario(SimulateOptions(**job)).seeds == 200
    assert _scenario(SimulateOptions(nodes=100_000, **job)).seeds == 5
    assert _scenario(SimulateOptions(nodes=100_000, seeds=7, **job)).seeds == 7


def test_the_file_of_the_command_line_is_the_trace(tmp_path) -> None:
    (file := tmp_path / "scenario.json").write_text("{}")
    done = run_here("simulate", file)
    assert done.returncode == 2
    assert f"{file}: line 1: fields: expected milliseconds,add|remove,node" in done.stderr
