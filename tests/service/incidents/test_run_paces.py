"""A new run of a job is compared with its earlier runs, once, also over restarts of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from mainstay.service.app import close_services
from mainstay.service.incidents import earlier_runs
from mainstay.service.incidents.models import FindingRow, RunPaceRow
from mainstay.service.settings import Settings
from tests.service.incidents.detection_bench import START, DetectionBench

SETTLED = 75


@pytest.fixture
def bench(make_settings: Callable[..., Settings], report: dict[str, Any]) -> Iterator[DetectionBench]:
    made = DetectionBench(make_settings(), report)
    made.start()
    made.enroll("n1")
    yield made
    close_services(made.services)


def run(
    bench: DetectionBench, job: str, seconds: float, steps: int = SETTLED, *, first: int = 1, **changes: Any
) -> None:
    bench.run_job(job=job, **{"name": "llama", "started_at": bench.clock.now(), **changes})
    for number in range(first, first + steps - 1):
        bench.step(number, job=job, seconds=seconds)


def stored(bench: DetectionBench) -> list[RunPaceRow]:
    with bench.services.database.reading() as session:
        return list(session.scalars(select(RunPaceRow).order_by(RunPaceRow.measured_at)))


def summaries(bench: DetectionBench) -> list[tuple[str | None, str]]:
    with bench.services.database.reading() as session:
        rows = session.scalars(select(FindingRow).where(FindingRow.kind == "job_slowdown"))
        return [(row.job, row.severity) for row in rows]


def keep(bench: DetectionBench, count: int, **changes: Any) -> None:
    """Rows of earlier runs, as the service stores them."""
    fields = {
        "name": "llama", "shape": "dp8 pp1 tp1 ", "cohort": "pod-a", "state_bytes": 0, "seconds": 2.0,
        "work": [None, None, None], "nodes": ["n1"], "measured_at": START - 60, **changes,
    }  # fmt: skip
    with bench.services.database.session() as session:
        for number in range(count):
            session.add(RunPaceRow(id=f"{number}", job=f"old-{number}", started_at=START - 60, **fields))


def test_the_next_run_of_a_name_is_compared_and_both_are_kept(bench: DetectionBench) -> None:
    run(bench, "first", 2.0)
    (row,) = stored(bench)
    assert (row.name, row.shape, row.nodes, row.cohort) == ("llama", "dp8 pp1 tp1 ", ["n1"], "pod-a")
    assert row.seconds == pytest.approx(2.0, rel=0.01)
    assert not summaries(bench)
    run(bench, "second", 2.2)
    assert summaries(bench) == [("second", "info")]
    assert [row.job for row in stored(bench)] == ["first", "second"]
    assert not bench.incidents()


@pytest.mark.parametrize("first", [1, 40, SETTLED])
def test_a_run_under_the_same_id_is_measured_by_its_own_steps(bench: DetectionBench, first: int) -> None:
    run(bench, "demo", 2.0)
    bench.clock.advance(60.0)
    run(bench, "demo", 2.2, first=first)
    assert [row.seconds for row in stored(bench)] == pytest.approx([2.0, 2.2], rel=0.01)
    assert summaries(bench) == [("demo", "info")]


def test_a_run_is_compared_with_runs_of_the_shape_that_its_script_gave_it(bench: DetectionBench) -> None:
    """A coordinator reports ranks as replicas until ``mainstay.init`` tells their shape."""
    keep(bench, 3, shape="dp4 pp2 tp1 ")
    started_at = bench.clock.now()
    bench.run_job(name="llama", started_at=started_at)
    bench.second()
    shared = {"tp": 0, "node": "n1", "pid": 1, "state": "running"}
    places = [{"rank": r, "dp": r % 4, "pp": r // 4, "device": f"GPU-{r}", **shared} for r in range(8)]
    topology = {"dp": 4, "pp": 2, "tp": 1, "world_size": 8, "ranks": places}
    run(bench, "demo", 2.2, started_at=started_at, topology=topology)
    assert summaries(bench) == [("demo", "info")]


def test_a_restart_neither_forgets_the_earlier_runs_nor_compares_again(bench: DetectionBench) -> None:
    keep(bench, 3)
    run(bench, "demo", 2.2, steps=40)
    bench.restart()
    run(bench, "demo", 2.2, started_at=START)
    assert summaries(bench) == [("demo", "info")]
    rows = stored(bench)
    bench.restart()
    run(bench, "demo", 2.2, steps=2 * SETTLED, started_at=START)
    assert summaries(bench) == [("demo", "info")]
    assert [row.id for row in stored(bench)] == [row.id for row in rows]


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"shape": "dp4 pp2 tp1 "},
        {"cohort": "pod-b; driver 550"},
        {"state_bytes": 10_000},
        {"seconds": -1.0},
        {"work": ["damaged", None, None]},
        {"work": []},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_unlike_and_damaged_rows_are_set_aside(bench: DetectionBench, changes: dict[str, Any]) -> None:
    keep(bench, 3, **changes)
    protection = {"slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": [5000]}
    bench.run_job(name="llama", protection=protection)
    with bench.services.database.reading() as session:
        found = earlier_runs.read(session, "demo", START - 60)
    assert found is not None
    assert not found.paces


def test_the_newest_runs_are_read(bench: DetectionBench) -> None:
    keep(bench, earlier_runs.COMPARED + 3)
    bench.run_job(name="llama")
    with bench.services.database.reading() as session:
        found = earlier_runs.read(session, "demo", START)
    assert found is not None
    assert len(found.paces) == earlier_runs.COMPARED
