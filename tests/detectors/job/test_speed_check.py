"""A rank that a check found slow is a finding, until the job ends or another check finds it fast."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.job.speed_check import SpeedCheckDetector
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity


def checked(number: int, *ranks: Any, job: str = "job") -> Event:
    data = {"summary": "s", "reason": "r", "peers": [9], "ranks": list(ranks)}
    return Event(id=f"e{number}", time=float(number), kind=EventKind.SPEED_CHECK_FINISHED, job=job, data=data)


def rank(number: int, *, slow: Any = True, **changed: Any) -> dict[str, Any]:
    ratios = {"matmul": 1.5, "copy": 1.01, "host": 1.0}
    return {"rank": number, "node": f"n{number}", "slow": slow, "ratios": ratios} | changed


ENDED = Event(id="end", time=90.0, kind=EventKind.JOB_FINISHED, job="job", data={"state": "finished"})


def example(seed: int) -> list[Event]:
    return [
        checked(1, rank(1, slow=False)),
        checked(2, rank(2 + seed), rank(0, slow=False)),
        checked(3, rank(0), job="other"),
        ENDED,
    ]


def test_a_slow_rank_is_named_with_its_kernel_until_the_job_ends() -> None:
    detector = SpeedCheckDetector()
    found, other, over = detector.update(example(0))
    assert (found.kind, found.severity, found.recommended_action) == (
        FindingKind.DEVICE_SLOW, Severity.WARNING, RecommendedAction.MIGRATE_RANKS,
    )  # fmt: skip
    assert (found.entity.job, found.entity.rank, found.entity.node) == ("job", 2, "n2")
    assert found.confidence == pytest.approx(0.95), "certain enough to act on"
    assert found.evidence.numbers == {"matmul": 1.5, "copy": 1.01, "host": 1.0}
    assert found.evidence.summary == (
        "Rank 2 on n2 needs 1.50 times as long as its peers for the same matmul kernel: its device or host is slow, not"
        " its work."
    )
    assert (found.time, found.event) == (2.0, "e2")
    assert (over.key, over.active, over.time) == (found.key, False, 90.0)
    assert other.entity.job == "other"
    assert detector.update([checked(4, rank(0), job="other")]) == [], "it holds already"


def test_another_check_takes_it_back_for_this_rank_on_this_node_only() -> None:
    detector = SpeedCheckDetector()
    first, second = detector.update([checked(1, rank(1), rank(2))])
    assert detector.update([checked(2, rank(1, slow=False, node="n7"))]) == []
    (cleared,) = detector.update([checked(3, rank(1, slow=False))])
    assert (cleared.key, cleared.active, cleared.time) == (first.key, False, 3.0)
    assert cleared.evidence.summary == "Another check found it as fast as its peers."
    assert [one.key for one in detector.update([ENDED])] == [second.key]


def test_what_held_before_a_restart_ends_with_its_job() -> None:
    (found,) = SpeedCheckDetector().update([checked(1, rank(1))])
    again = SpeedCheckDetector()
    again.restore_findings([found])
    assert again.update([checked(1, rank(1))]) == []
    assert [one.key for one in again.update([ENDED])] == [found.key]


@pytest.mark.parametrize(
    "ranks",
    [
        [7],
        [rank(1, slow=1)],
        [rank(1, rank="1")],
        [rank(-1)],
        [rank(1, node=None)],
        [rank(1, node="")],
        [rank(1, ratios=None)],
        [rank(1, ratios={})],
        [rank(1, ratios={"matmul": "2"})],
        [rank(1, ratios={"matmul": float("nan")})],
        [rank(1, ratios={"matmul": float("inf")})],
        [rank(1, ratios={"matmul": True})],
    ],
)
def test_an_event_that_makes_no_sense_says_nothing(ranks: list[Any]) -> None:
    assert SpeedCheckDetector().update([checked(1, *ranks)]) == []


def test_a_kernel_that_has_no_number_is_left_out() -> None:
    (found,) = SpeedCheckDetector().update([checked(1, rank(1, ratios={"matmul": None, "copy": 2}))])
    assert found.evidence.numbers == {"copy": 2.0}
    assert SpeedCheckDetector().update([checked(1, rank(1), job=None)]) == []  # type: ignore[arg-type]
