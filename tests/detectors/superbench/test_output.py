"""Numbers and texts of a diagnosis file, by hand: pandas' ten decimals, percent for people, short lists on a screen."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from rich.console import Console

from mainstay.detectors.finding import join_names
from mainstay.detectors.superbench.lint import LintIssue
from mainstay.detectors.superbench.names import SHOWN
from mainstay.detectors.superbench.output import Format, _machine, _people, _ten_decimals, write
from mainstay.detectors.superbench.report import _short, render_findings
from mainstay.detectors.superbench.rules import Function
from tests.detectors.superbench.fleet import MEMORY, judged, rule_file


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ([1.0, math.nan, -3.0], ["1", '"N/A"', "-3"]),
        ([2.0**62], ["4611686018427387904"]),
        ([2.0**63], ["9.223372037e+18"]),
        ([1.0, math.inf, -math.inf], ["1.0", "null", "null"]),
        ([1234567.25, -1234567.25, 900719.5, -0.25], ["1234567.25", "-1234567.25", "900719.5", "-0.25"]),
        ([1 / 3, 2 / 3, -2 / 3], ["0.3333333333", "0.6666666667", "-0.6666666667"]),
        ([5e-11, 4e-11, 0.99999999999, 1.99999999999], ["1e-10", "0.0", "1.0", "2.0"]),
        ([1.234567890123e-16, 1e-15, 0.5], ["1.23456789e-16", "0.0", "0.5"]),
        ([2.0**-11, 3 * 2.0**-11, 0.5], ["0.0004882812", "0.0014648438", "0.5"]),  # halves: to even
        ([1e16, 0.5], ["1e+16", "0.5"]),
        ([math.nan], ['"N/A"']),
    ],
)
def test_numbers_for_machines_have_ten_decimals(cells: list[float], texts: list[str]) -> None:
    assert _machine(np.array(cells)) == texts


@pytest.mark.parametrize("value", [1048576 + 2.0**-33, 900720 - 2.0**-33, 2.0**40 + 0.5, 4503599627370495.5])
def test_large_numbers_keep_their_fraction(value: float) -> None:
    for signed in (value, -value):
        assert float(_ten_decimals(signed)) == pytest.approx(signed, abs=1e-10, rel=0)


@pytest.mark.parametrize(
    ("kind", "digits", "cells", "texts"),
    [
        (Function.VARIANCE, 2, [-0.307692, math.nan, 0.0], ["-30.77%", "N/A", "0.0%"]),
        (Function.VARIANCE, 0, [-0.125], ["-12.5%"]),
        (Function.VALUE, 2, [1.0, math.nan], ["1", "N/A"]),
        (Function.VALUE, 2, [1.256, 2.0], ["1.26", "2.0"]),
        (Function.VALUE, 2, [math.inf, 1.0], ["inf", "1.0"]),
        (Function.VALUE, 0, [1.256], ["1.256"]),
        (None, 2, [1.256], ["1.256"]),
    ],
)
def test_numbers_for_people(kind: Function | None, digits: int, cells: list[float], texts: list[str]) -> None:
    assert _people(np.array(cells), kind, digits) == texts


def test_what_is_no_number_stands_as_it_was_measured() -> None:
    found = judged({}, {"gemm-flops/fp16_tc_flops": "fast"}, rules=rule_file(r=MEMORY))
    rows = json.loads(write(found, Format.JSON, everything=True))
    assert [row["gemm-flops/fp16_tc_flops"] for row in rows] == [300, "fast"]
    table = write(found, Format.MD, everything=True)
    assert "| fast |" in table
    assert "| 300 |" in table


def test_a_screen_shows_the_first_reasons_and_counts_the_rest() -> None:
    assert join_names(("a", "b", "c"), SHOWN) == "a, b, c"
    assert join_names(("a", "b", "c", "d", "e"), SHOWN) == "a, b, c and 2 more"
    assert _short("x" * 240) == "x" * 240
    assert _short("x," * 121) == "x," * 120 + "… (122 in all)"


def test_a_finding_names_its_rule_or_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    issues = [LintIssue("dead-entry", "r1", "no metric"), LintIssue("defined-twice", "", "r1 stands twice")]
    Console(width=100).print(render_findings(issues))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["r1", "dead-entry", "no", "metric"], ["(file)", "defined-twice", "r1", "stands", "twice"]]
