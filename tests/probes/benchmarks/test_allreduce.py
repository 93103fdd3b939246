"""All-reduce: bus bandwidth as nccl-tests define it, over ranks that really are processes."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.probes.benchmarks import ranks
from mainstay.probes.benchmarks.allreduce import AllReduce
from mainstay.probes.benchmarks.base import Clock, Device


def tiny() -> AllReduce:
    return AllReduce(AllReduce.Config(budget_seconds=0.0))


@pytest.mark.parametrize(("world", "factor"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_that_of_the_slowest_rank(
    cpu: Device, monkeypatch: pytest.MonkeyPatch, world: int, factor: float, ticking: Clock
) -> None:
    def fixed_timings(count: int, backend: str, work: Any) -> list[dict[str, Any]]:
        """Every rank took a second, the last two, in both repetitions."""
        del backend, work
        sizes = (4 << 10, 1 << 20, 16 << 20)
        return [{str(size): [1.0 + (rank == count - 1), 2.0] for size in sizes} for rank in range(count)]

    monkeypatch.setattr(ranks, "run_ranks", fixed_timings)
    result = AllReduce(AllReduce.Config(host_ranks=world)).run(cpu, ticking)
    values = {metric.name: metric.values for metric in result.metrics}
    assert values["gloo_latency_4KiB"] == (2.0, 2.0)
    assert values["gloo_busbw_16MiB"] == (factor * (16 << 20) / 2, factor * (16 << 20) / 2)


def test_gpus_are_used_where_there_are_two(cpu: Device) -> None:
    """A machine that lost all GPUs but one reports other metrics: the criteria for the old ones find them missing."""
    for count, backend, where in ((8, "nccl", "cuda"), (1, "gloo", "cpu")):
        device = Device(kind="cuda", model="any", count=count)
        assert {metric.name.split("_")[0] for metric in tiny().metrics(device)} == {backend}
        assert tiny().where(device) == where
    assert tiny().where(cpu) == "cpu"


def test_one_rank_reduces_nothing() -> None:
    with pytest.raises(ValueError, match="host_ranks must be at least 2"):
        AllReduce.build({"host_ranks": 1})
