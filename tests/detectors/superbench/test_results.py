"""Results of a fleet: what becomes a number, what is missing, and what is refused with its line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.names import benchmark_of, select, stripped, without_rank
from mainstay.detectors.superbench.results import read_results


def test_nodes_and_metrics_become_a_matrix() -> None:
    read = read_results([b'{"node": "a", "m/x": 1, "m/y": 2.5}\n', b"\n", b'{"m/y": 3, "m/z": 7, "node": "b"}'])
    assert read.nodes == ("a", "b")
    assert read.metrics == ("m/x", "m/y", "m/z")
    assert np.array_equal(read.values, [[1, 2.5, math.nan], [math.nan, 3, 7]], equal_nan=True)
    assert read.whole.tolist() == [False, False, False]


def test_whole_metrics_are_integers_on_every_node() -> None:
    read = read_results([b'{"node": "a", "x/i": 1, "x/f": 2}', b'{"node": "b", "x/i": 2, "x/f": 2.0}'])
    assert dict(zip(read.metrics, read.whole.tolist(), strict=True)) == {"x/i": True, "x/f": False}


@pytest.mark.parametrize(
    ("value", "number", "other"),
    [
        ("null", math.nan, None),
        ('"12"', math.nan, "12"),
        ("[1]", math.nan, [1]),
        ("true", 1.0, True),
        ("NaN", math.nan, ...),
        ("-Infinity", -math.inf, ...),
        ("1" + "0" * 400, math.inf, ...),
        ("-1e5", -1e5, ...),
    ],
)
def test_what_is_no_number_is_missing(value: str, number: float, other: object) -> None:
    read = read_results([f'{{"node": "a", "m/x": {value}, "m/y": 1}}'.encode()])
    assert np.array_equal(read.values, [[number, 1.0]], equal_nan=True)
    assert read.others.get((0, 0), ...) == other


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "no node"),
        ([b"\n"], "no node"),
        ([b'{"node": "a"}', b'{"node": "b", '], "line 2: no JSON"),
        ([b"[1]"], "line 1: no JSON object but list"),
        ([b'{"m/x": 1}'], "line 1: 'node'"),
        ([b'{"node": "", "m/x": 1}'], "line 1: 'node'"),
        ([b'{"node": "a"}', b'{"node": "b"}', b'{"node": "a"}'], "line 3: node 'a' stands already in line 1"),
        ([b"\xff\xfe"], "line 1: no JSON"),
        ([b'{"node":' + b"[" * 100_000], "line 1: no JSON"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(lines: list[bytes], why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_results(lines)


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("mem-bw/h2d_bw:0", "mem-bw"),
        ("nccl-bw:run0/all_1_bw", "nccl-bw"),
        ("mem-bw:*.*/.*_bw", "mem-bw"),
        ("gpt_models/pytorch/x:1", "gpt_models"),
        ("monitor", None),
    ],
)
def test_the_benchmark_is_what_stands_before_slash_and_colon(name: str, benchmark: str | None) -> None:
    assert benchmark_of(name) == benchmark


def test_entries_are_unanchored_expressions_of_one_benchmark() -> None:
    metrics = ("a/x_bw:0", "a/x_bw:10", "a:run/x_bw", "b/x_bw", "loose")
    groups = {"a": [0, 1, 2], "b": [3]}
    assert select(["a/x"], metrics, groups).columns == (0, 1)
    assert select(["a:*.*/x"], metrics, groups).columns == (0, 1, 2)  # "a", any number of ":", anything, "/x"
    assert select(["a/x_bw:1$", "c/x", "loose", "b/x_bw"], metrics, groups).columns == (3,)
    assert set(select(["a/x_bw:1$", "c/x", "loose"], metrics, groups).dead) == {"a/x_bw:1$", "c/x", "loose"}


def test_a_broken_expression_matters_only_where_its_benchmark_was_measured() -> None:
    assert select(["b/x("], ("a/x",), {"a": [0]}).dead
    with pytest.raises(InputError, match="no regular expression"):
        select(["a/x("], ("a/x",), {"a": [0]})


def test_superbench_strips_characters_where_we_strip_the_rank() -> None:
    assert without_rank("a/b_10:10") == "a/b_10" == stripped("a/b_10:10")
    assert without_rank("1-a/b:1") == "1-a/b"
    assert stripped("1-a/b:1") == "-a/b"
