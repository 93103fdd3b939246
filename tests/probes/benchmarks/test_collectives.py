"""Collectives: factors as nccl-tests state them, and results that are checked."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.collectives import OPERATIONS, Collectives


def tiny() -> Collectives:
    return Collectives(Collectives.Config(budget_seconds=0.0))


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_to_all", 7 / 8), ("broadcast", 1.0), ("send_recv", 1.0)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, factor: float) -> None:
    assert OPERATIONS[operation](8) == factor


def test_one_rank_is_no_collective() -> None:
    with pytest.raises(ValueError, match="host_ranks must be at least 2"):
        Collectives.Config(host_ranks=1)
