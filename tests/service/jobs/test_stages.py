"""A topology of pipelines that are of unlike depth: what is taken, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from mainstay.detectors.job.mesh import mesh_of
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.service.jobs.schemas import Topology


def topology(pipelines: list[int], **changed: Any) -> dict[str, Any]:
    shape = MeshShape.from_stages(pipelines)
    ranks = [
        {"rank": rank, "dp": dp, "pp": pp, "tp": tp, "node": f"n{rank}", "device": None, "pid": 1, "state": "running"}
        for rank in range(shape.world_size)
        for dp, pp, tp in [shape.place(rank)]
    ]
    body = {
        "dp": shape.dp,
        "pp": shape.pp,
        "tp": 1,
        "world_size": shape.world_size,
        "pipeline_depths": pipelines,
        "ranks": ranks,
    }
    return body | changed


def test_three_stages_beside_two_are_a_topology() -> None:
    assert Topology.model_validate(topology([3, 2])).pipeline_depths == [3, 2]
    assert Topology.model_validate(topology([2, 2], pipeline_depths=None)).pipeline_depths is None


@pytest.mark.parametrize(
    "changed", [{"pipeline_depths": [3, 3]}, {"pipeline_depths": [3]}, {"pipeline_depths": [4, 1]}, {"world_size": 6}]
)
def test_stages_that_contradict_the_rest_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="are not 2 pipelines of at most 3 stages"):
        Topology.model_validate(topology([3, 2], **changed))


def test_only_ranks_that_are_cut_alike_are_peers() -> None:
    mesh = mesh_of("job", topology([3, 2, 2]))
    assert mesh.on("pp").tolist() == [0, 1, 2, 3, 4, 3, 4], "the stages of two are other parts of the model"
    labels = mesh.labels("dp")
    assert [labels[3] == labels[rank] for rank in range(7)] == [False, False, False, True, False, True, False]
    pipelines = mesh.labels("pp")
    assert len({*pipelines[:3].tolist()}) == len({*pipelines[3:5].tolist()}) == 1
    assert pipelines[0] != pipelines[3]
