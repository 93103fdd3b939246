"""The mesh of a generation with absent positions, with real ranks over gloo: numbers, groups, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from mainstay.recovery.examples import tiny
from mainstay.recovery.mesh_shape import GenerationRanks, MeshShape
from mainstay.recovery.protocol.worker_messages import Regroup
from mainstay.recovery.sdk.mesh import Mesh, build_mesh
from mainstay.recovery.sdk.process_groups import Communicator
from mainstay.recovery.work_assignment import WorkAssignment
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]
SHAPE = MeshShape(dp=2, pp=3)
ASSIGNMENTS = [
    WorkAssignment(replicas=(0, 1)),
    WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),)),
    WorkAssignment(replicas=(0, 1), absent_positions=((0, 0), (0, 2), (1, 1))),
    WorkAssignment(replicas=(1,)),
]
WORDS = ["--dp", "2", "--pp", "3", "--layers", "3", "--width", "32", "--batch", "2", "--canonical"]


def mesh_of(number: int, assignment: WorkAssignment) -> Mesh:
    """Of rank ``number`` of the whole job, not formed."""
    mesh = Mesh(Communicator(number, GenerationRanks.whole(SHAPE), "gloo"), None)
    mesh.order = Regroup(generation=4, store_host="h", store_port=1, assignment=assignment)
    mesh.communicator.rank, mesh.communicator.world = mesh._place(mesh.order)
    return mesh


def numbers_of(assignment: WorkAssignment) -> list[int]:
    """Ranks that take part, by their numbers in the whole job."""
    places = [(number, SHAPE.place(number)) for number in range(SHAPE.world_size)]
    return [number for number, (dp, pp, _) in places if dp in assignment.occupied(pp)]


def three_steps(place: int, assignment: WorkAssignment) -> dict[str, Any]:
    """What the rank is, and its parameters after three steps of the example."""
    mesh = mesh_of(numbers_of(assignment)[place], assignment)
    mesh.communicator.groups = mesh.communicator._subgroups(4)  # all have met already
    opts = tiny.options(WORDS)
    stage = tiny.Stage(opts, mesh.pp_rank)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(3):
        tiny.train_step(mesh, stage, optimizer, step, opts)
    return {
        "rank": dist.get_rank(),
        "numbers": [mesh.number_of(peer) for peer in dist.get_process_group_ranks(mesh.dp)],
        "replicas": mesh.replicas,
        "pipeline": [mesh.number_of(peer) for peer in dist.get_process_group_ranks(mesh.pp)],
        "assigned": mesh.assigned,
        "bits": b"".join(p.detach().numpy().tobytes() for p in stage.parameters()),
    }


def test_whatever_is_away_the_bits_of_each_stage_are_the_same() -> None:
    found: dict[int, set[bytes]] = {}
    for assignment in ASSIGNMENTS:
        numbers = numbers_of(assignment)
        for number, told in zip(numbers, run_ranks(three_steps, len(numbers), assignment), strict=True):
            dp, pp, _ = SHAPE.place(number)
            found.setdefault(pp, set()).add(told["bits"])
            assert told["rank"] == numbers.index(number)
            assert told["replicas"] == assignment.occupied(pp)
            assert told["numbers"] == [SHAPE.rank_of(dp=d, pp=pp) for d in assignment.occupied(pp)]
            assert told["pipeline"] == [n for n in numbers if SHAPE.place(n)[0] == dp]
            assert told["assigned"] == len(assignment.micro_batches(8, 2, pp)[dp])
    assert {stage: len(bits) for stage, bits in found.items()} == {0: 1, 1: 1, 2: 1}


def test_a_rank_that_is_away_has_no_number() -> None:
    mesh = mesh_of(5, ASSIGNMENTS[1])
    assert mesh.rank_of(dp=1, pp=2) == 4
    assert mesh.number_of(4) == 5
    with pytest.raises(ValueError, match="stage 1 of replica 1 takes no part"):
        mesh.rank_of(dp=1, pp=1)


def test_a_script_that_does_not_ask_for_its_schedule_is_refused_where_pipelines_cross() -> None:
    mesh = mesh_of(5, ASSIGNMENTS[1])
    with pytest.raises(ValueError, match=r"did not ask mesh\.schedule"):
        mesh.require_schedule()
    tasks = mesh.schedule(8)
    mesh.require_schedule()
    assert {task.source for task in tasks if not task.backward} == {1}, "stage 1 of replica 0 is rank 1"
    assert mesh.assigned == 4
    mesh_of(5, ASSIGNMENTS[0]).require_schedule()
    mesh_of(5, ASSIGNMENTS[3]).require_schedule()


@pytest.mark.parametrize(("shape", "ep"), [(SHAPE, 3), (SHAPE, 0), (MeshShape.from_stages((2, 1)), 1)])
def test_expert_ranks_must_divide_the_replicas(shape: MeshShape, ep: int) -> None:
    with pytest.raises(ValueError, match=f"ep={ep} must divide dp={shape.dp}"):
        build_mesh(shape, ep, backend="gloo", link=None)
