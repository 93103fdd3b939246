"""The mesh of a generation in which some seats are away, with real ranks over gloo: numbers, groups, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from recovery.deal import Deal
from recovery.examples import tiny
from recovery.launcher.worker_messages import Regroup
from recovery.sdk.comm import Communicator
from recovery.sdk.mesh import Mesh
from recovery.shape import Shape, World
from tests.recovery.sdk.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.processes]
SHAPE = Shape(dp=2, pp=3)
DEALS = [
    Deal(replicas=(0, 1)),
    Deal(replicas=(0, 1), gaps=((1, 1),)),
    Deal(replicas=(0, 1), gaps=((0, 0), (0, 2), (1, 1))),
    Deal(replicas=(1,)),
]
WORDS = ["--dp", "2", "--pp", "3", "--layers", "3", "--width", "32", "--batch", "2", "--canonical"]


def mesh_of(number: int, deal: Deal) -> Mesh:
    """Of rank ``number`` of the whole job, not formed."""
    mesh = Mesh(Communicator(number, World.whole(SHAPE), "gloo"), None)
    mesh.order = Regroup(generation=4, store_host="h", store_port=1, deal=deal)
    mesh.communicator.rank, mesh.communicator.world = mesh._place(mesh.order)
    return mesh


def numbers_of(deal: Deal) -> list[int]:
    """Ranks that take part, by their numbers in the whole job."""
    places = [(number, SHAPE.place(number)) for number in range(SHAPE.world_size)]
    return [number for number, (dp, pp, _) in places if dp in deal.seated(pp)]


def three_steps(place: int, deal: Deal) -> dict[str, Any]:
    """What the rank is, and its parameters after three steps of the example."""
    mesh = mesh_of(numbers_of(deal)[place], deal)
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
        "dealt": mesh.dealt,
        "bits": b"".join(p.detach().numpy().tobytes() for p in stage.parameters()),
    }


def test_whatever_is_away_the_bits_of_each_stage_are_the_same() -> None:
    found: dict[int, set[bytes]] = {}
    for deal in DEALS:
        numbers = numbers_of(deal)
        for number, told in zip(numbers, run_ranks(three_steps, len(numbers), deal), strict=True):
            dp, pp, _ = SHAPE.place(number)
            found.setdefault(pp, set()).add(told["bits"])
            assert told["rank"] == numbers.index(number)
            assert told["replicas"] == deal.seated(pp)
            assert told["numbers"] == [SHAPE.rank_of(dp=d, pp=pp) for d in deal.seated(pp)]
            assert told["pipeline"] == [n for n in numbers if SHAPE.place(n)[0] == dp]
            assert told["dealt"] == len(deal.micro_batches(8, 2, pp)[dp])
    assert {stage: len(bits) for stage, bits in found.items()} == {0: 1, 1: 1, 2: 1}


def test_a_rank_that_is_away_has_no_number() -> None:
    mesh = mesh_of(5, DEALS[1])
    assert mesh.rank_of(dp=1, pp=2) == 4
    assert mesh.number_of(4) == 5
    with pytest.raises(ValueError, match="stage 1 of replica 1 takes no part"):
        mesh.rank_of(dp=1, pp=1)


def test_a_script_that_does_not_ask_for_its_schedule_is_refused_where_pipelines_cross() -> None:
    mesh = mesh_of(5, DEALS[1])
    with pytest.raises(ValueError, match=r"did not ask mesh\.schedule"):
        mesh.require_schedule()
    tasks = mesh.schedule(8)
    mesh.require_schedule()
    assert {task.source for task in tasks if not task.backward} == {1}, "stage 1 of replica 0 is rank 1"
    assert mesh.dealt == 4
    mesh_of(5, DEALS[0]).require_schedule()
    mesh_of(5, DEALS[3]).require_schedule()
