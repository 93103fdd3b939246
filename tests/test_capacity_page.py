"""The capacity page is computed from measured results, and says which sizes were not measured."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from docs.generate.capacity_page import MEASURED, NODES, Results, capacity, size

FOLDER = Path(__file__).resolve().parents[1] / "bench" / "results"


def test_the_measured_size_has_the_measured_figures() -> None:
    results, found = Results(FOLDER), size(Results(FOLDER), MEASURED)
    cores = results.figure("cluster", "10000 nodes, relayed, two services: cores in all")
    assert found.detecting + found.following + found.postgres == pytest.approx(cores, abs=0.002)
    assert found.memory == pytest.approx(results.figure("fleet", "10000 nodes, relayed: resident memory"))


def test_larger_fleets_need_more_of_everything() -> None:
    sizes = [size(Results(FOLDER), nodes) for nodes in NODES]
    for small, large in pairwise(sizes):
        for name in ("detecting", "busy", "postgres", "history", "memory", "blocks", "files", "relayed", "relays"):
            assert getattr(small, name) <= getattr(large, name) * 1.01, name
        assert small.seconds >= large.seconds
        assert small.fits or not large.fits


def test_the_page_marks_sizes_that_were_not_measured_or_do_not_fit() -> None:
    rows = [line for line in capacity(FOLDER).splitlines() if line.startswith(("| 30,000", "| 100,000"))][:2]
    assert all("| extrapolated |" in row and "**no**" in row for row in rows)


def test_a_claim_that_is_gone_ends_the_generation(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text().replace("two services: cores in all", "renamed"))
    with pytest.raises(LookupError, match="cores in all"):
        capacity(tmp_path)
