"""A run that is slow from its first step: only earlier runs of its job show it."""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from bench.lib_pace import pace_of
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.earlier_runs import EarlierRuns, RunPace
from mainstay.detectors.job.slowdown import SlowdownDetector
from mainstay.probes.core_types import Severity

WORK = (8192.0, 1e7, nan)


def pace(seconds: float, work: tuple[float, ...] = WORK, *nodes: str, software: str = "") -> RunPace:
    return RunPace(seconds=seconds, work=work, nodes=frozenset(nodes), software=software)


def ratio(seconds: float, *earlier: float) -> float | None:
    found = EarlierRuns(paces=tuple(map(pace, earlier))).compare(pace(seconds))
    return None if found is None else found.numbers["ratio"]


@pytest.mark.parametrize(
    ("seconds", "earlier", "slower"),
    [
        (2.2, (), False),
        (2.2, (2.0, 2.01, 1.99, 2.02, 2.0), True),
        (2.09, (2.0, 2.01, 1.99, 2.02, 2.0), False),
        (1.7, (2.0, 2.01, 1.99, 2.02, 2.0), False),
        (2.12, (2.0,), False),  # one run tells little about how much they differ
        (2.2, (2.0,), True),
        (2.12, (2.0,) * 8, True),
        (2.13, (2.0, 1.9, 2.1, 1.95, 2.08), False),  # they differ as much
        (2.2, (2.0, 2.2), True),  # a run that was slow is not the measure of the next
        (2.2, (2.0, 2.01, 2.2), True),
        (2.2, (2.0, 2.2, 2.2, 2.2), False),  # so it is now
    ],
)
def test_a_run_is_compared_with_the_middle_and_the_spread_of_earlier_ones(
    seconds: float, earlier: tuple[float, ...], slower: bool
) -> None:
    assert (ratio(seconds, *earlier) is not None) is slower


@pytest.mark.parametrize(
    ("work", "slower"),
    [
        (WORK, True),
        ((8192.0 * 1.08, 1e7 * 1.08, nan), False),  # more work explains as much
        ((8192.0 * 0.95, 1e7, nan), True),
        ((8192.0 * 1.2, 1e7, nan), False),  # not alike
        ((8192.0, nan, nan), False),
        ((nan, nan, 8.0), False),
    ],
)
def test_runs_of_unlike_work_are_no_measure(work: tuple[float, ...], slower: bool) -> None:
    earlier = EarlierRuns(paces=(pace(2.0),) * 5)
    assert (earlier.compare(pace(2.2, work)) is not None) is slower


def test_what_differs_is_named_and_no_node_is_blamed() -> None:
    before = pace(2.0, WORK, "n1", "n2", software="driver 535")
    earlier = EarlierRuns(paces=(before, before), software="driver 550")
    found = earlier.compare(pace(2.2, WORK, "n1", "n3"))
    assert found is not None
    assert found.summary == (
        "The run is slower than its 2 earlier runs: a step takes 2.2 s, 10% longer than the 2 s of theirs for the same "
        "work. 1 of 2 nodes were in none of them (n3). It runs under driver 550 instead of driver 535."
    )
    same = EarlierRuns(paces=(before,), software="driver 535").compare(pace(2.2, WORK, "n1", "n2"))
    assert same is not None
    assert same.summary.endswith("It has the same nodes and software.")


def findings(by: float, *, chunk: int = 200) -> tuple[list[Finding], SlowdownDetector]:
    seconds = 2.0 * by * np.exp(np.random.default_rng(1).normal(0.0, 0.01, 200))
    data, detector = pace_of(seconds), SlowdownDetector()
    detector.earlier = EarlierRuns(paces=(pace(2.0, (nan,) * 3),) * 4)
    return [f for at in range(0, 200, chunk) for f in detector.update(data.part(at, at + chunk))], detector


@pytest.mark.parametrize("chunk", [200, 1])
def test_the_detector_reports_a_slow_start_once_as_information(chunk: int) -> None:
    found, detector = findings(1.09, chunk=chunk)
    assert [(f.kind, f.severity, f.active) for f in found] == [
        (FindingKind.JOB_SLOWDOWN, Severity.INFO, True), (FindingKind.JOB_SLOWDOWN, Severity.INFO, False),
    ]  # fmt: skip
    assert found[0].entity == Entity(job="series")
    assert found[0].confidence < 0.9
    assert detector.pace is not None
    assert detector.pace.seconds == pytest.approx(2.18, rel=0.01)


def test_a_run_as_fast_as_before_is_only_remembered() -> None:
    found, detector = findings(1.0)
    assert not found
    assert detector.pace is not None
    detector.reset()
    assert (detector.pace, detector.earlier.paces) == (None, ())
