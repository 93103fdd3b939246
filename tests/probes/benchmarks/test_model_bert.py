"""The encoder sees the whole sequence."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.models import ModelBert


def tiny() -> ModelBert:
    return ModelBert(ModelBert.Config(budget_seconds=0.0, layers=1, width=16, heads=2, length=8, batch=1, classes=64))


@pytest.mark.slow
def test_the_last_token_changes_the_first_logits() -> None:
    import torch

    benchmark = tiny()
    model, tokens = benchmark.model(), benchmark.inputs()
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % 64
    assert not torch.allclose(model(tokens)[0, 0], model(other)[0, 0])
