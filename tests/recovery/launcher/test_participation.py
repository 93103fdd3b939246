"""``--on-loss drop`` with simulated launchers: who continues, who idles, who comes back, and with what state."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mainstay.recovery.membership.grouping import arrange
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy, WorkAssignment


@pytest.fixture
def dropping(options: RunOptions) -> RunOptions:
    """Two nodes, each with a replica of two stages; no standby anywhere."""
    return dataclasses.replace(options, spares=0, on_loss=LossPolicy.DROP, parity_every=2)


def orders(world: Any, generation: int) -> dict[int, Any]:
    """Rank -> what it was told to form ``generation``."""
    return {
        order.rank: order.order for node in world.nodes for order in node.orders if order.order.generation == generation
    }


def sources(world: Any, generation: int) -> dict[int, Any]:
    return {rank: order.restore.source for rank, order in orders(world, generation).items()}


def commit(world: Any, ranks: tuple[int, ...], *epochs: int) -> None:
    """These ranks, and no others, commit steps."""
    for epoch in epochs:
        for rank in ranks:
            world.node_of(rank).commit(rank, epoch, digest=40 + epoch)


async def trained_until(world: Any, ranks: tuple[int, ...], epoch: int, generation: int) -> None:
    """They continue from ``epoch``, step by step, until ``generation`` has formed."""
    coordinator = world.coordinator
    while coordinator.job.state.generation < generation:
        commit(world, ranks, epoch)
        await world.until(
            lambda e=epoch: coordinator.job.state.committed >= e or coordinator.job.state.generation >= generation
        )
        epoch += 1
    await world.until_state("running", generation)


async def verified(world: Any, ranks: tuple[int, ...], first: int, count: int) -> None:
    commit(world, ranks, first, first + 1, first + 2)
    await world.until_event("recovery_verified", count)


def test_the_whole_replica_goes_on_at_once_and_takes_the_other_back(
    dropping: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live"}, "no other rank is asked to form the generation"
            assert {order.assignment for order in orders(world, 2).values()} == {WorkAssignment(replicas=(0,))}
            # The lost rank has a process again, the other keeps its own.
            await world.until(lambda: {2, 3} <= world.nodes[1].pids.keys())
            commit(world, (0, 1), 6)
            recovered = await world.until_event("recovery_completed")
            assert recovered["data"]["absent_replicas"] == [1]
            assert recovered["data"]["steps_lost"] == 0
            await verified(world, (0, 1), 7, 1)
            await trained_until(world, (0, 1), 9, 3)
            assert sources(world, 3) == {0: "live", 1: "live", 2: "peer_copy", 3: "peer_copy"}
            assert {order.assignment for order in orders(world, 3).values()} == {None}
            (epoch,) = {order.restore.epoch for order in orders(world, 3).values()}
            assert epoch >= 9
            await verified(world, (0, 1, 2, 3), epoch + 1, 2)
            recovered = world.events("recovery_completed")[1]["data"]
            assert "absent_replicas" not in recovered
            assert recovered["steps_lost"] <= 1
            assert world.coordinator.job.state.recoveries == 1, "to come back is no failure"

    play(work())


def test_nobody_is_waited_for_that_has_no_process_yet(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            await verified(world, (0, 1), 6, 1)
            commit(world, (0, 1), *range(9, 20))
            await world.until(lambda: world.coordinator.job.state.committed == 19)
            assert world.coordinator.job.state.generation == 2
            await world.until(lambda: 3 in world.nodes[1].pids)
            world.nodes[1].slow = False
            world.nodes[1].join(3)
            await world.until(lambda: world.coordinator.job.members.ranks[3].waits)
            await trained_until(world, (0, 1), 20, 3)
            assert sources(world, 3)[3] == "peer_copy"

    play(work())


def test_what_is_away_may_die_again_and_nobody_else_stops(
    dropping: RunOptions, play: Any, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainstay.recovery.controller.participation.AGAIN_SECONDS", 0.01)

    async def work() -> None:
        async with running(dropping) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            first = await world.until(lambda: world.nodes[1].pids.get(3))
            world.nodes[1].kill(3)
            await world.until(lambda: world.nodes[1].pids.get(3, first) != first)
            world.nodes[1].kill(2)
            await world.until(lambda: world.nodes[1].pids.get(2) not in {None, first})
            assert (world.coordinator.job.state.generation, world.coordinator.job.state.recoveries) == (2, 3)

    play(work())


def test_what_is_away_is_given_up_after_so_many_restarts_and_training_goes_on(
    dropping: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(dropping, max_restarts=1)) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            await world.until(lambda: 3 in world.nodes[1].pids)
            world.nodes[1].kill(3)
            await world.until(lambda: world.coordinator.job.state.recoveries == 2)
            commit(world, (0, 1), 6)
            await world.until_event("recovery_completed")
            assert world.coordinator.job.state.phase.value == "running"
            assert 3 not in world.nodes[1].pids

    play(work())


def test_a_warm_standby_takes_the_rank_and_nobody_is_dropped(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(dropping, spares=1)) as world:
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 2: "live", 3: "local_slot"}

    play(work())


def test_without_a_whole_replica_all_wait_for_the_lost_ranks(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            commit(world, (0, 1), 6)
            await world.until_event("recovery_completed")
            world.nodes[0].kill(1)
            await world.until_state("running", 3)
            assert sources(world, 3) == {0: "live", 1: "local_slot", 2: "peer_copy", 3: "peer_copy"}
            assert {order.assignment for order in orders(world, 3).values()} == {None}

    play(work())


def test_a_replica_that_waits_takes_over_from_one_that_is_lost(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            commit(world, (0, 1), 6)
            await world.until_event("recovery_completed")
            await world.until(lambda: all(r.waits for r in world.coordinator.job.members.ranks[2:]))
            world.nodes[0].kill(1)
            await world.until_state("running", 3)
            assert sources(world, 3) == {2: "peer_copy", 3: "peer_copy"}, "what the other's agent holds"
            assert {order.restore.epoch for order in orders(world, 3).values()} == {6}
            assert {order.assignment for order in orders(world, 3).values()} == {WorkAssignment(replicas=(1,))}

    play(work())


def test_a_lost_node_without_spares_is_dropped_and_recovered_when_it_is_back(
    dropping: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.lose(1)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live"}
            await verified(world, (0, 1), 6, 1)
            commit(world, (0, 1), 9, 10)
            await world.until(lambda: world.coordinator.job.state.committed == 10)
            assert world.coordinator.job.state.generation == 2, "there is no rank to take back yet"
            back = await world.connect(1)
            await world.until(lambda: all(r.waits for r in world.coordinator.job.members.ranks[2:]))
            await trained_until(world, (0, 1), 11, 3)
            assert sources(world, 3) == {0: "live", 1: "live", 2: "peer_copy", 3: "peer_copy"}
            assert back.pids.keys() == {2, 3}
            (epoch,) = {order.restore.epoch for order in orders(world, 3).values()}
            await verified(world, (0, 1, 2, 3), epoch + 1, 2)

    play(work())


def test_without_the_option_a_lost_node_without_spares_ends_the_job(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(options, spares=0)) as world:
            world.lose(1)
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "0 spare places are left" in stopped.reason

    play(work())


def test_replicas_that_are_not_equal_are_never_dropped(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.coordinator.job.state.replicated = False
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert orders(world, 2).keys() == {0, 1, 2, 3}

    play(work())


def test_a_script_that_does_not_ask_for_its_micro_batches_is_waited_for(
    dropping: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.coordinator.participation.asks = False
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert orders(world, 2).keys() == {0, 1, 2, 3}

    play(work())


def test_the_end_is_not_worth_another_stop(dropping: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dropping) as world:
            world.coordinator.job.state.steps_total = 12
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            await verified(world, (0, 1), 6, 1)
            commit(world, (0, 1), 9, 10, 11, 12)
            await world.until(lambda: not world.coordinator.job.busy)
            assert world.coordinator.job.state.generation == 2
            for rank in (0, 1):
                world.nodes[0].kill(rank, exit_code=0, signal=None)
            assert (await world.until(lambda: world.nodes[1].stopped)).exit_code == 0, (
                "who was away ends with the others"
            )

    play(work())


def test_who_is_away_protects_nobody_and_is_protected_by_nobody(dropping: RunOptions, play: Any, running: Any) -> None:
    options = dataclasses.replace(dropping, nnodes=3, nproc=1, quorum=2)

    async def work() -> None:
        async with running(options) as world:
            members, guard = world.coordinator.job.members, world.coordinator.durability
            assert [[m.rank for m in group] for group in arrange(members, options)[0]] == [[0, 1, 2]]
            world.nodes[1].slow = True
            world.nodes[1].kill(1)
            await world.until_state("running", 2)
            assert {order.assignment for order in orders(world, 2).values()} == {WorkAssignment(replicas=(0, 2))}
            assert [[m.rank for m in group] for group in arrange(members, options)[0]] == [[0, 2]]
            job = guard._layout()
            assert job.away == {1: 0}
            assert job.serving == [(0, "node-0"), (2, "node-2")]

    play(work())
