"""Experts on some ranks only: a step of any (dp, pp, tp, ep) as the state of a job of any other, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig, Manifest
from mainstay.recovery.memory.global_slices import DeclaredSlices
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.experts import Model, Tensors, Topology, load, piece, sharding, state_tensors
from tests.recovery.checkpoint.state_part import write_state

RUN, EPOCH = "01997c4e-8f00-7000-8000-000000000001", 3
Change = Callable[["Rank"], None]


class Rank:
    """One rank's state after a step of AdamW, then filled from the tensors of the whole model."""

    def __init__(self, topology: Topology, rank: int, whole: Tensors | None, seed: int = 0) -> None:
        self.topology, self.rank = topology, rank
        torch.manual_seed(seed)
        self.model = Model(topology, rank).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        _, _, tp = topology.shape.place(rank)
        cut = DeclaredSlices(sharding(topology, rank, self.model), tp, topology.shape.tp)
        self.state = TrainerState(self.model, self.optimizer, {}, self.model.prefixes(), cut)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        for name, tensor in self.tensors().items():
            tensor.copy_(torch.zeros_like(tensor) if whole is None else piece(topology, rank, name, whole))

    def tensors(self) -> Tensors:
        return state_tensors(self.model, self.optimizer)


def whole_model(*, named: bool, seed: int = 0) -> Tensors:
    source = torch.Generator().manual_seed(seed)
    one = Rank(Topology(MeshShape(dp=1, pp=1), 1, named), 0, None)
    shapes = {name: tensor.shape for name, tensor in one.tensors().items()}
    # AdamW's number of steps is each tensor's own.
    return {name: torch.randn(s, dtype=torch.float64, generator=source).float() if not s else
            torch.randn(s, dtype=torch.float64, generator=source) for name, s in shapes.items()}  # fmt: skip


class Saved:
    """A step of a job on disk."""

    def __init__(self, home: Path, topology: Topology, whole: Tensors, change: Change | None = None, **of: Any) -> None:
        shape = topology.shape
        config = DiskConfig(run=RUN, generation=1, every=1, dp=shape.dp, pp=shape.pp, tp=shape.tp, **of)
        self.target = save.WriteTarget(home / "checkpoints", "job", config)
        self.home, self.topology = home, topology
        self.ranks = [Rank(topology, number, whole) for number in range(shape.world_size)]
        for rank in self.ranks:
            if change is not None:
                change(rank)

    def write(self, *ranks: int) -> None:
        for number in ranks or range(len(self.ranks)):
            state, memory = self.ranks[number].state, self.home / f"rank-{number}.arena"
            write_state(self.target, state, EPOCH, number, memory)

    def commit(self) -> Manifest:
        self.write()
        made = save.commit(self.target, EPOCH)
        assert made is not None
        return made

    def load(self, manifest: Manifest, rank: Rank) -> None:
        """As the coordinator orders it, and a rank of another job carries it out."""
        load(self.target.run, manifest, rank.state, rank.topology.shape, rank.rank)


SHAPES = [
    (MeshShape(dp=dp, pp=pp, tp=tp), ep)
    for dp, pp, tp, ep in [
        (1, 1, 1, 1), (4, 1, 1, 1), (2, 1, 1, 2), (4, 1, 1, 2), (4, 1, 1, 4), (1, 2, 1, 1), (2, 2, 1, 2), (2, 1, 2, 2),
        (2, 2, 2, 2),
    ]
]  # fmt: skip


@pytest.mark.parametrize("named", [False, True], ids=["stacked", "named"])
@pytest.mark.parametrize(("shape", "ep"), SHAPES, ids=lambda part: str(part).replace(" ", "-"))
def test_every_shape_resumes_from_every_other(shape: MeshShape, ep: int, named: bool, tmp_path: Path) -> None:
    whole = whole_model(named=named)
    saved = Saved(tmp_path, Topology(shape, ep, named), whole)
    manifest = saved.commit()
    assert manifest.replicated == (ep == 1)
    for other, other_ep in SHAPES:
        if (other, other_ep) == (shape, ep):
            continue  # each rank takes its own slot, through the agent
        topology = Topology(other, other_ep, named)
        for number in range(other.world_size):
            rank = Rank(topology, number, None)
            saved.load(manifest, rank)
            for name, tensor in rank.tensors().items():
                assert torch.equal(tensor, piece(topology, number, name, whole)), (topology, number, name)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("named", [False, True], ids=["stacked", "named"])
def test_plain_dcp_loads_whole_experts(named: bool, tmp_path: Path) -> None:
    whole = whole_model(named=named)
    saved = Saved(tmp_path, Topology(MeshShape(dp=4, pp=2, tp=1), 2, named), whole)
    saved.commit()
    public = {name: f"optimizer.state.{name.replace(':', '.')}" if ":" in name else f"model.{name}" for name in whole}
    wanted = {public[name]: torch.zeros_like(tensor) for name, tensor in whole.items()}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(saved.target.run.step(EPOCH)), no_dist=True)
    assert all(torch.equal(wanted[public[name]], tensor) for name, tensor in whole.items())


def test_ranks_that_call_other_experts_alike_are_told_apart_by_nothing(tmp_path: Path) -> None:
    """``experts.0`` is the first that a rank has: at another size the step is refused, and no expert is lost."""
    topology = Topology(MeshShape(dp=2, pp=1), 2, False)

    def undeclared(rank: Rank) -> None:
        rank.state = TrainerState(rank.model, rank.optimizer)

    saved = Saved(tmp_path, topology, whole_model(named=False), undeclared)
    manifest = saved.commit()
    with pytest.raises(CheckpointError, match="its state is sharded over data-parallel ranks"):
        saved.load(manifest, Rank(Topology(MeshShape(dp=4, pp=1), 4, False), 0, None))


def test_a_last_save_without_some_experts_is_not_whole(tmp_path: Path) -> None:
    """Ranks 0 and 2 hold the same experts and would stand for 1 and 3, were they replicas."""
    saved = Saved(tmp_path, Topology(MeshShape(dp=4, pp=1), 2, True), whole_model(named=True))
    saved.write(0, 2)
    assert save.commit(saved.target, EPOCH, partial=True) is None
    saved.write(1, 3)
    assert save.commit(saved.target, EPOCH, partial=True) is not None


@pytest.mark.parametrize("named", [False, True], ids=["stacked", "named"])
def test_experts_are_never_divided_as_if_replicas_held_them_alike(named: bool, tmp_path: Path) -> None:
    saved = Saved(tmp_path, Topology(MeshShape(dp=2, pp=1), 2, named), whole_model(named=named), copies=1)
    saved.write()
    with pytest.raises(CheckpointError, match="use --checkpoint-replicas 0"):
        save.commit(saved.target, EPOCH)


def _momentum(rank: Rank) -> None:
    """As if only the experts of rank 0 had seen tokens, with an optimizer that counts no steps."""
    experts = rank.model.blocks[1].experts
    for parameter in rank.model.parameters():
        del rank.optimizer.state[parameter]["step"]
    if rank.rank:
        for parameter in experts.parameters():
            rank.optimizer.state[parameter].clear()


def test_experts_that_saw_no_token_have_zeros_where_others_have_moments(tmp_path: Path) -> None:
    whole = whole_model(named=False)
    saved = Saved(tmp_path, Topology(MeshShape(dp=2, pp=1), 2, False), whole, _momentum)
    one = Rank(Topology(MeshShape(dp=1, pp=1), 1, False), 0, None)
    saved.load(saved.commit(), one)
    found = one.tensors()["blocks.1.experts.up:exp_avg"]
    wanted = whole["blocks.1.experts.up:exp_avg"].clone()
    wanted[2:] = 0.0
    assert torch.equal(found, wanted)


def test_numbers_of_steps_that_differ_between_pieces_are_not_chosen_from(tmp_path: Path) -> None:
    def skip(rank: Rank) -> None:
        rank.optimizer.state[rank.model.blocks[1].experts.up]["step"] += rank.rank

    saved = Saved(tmp_path, Topology(MeshShape(dp=2, pp=1), 2, False), whole_model(named=False), skip)
    manifest = saved.commit()
    with pytest.raises(CheckpointError, match=r"differ in 'optim\.blocks\.1\.experts\.up\.step'"):
        saved.load(manifest, Rank(Topology(MeshShape(dp=1, pp=1), 1, False), 0, None))
