"""Checkpoints as scripts save them: a model alone, numbered parameters, one object around model and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.formats import WriteOptions, convert
from mainstay.recovery.checkpoint.manifest import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Several groups, as usual for weight decay; torch numbers their parameters."""
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({"model": torch.nn.Linear(3, 2), "lm_head": torch.nn.Linear(2, 4, bias=False)})
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    (model["lm_head"](model["model"](torch.ones(5, 3))) ** 2).sum().backward()
    optimizer.step()
    return model, optimizer


def saved(path: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def test_a_model_alone_becomes_a_whole_file_of_safetensors(tmp_path: Path) -> None:
    """Some of its names begin with ``model.``, as those of transformers do."""
    state = trained()[0].state_dict()
    convert(saved(tmp_path / "a", state), tmp_path / "b", "safetensors", WriteOptions())
    loaded = load_file(tmp_path / "b" / "model.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert open_checkpoint(tmp_path / "a").tensors.keys() == open_checkpoint(tmp_path / "b").tensors.keys()


def test_a_model_beside_its_optimizer(tmp_path: Path) -> None:
    """As torchtitan saves: the model's names stand alone, the optimizer's in an entry."""
    model, optimizer = trained()
    opened = open_checkpoint(saved(tmp_path / "a", {**model.state_dict(), "optimizer": optimizer.state_dict(), "n": 3}))
    assert opened.model().keys() == model.state_dict().keys()
    assert len(opened.optimizer_state()) == 3
    assert opened.values["n"] == 3


@pytest.mark.parametrize("words", [("model", "optimizer"), ("model", "optim"), ("state_dict", "optimizer_state_dict")])
@pytest.mark.parametrize("wrapped", [False, True])
def test_other_words_for_model_and_optimizer(words: tuple[str, str], wrapped: bool, tmp_path: Path) -> None:
    model, optimizer = trained()
    state: dict[str, Any] = dict(zip(words, (model.state_dict(), optimizer.state_dict()), strict=True))
    opened = open_checkpoint(saved(tmp_path / "a", {"app": state} if wrapped else state))
    assert opened.model().keys() == model.state_dict().keys()
    assert opened.optimizer_state().keys() == {"0", "1", "2"}
    assert [group["params"] for group in opened.values["optimizer.param_groups"]] == [[0], [1], [2]]


def test_numbered_parameters_stay_as_they_are_where_names_are_not_needed(tmp_path: Path) -> None:
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5}, tmp_path / "a.pt")
    convert(tmp_path / "a.pt", tmp_path / "b", "dcp", WriteOptions())
    again, fresh = trained()
    state = {"model": again.state_dict(), "optimizer": fresh.state_dict()}
    for keys in state["optimizer"]["state"].values():
        keys["exp_avg"].zero_()
    dcp.load(state, checkpoint_id=tmp_path / "b", no_dist=True)
    for number, keys in optimizer.state_dict()["state"].items():
        assert torch.equal(state["optimizer"]["state"][number]["exp_avg"], keys["exp_avg"])
    with pytest.raises(CheckpointError, match="does not say which parameters each optimizer group has"):
        convert(tmp_path / "a.pt", tmp_path / "c", "deepspeed", WriteOptions())


@pytest.mark.parametrize("part", [slice(-2, None), slice(-2, -1), slice(1, 99), slice(2, 1), slice(-99, 1)])
def test_bounds_count_as_in_numpy(part: slice, tmp_path: Path) -> None:
    state = trained()[0].state_dict()
    tensor = open_checkpoint(saved(tmp_path / "a", state)).tensor("model.lm_head.weight")
    wanted = state["lm_head.weight"].numpy()[part]
    assert tensor.read((part, slice(None))).tobytes() == wanted.tobytes()
    assert tensor.read((part, slice(None))).shape == wanted.shape


@pytest.mark.parametrize("region", [(), (slice(1),), (slice(1),) * 3, (slice(0, 4, 2), slice(None))])
def test_a_region_of_other_dimensions_or_with_a_step_is_refused(region: tuple[slice, ...], tmp_path: Path) -> None:
    tensor = open_checkpoint(saved(tmp_path / "a", trained()[0].state_dict())).tensor("model.lm_head.weight")
    with pytest.raises(CheckpointError, match="needs a slice for each dimension, no steps"):
        tensor.read(region)


def test_what_has_no_checksum_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mainstay.recovery.checkpoint_cli import checkpoint

    save_file(trained()[0].state_dict(), tmp_path / "a.safetensors")
    torch.save(trained()[0].state_dict(), tmp_path / "a.pt")
    for name, said in (("a.safetensors", "3 tensors, all can be read, 3 have no checksum"), ("a.pt", "all are whole")):
        assert checkpoint(["verify", str(tmp_path / name)], result_action="return_value") == 0
        assert said in capsys.readouterr().out
