"""Families of the text format, written from arrays."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainstay.probes.signals import WIDE_MISSING
from mainstay.service.exposition import text


def read(page: bytes) -> dict[str, float]:
    (family,) = text_string_to_metric_families(page.decode())
    return {sample.labels["gpu"]: sample.value for sample in family.samples}


def labels(count: int) -> object:
    return text.labels({"gpu": [f"g{n}" for n in range(count)]})


def test_the_text_is_as_it_always_was() -> None:
    where = text.labels({"gpu": ["a", 'b"\\\nc'], "é": ["", "ü"]})
    page = text.family("m", "gauge", "what\nit is", where, np.array([1.0, 0.25]))
    assert page.decode() == (
        '# HELP m what\\nit is\n# TYPE m gauge\nm{gpu="a",é=""} 1\nm{gpu="b\\"\\\\\\nc",é="ü"} 0.25\n'
    )


def test_numbers_are_exact() -> None:
    rng = np.random.default_rng(1)
    narrow = rng.integers(0, 2**32, 20_000, np.uint32).view(np.float32)
    narrow = np.concatenate([narrow, np.array([0, -0.0, 1e-45, 8 * 2**30, 3.4e38, 16777217], np.float32)])
    wide = rng.integers(-(2**62), 2**62, 1000)
    for values in (narrow[np.isfinite(narrow)], wide, wide / 1e9):
        lines = text.family("m", "gauge", "about", labels(len(values)), values).decode().splitlines()[2:]
        told = [line.split(" ")[1] for line in lines]
        assert np.array([values.dtype.type(number) for number in told]).tolist() == values.tolist()


@pytest.mark.parametrize(
    "values", [np.array([np.nan, 2, np.inf, 4], np.float32), np.array([WIDE_MISSING, 2, WIDE_MISSING, 4])]
)
def test_what_is_unknown_has_no_line(values: np.ndarray) -> None:
    assert read(text.family("m", "gauge", "about", labels(4), values)) == {"g1": 2, "g3": 4}
    assert text.family("m", "gauge", "about", labels(4), values[[0, 2, 0, 0]]) == b""
    assert text.family("m", "gauge", "about", labels(0), values[:0]) == b""


def test_of_places_that_are_one_series_the_first_known_is_written() -> None:
    values = np.array([np.nan, 1, 2, 3, 4])
    same = [np.array([0, 2, 4]), np.array([1, 3])]
    assert read(text.family("m", "gauge", "about", labels(5), values, same=same)) == {"g1": 1, "g2": 2}
