"""What a stage calls its tensors, and what the model does."""

from __future__ import annotations

import pytest
import torch

from mainstay.recovery.memory.model_names import MARK, ModelNames
from mainstay.recovery.memory.state import TrainerState

LOCAL = ["embed.weight", "blocks.0.w", "blocks.1.w", "blocks.10.w"]


def test_the_longest_prefix_counts_and_only_whole_modules_fit() -> None:
    names = ModelNames({"blocks": "layers", "blocks.1": "layers.5"}, LOCAL)
    assert [names.model_name(name) for name in LOCAL] == ["embed.weight", "layers.0.w", "layers.5.w", "layers.10.w"]
    assert ModelNames({}, LOCAL).model_name("blocks.1.w") == "blocks.1.w"


def test_bad_names_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no parameter or buffer of this model begins with 'block'"):
        ModelNames({"block": "x"}, LOCAL)
    with pytest.raises(ValueError, match=r"'blocks.0.w' and 'blocks.1.w' would both be 'blocks.1.w'"):
        ModelNames({"blocks.0": "blocks.1"}, LOCAL)


def test_slots_hold_the_names_of_the_model_and_say_so() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    named = TrainerState(model, optimizer, None, {"0": "layers.4", "1": "layers.5"})
    names = [spec.name for spec in named.layout.tensors]
    assert {"param.layers.4.weight", "buffer.layers.5.running_mean", "optim.layers.4.bias.exp_avg", MARK} <= set(names)
    assert not any(name.startswith(("param.0", "optim.1", "buffer.1")) for name in names)
    assert named.freeze().keys() == set(names)
    assert MARK not in TrainerState(model, optimizer).layout.specs()
