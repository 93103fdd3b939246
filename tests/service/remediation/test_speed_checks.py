"""A slow rank that is no certain finding: its job compares its speed, once, and what comes out may move it."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.service.remediation import speed_checks
from tests.service.remediation.actions import answer, given
from tests.service.remediation.test_rank_migration import slow

CAN = {"check": "", "migrate": ""}
UNSURE = {"confidence": 0.8, "rank": 1, "job": "demo"}


def asked(fleet: Any) -> list[tuple[str, int | None, str]]:
    return [(request.kind, request.rank, request.state) for request in given(fleet)]


def test_an_uncertain_slow_rank_is_compared_once(fleet_of, database_url) -> None:
    fleet = fleet_of(database_url)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1}, obstacles=CAN)
    slow(fleet, "n2", **UNSURE)
    for _ in range(3):
        fleet.run_loops()
    (request,) = given(fleet)
    assert (request.kind, request.rank, request.actor, request.job) == ("check", 1, "mainstay", "demo")
    assert request.reason == "Rank 0 computes 1.4 times slower."
    assert request.finding is not None
    assert fleet.all() == [], "nothing is proposed: it is not certain"
    done = answer(request, "completed", "rank 1 is as fast as its peers")
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1}, obstacles=CAN, results=[done])
    fleet.clock.advance(10 * speed_checks.RETRY_SECONDS)
    fleet.run_job("n1", "n2", dp=2, standbys={"n2": 1}, obstacles=CAN)
    fleet.run_loops()
    assert asked(fleet) == [("check", 1, "completed")]


def test_a_check_that_failed_is_made_again_later(fleet_of) -> None:
    fleet = fleet_of()
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, obstacles=CAN)
    slow(fleet, "n2", **UNSURE)
    fleet.run_loops()
    failed = answer(given(fleet)[0], "failed", "ranks [1] gave no answer within 30 s")
    fleet.run_job("n1", "n2", dp=2, obstacles=CAN, results=[failed])
    fleet.clock.advance(speed_checks.RETRY_SECONDS / 2)
    fleet.run_loops()
    assert asked(fleet) == [("check", 1, "failed")]
    fleet.clock.advance(speed_checks.RETRY_SECONDS / 2)
    fleet.run_loops()
    assert asked(fleet) == [("check", 1, "failed"), ("check", 1, "pending")]


@pytest.mark.parametrize(
    ("about", "obstacles", "settings"),
    [
        (UNSURE | {"confidence": 0.95}, CAN, {}),
        (UNSURE | {"severity": "info"}, CAN, {}),
        (UNSURE | {"rank": None}, CAN, {}),
        (UNSURE | {"kind": "noncomm_hang"}, CAN, {}),
        (UNSURE | {"job": "other"}, CAN, {}),
        (UNSURE, {"check": "there is no other rank to compare with"}, {}),
        (UNSURE, {}, {}),
        (UNSURE, CAN, {"migrate": "off"}),
    ],
    ids=["certain", "advice", "no rank", "a hang", "unknown job", "it cannot", "an older launcher", "switched off"],
)
def test_who_is_not_asked(fleet_of, about: Any, obstacles: Any, settings: Any) -> None:
    fleet = fleet_of(**settings)
    fleet.enroll("n1", "n2")
    fleet.run_job("n1", "n2", dp=2, obstacles=obstacles)
    slow(fleet, "n2", **about)
    fleet.run_loops()
    assert "check" not in [request.kind for request in given(fleet)]
