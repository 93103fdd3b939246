"""Steps whose ranks hold slices of tensors are whole tensors for other programs, and come back as slices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.formats import WriteOptions, convert
from mainstay.recovery.checkpoint.logical import problems
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.test_slices import Rank, load, saved, whole_model

SHAPES = [MeshShape(dp=1, pp=1, tp=2), MeshShape(dp=2, pp=2, tp=2), MeshShape(dp=2, pp=1, tp=3)]


def _public(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"model.{rest}" if kind == "param" else f"optimizer.state.{rest}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("through", ["dcp", "deepspeed"])
def test_slices_are_joined_and_cut_again(shape: MeshShape, through: str, tmp_path: Path) -> None:
    whole = whole_model(3)
    (tmp_path / "mine").mkdir()
    target, _ = saved(tmp_path, shape, whole)
    opened = open_checkpoint(target.directory)
    assert not list(problems(opened))
    for name, tensor in whole.items():
        assert torch.equal(opened.tensors[_public(name)].torch(), tensor), name
    options = WriteOptions(zero_stage=3, dp=3) if through == "deepspeed" else WriteOptions()
    convert(target.directory, tmp_path / "out", through, options)
    like = None
    if through == "deepspeed":  # which keeps nothing of what only ranks have
        like = saved(tmp_path / "mine", shape, whole_model(8))[0].directory
    convert(tmp_path / "out", tmp_path / "back", "mainstay", WriteOptions(like=like))
    manifest = find(tmp_path / "back").manifest
    assert (manifest.dp, manifest.pp, manifest.tp) == (shape.dp, shape.pp, shape.tp)
    again = open_checkpoint(tmp_path / "back")
    for name, tensor in whole.items():
        assert torch.equal(again.tensors[_public(name)].torch(), tensor), name


def test_a_slice_is_read_from_the_rank_that_has_it(tmp_path: Path) -> None:
    whole = whole_model(5)
    target, manifest = saved(tmp_path, MeshShape(dp=2, pp=1, tp=2), whole, copies=1)
    tensor = open_checkpoint(target.directory).tensors["model.blocks.1.down.weight"]
    assert len(tensor.boxes) >= 2
    assert torch.equal(tensor.torch((slice(2, 5), slice(4, 9))), whole["param.blocks.1.down.weight"][2:5, 4:9])
    rank = Rank(0, MeshShape(dp=1, pp=1), None)
    load(target, manifest, rank)
    assert torch.equal(rank.tensors()["param.blocks.1.down.weight"], whole["param.blocks.1.down.weight"])
