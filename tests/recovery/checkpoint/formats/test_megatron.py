"""Megatron-core itself (CPU, gloo) loads what we wrote, and we what it wrote."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.formats import WriteOptions, convert
from mainstay.recovery.checkpoint.formats.dcp import write
from mainstay.recovery.checkpoint.logical import LogicalCheckpoint, array_tensor, problems
from mainstay.recovery.checkpoint.manifest import CheckpointError
from tests.recovery.checkpoint.formats.rank_processes import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

EMBEDDING = "embedding.word_embeddings.weight"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="no extra 'formats' here")
def test_megatron_core_and_mainstay_load_each_others(tmp_path: Path) -> None:
    run_ranks("megatron_ranks.py", tmp_path, "save")
    opened = open_checkpoint(tmp_path / "theirs")
    assert (opened.format, opened.step) == ("megatron", 5)
    assert not list(problems(opened))
    layers = opened.tensors["model.decoder.layers.mlp.linear_fc1.weight"]
    assert (layers.shape, len(layers.boxes)) == ((2, 4, 6), 2)
    assert np.array_equal(layers.read(), np.arange(48.0).reshape(2, 4, 6))
    moment, master = (opened.tensors[f"optimizer.state.{EMBEDDING}.{key}"] for key in ("exp_avg", "fp32"))
    assert np.array_equal(moment.read(), 2 * master.read())
    assert opened.tensors[f"optimizer.state.{EMBEDDING}.step"].read() == 5
    convert(tmp_path / "theirs", tmp_path / "one.pt", "torch", WriteOptions())
    convert(tmp_path / "one.pt", tmp_path / "ours", "megatron", WriteOptions())
    run_ranks("megatron_ranks.py", tmp_path, "load")


def test_names_are_megatrons(tmp_path: Path) -> None:
    state = {"w": {"exp_avg": torch.ones(2), "fp32": torch.zeros(2), "step": torch.tensor(3.0)}}
    torch.save({"model": {"w": torch.zeros(2)}, "optimizer": {"state": state, "param_groups": [{}]}}, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "out", "megatron", WriteOptions())
    folder = tmp_path / "out" / "iter_0000000"
    keys = set(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata)
    assert keys == {"w", "optimizer.state.exp_avg.w", "optimizer.state.fp32_param.w"}
    common = torch.load(folder / "common.pt", weights_only=True)
    assert common["optimizer"]["optimizer"]["param_groups"] == [{"step": 3}]
    (folder / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(CheckpointError, match="backend 'zarr'; only torch_dist is read"):
        open_checkpoint(folder)
    (folder / "metadata.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"metadata\.json is damaged"):
        open_checkpoint(tmp_path / "out")


def test_newer_versions_keep_what_is_no_tensor_beside_the_tensors(tmp_path: Path) -> None:
    common = [{"iteration": 8, "optimizer": {"param_groups": [{"lr": 2.0}]}}]
    checkpoint = LogicalCheckpoint(tmp_path, "megatron", {}, {"common_state/shard_0_1": common})
    checkpoint.add_tensor("w", array_tensor(np.zeros(2, np.float32), "float32"))
    write(checkpoint, tmp_path / "new", WriteOptions())
    (tmp_path / "new" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    opened = open_checkpoint(tmp_path / "new")
    assert (opened.step, list(opened.tensors)) == (8, ["model.w"])
    assert opened.values["optimizer.param_groups"] == [{"lr": 2.0}]
