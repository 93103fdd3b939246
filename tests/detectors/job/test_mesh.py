"""Ranks on axes: which ranks form a group of each kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.job.mesh import JobMesh, mesh_of, regular, rows_by_label


def ranks_of(mesh: JobMesh, kind: str) -> list[list[int]]:
    return [mesh.ranks[rows].tolist() for rows in rows_by_label(mesh.labels(kind))]


def test_groups_differ_in_their_own_axis_only() -> None:
    mesh = regular("job", dp=2, pp=2, tp=2)
    assert ranks_of(mesh, "world") == [list(range(8))]
    assert ranks_of(mesh, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks_of(mesh, "pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert ranks_of(mesh, "dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_an_axis_of_one_place_is_no_kind() -> None:
    mesh = regular("job", dp=4)
    assert [mesh.length(axis) for axis in ("dp", "pp", "ep")] == [4, 1, 1]
    assert mesh.on("ep").tolist() == [0, 0, 0, 0]
    assert ranks_of(mesh, "dp") == [[0, 1, 2, 3]]


def test_rows_do_not_depend_on_the_order_of_the_ranks() -> None:
    mesh = regular("job", dp=2, pp=2)
    order = np.array([3, 1, 0, 2])
    mixed = replace(mesh, ranks=mesh.ranks[order], index=mesh.index[:, order])
    assert sorted(map(sorted, ranks_of(mixed, "pp"))) == ranks_of(mesh, "pp")
    assert mixed.rows([0, None, 9, 3]).tolist() == [2, -1, -1, 0]


def test_a_topology_becomes_a_mesh() -> None:
    place = [
        {"rank": r, "dp": r // 2, "pp": r % 2, "tp": 0, "node": f"n{r // 2}", "device": None} for r in (1, 0, 3, 2)
    ]
    mesh = mesh_of("job", {"ranks": place}, {"n0": ("leaf-0",)})
    assert mesh.ranks.tolist() == [0, 1, 2, 3]
    assert mesh.nodes == ("n0", "n0", "n1", "n1")
    assert mesh.switches == (("leaf-0",), ("leaf-0",), (), ())
    assert ranks_of(mesh, "dp") == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"ranks": np.array([5, 5])}, "rank 5 stands twice"),
        ({"index": np.zeros((1, 2), np.int64)}, "index has shape"),
        ({"nodes": ("a",)}, "1 nodes for 2 ranks"),
        ({"nodes": ()}, "0 nodes for 2 ranks"),
        ({"devices": ("a",)}, "1 devices for 2 ranks"),
        ({"switches": ((), (), ())}, "3 switches for 2 ranks"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        replace(regular("job", dp=2), **change)


def test_stages_of_pipelines_of_unlike_depth_are_no_peers() -> None:
    places = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 2, 0), (4, 2, 1)]  # two of two stages, one of one
    ranks = [{"rank": r, "dp": dp, "pp": pp, "tp": 0, "node": "n", "device": f"g{r}"} for r, dp, pp in places]
    mesh = mesh_of("job", {"ranks": ranks, "pipeline_depths": [2, 1, 2]})
    assert mesh.on("pp").tolist() == [0, 1, 2, 0, 1], "the short one's stage is counted on from the long ones'"
    assert ranks_of(mesh, "dp") == [[0, 3], [1, 4], [2]]
    assert mesh.devices == ("g0", "g1", "g2", "g3", "g4")
    assert mesh.switches == (), "known of no node"


def test_a_job_without_ranks_has_groups_of_nobody() -> None:
    mesh = mesh_of("job", {"ranks": []})
    assert (mesh.size, ranks_of(mesh, "world"), ranks_of(mesh, "dp")) == (0, [], [])
