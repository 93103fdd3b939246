from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch

from bench.lib_copy import copy_pieces
from mainstay.recovery.adapters.tree import TreeState


def through_a_slot(tree: dict) -> dict:
    state = TreeState()
    state.stage(tree)
    slot = np.zeros(state.layout.nbytes, np.uint8)
    copy_pieces(state.layout, state.freeze(), slot)
    other = TreeState(state.layout)
    other.load(state.layout.views(slot))
    assert other.loaded is not None
    return other.loaded


def test_what_checkpoints_are_made_of_comes_back_as_it_was() -> None:
    tree = {
        "state_dict": OrderedDict(weight=torch.randn(3, 2), half=torch.randn(4).bfloat16(), empty=torch.zeros(0)),
        "optimizer": [{"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 3).t()}}, "lr": 1e-3}],
        "betas": (0.9, 0.999),
        "rng": {"python": (3, (1 << 31, 1 << 40), None), "numpy": np.arange(6, dtype=np.uint32).reshape(2, 3)},
        "large": 1 << 100,
        "scalar": np.float32(1.5),
        "size": torch.Size([1, 2]),
        "text": "\u00df",
        "bytes": b"\0\xff",
        "truth": [True, False, None],
    }
    back = through_a_slot(tree)
    assert isinstance(back["state_dict"], OrderedDict)
    for name, tensor in tree["state_dict"].items():
        assert torch.equal(tensor, back["state_dict"][name])
        assert tensor.dtype == back["state_dict"][name].dtype
    assert torch.equal(back["optimizer"][0]["state"][0]["exp_avg"], torch.ones(3, 2))
    assert back["rng"]["python"] == tree["rng"]["python"]
    assert np.array_equal(back["rng"]["numpy"], tree["rng"]["numpy"])
    assert back["rng"]["numpy"].dtype == np.uint32
    assert back["scalar"] == np.float32(1.5)
    for name in ("betas", "large", "size", "text", "bytes", "truth"):
        assert back[name] == tree[name]
        assert type(back[name]) is type(tree[name])


def test_the_same_tensor_twice_and_the_same_path_twice_are_kept_apart() -> None:
    back = through_a_slot({"a": {"1": torch.ones(2)}, "a.1": torch.zeros(2), 1: torch.full((2,), 3.0)})
    assert torch.equal(back["a"]["1"], torch.ones(2))
    assert torch.equal(back["a.1"], torch.zeros(2))
    assert torch.equal(back[1], torch.full((2,), 3.0))


def test_what_is_no_plain_data_is_refused_by_path_and_type() -> None:
    with pytest.raises(ValueError, match=r"state\.callbacks\.0 is a builtins\.object"):
        TreeState().stage({"callbacks": [object()]})


def test_a_layout_changes_only_when_tensors_do_or_the_room_is_too_small() -> None:
    state = TreeState()
    assert state.stage({"w": torch.zeros(2), "step": 1})
    assert not state.stage({"w": torch.ones(2), "step": 2})
    assert state.stage({"w": torch.ones(2), "text": "x" * 100_000})
    assert not state.stage({"w": torch.ones(2), "text": "x" * 300_000})
    assert state.stage({"w": torch.ones(3), "step": 2})
