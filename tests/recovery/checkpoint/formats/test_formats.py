"""Every format into every other, and the real libraries on the other side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.formats import WriteOptions, convert, formats, safetensors
from mainstay.recovery.checkpoint.logical import LogicalCheckpoint, problems
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.formats.rank_processes import run_ranks
from tests.recovery.checkpoint.test_reshape import Saved, Trainer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

OTHERS = sorted(set(formats()) - {"mainstay"})
SHAPES = {"layer.weight": (13, 7), "layer.bias": (13,), "head.weight": (5, 13), "norm": (3,)}
GROUPS = [
    {"lr": 0.01, "betas": [0.9, 0.999], "params": ["layer.weight", "head.weight"]},
    {"lr": 0.5, "betas": [0.9, 0.99], "params": ["layer.bias", "norm"]},
]


def nested(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Model and optimizer as a training script has them."""
    torch.manual_seed(3)
    master = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    state = {
        name: {"step": torch.tensor(4.0), "exp_avg": torch.randn(shape), "exp_avg_sq": torch.rand(shape)}
        for name, shape in SHAPES.items()
    }
    if dtype != torch.float32:
        for name, keys in state.items():
            keys["fp32"] = master[name]
    model = {name: tensor.to(dtype) for name, tensor in master.items()} | {"seen": torch.tensor(9)}
    return {"model": model, "optimizer": {"state": state, "param_groups": GROUPS}, "step": 4}


def write_torch(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    torch.save(nested(dtype), path)
    return path


def assert_same(a: LogicalCheckpoint, b: LogicalCheckpoint) -> None:
    assert sorted(a.tensors) == sorted(b.tensors)
    for name, tensor in a.tensors.items():
        other = b.tensors[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert tensor.read().tobytes() == other.read().tobytes(), name
    assert a.step == b.step


def out_of(folder: Path, form: str) -> Path:
    return folder / (f"{form}.pt" if form == "torch" else form)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", OTHERS)
@pytest.mark.parametrize("second", OTHERS)
def test_every_format_into_every_other(first: str, second: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = write_torch(tmp_path / "source.pt", dtype)
    convert(source, out_of(tmp_path, first), first, WriteOptions())
    opened = open_checkpoint(out_of(tmp_path, first))
    assert opened.format == first
    assert_same(open_checkpoint(source), opened)
    assert not list(problems(opened))
    (tmp_path / "second").mkdir()
    convert(out_of(tmp_path, first), out_of(tmp_path / "second", second), second, WriteOptions())
    again = open_checkpoint(out_of(tmp_path / "second", second))
    assert_same(open_checkpoint(source), again)
    groups = again.values["optimizer.param_groups"]
    assert [group["params"] for group in groups] == [group["params"] for group in GROUPS]
    assert [group["lr"] for group in groups] == [0.01, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_partitions_of_zero_are_cut_and_joined(stage: int, ranks: int, dtype: torch.dtype, tmp_path: Path) -> None:
    source = write_torch(tmp_path / "source.pt", dtype)
    convert(source, tmp_path / "zero", "deepspeed", WriteOptions(zero_stage=stage, dp=ranks))
    assert len(list(tmp_path.glob("zero/*/*optim_states.pt"))) == ranks
    opened = open_checkpoint(tmp_path / "zero")
    if stage == 3 and dtype == torch.bfloat16:  # its files have the parameters in full precision alone
        state = nested(dtype)["optimizer"]["state"]
        for name in SHAPES:
            assert torch.equal(opened.tensors[f"model.{name}"].torch(), state[name]["fp32"])
    else:
        assert_same(open_checkpoint(source), opened)
    assert not list(problems(opened))
    whole = opened.tensors["optimizer.state.layer.weight.exp_avg"]
    part = (slice(3, 9), slice(2, 5))
    assert np.array_equal(whole.read(part), whole.read()[part])


def test_a_damaged_or_missing_rank_of_zero_is_named(tmp_path: Path) -> None:
    source = write_torch(tmp_path / "source.pt")
    convert(source, tmp_path / "zero", "deepspeed", WriteOptions(zero_stage=1, dp=2))
    (second,) = tmp_path.glob("zero/*/zero_pp_rank_1_*optim*")
    raw = bytearray(second.read_bytes())
    raw[raw.index(b"archive/data/1") + 200] ^= 1
    second.write_bytes(raw)
    assert "has CRC-32" in next(problems(open_checkpoint(tmp_path / "zero")))
    with pytest.raises(CheckpointError, match="is damaged"):
        convert(tmp_path / "zero", tmp_path / "out", "dcp", WriteOptions())
    assert not (tmp_path / "out").exists()
    second.unlink()
    with pytest.raises(CheckpointError, match=r"lacks the optimizer files of data-parallel ranks \[1\]"):
        open_checkpoint(tmp_path / "zero")
    (tmp_path / "zero" / "global_step4" / "layer_00-model_00-model_states.pt").touch()
    with pytest.raises(CheckpointError, match="saved with a pipeline or experts: make it universal first"):
        open_checkpoint(tmp_path / "zero")


def test_what_a_format_cannot_hold_is_said(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2).bfloat16()}, tmp_path / "half.pt")
    torch.save({"optimizer": {"state": {"w": {"m": torch.zeros(2)}}}}, tmp_path / "state.pt")
    torch.save(
        {"model": {"w": torch.zeros(2)}, "optimizer": {"param_groups": [{"params": [0]}, {"params": [1]}]}},
        tmp_path / "groups.pt",
    )
    half = nested(torch.bfloat16)
    for keys in half["optimizer"]["state"].values():
        del keys["fp32"]
    torch.save(half, tmp_path / "master.pt")
    write_torch(tmp_path / "whole.pt")
    outside = {"../../x": {"exp_avg": torch.zeros(2)}}
    torch.save({"model": {"../../x": torch.zeros(2)}, "optimizer": {"state": outside}}, tmp_path / "parent.pt")
    for name, form, options, said in (
        ("parent.pt", "deepspeed", WriteOptions(), "cannot have a parameter called '../../x'"),
        ("half.pt", "deepspeed", WriteOptions(), "has no optimizer state"),
        ("master.pt", "deepspeed", WriteOptions(), "only as bfloat16: DeepSpeed needs it as float32"),
        ("groups.pt", "deepspeed", WriteOptions(), "does not say which parameters each optimizer group has"),
        ("whole.pt", "deepspeed", WriteOptions(zero_stage=4), "must be 1, 2, or 3"),
        ("state.pt", "safetensors", WriteOptions(), "has no model tensors"),
    ):
        with pytest.raises(CheckpointError, match=said):
            convert(tmp_path / name, tmp_path / "out", form, options)
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]


# torch.distributed.checkpoint


@pytest.mark.slow
def test_fsdp2_and_mainstay_load_each_others_and_continue_equally(tmp_path: Path) -> None:
    run_ranks("fsdp_ranks.py", tmp_path, "save")
    theirs = open_checkpoint(tmp_path / "theirs")
    assert len(theirs.tensors["model.0.weight"].boxes) == 2
    assert not list(problems(theirs))
    single: dict[str, Any] = {f"model.{n}": torch.zeros_like(p) for n, p in _fsdp_model().named_parameters()}
    dcp.load(single, checkpoint_id=tmp_path / "theirs", no_dist=True)
    for name, tensor in single.items():
        assert torch.equal(theirs.tensors[name].torch(), tensor)
    convert(tmp_path / "theirs", tmp_path / "one.pt", "torch", WriteOptions())
    convert(tmp_path / "one.pt", tmp_path / "ours", "dcp", WriteOptions())
    run_ranks("fsdp_ranks.py", tmp_path, "load")
    for rank in range(2):
        losses = [json.loads((tmp_path / f"losses-{what}-{rank}.json").read_text()) for what in ("save", "load")]
        assert losses[0] == losses[1]


def _fsdp_model() -> torch.nn.Module:
    from tests.recovery.checkpoint.formats.fsdp_ranks import model_of

    return model_of()


def test_torchs_converter_makes_nested_dicts_of_what_we_wrote(tmp_path: Path) -> None:
    convert(write_torch(tmp_path / "a.pt"), tmp_path / "dcp", "dcp", WriteOptions())
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "b.pt")
    loaded, wanted = torch.load(tmp_path / "b.pt", weights_only=True), nested()
    assert torch.equal(loaded["model"]["layer.weight"], wanted["model"]["layer.weight"])
    assert torch.equal(loaded["optimizer"]["state"]["norm"]["exp_avg"], wanted["optimizer"]["state"]["norm"]["exp_avg"])
    assert loaded["optimizer"]["param_groups"] == GROUPS
    assert loaded["step"] == 4


def test_a_chunk_that_is_not_as_described_is_damage(tmp_path: Path) -> None:
    dcp.save({"w": torch.zeros(4, 4)}, checkpoint_id=tmp_path / "a", no_dist=True)
    dcp.save({"w": torch.zeros(2, 8)}, checkpoint_id=tmp_path / "b", no_dist=True)
    shutil.copyfile(tmp_path / "b" / "__0_0.distcp", tmp_path / "a" / "__0_0.distcp")
    assert "not the tensor that the metadata describes" in next(problems(open_checkpoint(tmp_path / "a")))


# safetensors


def test_the_safetensors_library_reads_what_we_wrote_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_SHARD_BYTES", 200)
    convert(write_torch(tmp_path / "a.pt", torch.bfloat16), tmp_path / "out", "safetensors", WriteOptions())
    files = sorted(tmp_path.glob("out/model-*.safetensors"))
    assert len(files) > 1
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for name, tensor in nested(torch.bfloat16)["model"].items():
        assert torch.equal(found[name], tensor)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(found)
    with safe_open(tmp_path / "out" / "training_state.safetensors", "pt") as file:
        assert "optimizer.state.norm.exp_avg" in file.keys()  # noqa: SIM118 - not a dict
    save_file(found, tmp_path / "theirs.safetensors")
    theirs = open_checkpoint(tmp_path / "theirs.safetensors")
    assert all(torch.equal(theirs.tensors[f"model.{name}"].torch(), tensor) for name, tensor in found.items())


@pytest.mark.slow
def test_transformers_loads_what_we_converted_and_we_what_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra 'frameworks' is not installed")
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="5KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    convert(tmp_path / "theirs", tmp_path / "dcp", "dcp", WriteOptions())
    monkeypatch.setattr(safetensors, "MAX_SHARD_BYTES", 8000)
    convert(tmp_path / "dcp", tmp_path / "ours", "safetensors", WriteOptions())
    shutil.copyfile(tmp_path / "theirs" / "config.json", tmp_path / "ours" / "config.json")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\xff" * 8, "its header has"),
        ((4).to_bytes(8, "little") + b"{x}}", "damaged"),
        ((2).to_bytes(8, "little") + b"[]", "damaged"),
        ((9).to_bytes(8, "little") + b'{"w": {}}', "says no place"),
    ],
)
def test_damaged_safetensors_are_one_line(head: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(head)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(path)
    save_file({"w": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="does not fit its place"):
        open_checkpoint(path)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../../x"}}')
    with pytest.raises(CheckpointError, match="outside of the directory"):
        open_checkpoint(folder)


# torch.save and Mainstay


def test_state_dicts_of_other_programs(tmp_path: Path) -> None:
    model, optimizer = torch.nn.Linear(3, 2), None
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 3)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "bare.pt")
    assert sorted(open_checkpoint(tmp_path / "bare.pt").tensors) == ["model.bias", "model.weight"]
    lightning = {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()], "global_step": 7}
    torch.save(lightning, tmp_path / "last.ckpt")
    opened = open_checkpoint(tmp_path / "last.ckpt")
    assert (opened.step, "optimizer.state.0.exp_avg" in opened.tensors) == (7, True)
    assert torch.equal(opened.state_dict()["model"]["weight"], model.weight)
    torch.save({"lr": 1.0}, tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="holds no state dict"):
        open_checkpoint(tmp_path / "none.pt")


def test_a_foreign_checkpoint_continues_as_a_step_of_a_job(tmp_path: Path) -> None:
    """What only ranks have comes from a step of the job; the numbers from DeepSpeed's files."""
    shape = MeshShape(dp=2, pp=1)
    theirs, mine = Saved(tmp_path / "theirs", shape, seed=5), Saved(tmp_path / "mine", shape, seed=8)
    convert(theirs.directory, tmp_path / "zero", "deepspeed", WriteOptions(zero_stage=3, dp=4))
    with pytest.raises(CheckpointError, match="--like gives a step that is"):
        convert(tmp_path / "zero", tmp_path / "new", "mainstay", WriteOptions())
    convert(tmp_path / "zero", tmp_path / "new", "mainstay", WriteOptions(like=mine.directory))
    source = find(tmp_path / "new")
    assert (source.manifest.epoch, source.manifest.replicated) == (theirs.manifest.epoch, True)
    trainer = Trainer(0, shape, seed=99)
    part = source.run.part(source.manifest.epoch, 0, 1)
    slot = np.zeros(trainer.state.layout.nbytes, np.uint8)
    read_slot(source.run, part, trainer.state.layout, slot)
    trainer.state.load(trainer.state.layout.views(slot))
    assert trainer.tensors() == theirs.tensors() != mine.tensors()


def _two_groups(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Matrices decay, vectors do not."""
    found = list(parameters)
    groups = [{"params": [p for p in found if p.dim() == n], "weight_decay": 0.1 * (n - 1)} for n in (2, 1)]
    return torch.optim.AdamW(groups)


@pytest.mark.parametrize(
    "options", [WriteOptions(), WriteOptions(zero_stage=1, dp=2), WriteOptions(zero_stage=3, dp=2)]
)
def test_a_step_of_two_groups_and_two_stages_becomes_deepspeeds(options: WriteOptions, tmp_path: Path) -> None:
    """A step names the parameters of each group, and every stage knows its own."""
    saved = Saved(tmp_path, MeshShape(dp=1, pp=2), optimizer=_two_groups)
    convert(saved.directory, tmp_path / "theirs", "deepspeed", options)
    ours, theirs = open_checkpoint(saved.directory), open_checkpoint(tmp_path / "theirs")
    kinds = [[f"blocks.{layer}.{kind}" for layer in range(4)] for kind in ("weight", "bias")]
    wanted = [kinds[0], [*kinds[1], "norm.weight", "norm.bias"]]
    for checkpoint in (ours, theirs):
        groups = checkpoint.param_groups()
        assert [sorted(group["params"]) for group in groups] == [sorted(names) for names in wanted]
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    for name in (name for names in wanted for name in names):
        for key in (f"model.{name}", f"optimizer.state.{name}.exp_avg"):
            assert np.array_equal(ours.tensor(key).read(), theirs.tensor(key).read()), key
