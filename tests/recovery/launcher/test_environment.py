"""How many ranks of other nodes a node takes: each LOCAL_RANK is a GPU that is there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mainstay.recovery.node import environment
from mainstay.recovery.node.environment import rank_environment, spare_places
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import LauncherWelcome, StartRank
from mainstay.recovery.sdk.mesh import told_shape


@pytest.mark.parametrize(
    ("visible", "ranks", "places"),
    [
        ("0,1,2,3", 4, 0),  # a standby takes the rank of a process that has ended, and its GPU
        ("0,1,2,3,4", 4, 1),
        ("0,1,2,3,4,5,6,7", 4, 2),
        ("MIG-a, MIG-b", 2, 0),
        ("0", 2, 2),  # ranks share it
        ("", 4, 2),  # none
        ("-1", 1, 2),
    ],
)
def test_ranks_of_other_nodes_get_gpus_without_a_rank(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch, visible: str, ranks: int, places: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert spare_places(dataclasses.replace(options, nproc=ranks, spares=2)) == places


def test_all_gpus_of_the_driver_count_where_none_are_chosen(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(environment, "_GPUS", tmp_path / "gpus")
    eight = dataclasses.replace(options, nproc=8, spares=1)
    assert spare_places(eight) == 1, "no driver"
    for number in range(8):
        (tmp_path / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    assert spare_places(eight) == 0
    assert spare_places(dataclasses.replace(options, nproc=7, spares=2)) == 1


def test_a_rank_on_a_spare_node_keeps_its_group(options: RunOptions) -> None:
    """The number of a spare node lies beyond the number of groups."""
    spare = dataclasses.replace(options, node_rank=2, spare_nodes=1)
    start = StartRank(rank=3, generation=2, store_host="head", store_port=1)
    found = rank_environment(spare, LauncherWelcome(world_size=4), start, local_rank=1, generation=2)
    assert (found["GROUP_RANK"], found["GROUP_WORLD_SIZE"], found["LOCAL_RANK"]) == ("1", "2", "1")
    assert not {"MAINSTAY_DP", "MAINSTAY_TP"} & found.keys()


def test_a_script_learns_the_shape(options: RunOptions) -> None:
    start = StartRank(rank=3, generation=2, store_host="head", store_port=1, dp=2, pp=1, tp=2)
    found = rank_environment(options, LauncherWelcome(world_size=4), start, local_rank=1, generation=2)
    assert [found[f"MAINSTAY_{name}"] for name in ("DP", "PP", "TP")] == ["2", "1", "2"]


def test_a_size_that_was_not_told_is_left_to_the_script(options: RunOptions) -> None:
    start = StartRank(rank=3, generation=2, store_host="head", store_port=1, tp=2)
    found = rank_environment(options, LauncherWelcome(world_size=4), start, local_rank=1, generation=2)
    assert found["MAINSTAY_TP"] == "2"
    assert not {"MAINSTAY_DP", "MAINSTAY_PP"} & found.keys()


@pytest.mark.parametrize(
    ("told", "shape"),
    [
        ({}, "dp=4 pp=1 tp=2"),
        ({"PP": "2"}, "dp=2 pp=2 tp=2"),
        ({"TP": "4"}, "dp=2 pp=1 tp=4"),
        ({"DP": "2", "PP": "2"}, "dp=2 pp=2 tp=2"),
    ],
)
def test_ranks_that_are_left_are_replicas(told: dict[str, str], shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DP", "PP", "TP", "STAGES"):
        monkeypatch.delenv(f"MAINSTAY_{name}", raising=False)
    for name, size in {"WORLD_SIZE": "8", **{f"MAINSTAY_{name}": size for name, size in told.items()}}.items():
        monkeypatch.setenv(name, size)
    assert str(told_shape(2)) == shape
