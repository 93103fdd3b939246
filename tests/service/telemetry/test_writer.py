"""A frame that comes twice before it is durable is stored once, and each request gets an answer of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.writer import GroupCommitWriter, NotDurableError, durable

BLOCK = StoredBlock("n", BlockKind.TIME, "s", 1, 0.0, 1.0, b"frame")


async def brought_twice() -> tuple[GroupCommitWriter, asyncio.Task[bool], asyncio.Task[bool]]:
    """A writer whose thread does not run, and two requests with the same frame that wait for it."""
    unused = cast("Any", None)
    writer = GroupCommitWriter(unused, unused, 0.1, 10)
    writer._loop = asyncio.get_running_loop()
    first, second = (asyncio.create_task(durable(partial(writer.enqueue, BLOCK, unused))) for _ in range(2))
    await asyncio.sleep(0)
    assert writer.pending == 1
    return writer, first, second


def test_only_the_first_of_two_copies_counts_as_new() -> None:
    async def run() -> list[bool]:
        writer, first, second = await brought_twice()
        writer._resolve(writer._take(), [True])
        return [await first, await second]

    assert asyncio.run(run()) == [True, False]


@pytest.mark.parametrize("canceled", [0, 1])
def test_a_canceled_request_does_not_keep_the_other_from_its_answer(canceled: int) -> None:
    async def run() -> None:
        writer, *requests = await brought_twice()
        requests.pop(canceled).cancel()
        await asyncio.sleep(0)
        writer._resolve(writer._take(), [NotDurableError("away")])
        with pytest.raises(NotDurableError, match="away"):
            await requests[0]
        assert writer.pending == 0

    asyncio.run(run())


def test_a_fault_of_one_answer_does_not_keep_others_from_theirs(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a fault of a connection")

    async def run() -> bool:
        writer, first, second = await brought_twice()
        writer._queue[0].answers.insert(1, fail)
        writer._resolve(writer._take(), [True])
        assert await first
        return await second

    assert asyncio.run(run()) is False
    assert "a fault of a connection" in caplog.text
