"""Waiting for what messages bring about: a recovery that another failure ends must end, in any case."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.state.events import LauncherMessageReceived
from mainstay.recovery.controller.state.reducer import reduce
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.protocol.messages import Fenced


def new_job() -> Job:
    options = SimpleNamespace(
        nnodes=1, nproc=1, spare_nodes=0, disk_every=0, parity_every=0, on_loss="wait", dp=0, pp=0, tp=0
    )
    return Job(cast("Any", options), cast("Any", None), cast("Any", None))


async def cancelled_while_it_happens(turns: int) -> tuple[bool, bool]:
    """Whether the waiting task could still be cancelled ``turns`` of the loop after it happened, and whether it was."""
    job, happened = new_job(), False
    waiting = asyncio.create_task(job.until(lambda: happened, 60.0))
    for _ in range(5):
        await asyncio.sleep(0)
    happened = True
    await job.notify()
    for _ in range(turns):
        await asyncio.sleep(0)
    could = waiting.cancel()
    await asyncio.wait([waiting])
    return could, waiting.cancelled()


@pytest.mark.parametrize("turns", range(8))
def test_a_cancelled_recovery_never_goes_on(turns: int) -> None:
    """The decision behind it would find that no node has said yet what it holds, and give the job up."""
    could, was = asyncio.run(cancelled_while_it_happens(turns))
    assert was == could


def test_it_says_whether_it_happened_in_time() -> None:
    async def work() -> tuple[bool, bool]:
        job = new_job()
        return await job.until(lambda: True, 0.01), await job.until(lambda: False, 0.01)

    assert asyncio.run(work()) == (True, False)


def test_an_answer_to_an_older_fence_that_comes_late_says_nothing() -> None:
    state, held = new_job().state, cast("Any", object())
    node = state.members.nodes["a"] = NodeMember(hello=cast("Any", None), endpoint="", standbys=0)
    for generation, inventory in ((4, held), (3, None)):
        fenced = Fenced(generation=generation, inventory=inventory)
        reduce(state, LauncherMessageReceived(node="a", message=fenced))
    assert (node.fenced, node.inventory) == (4, held)
