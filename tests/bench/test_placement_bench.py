"""The bench that loses every set of nodes, on a small scale, and against a formula that is wrong."""

from __future__ import annotations

from fractions import Fraction

import pytest

from bench import placement as bench
from mainstay.recovery.protection_scheme import parse


def test_every_set_of_four_nodes_is_decoded_as_the_formula_says() -> None:
    row = bench._decoded(parse("rs:2", 4), 4)
    assert row.holds
    assert row.note.startswith("k=1: 1, k=2: 1;")


def test_a_wrong_formula_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "survival", lambda *_: Fraction(1))
    row = bench._decoded(parse("copies:2"), 2)
    assert row.holds is False
    assert "k = [2]" in str(row.figure)


def test_geminis_formula_at_sixteen_nodes() -> None:
    assert [row.holds for row in bench.placed_rows()] == [True] * 3
