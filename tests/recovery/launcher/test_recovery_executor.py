"""What a coordinator does about a failure in the very first steps of a job, with launchers that only pretend."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import Resumed


@pytest.mark.parametrize("live", [1, None])
def test_tensors_that_have_changed_before_the_coordinator_heard_of_all_ranks_are_restored(
    options: RunOptions, play: Any, new_world: Any, live: int | None
) -> None:
    """Ranks form among themselves: they may have trained while the word of one is on its way.

    All have made step 1; or one was cut off within it, and then all go back to what they began with.
    """

    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            for number in range(2):
                await world.connect(number)
            late = world.nodes[1]
            send = late.send_report
            late.send_report = lambda rank, message: (
                None if isinstance(message, Resumed) and message.generation == 1 else send(rank, message)
            )
            await world.until(lambda: all(len(node.orders) == 2 for node in world.nodes))
            assert not world.coordinator.job.state.formed_once
            for node in world.nodes:
                for rank in node.live:
                    node.live[rank], node.slots[rank] = live, live or 0
            rank = max(late.pids)
            late.kill(rank)
            await world.until_state("running", 2)
            restores = {order.rank: order.order.restore for node in world.nodes for order in node.orders[2:]}
            assert {rank: restore.epoch for rank, restore in restores.items() if restore} == dict.fromkeys(
                range(4), live or 0
            )
        finally:
            await world.close()

    play(work())
