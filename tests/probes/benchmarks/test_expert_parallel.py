"""A layer of experts on several ranks: exchanges take time and are a part of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainstay.probes.benchmarks.expert_parallel import ExpertParallel
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState


def tiny() -> ExpertParallel:
    return ExpertParallel(ExpertParallel.Config(budget_seconds=0.0, width=8, inner=16, tokens=12))


@pytest.mark.slow
def test_tokens_that_the_ranks_do_not_share_evenly_are_left_out(run: Callable[..., BenchmarkResult]) -> None:
    config = ExpertParallel.Config(budget_seconds=0.0, width=8, inner=16, tokens=10, host_ranks=3)
    result = run(ExpertParallel(config))
    assert result.state is BenchmarkState.OK, result.error
    assert [metric.name for metric in result.metrics] == [
        "exchange_gloo_w8_i16_t10",
        "inference_gloo_w8_i16_t10",
        "train_gloo_w8_i16_t10",
    ]
