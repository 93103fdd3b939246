"""A step of any (dp, pp, tp) as the state of a job of any other, to the bit: tensors are cut by rows and by columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig, Manifest
from mainstay.recovery.checkpoint.reshape import gather, sources
from mainstay.recovery.memory.global_slices import DeclaredSlices, GlobalSlice, decode, encode
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.state_part import write_state

RUN = "01997c4e-8f00-7000-8000-000000000001"
LAYERS, WIDTH, HIDDEN, EPOCH = 4, 6, 12, 3
SHARDING = {"blocks.*.up.weight": 0, "blocks.*.up.bias": 0, "blocks.*.down.weight": 1, "vocabulary.weight": 0}


class Block(torch.nn.Module):
    """A feed-forward layer as Megatron-LM cuts it: the first product by columns of its output, the second by rows."""

    def __init__(self, tp: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN // tp)
        self.down = torch.nn.Linear(HIDDEN // tp, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)


class Model(torch.nn.Module):
    def __init__(self, begin: int, end: int, tp: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(tp) for _ in range(end - begin))
        if begin == 0:
            self.vocabulary = torch.nn.Embedding(12 // tp, WIDTH)


class Rank:
    """One rank's piece of the model and of its optimizer, filled from the tensors of the whole model."""

    def __init__(self, rank: int, shape: MeshShape, whole: dict[str, torch.Tensor] | None) -> None:
        self.rank, self.shape = rank, shape
        _, pp, tp = shape.place(rank)
        begin, end = LAYERS * pp // shape.pp, LAYERS * (pp + 1) // shape.pp
        self.model = Model(begin, end, shape.tp)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        prefixes = {f"blocks.{i}": f"blocks.{begin + i}" for i in range(end - begin)}
        cut = {pattern: dim for pattern, dim in SHARDING.items() if begin == 0 or not pattern.startswith("voc")}
        self.state = TrainerState(self.model, self.optimizer, {}, prefixes, DeclaredSlices(cut, tp, shape.tp))
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(torch.zeros_like(tensor) if whole is None else self.piece(name, whole))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name in the slot -> live tensor, scalars left out."""
        found: dict[str, torch.Tensor] = {}
        prefixes = {name: self.state._whole(name) for name, _ in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            found[f"param.{prefixes[name]}"] = parameter.detach()
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"optim.{prefixes[name]}.{key}"] = self.optimizer.state[parameter][key]
        return found

    def piece(self, name: str, whole: dict[str, torch.Tensor]) -> torch.Tensor:
        """By hand, not by the code under test."""
        _, _, tp = self.shape.place(self.rank)
        dims = [dim for pattern, dim in SHARDING.items() if pattern.replace("blocks.*", "") in name]
        return whole[name].chunk(self.shape.tp, dims[0])[tp] if dims else whole[name]


def whole_model(seed: int = 0) -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    one = Rank(0, MeshShape(dp=1, pp=1), None)
    return {name: torch.randn(tensor.shape, generator=source) for name, tensor in one.tensors().items()}


def saved(
    home: Path,
    shape: MeshShape,
    whole: dict[str, torch.Tensor],
    copies: int = 0,
    change: Callable[[Rank], None] | None = None,
) -> tuple[save.WriteTarget, Manifest]:
    config = DiskConfig(run=RUN, generation=1, every=1, dp=shape.dp, pp=shape.pp, tp=shape.tp, copies=copies)
    target = save.WriteTarget(home / "checkpoints", "job", config)
    for number in range(shape.world_size):
        rank = Rank(number, shape, whole)
        if change is not None:
            change(rank)
        write_state(target, rank.state, EPOCH, number, home / f"rank-{number}.arena")
    made = save.commit(target, EPOCH)
    assert made is not None
    return target, made


def load(target: save.WriteTarget, manifest: Manifest, rank: Rank) -> None:
    parts = sources(manifest, rank.shape, rank.rank)
    layout = rank.state.layout
    rank.state.load(gather(target.run, EPOCH, parts, layout, rank.state.slices, stages=rank.shape.pp))


SHAPES = [MeshShape(dp=dp, pp=pp, tp=tp) for dp, pp, tp in
          [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 4, 3), (3, 1, 2), (1, 2, 6)]]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "copies"), [(shape, copies) for shape in SHAPES for copies in (0, 1) if shape.dp > copies]
)
def test_every_shape_resumes_from_every_other(before: MeshShape, copies: int, tmp_path: Path) -> None:
    whole = whole_model()
    target, manifest = saved(tmp_path, before, whole, copies)
    for after in SHAPES:
        if after == before:
            continue  # each rank takes its own slot, through the agent
        for number in range(after.world_size):
            rank = Rank(number, after, None)
            load(target, manifest, rank)
            for name, tensor in rank.tensors().items():
                assert torch.equal(tensor, rank.piece(name, whole)), (before, after, number, name)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("copies", [0, 1])
def test_plain_dcp_loads_the_whole_tensors(copies: int, tmp_path: Path) -> None:
    whole = whole_model(7)
    target, _ = saved(tmp_path, MeshShape(dp=2, pp=2, tp=2), whole, copies)
    public = {
        name: f"model.{name[6:]}" if name.startswith("param.") else f"optimizer.state.{name[6:]}" for name in whole
    }
    wanted = {public[name]: torch.zeros_like(tensor) for name, tensor in whole.items()}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(target.run.step(EPOCH)), no_dist=True)
    for name, tensor in whole.items():
        assert torch.equal(wanted[public[name]], tensor), name


def test_a_share_of_each_replica_is_nearly_equal(tmp_path: Path) -> None:
    target, manifest = saved(tmp_path, MeshShape(dp=3, pp=1), whole_model(), 1)
    sizes = [
        sum(t.nbytes for t in target.run.part(EPOCH, p.rank, 1).tensors if t.name.startswith(("param.", "optim.")))
        for p in manifest.parts
    ]
    assert max(sizes) < 1.1 * sum(sizes) / 3


def test_moments_that_each_replica_keeps_for_itself_are_never_divided(tmp_path: Path) -> None:
    """ZeRO-1 in the script: each replica updates its half of the moments, and all hold the same parameters."""

    def own_half(rank: Rank) -> None:
        block = rank.model.blocks[rank.rank]
        rank.optimizer.state[block.up.weight]["exp_avg"] += 1.0

    with pytest.raises(CheckpointError, match=r"as with ZeRO-1 .* use --checkpoint-replicas 0"):
        saved(tmp_path, MeshShape(dp=2, pp=1), whole_model(), 1, own_half)


def test_moments_that_do_not_exist_yet_are_known_by_their_names_in_all_shares(tmp_path: Path) -> None:
    def frozen(rank: Rank) -> None:
        for block in list(rank.model.blocks)[2:]:
            rank.optimizer.state[block.up.weight].clear()

    whole = whole_model()
    target, manifest = saved(tmp_path, MeshShape(dp=3, pp=1), whole, 1, frozen)
    rank = Rank(0, MeshShape(dp=1, pp=2), None)
    load(target, manifest, rank)
    for name, tensor in rank.tensors().items():
        assert torch.equal(tensor, rank.piece(name, whole)), name
    last = Rank(1, MeshShape(dp=1, pp=2), None)
    load(target, manifest, last)
    assert [bool(last.optimizer.state.get(block.up.weight)) for block in last.model.blocks] == [False, False]
    assert all(last.optimizer.state[block.down.weight] for block in last.model.blocks)


def test_a_share_that_is_gone_is_said(tmp_path: Path) -> None:
    target, manifest = saved(tmp_path, MeshShape(dp=2, pp=1), whole_model(), 1)
    (target.run.step(EPOCH) / "rank-1.g1.json").unlink()
    with pytest.raises(CheckpointError, match=r"rank-1\.g1\.json"):
        load(target, manifest, Rank(0, MeshShape(dp=1, pp=1), None))
    lacking = msgspec.structs.replace(manifest, parts=manifest.parts[:1])
    with pytest.raises(CheckpointError, match="the step lacks pieces of"):
        load(target, lacking, Rank(0, MeshShape(dp=1, pp=1), None))


def test_a_script_that_does_not_say_how_it_cuts_is_told(tmp_path: Path) -> None:
    target, manifest = saved(tmp_path, MeshShape(dp=1, pp=1), whole_model())
    rank = Rank(0, MeshShape(dp=1, pp=1, tp=2), None)
    rank.state.slices.clear()
    with pytest.raises(
        CheckpointError, match=r"\[12, 6\] there, float32\[6, 6\] here\. Take the model that was saved, or give"
    ):
        load(target, manifest, rank)


@pytest.mark.parametrize(
    ("sharding", "words"), [({"up.wieght": 0}, "matches 'up.wieght'"), ({"blocks.*.up.bias": 1}, "no dimension 1")]
)
def test_a_declaration_that_fits_nothing_is_refused(sharding: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainerState(Model(0, 2, 2), None, sharding=DeclaredSlices(sharding, 0, 2))


def test_slices_that_cannot_be_are_refused() -> None:
    assert decode(encode({"w": GlobalSlice((4, 2), (2, 0))})) == {"w": GlobalSlice((4, 2), (2, 0))}
    with pytest.raises(ValueError, match="damaged"):
        decode(np.frombuffer(b"{", np.uint8))
    for place, shape in itertools.product([GlobalSlice((4,), (3,)), GlobalSlice((4, 1), (0, 0))], [(2,)]):
        assert not place.fits(shape)
