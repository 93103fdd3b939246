"""The convolutional network: its stages, and the parameters of the published one."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.models import ModelResnet


def tiny() -> ModelResnet:
    return ModelResnet(
        ModelResnet.Config(budget_seconds=0.0, layers=1, width=4, heads=1, length=32, batch=2, classes=64)
    )


@pytest.mark.slow
def test_a_stage_of_three_blocks_has_the_parameters_of_the_published_one() -> None:
    """The first stage of ResNet-50 has 215,808 parameters (three bottleneck blocks of width 64)."""
    from itertools import islice

    from mainstay.probes.benchmarks.model_layers import bottlenecks

    stage = islice(bottlenecks(64, 3), 3)
    assert sum(p.numel() for block in stage for p in block.parameters()) == 215_808


@pytest.mark.slow
def test_logits_are_of_every_image() -> None:
    benchmark = tiny()
    assert benchmark.model()(benchmark.inputs()).shape == (2, 64)
