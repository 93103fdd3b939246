"""A step that was saved with some number of stages, as the state of a job that has another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import ResumeSource, RunDirectory, find
from mainstay.recovery.checkpoint.dcp import keys
from mainstay.recovery.checkpoint.formats import WriteOptions, convert
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig, Manifest
from mainstay.recovery.checkpoint.reshape import gather, sources
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.mesh_shape import MeshShape

RUN = "01997c4e-8f00-7000-8000-000000000001"
LAYERS = 4
EPOCH = 3


class Stage(torch.nn.Module):
    """Layers ``begin`` to ``end`` of a model of four; the first and the last stage may share an embedding."""

    def __init__(self, begin: int, end: int, *, tied: bool) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(end - begin))
        self.norm = torch.nn.BatchNorm1d(3) if end == LAYERS else None
        self.embed = torch.nn.Embedding(5, 3) if tied and (begin == 0 or end == LAYERS) else None


class Trainer:
    """One rank's stage, whose numbers are functions of what they belong to in the model."""

    def __init__(self, rank: int, shape: MeshShape, *, seed: int = 1, named: bool = True, **options: Any) -> None:
        self.stages, pp, _ = shape.cut(rank)
        self.rank, self.shape = rank, shape
        self.begin, self.end = LAYERS * pp // self.stages, LAYERS * (pp + 1) // self.stages
        self.model = Stage(self.begin, self.end, tied=options.pop("tied", False))
        prefixes = {f"blocks.{i}": f"blocks.{self.begin + i}" for i in range(self.end - self.begin)}
        self.optimizer = options.pop("optimizer", torch.optim.AdamW)(self.model.parameters())
        extra = options.pop("extra", {"notes": {"seen": 7}})
        self.state = TrainerState(self.model, self.optimizer, extra, prefixes if named else None)
        self.fill(seed)

    def whole(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        number, _, tail = rest.partition(".")
        return f"blocks.{int(number) + self.begin}.{tail}" if kind == "blocks" else name

    def fill(self, seed: int, steps: int = 2) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(_numbers(seed, self.whole(name), parameter))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(_numbers(seed, name, buffer))
        for step in range(steps):
            for name, parameter in self.model.named_parameters():
                parameter.grad = _numbers(seed + 50 + step, self.whole(name), parameter)
            self.optimizer.step()

    def tensors(self) -> dict[str, bytes]:
        """Name in the model -> bits, of parameters, buffers and optimizer tensors."""
        found = {self.whole(n): t for n, t in (*self.model.named_parameters(), *self.model.named_buffers())}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{self.whole(name)}:{key}"] = value
        return {name: tensor.detach().numpy().tobytes() for name, tensor in found.items()}


def _numbers(seed: int, name: str, like: torch.Tensor) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed * 1_000 + sum(map(ord, name)) * 7 + len(name))
    if not like.is_floating_point():
        return torch.randint(9, like.shape, generator=source)
    return torch.randn(like.shape, generator=source)


class Saved:
    """A step of a job of ``shape`` on disk."""

    def __init__(
        self, home: Path, shape: MeshShape, change: Callable[[Trainer], None] | None = None, **of: Any
    ) -> None:
        self.directory, self.shape = home / "checkpoints", shape
        config = DiskConfig(
            run=RUN, generation=1, every=1, dp=shape.dp, pp=shape.pp, tp=shape.tp, depths=shape.depths, replicated=True
        )
        target = save.WriteTarget(self.directory, "job", config)
        save.begin_step(target)
        lost = of.pop("lost", ())
        self.trainers = [Trainer(rank, shape, **of) for rank in range(shape.world_size) if rank not in lost]
        for trainer in self.trainers:
            if change is not None:
                change(trainer)
            _write(home, target, trainer)
        made = save.commit(target, EPOCH, partial=bool(lost))
        assert made is not None
        self.manifest: Manifest = made
        self.run: RunDirectory = target.run

    def tensors(self) -> dict[str, bytes]:
        """Of the whole model."""
        return {name: bits for trainer in self.trainers for name, bits in trainer.tensors().items()}

    def load(self, trainer: Trainer) -> None:
        """As a rank of another shape does."""
        parts = sources(self.manifest, trainer.shape, trainer.rank)
        layout = trainer.state.layout
        trainer.state.load(gather(self.run, EPOCH, parts, layout, trainer.state.slices, stages=trainer.stages))


def _write(home: Path, target: save.WriteTarget, trainer: Trainer) -> None:
    torch.manual_seed(trainer.rank)  # random numbers are each rank's own
    arena = Arena.create(home / f"rank-{trainer.rank}.arena", rank=trainer.rank, layout=trainer.state.layout, slots=2)
    writer = SnapshotWriter(arena, trainer.state)
    writer.start(EPOCH, 1)
    writer.wait()
    writer.close()
    arena.verify(arena.find(EPOCH))
    save.write_part(arena, arena.find(EPOCH), target)


OTHERS = [(1, 4), (4, 1), (1, 1), (2, 1), (1, 3), (3, 2)]


@pytest.mark.parametrize(("dp", "pp"), OTHERS)
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad"])
def test_every_tensor_is_found_by_its_name_in_the_model(dp: int, pp: int, optimizer: str, tmp_path: Path) -> None:
    kind = getattr(torch.optim, optimizer)
    saved = Saved(tmp_path, MeshShape(dp=2, pp=2), optimizer=kind)
    everything = saved.tensors()
    shape, seen = MeshShape(dp=dp, pp=pp), set()
    for rank in range(shape.world_size):
        trainer = Trainer(rank, shape, seed=99, optimizer=kind)
        notes = trainer.state.extra["notes"]
        notes["seen"] = 0
        saved.load(trainer)
        found = trainer.tensors()
        assert found == {name: everything[name] for name in found}
        assert notes["seen"] == 7
        seen |= found.keys()
    assert seen == everything.keys()


UNLIKE = [((2, 2), (2, 1)), ((3, 3), (3, 2)), ((3, 2), (3, 3)), ((3, 2), (2, 2)), ((4, 1), (1, 4)), ((2, 1, 1), (3,))]


@pytest.mark.parametrize(("before", "after"), UNLIKE)
def test_pipelines_of_unlike_depth_are_read_and_written(
    before: tuple[int, ...], after: tuple[int, ...], tmp_path: Path
) -> None:
    saved = Saved(tmp_path, MeshShape.from_stages(before))
    assert (saved.manifest.shape, saved.run.info().shape) == (
        MeshShape.from_stages(before),
        MeshShape.from_stages(before),
    )
    assert saved.manifest.replicated
    assert_found(saved, MeshShape.from_stages(after))


@pytest.mark.parametrize(("lost", "after"), [((4,), (2, 2)), ((0,), (2, 2)), ((3, 4), (3,)), ((1,), (3,))])
def test_one_pipeline_that_is_whole_stands_for_another(
    lost: tuple[int, ...], after: tuple[int, ...], tmp_path: Path
) -> None:
    assert_found(Saved(tmp_path, MeshShape.from_stages((3, 2)), lost=lost), MeshShape.from_stages(after))


def test_without_a_whole_pipeline_of_any_depth_a_step_is_not_whole(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        Saved(tmp_path, MeshShape.from_stages((3, 2)), lost=(1, 4))


def test_pipelines_that_hold_other_bits_stand_for_nobody(tmp_path: Path) -> None:
    def change(trainer: Trainer) -> None:
        if trainer.rank == 4:
            with torch.no_grad():
                next(trainer.model.parameters()).add_(1.0)

    saved = Saved(tmp_path, MeshShape.from_stages((3, 2)), change=change)
    assert not saved.manifest.replicated
    with pytest.raises(CheckpointError, match="its state is sharded over data-parallel ranks"):
        sources(saved.manifest, MeshShape.from_stages((2, 2)), 0)


def assert_found(saved: Saved, shape: MeshShape) -> None:
    """Every rank of ``shape`` finds its tensors, and all of them are the whole model."""
    everything, seen = saved.tensors(), set()
    for rank in range(shape.world_size):
        trainer = Trainer(rank, shape, seed=99)
        saved.load(trainer)
        found = trainer.tensors()
        assert found == {name: everything[name] for name in found}
        seen |= found.keys()
    assert seen == everything.keys()


def test_random_numbers_are_those_of_the_rank_at_the_same_depth(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=2, pp=2))
    shape = MeshShape(dp=2, pp=4)
    for rank in range(shape.world_size):
        trainer = Trainer(rank, shape, seed=99)
        dp, pp, _ = shape.place(rank)
        saved.load(trainer)
        state = torch.get_rng_state()
        torch.manual_seed(saved.shape.rank_of(dp=dp, pp=pp // 2))
        assert torch.equal(state, torch.get_rng_state())


def test_an_optimizer_that_has_not_stepped_comes_back_as_one(tmp_path: Path) -> None:
    def forget(trainer: Trainer) -> None:
        trainer.optimizer.state.clear()

    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), change=forget)
    trainer = Trainer(0, MeshShape(dp=1, pp=1), seed=99)
    saved.load(trainer)
    assert not trainer.optimizer.state
    assert trainer.tensors() == saved.tensors()


def test_what_only_one_stage_had_not_stepped_stays_so(tmp_path: Path) -> None:
    def forget(trainer: Trainer) -> None:
        if trainer.rank == 1:
            trainer.optimizer.state.clear()

    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), change=forget)
    trainer = Trainer(0, MeshShape(dp=1, pp=1), seed=99)
    saved.load(trainer)
    assert trainer.tensors() == saved.tensors()
    assert [bool(trainer.optimizer.state.get(block.weight)) for block in trainer.model.blocks] == [
        True,
        True,
        False,
        False,
    ]


def test_tied_parameters_are_one_in_the_model_and_listed_once(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), tied=True)
    trainer = Trainer(0, MeshShape(dp=1, pp=1), seed=99, tied=True)
    saved.load(trainer)
    assert trainer.tensors() == saved.tensors()
    listed = list(keys([saved.run.part(EPOCH, rank, 1) for rank in range(2)]).values())
    assert listed.count("model.embed.weight") == 1
    assert len(listed) == len(set(listed))


def test_tied_parameters_that_differ_are_refused(tmp_path: Path) -> None:
    def part(trainer: Trainer) -> None:
        if trainer.rank == 1:
            with torch.no_grad():
                trainer.model.embed.weight[0, 0] += 1.0

    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), change=part, tied=True)
    with pytest.raises(CheckpointError, match=r"__0_1\.distcp differ in 'param\.embed\.weight'"):
        saved.load(Trainer(0, MeshShape(dp=1, pp=1), tied=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_any_tool_loads_the_whole_model_by_its_own_names(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=2, pp=2))
    whole = Trainer(0, MeshShape(dp=1, pp=1), seed=99)
    wanted = {f"model.{name}": torch.zeros_like(tensor) for name, tensor in whole.model.state_dict().items()}
    wanted |= {f"optimizer.state.{n}.exp_avg": torch.zeros_like(p) for n, p in whole.model.named_parameters()}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(saved.run.step(EPOCH)), no_dist=True)
    expected = saved.tensors()
    for name, tensor in wanted.items():
        plain = name.removeprefix("model.")
        plain = (
            f"{name.removeprefix('optimizer.state.').removesuffix('.exp_avg')}:exp_avg" if "exp_avg" in name else plain
        )
        assert tensor.numpy().tobytes() == expected[plain]
    names = convert(saved.directory, tmp_path / "one.pt", "torch", WriteOptions()).tensors
    whole.model.load_state_dict(torch.load(tmp_path / "one.pt")["model"])
    assert not any("pp0" in name for name in names)


@pytest.mark.parametrize("made_with", [2, 4])
def test_a_step_that_went_through_another_tool_is_assigned_too(made_with: int, tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=made_with))
    copy = tmp_path / "theirs" / f"step-{EPOCH}"
    copy.parent.mkdir()
    step = saved.run.step(EPOCH)
    copy.mkdir()
    for path in (*step.glob("*.distcp"), step / ".metadata"):
        (copy / path.name).write_bytes(path.read_bytes())
    convert(copy, tmp_path / "imported", "mainstay", WriteOptions(pp=made_with))
    manifest = find(tmp_path / "imported").manifest
    assert manifest.has_model_names
    source = ResumeSource(tmp_path / "imported", manifest)
    trainer = Trainer(0, MeshShape(dp=1, pp=1), seed=99)
    arrays = gather(source.run, EPOCH, sources(manifest, trainer.shape, 0), trainer.state.layout, {}, stages=1)
    trainer.state.load(arrays)
    assert trainer.tensors() == saved.tensors()


def test_names_that_are_each_stages_own_are_refused_before_and_after(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), named=False)
    assert not saved.manifest.has_model_names
    assert saved.manifest.model_names is msgspec.UNSET
    with pytest.raises(CheckpointError, match=r"pp=2 tp=1, this job has pp=4 tp=1: its names are each stage's own"):
        sources(saved.manifest, MeshShape(dp=1, pp=4), 0)
    one = Saved(tmp_path / "one", MeshShape(dp=1, pp=1), named=False)
    with pytest.raises(CheckpointError, match="this script's names are each stage's own"):
        one.load(Trainer(0, MeshShape(dp=1, pp=2), named=False))
    trainer = Trainer(1, MeshShape(dp=1, pp=2), seed=99)
    one.load(trainer)
    assert trainer.tensors().items() <= one.tensors().items()


def test_another_tensor_size_is_refused_where_nothing_says_how_tensors_are_cut(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=1, tp=2))
    with pytest.raises(CheckpointError, match=r"does not say how tensors are cut\. Give mainstay\.attach sharding="):
        sources(saved.manifest, MeshShape(dp=1, pp=1), 0)


def test_state_that_is_sharded_over_replicas_is_assigned_only_at_the_same_dp(tmp_path: Path) -> None:
    def own(trainer: Trainer) -> None:
        trainer.fill(trainer.rank // 2 + 10, steps=0)

    saved = Saved(tmp_path, MeshShape(dp=2, pp=2), change=own)
    assert not saved.manifest.replicated
    for rank in range(2):
        trainer = Trainer(rank, MeshShape(dp=2, pp=1), seed=99)
        saved.load(trainer)
        here = [t.tensors() for t in saved.trainers if t.rank // 2 == rank]
        assert trainer.tensors() == {name: bits for tensors in here for name, bits in tensors.items()}
    with pytest.raises(CheckpointError, match=r"made with dp=2, this job has dp=1; its state is sharded"):
        sources(saved.manifest, MeshShape(dp=1, pp=1), 0)


def _lr(trainer: Trainer) -> None:
    if trainer.rank == 1:
        trainer.optimizer.param_groups[0]["lr"] = 0.5


def _notes(trainer: Trainer) -> None:
    trainer.state.extra["notes"]["seen"] = trainer.rank


@pytest.mark.parametrize(
    ("change", "what"), [(_lr, "the hyperparameters of the optimizer's groups"), (_notes, "given to attach as extra")]
)
def test_what_stages_say_differently_is_not_chosen_from(
    change: Callable[[Trainer], None], what: str, tmp_path: Path
) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), change=change)
    with pytest.raises(CheckpointError, match=what):
        saved.load(Trainer(0, MeshShape(dp=1, pp=1)))


def test_a_model_that_is_another_one_is_refused_by_the_first_tensor(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2))
    with pytest.raises(CheckpointError, match=r"has no tensor 'param\.embed\.weight', which this rank needs"):
        saved.load(Trainer(0, MeshShape(dp=1, pp=1), tied=True))


def test_a_flipped_byte_is_no_tensor(tmp_path: Path) -> None:
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2))
    part = saved.run.part(EPOCH, 1, 1)
    entry = next(tensor for tensor in part.tensors if tensor.name == "param.blocks.3.weight")
    path = saved.run.step(EPOCH) / part.file
    raw = bytearray(path.read_bytes())
    raw[entry.at] ^= 1
    path.write_bytes(bytes(raw))
    trainer = Trainer(0, MeshShape(dp=1, pp=1), seed=99)
    before = trainer.tensors()
    with pytest.raises(CheckpointError, match=r"tensor 'param\.blocks\.3\.weight' has digest"):
        saved.load(trainer)
    assert trainer.tensors() == before


def test_manifests_of_before_are_still_read(tmp_path: Path) -> None:
    """The field is not there where it is not set, so that the checksum of an older manifest holds."""
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), named=False)
    text: Mapping[str, Any] = msgspec.json.decode((saved.run.step(EPOCH) / "manifest.json").read_bytes())
    assert "model_names" not in text
    assert find(saved.directory).manifest == saved.manifest


def test_scalars_of_some_optimizers_are_assigned_by_parameter(tmp_path: Path) -> None:
    def number(trainer: Trainer) -> None:
        for index, block in enumerate(trainer.model.blocks):
            trainer.optimizer.state[block.weight]["seen"] = trainer.begin + index

    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), change=number)
    trainer = Trainer(2, MeshShape(dp=1, pp=4), seed=99)
    saved.load(trainer)
    assert trainer.optimizer.state[trainer.model.blocks[0].weight]["seen"] == 2
    assert isinstance(trainer.state, TrainerState)
    assert np.isfinite(trainer.model.blocks[0].weight.detach().numpy()).all()
