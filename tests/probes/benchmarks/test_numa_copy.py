"""NUMA: the kernel's lists are read right, and a machine that we describe is measured node by node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.numa import beside, listed, processors_by_node
from mainstay.probes.benchmarks.numa_copy import NumaCopy


def tiny() -> NumaCopy:
    return NumaCopy(NumaCopy.Config(budget_seconds=0.0, mebibytes=1))


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("5", [5]), ("\n", [])])
def test_a_kernel_list(text: str, cpus: list[int]) -> None:
    assert list(listed(text)) == cpus


def test_what_is_no_list_is_named() -> None:
    with pytest.raises(ValueError, match="'0-' is no list of processors"):
        list(listed("0-"))


def test_nodes_without_processors_are_left_out(tmp_path: Path) -> None:
    """Memory without processors (CXL, or those that this process may not use) has no core to copy for it."""
    mine = min(os.sched_getaffinity(0))
    for node, cpus in {0: f"{mine}\n", 1: "\n", 2: "4096-4100\n"}.items():
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus)
    assert processors_by_node(tmp_path) == {0: frozenset({mine})}
    assert processors_by_node(tmp_path / "none") == {0: frozenset(os.sched_getaffinity(0))}


def test_one_runs_beside_a_node_and_comes_back() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset({min(before)})
    with beside(one):
        assert os.sched_getaffinity(0) == one
    assert os.sched_getaffinity(0) == before


def test_every_node_has_its_own_metrics() -> None:
    names = [m.name for m in tiny().metrics(Device(kind="cuda", model="any", count=8, numa_nodes=2))]
    assert names == ["h2d_numa0_1MiB", "d2h_numa0_1MiB", "h2d_numa1_1MiB", "d2h_numa1_1MiB"]
