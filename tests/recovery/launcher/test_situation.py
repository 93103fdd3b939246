"""What a coordinator collects for the planner after a fence."""

from __future__ import annotations

import asyncio

import pytest

from bench.coordinator import STEP, fence, make_coordinator
from mainstay.recovery.controller.state.job_state import JobState
from mainstay.recovery.planner import plan_recovery
from mainstay.recovery.planner_input import PlannerInput
from mainstay.recovery.recovery_plan import RestoreStrategyName


def situation(ranks: int, victim: int) -> PlannerInput:
    """Of a job whose ranks have committed ``STEP``; their nodes' disks hold the step before."""

    async def collect() -> PlannerInput:
        coordinator = make_coordinator(ranks)
        fence(coordinator, disks=True)
        return coordinator.inputs.situation({victim})

    return asyncio.run(collect())


def test_it_has_what_agents_and_survivors_hold() -> None:
    found = situation(128, 5)
    assert (found.failed_ranks, found.step) == ((5,), STEP)
    assert found.live == {rank: STEP for rank in range(128) if rank != 5}
    assert {(slot.rank, slot.node, slot.epoch) for slot in found.slots} == {
        (rank, f"node-{rank // 8}", STEP) for rank in range(128)
    }
    assert {(held.rank, held.node, held.epoch) for held in found.disk} == {
        (rank, f"node-{rank // 8}", STEP - 1) for rank in range(128)
    }
    assert plan_recovery(found).chosen is RestoreStrategyName.LOCAL_SLOT


def test_all_ranks_are_asked_for_the_committed_step_a_fixed_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each checkpoint on disk took 7 s of a coordinator of 16,384 ranks."""
    asked: list[int] = []

    def committed(state: JobState) -> int:
        asked.append(1)
        return max(rank.epoch for rank in state.members.ranks)

    monkeypatch.setattr(JobState, "committed", property(committed))
    counts = []
    for ranks in (128, 256):
        asked.clear()
        situation(ranks, 0)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0
