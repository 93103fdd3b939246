"""The capacity page is computed from measured results, and says which sizes were not measured."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from docs.generate.capacity_page import MEASURED, NODES, Results, capacity, size

SIZES = ((1000, 0.1, 0.2), (10_000, 0.4, 0.8))
FOLDER = Path(__file__).resolve().parents[1] / "bench" / "results"


def test_the_measured_size_has_the_measured_figures() -> None:
    results, found = Results(FOLDER), size(Results(FOLDER), MEASURED)
    (cores,) = (
        row["figure"] for row in results.rows("cluster") if re.match(rf"{MEASURED} .*cores in all", row["claim"])
    )
    assert found.larger + found.others + found.postgres == pytest.approx(cores, abs=0.003)
    assert found.memory == pytest.approx(results.figure("fleet", "10000 nodes, relayed: resident memory"))


def test_further_sizes_and_gateways_of_the_bench_are_used(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    claim = "{} nodes, relayed, 2 gateways, two services: cores in all"
    note = "service 1 {}, service 2 0.1, PostgreSQL {}, gateway 1 0.1, gateway 2 0.2; for 2.0 min"
    rows = [{"claim": claim.format(n), "figure": 0, "note": note.format(d, p)} for n, d, p in SIZES]
    (tmp_path / "cluster.json").write_text(json.dumps(rows))
    small, between, large = (size(Results(tmp_path), nodes) for nodes in (1000, 3000, 30_000))
    assert (small.larger, small.others, small.postgres) == pytest.approx((0.1, 0.4, 0.2))
    assert between.larger == pytest.approx(0.1 * 3 ** math.log10(4))
    assert large.postgres == pytest.approx(0.8 * 3)
    assert capacity(tmp_path).count("| measured |") == 2


def test_larger_fleets_need_more_of_everything() -> None:
    sizes = [size(Results(FOLDER), nodes) for nodes in NODES]
    for small, large in pairwise(sizes):
        for name in ("larger", "busy", "postgres", "history", "memory", "blocks", "files", "relayed", "relays"):
            assert getattr(small, name) <= getattr(large, name) * 1.01, name
        assert small.seconds >= large.seconds
        assert small.fits or not large.fits


def test_the_page_marks_sizes_that_were_not_measured_or_do_not_fit() -> None:
    rows = [line for line in capacity(FOLDER).splitlines() if line.startswith(("| 30,000", "| 100,000"))][:2]
    assert all("| extrapolated |" in row for row in rows)
    assert "**no**" in rows[1]


def test_a_claim_that_is_gone_ends_the_generation(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text().replace("cores in all", "renamed"))
    with pytest.raises(LookupError, match="cores in all"):
        capacity(tmp_path)
