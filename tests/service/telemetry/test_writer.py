"""A frame that comes twice before it is durable is stored once, even if the request that came first is canceled."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.writer import GroupCommitWriter, NotDurableError

BLOCK = StoredBlock("n", BlockKind.TIME, "s", 1, 0.0, 1.0, b"frame")


async def brought_twice() -> tuple[GroupCommitWriter, asyncio.Task[bool], asyncio.Task[bool]]:
    """A writer whose thread does not run, and two requests with the same frame that wait for it."""
    unused = cast("Any", None)
    writer = GroupCommitWriter(unused, unused, 0.1, 10)
    writer._loop = asyncio.get_running_loop()
    first, second = (asyncio.create_task(writer.submit(BLOCK, unused)) for _ in range(2))
    await asyncio.sleep(0)
    assert writer.pending == 1
    return writer, first, second


def test_only_the_first_of_two_copies_counts_as_new() -> None:
    async def run() -> list[bool]:
        writer, first, second = await brought_twice()
        writer._resolve(writer._take(), [True])
        return [await first, await second]

    assert asyncio.run(run()) == [True, False]


def test_a_canceled_first_request_makes_the_second_try_again() -> None:
    async def run() -> None:
        writer, first, second = await brought_twice()
        first.cancel()
        with pytest.raises(NotDurableError, match="try again"):
            await second
        writer._resolve(writer._take(), [True])
        assert writer.pending == 0

    asyncio.run(run())
