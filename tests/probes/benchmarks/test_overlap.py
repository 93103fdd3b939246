"""Overlap: what hides, what takes turns, and what gets in the way."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.overlap import Overlap, hidden


def tiny() -> Overlap:
    return Overlap(Overlap.Config(budget_seconds=0.0, size=32, mebibytes=1))


@pytest.mark.parametrize(
    ("compute", "communicate", "both", "share"),
    [(2.0, 1.0, 2.0, 1.0), (2.0, 1.0, 3.0, 0.0), (1.0, 3.0, 3.5, 0.5), (1.0, 1.0, 5.0, 0.0)],
)
def test_the_hidden_share(compute: float, communicate: float, both: float, share: float) -> None:
    assert hidden(compute, communicate, both) == pytest.approx(share, abs=1e-5)
    assert hidden(compute, communicate, both) > 0
