"""Scenario files: TOML beside JSON, and contradictions refused by the field that has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.recovery.planner_input import FailureCase
from mainstay.recovery.scenario_assumptions import cost_inputs_of
from mainstay.recovery.scenario_file import read_file, read_scenario
from mainstay.recovery.strategies.peer_copy import PeerCopy

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def changed(tmp_path: Path, **over: Any) -> Path:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(json.loads((EXAMPLES / "node-loss.json").read_text()) | over))
    return file


def test_the_toml_example_is_the_json_one() -> None:
    assert read_file(EXAMPLES / "node-loss.toml") == read_file(EXAMPLES / "node-loss.json")


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"disk": {"epochs": [1000, 1300]}}, "disk: step 1300 is not from 0 to 1200"),
        ({"disk": [{"rank": 0, "epoch": -1}]}, "disk: step -1 is not from 0 to 1200"),
        ({"slots": {"epochs": [1201]}}, "slots: step 1201"),
        ({"parity": {"epochs": [1201], "groups": [[0, 2]]}}, "parity: step 1201"),
        ({"live": 1300}, "live: step 1300 is no step that follows step 1200"),
        ({"live": {"0": 1200, "2": 1200}}, "live: rank 2 is lost"),
        ({"lost_nodes": ["node-b", "node-b"]}, "lost_nodes: 'node-b' is given twice"),
        ({"failed_ranks": [1, 1]}, "failed_ranks: 1 is given twice"),
        ({"failed_ranks": [4]}, "failed_ranks names 4, which the job does not have"),
        ({"lost_nodes": ["node-x"]}, "lost_nodes names 'node-x', which the job does not have"),
        ({"ranks": {"dp": 2, "pp": 2, "nodes": ["a", "a"]}}, "ranks.nodes: 'a' is given twice"),
        ({"standbys": {"node-a": -1}}, "standbys.node-a: expected at least 0"),
        ({"step": -1, "live": {}}, "step: expected at least 0, not -1"),
    ],
)
def test_contradictions_are_refused_by_field(tmp_path: Path, over: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_scenario(changed(tmp_path, **over))


def test_a_survivor_may_be_one_step_ahead(tmp_path: Path) -> None:
    assert set(read_scenario(changed(tmp_path, live=1201, slots={"epochs": [1201]})).live.values()) == {1201}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("twice.json", '{"job": "a", "job": "b"}', "'job' is given twice"),
        ("twice.toml", 'job = "a"\njob = "b"\n', "not TOML: .*line 2"),
        ("unknown.toml", 'jop = "a"', "jop: unknown field"),
        ("bad.toml", "{", "not TOML"),
    ],
)
def test_texts_that_are_no_scenario(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_scenario(tmp_path / name)


def looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dp: int) -> int:
    """How often slots are asked for where half of the nodes are lost, each with one rank."""
    nodes = [f"n{i}" for i in range(dp)]
    file = changed(
        tmp_path, ranks={"dp": dp, "pp": 1, "nodes": nodes}, lost_nodes=nodes[::2], standbys=dict.fromkeys(nodes, 1),
        parity=[],
    )  # fmt: skip
    situation, assumptions = read_file(file)
    assert assumptions is not None
    case = FailureCase(situation)
    asked: list[int] = []
    slots = type(case.slots).__getitem__

    def count(self: Any, rank: int) -> Any:
        asked.append(rank)
        return slots(self, rank)

    monkeypatch.setattr(type(case.slots), "__getitem__", count)
    cost_inputs_of(case, assumptions)
    assert PeerCopy().price(case).feasible
    monkeypatch.undo()
    return len(asked)


def test_work_grows_with_the_ranks_and_not_with_their_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (looked_up(tmp_path, monkeypatch, dp) for dp in (16, 64))
    assert many <= 4 * few
