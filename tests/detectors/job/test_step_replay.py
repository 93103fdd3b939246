"""What replays found becomes a finding about the rank and its node, and holds until the job ends."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.detectors.job.step_replay import StepReplayDetector
from mainstay.probes.core_types import Event, EventKind, Severity


def replayed(number: int, *culprits: dict[str, Any], outcome: str = "found", job: str = "job") -> Event:
    data = {"outcome": outcome, "culprits": list(culprits), "replays": 28}
    return Event(id=f"e{number}", time=float(number), kind=EventKind.STEP_REPLAY_FINISHED, job=job, data=data)


def culprit(rank: int, **changed: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "node": f"n{rank}",
        "replays": 7,
        "shown": 3,
        "steps": [51, 50],
        "groups": ["row-2"],
    } | changed


def example(seed: int) -> list[Event]:
    ended = Event(id="end", time=90.0, kind=EventKind.JOB_FINISHED, job="job", data={"state": "finished"})
    return [
        replayed(1, outcome="clean"),
        replayed(2, culprit(2 + seed)),
        replayed(3, culprit(0), culprit(1), job="other"),
        ended,
    ]


def test_a_culprit_is_named_with_its_evidence_until_the_job_ends() -> None:
    detector = StepReplayDetector()
    begun, *others, over = detector.update(example(0))
    assert (begun.kind, begun.cause, begun.severity) == (
        FindingKind.SDC_SUSPECT, Cause.SILENT_CORRUPTION, Severity.CRITICAL,
    )  # fmt: skip
    assert (begun.entity.rank, begun.entity.node) == (2, "n2")
    assert begun.evidence.numbers == {"replays": 7.0, "shown": 3.0, "first_step": 50.0}
    assert "3 of 7 replays" in begun.evidence.summary
    assert begun.confidence == pytest.approx(0.99)
    assert [f.confidence for f in others] == pytest.approx([0.495, 0.495])
    assert (over.key, over.active) == (begun.key, False)
    assert detector.update([replayed(4, culprit(0), job="other")]) == []  # it holds already


@pytest.mark.parametrize("outcome", ["clean", "no_majority", "failed", 7, None])
def test_nobody_is_blamed_without_a_finding(outcome: Any) -> None:
    assert StepReplayDetector().update([replayed(1, culprit(1), outcome=outcome)]) == []


@pytest.mark.parametrize("culprits", [None, 3, [7], [{"rank": "2"}], [{"rank": -1}], [{"rank": True}], [{}]])
def test_an_event_that_makes_no_sense_says_nothing(culprits: Any) -> None:
    event = Event(
        id="e",
        time=1.0,
        kind=EventKind.STEP_REPLAY_FINISHED,
        job="job",
        data={"outcome": "found", "culprits": culprits},
    )
    assert StepReplayDetector().update([event]) == []


@pytest.mark.parametrize("node", [5, "", None, ["n1"]])
def test_a_node_that_is_no_name_is_nobodys(node: Any) -> None:
    (found,) = StepReplayDetector().update([replayed(1, culprit(1, node=node))])
    assert (found.entity.rank, found.entity.node) == (1, None)
    assert found.evidence.summary.startswith("Rank 1 ")


@pytest.mark.parametrize(("rank", "named"), [(0, True), (2**53 - 1, True), (2**53, False), (-1, False), (1.0, False)])
def test_a_rank_is_a_whole_number_that_a_double_holds(rank: Any, named: bool) -> None:
    assert bool(StepReplayDetector().update([replayed(1, culprit(rank, node="n"))])) is named


def test_what_replays_did_not_tell_is_left_out() -> None:
    (found,) = StepReplayDetector().update([replayed(1, culprit(1, steps=[7, "8", None, 5], shown=None))])
    assert found.evidence.numbers == {"replays": 7.0, "first_step": 5.0}
    assert found.evidence.summary == (
        "Rank 1 on n1 computed other bits than its replicas from the same state, data and seeds, first at step 5: its"
        " device or host computes wrongly."
    )
    (bare,) = StepReplayDetector().update([replayed(2, {"rank": 0})])
    assert (bare.evidence.numbers, bare.time, bare.event) == ({}, 2.0, "e2")
    assert StepReplayDetector.Config().sure == 0.99
