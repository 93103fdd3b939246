"""A rank's part in a replay: repeats from one state, digests of every bit, and a mesh that plays another replica."""

from __future__ import annotations

import pytest
import torch

from mainstay.recovery.mesh_shape import GenerationRanks, MeshShape
from mainstay.recovery.protocol.step_replay_messages import PER_STEP, StepReplayRequest
from mainstay.recovery.protocol.worker_messages import Regroup, RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.mesh import Mesh
from mainstay.recovery.sdk.process_groups import Communicator
from mainstay.recovery.sdk.step_replay import StepReplay


def order(*roles: int, steps: int = 2, place: int = 0) -> Regroup:
    return Regroup(
        generation=3,
        store_host="h",
        store_port=1,
        restore=RestoreOrder(epoch=50, source=RestoreSource.DISK, directory="/d"),
        replay_request=StepReplayRequest(group="row-1", place=place, steps=steps, roles=roles),
    )


def run(replay: StepReplay, model: torch.nn.Linear, *, flip: int | None = None) -> None:
    """One repeat: from ones, gradients of the role; ``flip``: the step in which one bit is wrong."""
    with torch.no_grad():
        model.weight.fill_(1.0)
    for step in range(2):
        model.weight.grad = torch.full_like(model.weight, float(replay.role + step + 1))
        if flip == step:
            model.weight.grad.view(torch.int32).view(-1)[3] ^= 1
        replay.before_update()
        with torch.no_grad():
            model.weight -= model.weight.grad
        assert replay.after_step() is (step == 1)


def test_equal_bits_equal_digests_and_one_flipped_bit_is_seen() -> None:
    model = torch.nn.Linear(4, 4, bias=False)
    replay = StepReplay(order(0, 1, 0, 0, 0), model)
    assert (replay.restore.source, replay.restore.epoch) == (RestoreSource.LOCAL_SLOT, 50)
    for flip in (None, None, None, 0, 1):
        assert not replay.over
        run(replay, model, flip=flip)
    assert replay.over
    told = replay.build_report()
    one, other, again, first, second = (told_run.digests for told_run in told.runs)
    assert [r.role for r in told.runs] == [0, 1, 0, 0, 0]
    assert len(one) == 2 * PER_STEP
    assert one == again != other
    assert one[0] != first[0]
    assert [i for i in range(4) if one[i] != second[i]] == [2, 3]


def test_a_step_without_an_update_and_without_gradients() -> None:
    model = torch.nn.Linear(2, 2)
    replay = StepReplay(order(0, steps=1), model)
    assert replay.after_step()
    assert len(replay.build_report().runs[0].digests) == PER_STEP
    assert replay.build_report("the memory is gone").runs == ()


@pytest.mark.parametrize("rank", range(6))
def test_a_group_is_a_job_of_one_replica(rank: int) -> None:
    """Ranks of a 3 x 2 mesh; what a script asks for are numbers within the group."""
    mesh = Mesh(Communicator(rank, GenerationRanks.whole(MeshShape(dp=3, pp=2)), "gloo"), None)
    assert mesh.rank_of(dp=2, pp=1) == 5
    mesh.play(0)
    assert (mesh.rank, mesh.dp_rank, mesh.pp_rank) == (rank % 2, 0, rank % 2)
    mesh.order, mesh.communicator.world = order(0, place=rank % 2), GenerationRanks.whole(MeshShape(dp=1, pp=2))
    assert mesh.rank_of(dp=0, pp=1) == 1
    with pytest.raises(ValueError, match="replica 2"):
        mesh.rank_of(dp=2, pp=1)
