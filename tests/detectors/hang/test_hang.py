"""A hang is reported within seconds and its culprit named; what only looks like one is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.lib_hangs import Fault, Shape, Simulator, Telemetry, calls_of, samples
from mainstay.detectors.base import DetectorState, Samples
from mainstay.detectors.finding import Cause, Entity, Finding, FindingKind
from mainstay.detectors.hang.detector import HangDetector, JobActivity
from mainstay.probes.core_types import StepPhase

SHAPE = Shape(dp=2, pp=2, tp=4, microbatches=4)
STUCK = Fault(step=40, call=9, ranks=(5,))


def job(
    seed: int, *faults: Fault, shape: Shape = SHAPE, until: float = 75.0, telemetry: Telemetry | None = None
) -> Samples:
    return samples(Simulator(shape, seed).run(60, faults), until, seed, telemetry)


def example(seed: int) -> Samples:
    return job(seed, STUCK)


def others() -> list[Samples]:
    """A rank that stops reporting, a dead link, and two ranks that stop."""
    return [
        job(0, Fault(step=40, call=6, ranks=(9,), stopped=True)),
        job(1, Fault(step=40, call=1, ranks=(5,), link="tp")),
        job(2, Fault(step=40, call=9, ranks=(3, 12))),
    ]


def findings_of(data: Samples) -> list[Finding]:
    return HangDetector().update(data)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_stops_is_named_within_seconds(seed: int) -> None:
    line = Simulator(SHAPE, seed).run(60, (STUCK,))
    found = findings_of(samples(line, line.onset + 20.0, seed))
    assert [(f.kind, f.entity.rank, f.active) for f in found] == [(FindingKind.NONCOMM_HANG, 5, True)]
    assert found[0].time - 1.7e9 - line.onset <= 8.0
    assert "Rank 5 on node-0" in found[0].evidence.summary
    assert found[0].evidence.series[0].threshold == pytest.approx(4.0)


def culprits(found: list[Finding]) -> list[int | None]:
    """Who is blamed in the end."""
    held: dict[str, Finding] = {}
    for finding in found:
        held.pop(finding.key, None)
        if finding.active:
            held[finding.key] = finding
    return sorted(f.entity.rank or 0 for f in held.values() if f.kind is FindingKind.NONCOMM_HANG)


def run(fault: Fault, seed: int = 0, *, telemetry: Telemetry | None = None, seconds: float = 20.0) -> list[Finding]:
    line = Simulator(SHAPE, seed).run(60, (fault,))
    return findings_of(samples(line, line.onset + seconds, seed, telemetry))


@pytest.mark.parametrize("inside", [False, True])
def test_a_rank_that_falls_silent_is_the_culprit(inside: bool) -> None:
    found = run(Fault(step=40, call=6, ranks=(9,), stopped=True, inside=inside))
    assert culprits(found) == [9]
    assert "stopped reporting while others report" in found[0].evidence.summary


def test_all_ranks_of_a_node_that_falls_silent_are_named() -> None:
    found = run(Fault(at=50.3, ranks=tuple(range(8, 16)), stopped=True))
    assert culprits(found) == list(range(8, 16))


@pytest.mark.parametrize(("seconds", "named"), [(24.0, [5]), (5.0, [])], ids=["for good", "for a while"])
def test_a_rank_that_is_frozen_inside_a_call_is_the_culprit_though_it_spoke_once_more(
    seconds: float, named: list[int]
) -> None:
    """All are inside the same call, as with a dead link; but this one is not heard any more."""
    line = Simulator(SHAPE, 0).run(60, (Fault(step=40, call=1, ranks=(5,), link="tp"),))
    data = samples(line, line.onset + 24.0, 0)
    rank = [entity.rank for entity in data.entities].index(5)
    last = 1.7e9 + line.onset + 3.0
    values = data.x.copy()
    values[(data.t > last) & (data.t < last + seconds), :, rank] = np.nan
    assert culprits(findings_of(replace(data, x=values))) == named


def damaged(change: Callable[[Samples, float], npt.NDArray[np.float64]], seed: int = 0) -> list[Finding]:
    """The finding where rank 5 stops, with changed reports about other ranks before."""
    line = Simulator(SHAPE, seed).run(60, (STUCK,))
    data = samples(line, line.onset + 20.0, seed)
    return findings_of(replace(data, x=change(data, 1.7e9 + line.onset)))


def test_a_rank_whose_reporter_was_lost_long_before_is_not_blamed() -> None:
    def silent(data: Samples, onset: float) -> npt.NDArray[np.float64]:
        x = data.x.copy()
        x[data.t > onset - 20.0, :, 12] = np.nan
        return x

    assert culprits(damaged(silent)) == [5]


def test_a_phase_that_one_rank_claims_for_good_hides_no_hang() -> None:
    def claims(data: Samples, onset: float) -> npt.NDArray[np.float64]:
        x = data.x.copy()
        x[data.t > onset - 30.0, 0, 12] = StepPhase.CHECKPOINT
        return x

    assert culprits(damaged(claims)) == [5]


def test_how_long_it_is_quiet_is_what_the_waiting_ranks_tell() -> None:
    """Samples come once a second; the ranks know it better."""
    line = Simulator(SHAPE, 1).run(60, (STUCK,))
    data = samples(line, line.onset + 10.0, 1)
    waited = data.x[-1, 1]
    detector = HangDetector()
    detector.update(data)
    told = float(np.median(waited[waited > 0.0]))
    assert detector.hang_status.quiet_seconds == pytest.approx(told, abs=0.01)
    assert abs(told - round(told)) > 0.1, "else a sample tells as much"


def test_a_dead_link_is_a_communication_hang_that_names_its_group() -> None:
    (finding,) = run(Fault(step=40, call=1, ranks=(5,), link="tp"))
    assert (finding.kind, finding.entity, finding.cause) == (FindingKind.COMM_HANG, Entity(job="demo"), Cause.GPU_LINK)
    assert "All 4 ranks of a tp group (4, 5, 6, 7) on node-0" in finding.evidence.summary
    assert finding.confidence < 0.9


def test_a_dead_link_between_nodes_suspects_the_network() -> None:
    (finding,) = run(Fault(step=40, call=len(calls_of(SHAPE)[0]) - 1, ranks=(5,), link="world"))
    assert (finding.kind, finding.cause) == (FindingKind.COMM_HANG, Cause.NETWORK)
    assert "node-0, node-1" in finding.evidence.summary


@pytest.mark.parametrize("seed", range(3))
def test_lost_samples_skew_and_stuck_sensors_change_neither_who_nor_whether(seed: int) -> None:
    damaged = Telemetry(missing=0.05, skew=0.05, stuck=0.01)
    assert culprits(run(STUCK, seed, telemetry=damaged)) == [5]
    assert findings_of(samples(Simulator(SHAPE, seed).run(60), 70.0, seed, damaged)) == []


def test_steps_alone_tell_of_a_hang_later() -> None:
    line = Simulator(SHAPE, 1).run(60, (STUCK,))
    found = findings_of(samples(line, line.onset + 30.0, 1, Telemetry(counted=False)))
    assert culprits(found) == [5]
    step = float(np.median(np.diff([s.max() for s in line.steps[:40]])))
    assert found[0].time - 1.7e9 - line.onset <= 4 * step + 4.0


@pytest.mark.parametrize("phase", [StepPhase.CHECKPOINT, StepPhase.EVALUATE, StepPhase.COMPILE, StepPhase.WARM_UP])
def test_phases_that_may_be_silent_are(phase: StepPhase) -> None:
    line = Simulator(SHAPE, 2).run(40, pauses=((0, phase, 40.0), (20, phase, 90.0), (30, phase, 20.0)))
    detector = HangDetector()
    assert detector.update(samples(line, float(line.steps[-1].max()), 2)) == []


@pytest.mark.parametrize("seed", range(4))
def test_uneven_and_long_steps_are_learned(seed: int) -> None:
    line = Simulator(SHAPE, seed, compute=0.8, noise=0.7).run(12)
    assert findings_of(samples(line, float(line.steps[-1].max()), seed)) == []


def test_a_rank_that_hangs_in_a_checkpoint_is_told_once_checkpoints_are_known() -> None:
    pauses = tuple((step, StepPhase.CHECKPOINT, 12.0) for step in (8, 16, 24, 32))
    line = Simulator(SHAPE, 4).run(40, pauses=pauses)
    data = samples(line, float(line.steps[-1].max()), 4)
    start, stop, _ = line.phases[-1]
    inside = int(np.searchsorted(data.t, 1.7e9 + (start + stop) / 2))
    x = np.concatenate([data.x[: inside + 1], np.repeat(data.x[inside : inside + 1], 200, axis=0)])
    t = np.concatenate([data.t[: inside + 1], data.t[inside] + 1.0 + np.arange(200)])
    x[inside + 1 :, 1, :] = np.where(np.arange(16) == 3, 0.0, np.arange(1.0, 201.0)[:, None])  # all but one wait
    found = findings_of(replace(data, t=t, x=x))
    assert culprits(found) == [3]
    assert 60.0 <= found[0].time - 1.7e9 - start <= 75.0
    assert "in phase checkpoint" in found[0].evidence.summary


@pytest.mark.parametrize("waits", [True, False], ids=["in a collective", "unseen by counters"])
def test_half_of_the_ranks_never_return_from_the_first_checkpoint(waits: bool) -> None:
    """No checkpoint is known yet: ten minutes, and the finding names who has not returned."""
    line = Simulator(SHAPE, 4).run(20, pauses=((8, StepPhase.CHECKPOINT, 12.0),))
    data = samples(line, float(line.steps[-1].max()), 4)
    start, stop, _ = line.phases[-1]
    inside = int(np.searchsorted(data.t, 1.7e9 + (start + stop) / 2))
    x = np.concatenate([data.x[: inside + 1], np.repeat(data.x[inside : inside + 1], 700, axis=0)])
    t = np.concatenate([data.t[: inside + 1], data.t[inside] + 1.0 + np.arange(700)])
    x[inside + 4 :, 0, 8:] = StepPhase.TRAIN
    x[inside + 1 :, 1] = 0.0
    x[inside + 4 :, 1, 8:] = np.arange(1.0, 698.0)[:, None] if waits else 0.0
    found = findings_of(replace(data, t=t, x=x))
    assert culprits(found) == list(range(8))
    assert 600.0 <= found[0].time - 1.7e9 - start <= 615.0
    assert "Rank 0 on node-0 has not returned from phase checkpoint" in found[0].evidence.summary


def test_nobody_heard_at_all_is_unknown_and_no_hang() -> None:
    data = job(5)
    detector = HangDetector()
    detector.update(data.part(0, 40))
    silent = replace(data.part(40, 70), x=np.full_like(data.x[40:70], np.nan))
    assert detector.update(silent) == []
    assert detector.hang_status.activity is JobActivity.UNKNOWN


def test_it_ends_when_the_job_moves_again_and_when_the_job_is_gone() -> None:
    data = example(6)
    moving = job(6, until=75.0)
    detector = HangDetector()
    held = detector.update(data)
    assert detector.hang_status.activity is JobActivity.HUNG
    other = HangDetector()
    other.update(data)
    after = detector.update(replace(moving.part(60, 74), t=data.t[-1] + 1.0 + np.arange(14)))
    assert [(f.key, f.active) for f in after] == [(held[0].key, False)]
    gone = other.update(replace(data, entities=(), groups=(), x=data.x[:, :, :0]))
    assert [(f.key, f.active) for f in gone] == [(held[0].key, False)]


def test_a_communication_hang_ends_with_its_job() -> None:
    line = Simulator(SHAPE, 7).run(60, (Fault(step=40, call=1, ranks=(5,), link="tp"),))
    data = samples(line, line.onset + 15.0, 7)
    detector = HangDetector()
    (held,) = detector.update(data)
    (gone,) = detector.update(replace(data, entities=(), groups=(), x=data.x[:, :, :0]))
    assert (gone.key, gone.active) == (held.key, False)


def test_without_a_mesh_the_world_group_still_tells() -> None:
    shape = Shape(dp=8)
    line = Simulator(shape, 8).run(60, (Fault(step=40, call=0, ranks=(3,)),))
    data = replace(samples(line, line.onset + 20.0, 8), mesh=None)
    assert culprits(findings_of(data)) == [3]


def test_a_rank_that_came_back_with_new_counters_is_not_blamed_for_them() -> None:
    line = Simulator(SHAPE, 9).run(60, (STUCK,))
    data = samples(line, line.onset + 20.0, 9)
    x = data.x.copy()
    x[20:, 3:, 7] -= x[20, 3:, 7]  # rank 7 was restarted after 20 s and counts from zero
    assert culprits(findings_of(replace(data, x=x))) == [5]


def test_its_account_tells_how_it_stands() -> None:
    data = job(10)
    detector = HangDetector()
    assert detector.status().state is DetectorState.IDLE
    detector.update(data.part(0, 3))
    assert detector.status().state is DetectorState.LEARNING
    detector.update(data.part(3, 40))
    account = detector.status()
    assert account.state is DetectorState.ACTIVE
    assert account.numbers["limit_seconds"] == pytest.approx(4.0)
    assert account.numbers["quiet_seconds"] <= 2.0
