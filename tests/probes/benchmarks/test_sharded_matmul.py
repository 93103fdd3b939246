"""Sharded products: sizes that the ranks share evenly."""

from __future__ import annotations

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.sharded_matmul import ShardedMatmul


def tiny() -> ShardedMatmul:
    return ShardedMatmul(ShardedMatmul.Config(budget_seconds=0.0, size=32))


def test_the_size_is_one_that_the_ranks_share_evenly(cpu: Device) -> None:
    benchmark = ShardedMatmul(ShardedMatmul.Config(size=50, host_ranks=3))
    assert [metric.name for metric in benchmark.metrics(cpu)] == [
        "local_gloo_n48",
        "all_gather_gloo_n48",
        "all_reduce_gloo_n48",
    ]
