"""The dense decoder: causal, grouped keys, and refused when its loss is wrong."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.models import ModelLlama


def tiny() -> ModelLlama:
    return ModelLlama(ModelLlama.Config(budget_seconds=0.0, layers=1, width=16, heads=4, length=8, batch=1, classes=64))


@pytest.mark.slow
def test_a_later_token_changes_no_earlier_logits() -> None:
    import torch

    benchmark = tiny()
    model, tokens = benchmark.model(), benchmark.inputs()
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % 64
    before, after = model(tokens), model(other)
    assert torch.allclose(before[0, :-1], after[0, :-1])
    assert not torch.allclose(before[0, -1], after[0, -1])


@pytest.mark.slow
def test_a_position_matters() -> None:
    """Two equal tokens at other places attend alike only without positions."""
    import torch

    benchmark = tiny()
    model, tokens = benchmark.model(), benchmark.inputs()
    swapped = tokens[:, [1, 0, *range(2, 8)]]
    assert not torch.allclose(model(tokens)[0, -1], model(swapped)[0, -1])


@pytest.mark.slow
def test_a_model_that_already_knows_something_is_no_measurement(
    cpu: Device, ticking: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def loud(_: ModelLlama, width: int) -> torch.nn.Module:
        layer = torch.nn.Linear(width, 64, bias=False)
        torch.nn.init.normal_(layer.weight, std=10.0)
        return layer

    monkeypatch.setattr(ModelLlama, "head", loud)
    with pytest.raises(RuntimeError, match="the loss of an untrained model is"):
        tiny().run(cpu, ticking)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="width 10 must be a multiple of twice the heads"):
        ModelLlama.Config(width=10, heads=4)
