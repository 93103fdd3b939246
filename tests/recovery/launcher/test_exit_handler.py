"""Ranks' processes that are being killed: recovered at the first sign, reported in full when they are reaped."""

from __future__ import annotations

import dataclasses
from typing import Any

from mainstay.recovery.options import RunOptions


def test_executor_begins_before_a_killed_process_is_reaped(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            reaped = world.node_of(3).begins_to_die(3)
            await world.until_state("running", 2)
            assert world.events("process_exit") == [], "it is not known yet how it ended"
            reaped()
            told = await world.until_event("process_exit")
            assert told["data"]["signal"] == 9
            assert told["generation"] == 1, "in which it died, not the one that recovers"
            assert not told["data"]["expected"], "it was not we who ended it"
            assert told["data"]["stderr"] == ["last words"]
            world.commit_all(6)
            await world.until_event("recovery_completed")
            assert world.coordinator.job.state.recoveries == 1
            assert world.coordinator.job.state.generation == 2, "its end is no second failure"

    play(work())


def test_a_sign_of_death_that_would_end_the_job_waits_for_the_whole_report(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(options, max_restarts=0)) as world:
            reaped = world.node_of(3).begins_to_die(3)
            world.commit_all(6)
            assert not world.coordinator.job.state.over
            reaped()
            await world.until_state("failed", 1)
            (told,) = world.events("process_exit")
            assert told["data"]["stderr"] == ["last words"]

    play(work())


def test_a_sign_of_the_death_of_a_process_before_is_not_heard(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            node = world.node_of(3)
            before = node.pids[3]
            node.kill(3)
            await world.until_state("running", 2)
            after = node.pids[3]
            node.pids[3] = before
            node.begins_to_die(3)
            node.pids[3] = after
            world.commit_all(6)
            await world.until_event("recovery_completed")
            assert world.coordinator.job.state.generation == 2

    play(work())
