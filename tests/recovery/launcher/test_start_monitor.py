"""Ranks that do not come to ``mainstay.init`` are named, and the job waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.recovery.options import RunOptions


def test_ranks_that_keep_the_others_waiting_are_named(
    options: RunOptions, play: Any, forming: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with forming(options) as world:
            world.nodes[1].slow = True
            coordinator, starts = world.coordinator, world.coordinator.starts
            await world.until(lambda: any(rank.joined for rank in coordinator.job.members.ranks))
            await world.until(lambda: all(rank.pid is not None for rank in coordinator.job.members.ranks))
            for now in (0.0, 59.0, 60.0, 61.0, 119.0):
                starts.run_once(now)
            (line,) = [record.message for record in caplog.records if "mainstay.init()" in record.message]
            first, second = (world.nodes[1].pids[rank] for rank in (2, 3))
            assert line == (
                f"the job waits: rank 2 on node-1 (pid {first}), rank 3 on node-1 (pid {second}) have not called "
                "mainstay.init() for 60 s, and the other ranks have"
            )
            starts.run_once(121.0)
            assert "for 121 s" in caplog.text
            caplog.clear()
            for rank in (2, 3):
                world.nodes[1].join(rank)
            await world.until_state("running", 1)
            for now in (122.0, 500.0, 1000.0):
                starts.run_once(now)
            assert "mainstay.init()" not in caplog.text

    play(work())


def test_a_script_without_the_sdk_is_not_waited_for(
    options: RunOptions, play: Any, forming: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with forming(options) as world:
            for node in world.nodes:
                node.slow = True
            await world.until(
                lambda: (
                    all(r.pid is not None for r in world.coordinator.job.members.ranks)
                    and len(world.coordinator.job.members.ranks) == 4
                )
            )
            for now in (0.0, 1000.0):
                world.coordinator.starts.run_once(now)
            assert "mainstay.init()" not in caplog.text

    play(work())
