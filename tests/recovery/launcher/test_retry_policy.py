"""A rank that raises and lives: first all make the step again, then it gets a new process, then the job ends."""

from __future__ import annotations

import asyncio
from typing import Any

from mainstay.recovery.controller.retry_policy import CALM_STEPS, RetryPolicy
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import CollectiveFailed, StepFailed
from tests.recovery.launcher.test_coordinator import sources


def pids(world: Any) -> dict[int, int]:
    return {rank: node.pids[rank] for node in world.nodes for rank in node.pids}


def raised(generation: int) -> StepFailed:
    return StepFailed(generation=generation, error="Retry: once more")


def test_a_new_process_only_for_the_same_rank_and_soon() -> None:
    retries = RetryPolicy()
    assert retries.replaced_for(1, 5, raised=True) == set()
    assert retries.replaced_for(2, 6, raised=True) == set(), "another rank's first error"
    assert retries.replaced_for(1, 5 + CALM_STEPS, raised=True) == set(), "the last one is long ago"
    assert retries.replaced_for(1, 5 + CALM_STEPS + CALM_STEPS - 1, raised=True) == {1}
    assert retries.replaced_for(1, 5 + CALM_STEPS + CALM_STEPS, raised=True) == set(), "its process is a new one"


def test_a_broken_connection_is_no_repetition_of_what_was_raised() -> None:
    """A peer of a rank that loses its connections may report it first, and have raised a few steps before."""
    retries = RetryPolicy()
    assert retries.replaced_for(1, 12, raised=True) == set()
    assert retries.replaced_for(1, 18, raised=False) == set()
    assert retries.replaced_for(1, 19, raised=True) == {1}
    assert retries.replaced_for(1, 20, raised=False) == {1}


def test_a_job_that_has_gone_back_counts_no_steps_in_between() -> None:
    retries = RetryPolicy()
    assert retries.replaced_for(0, 40, raised=True) == set()
    assert retries.replaced_for(0, 12, raised=True) == {0}


def test_all_processes_stay_and_keep_their_tensors(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = pids(world)
            world.node_of(2).send_report(2, raised(1))
            for peer in (0, 1, 3):  # whose collectives broke when rank 2 hung up
                world.node_of(peer).send_report(
                    peer, CollectiveFailed(generation=1, reason="Connection closed by peer")
                )
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 2: "live", 3: "live"}
            assert pids(world) == before
            world.commit_all(6)
            recovered = await world.until_event("recovery_completed")
            assert recovered["data"]["steps_lost"] == 0
            assert recovered["data"]["outcome"]["strategy"] == "in_process"
            assert not world.events("process_exit")
            (plan,) = world.events("recovery_planned")
            assert plan["data"]["decision"]["fault"] == "error"
            assert plan["data"]["decision"]["chosen"] == ["in_process"]
            assert world.coordinator.job.state.generation == 2, "the others' trouble is explained, and starts nothing"

    play(work())


def test_again_at_once_it_gets_a_new_process(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = pids(world)
            world.node_of(2).send_report(2, raised(1))
            await world.until_state("running", 2)
            world.commit_all(6)
            await world.until_event("recovery_completed")
            world.node_of(2).send_report(2, raised(2))
            await world.until_state("running", 3)
            after = pids(world)
            assert {rank for rank in before if before[rank] != after[rank]} == {2}
            assert sources(world, 3)[2] == "local_slot"

    play(work())


def test_without_a_committed_step_between_the_third_ends_the_job(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            for generation in (1, 2, 3):
                await world.until_state("running", generation)
                world.node_of(2).send_report(2, raised(generation))
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 1
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "rank 2 raised Retry: once more" in stopped.reason
            assert "failed 3 times in a row without a committed step" in stopped.reason

    play(work())


def test_a_word_about_a_generation_that_is_over_changes_nothing(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.node_of(0).kill(0)
            await world.until_state("running", 2)
            world.node_of(2).send_report(2, raised(1))
            world.commit_all(6)
            await world.until_event("recovery_completed")
            assert world.coordinator.job.state.generation == 2

    play(work())


def test_the_connection_that_breaks_twice_costs_its_rank_the_process(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = pids(world)
            for generation in (1, 2):
                await world.until_state("running", generation)
                world.node_of(1).send_report(
                    1, CollectiveFailed(generation=generation, reason="Connection reset by peer")
                )
            await world.until_state("running", 3)
            after = pids(world)
            assert {rank for rank in before if before[rank] != after[rank]} == {1}

    play(work())
