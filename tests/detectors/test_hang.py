"""A standstill is told within seconds and its culprit named; what only looks like one is left alone."""

from __future__ import annotations

import pytest

from bench.lib_hangs import Fault, Shape, Simulator, Telemetry, samples
from detectors.base import Samples
from detectors.finding import Finding, FindingKind
from detectors.hang import HangDetector

SHAPE = Shape(dp=2, pp=2, tp=4, microbatches=4)
STUCK = Fault(step=40, call=9, ranks=(5,))


def job(
    seed: int, *faults: Fault, shape: Shape = SHAPE, until: float = 75.0, telemetry: Telemetry | None = None
) -> Samples:
    return samples(Simulator(shape, seed).run(60, faults), until, seed, telemetry)


def example(seed: int) -> Samples:
    return job(seed, STUCK)


def say(data: Samples) -> list[Finding]:
    return HangDetector().update(data)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_stops_is_named_within_seconds(seed: int) -> None:
    line = Simulator(SHAPE, seed).run(60, (STUCK,))
    found = say(samples(line, line.onset + 20.0, seed))
    assert [(f.kind, f.entity.rank, f.active) for f in found] == [(FindingKind.NONCOMM_HANG, 5, True)]
    assert found[0].time - 1.7e9 - line.onset <= 8.0
    assert "Rank 5 on node-0" in found[0].evidence.summary
    assert found[0].evidence.series[0].threshold == pytest.approx(4.0)
