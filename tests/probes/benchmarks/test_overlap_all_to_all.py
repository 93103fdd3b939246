"""Arithmetic beside an all-to-all; what hides is computed as for the all-reduce (``test_overlap``)."""

from __future__ import annotations

from mainstay.probes.benchmarks.overlap import Overlap, OverlapAllToAll


def tiny() -> OverlapAllToAll:
    return OverlapAllToAll(OverlapAllToAll.Config(budget_seconds=0.0, size=32, mebibytes=1))


def test_it_exchanges_where_the_other_adds() -> None:
    assert OverlapAllToAll.exchange
    assert not Overlap.exchange
