"""``mainstay simulate``: a table, JSON, and one clear line for what cannot be."""

from __future__ import annotations

import json

import pytest

from recovery.simulate.cli import simulate


def test_policies_are_compared(capsys) -> None:
    assert simulate(seeds=20, quiet=True) == 0
    out = capsys.readouterr().out
    assert "swap to a warm standby" in out
    assert "ETTR" in out


def test_json_carries_the_interval_and_the_exact_value(capsys) -> None:
    assert simulate(mtbf_hours=1.0, days=30.0, seeds=50, save=30.0, restart=300.0, as_json=True, quiet=True) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["policy"] == "yours"
    assert row["interval_s"] == pytest.approx(445.0, abs=1.0)
    assert row["ettr"]["low"] < row["exact"] < row["ettr"]["high"]
    assert row["failures"] == pytest.approx(720.0, rel=0.05)


def test_the_same_seed_gives_the_same_figures(capsys) -> None:
    said = []
    for _ in range(2):
        simulate(seeds=5, seed=3, as_json=True, quiet=True)
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_recorded_trace_takes_the_place_of_chance(tmp_path, capsys) -> None:
    file = tmp_path / "trace.csv"
    # Losses 100 s and 200 s after the first change, the end (a loss that ends the run) at 300 s.
    file.write_text("5000,add,a\n5000,add,b\n5000,add,c\n105000,remove,a\n205000,remove,b\n305000,remove,c\n")
    simulate(trace=file, save=0.0, restart=10.0, every=30.0, as_json=True, quiet=True)
    (row,) = json.loads(capsys.readouterr().out)
    # 0..100: 90; 100..200: 90 s of room, 90; 200..300: 90 to the end.
    assert row["ettr"]["mean"] == pytest.approx(270.0 / 300.0)
    assert (row["failures"], row["exact"]) == (2.0, None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mtbf_hours": 0.0}, "--mtbf-hours: expected a number above 0, not 0"),
        ({"step": -1.0}, "--step: expected a number above 0, not -1"),
        ({"save": 1.0}, "--save and --restart: give both, or neither"),
        ({"days": 0.0}, "at least one run, not 10008.0, 0.0, 200"),
        ({"save": -1.0, "restart": 1.0}, "a save costs at least 0 s, not -1.0"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, said, capsys) -> None:
    assert simulate(**options, quiet=True) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_bad_trace_names_file_line_and_field(tmp_path, capsys) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("0,add,a\n5,gone,a\n")
    assert simulate(trace=file, quiet=True) == 2
    assert capsys.readouterr().err == (
        f"mainstay simulate: {file}: line 2: event: expected add or remove, not 'gone'\n"
    )
    file.write_text("0,add,a\n")
    assert simulate(trace=file, quiet=True) == 2
    assert "all changes come at one instant" in capsys.readouterr().err
