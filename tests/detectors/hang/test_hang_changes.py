"""How the hang detector's verdict changes: blame that is corrected, jobs that change, phases, gaps and steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mainstay.detectors.base import DetectorState
from mainstay.detectors.finding import Cause, Entity, Finding, FindingKind
from mainstay.detectors.hang.detector import HangDetector, HangStatus, JobActivity
from mainstay.detectors.hang.messages import HangVerdict
from mainstay.probes.core_types import RecommendedAction, Severity, StepPhase
from tests.detectors.hang.test_hang_rules import hung_job

NAN = float("nan")
COMM, NONCOMM = FindingKind.COMM_HANG, FindingKind.NONCOMM_HANG


def blame(*rows: int) -> HangVerdict:
    return HangVerdict(rows={row: (f"Rank {row} holds.", {"n": 1.0}) for row in rows}, confidence=0.95)


def of_job(kind: FindingKind) -> HangVerdict:
    return HangVerdict(kind=kind, summary="It stands.", confidence=0.6, cause=Cause.NETWORK)


def statements_of(found: list[Finding]) -> list[tuple[FindingKind, int | None, bool]]:
    return [(f.kind, f.entity.rank, f.active) for f in found]


def test_blame_is_corrected_by_what_comes_late() -> None:
    detector, _ = hung_job(4)
    detector._job = Entity(job="demo")
    detector._drawn[-2:] = [[100.0, 3.0], [101.0, 4.0]]
    first = detector._say(blame(2, 1), 101.0, 4.0)
    assert statements_of(first) == [(NONCOMM, 1, True), (NONCOMM, 2, True)]
    assert (first[0].severity, first[0].recommended_action, first[0].confidence) == (
        Severity.CRITICAL, RecommendedAction.RESTART_JOB, 0.95,
    )  # fmt: skip
    (series,) = first[0].evidence.series
    assert (series.x, series.y, series.threshold) == ((100.0, 101.0), (3.0, 4.0), 4.0)
    assert detector._say(blame(1, 2), 102.0, 4.0) == []
    assert statements_of(detector._say(blame(2, 3), 103.0, 4.0)) == [(NONCOMM, 1, False), (NONCOMM, 3, True)]
    late = detector._say(of_job(COMM), 104.0, 4.0)
    assert statements_of(late) == [(NONCOMM, 2, False), (NONCOMM, 3, False), (COMM, None, True)]
    assert (late[0].evidence.summary, late[2].cause) == (
        "Later reports clear it: others hold up the job.", Cause.NETWORK,
    )  # fmt: skip
    assert detector._say(of_job(COMM), 105.0, 4.0) == []
    other = detector._say(of_job(NONCOMM), 106.0, 4.0)
    assert statements_of(other) == [(COMM, None, False), (NONCOMM, None, True)]
    assert other[0].evidence.summary == "Later reports say otherwise."
    back = detector._say(blame(0), 107.0, 4.0)
    assert statements_of(back) == [(NONCOMM, None, False), (NONCOMM, 0, True)]
    assert detector._job_held is None


def test_a_hang_is_over_for_ranks_and_job() -> None:
    detector, _ = hung_job(3)
    detector._job, detector._job_held = Entity(job="demo"), COMM
    detector.rows["state"][[0, 2]] = True
    over = detector._over(110.0)
    assert statements_of(over) == [(NONCOMM, 0, False), (NONCOMM, 2, False), (COMM, None, False)]
    assert {f.evidence.summary for f in over} == {"The job moves again."}
    assert detector._over(111.0) == []


@pytest.mark.parametrize(("job", "ended"), [("demo", False), ("next", True)])
def test_another_job_starts_from_nothing(job: str, ended: bool) -> None:
    detector, samples = hung_job(2)
    detector._job, detector._job_held = Entity(job="demo"), COMM
    detector._hung_for, detector._step = 3, (90.0, 7.0)
    entities = tuple(replace(entity, job=job) for entity in samples.entities)
    found = detector._follow(replace(samples, entities=entities))
    assert statements_of(found) == [(COMM, None, False)] * ended
    assert detector._job == Entity(job=job)
    assert (detector._moved, detector._hung_for, detector._step) == (
        (None, 0, None) if ended else (100.0, 3, (90.0, 7.0))
    )
    assert detector._job_held is (None if ended else COMM)


CHECKPOINT, COMPILE = StepPhase.CHECKPOINT, StepPhase.COMPILE


@pytest.mark.parametrize(
    ("claims", "changed", "phase"),
    [
        ([0, 0, CHECKPOINT], 81, CHECKPOINT),
        ([0, 0, CHECKPOINT], 80, StepPhase.TRAIN),  # twenty moves of the others: a stuck sensor
        ([0, CHECKPOINT, CHECKPOINT], 0, CHECKPOINT),  # most do not train
        ([0, CHECKPOINT, NAN], 0, CHECKPOINT),  # half is not most
        ([NAN, NAN, NAN], 0, StepPhase.TRAIN),
        ([CHECKPOINT, COMPILE, NAN], 90, COMPILE),  # of equal patience the first by number
        ([77, 0, 0], 90, StepPhase.TRAIN),  # not a phase
    ],
)
def test_what_the_job_does_is_what_any_rank_claims(claims: list[float], changed: int, phase: StepPhase) -> None:
    detector, _ = hung_job(3)
    detector._moves = 100
    detector.rows["phase"], detector.rows["heard"] = np.array(claims), np.full(3, 99.0)
    detector.rows["phase_changed"] = np.full(3, changed)
    assert detector._settle_phase() is (phase is not StepPhase.TRAIN)
    assert detector._phase is phase
    assert detector._settle_phase() is False
    silent, _ = hung_job(3)
    silent.rows["phase"] = np.array(claims)
    assert silent._settle_phase() is False, "no rank was heard"


def test_the_longest_gap_of_a_phase_is_learned_when_it_ends() -> None:
    detector, _ = hung_job()
    detector.rows["heard"] = np.array([99.0])
    for longest in (10.0, 20.0, 30.0):
        for claim in (CHECKPOINT, StepPhase.TRAIN):
            detector.rows["phase"] = np.array([float(claim)])
            assert detector._settle_phase()
            detector._masked_phase = longest
    limit = detector._quiet.limit(CHECKPOINT, 1.0, counted=True, waiting=True)
    assert limit == 5.0 * 30.0
    assert detector._quiet.limit(COMPILE, 1.0, counted=True, waiting=True) == 1800.0


def test_seconds_a_step_are_those_of_the_furthest_rank() -> None:
    detector, _ = hung_job(2)

    def note(steps: list[float], t: float) -> float:
        detector._note_steps(np.array(steps), t)
        return detector._quiet.step_seconds

    assert note([NAN, NAN], 5.0) == 0.0
    assert note([5.0, NAN], 10.0) == 0.0
    assert note([5.0, 4.0], 12.0) == 0.0
    assert note([6.0, 7.0], 16.0) == 3.0, "two steps in six seconds"
    assert detector._step == (16.0, 7.0)
    assert note([2.0, 2.0], 20.0) == 3.0
    assert detector._step == (20.0, 2.0), "rolled back"
    detector._phase = CHECKPOINT
    assert note([3.0, 2.0], 120.0) == 3.0, "not in another phase"
    detector._phase, detector._hung_for = StepPhase.TRAIN, 1
    assert note([4.0, 2.0], 220.0) == 3.0, "nor while it hangs"
    detector._hung_for = 0
    assert note([5.0, 2.0], 225.0) == 4.0, "the median of three and five"


@pytest.mark.parametrize(
    ("change", "gaps", "longest"),
    [
        ({}, 1, 6.0),
        ({"_counted": False}, 0, 6.0),
        ({"_phase": CHECKPOINT}, 0, 6.0),
        ({"_gap_phase": CHECKPOINT}, 0, 6.0),
        ({"_moved": None}, 0, 0.0),
        ({"_masked_phase": 9.0}, 1, 9.0),
        ({"_hung_for": 2}, 0, 6.0),  # one that alarmed is believed only when it comes again
    ],
)
def test_the_gap_before_a_move_is_learned(change: dict[str, object], gaps: int, longest: float) -> None:
    """The job moved at 100 s, was still quiet at 106 s, and moves at 107 s."""
    detector, _ = hung_job()
    detector._counted = True
    detector._quiet.learn_steps(3.0)
    for name, value in change.items():
        setattr(detector, name, value)
    detector._move(107.0, 106.0)
    assert len(detector._quiet._gaps) == gaps
    assert (detector._moved, detector._masked_phase, detector._hung_for) == (107.0, longest, 0)
    first, _ = hung_job()
    first._counted = True
    first._move(107.0, 106.0)
    assert len(first._quiet._gaps) == 0, "the first step compiles and allocates"


@pytest.mark.parametrize(
    ("status", "counted", "state", "reason"),
    [
        ({"activity": JobActivity.UNKNOWN}, True, DetectorState.IDLE, "No rank reports progress."),
        ({"activity": JobActivity.MOVING, "limit_seconds": 300.0}, True, DetectorState.LEARNING,
         "Still learning how long this job is quiet; until then 300 s."),
        ({"activity": JobActivity.MASKED, "limit_seconds": 60.0, "phase": CHECKPOINT}, False, DetectorState.ACTIVE,
         "In phase checkpoint a job may be quiet for 60 s."),
        ({"activity": JobActivity.MOVING}, False, DetectorState.ACTIVE, ""),
    ],
)  # fmt: skip
def test_its_account_of_itself(status: dict[str, object], counted: bool, state: DetectorState, reason: str) -> None:
    detector = HangDetector()
    detector.hang_status = HangStatus(quiet_seconds=2.5, **status)  # type: ignore[arg-type]
    detector._counted = counted
    account = detector.status()
    assert (account.state, account.reason or "") == (state, reason)
    assert account.numbers["quiet_seconds"] == 2.5
    assert account.numbers["phase"] == float(detector.hang_status.phase)
