"""What a coordinator does for each of thousands of ranks costs no look at all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mainstay.recovery.controller import coordinator
from mainstay.recovery.membership.members import AllRanks, RankMember
from mainstay.recovery.options import RunOptions


def test_a_job_that_begins_is_not_reported_once_for_each_rank(
    running: Callable[..., Any], options: RunOptions, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    made = coordinator.job_report

    def job_report(*what: Any) -> dict[str, Any]:
        reports.append(made(*what))
        return reports[-1]

    monkeypatch.setattr(coordinator, "job_report", job_report)

    async def begin_job() -> None:
        async with running(replace(options, nproc=32), steps=1) as world:
            await world.until(lambda: all(rank["pid"] for rank in reports[-1]["topology"]["ranks"]))
            assert len(reports) < 16, "64 ranks have begun"

    play(begin_job())


@pytest.mark.parametrize("in_order", [True, False])
def test_all_ranks_are_looked_at_a_few_times_in_all(in_order: bool) -> None:
    ranks = [RankMember(number, "node") for number in range(1000)]
    order = list(range(1000)) if in_order else random.Random(1).sample(range(1000), 1000)
    everyone, looks = AllRanks(), 0

    def joined(rank: RankMember) -> bool:
        nonlocal looks
        looks += 1
        return rank.joined == 1

    for place, number in enumerate(order):
        ranks[number].joined = 1
        assert everyone.have(ranks, joined) is (place == 999)
    assert looks < 6 * len(ranks)


def test_a_rank_that_is_missing_again_is_found() -> None:
    ranks = [RankMember(number, "node", joined=1) for number in range(4)]
    everyone = AllRanks()
    assert everyone.have(ranks, lambda rank: rank.joined == 1)
    ranks[2].joined = 0
    assert not everyone.have(ranks, lambda rank: rank.joined == 1)
    ranks[2].joined, ranks[1].joined = 1, 0
    assert not everyone.have(ranks, lambda rank: rank.joined == 1), "also before the one that was missing"
    assert everyone.have([], lambda rank: rank.joined == 1)
