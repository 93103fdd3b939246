"""The recurrent network: logits at every position, from the past alone."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.models import ModelLstm


def tiny() -> ModelLstm:
    return ModelLstm(ModelLstm.Config(budget_seconds=0.0, layers=1, width=16, heads=1, length=8, batch=1, classes=64))


@pytest.mark.slow
def test_a_token_changes_what_follows_and_nothing_before() -> None:
    import torch

    benchmark = tiny()
    model, tokens = benchmark.model(), benchmark.inputs()
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % 64
    before, after = model(tokens), model(other)
    assert before.shape == (1, 8, 64)
    assert torch.allclose(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, -1], after[0, -1])
