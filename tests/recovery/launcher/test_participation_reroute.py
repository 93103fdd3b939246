"""``--on-loss reroute`` with launchers that only pretend: single ranks stay away, and their peers get their work."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.participation import RemainingRanks
from mainstay.recovery.membership.grouping import arrange
from mainstay.recovery.options import RunOptions
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.work_assignment import LossPolicy, WorkAssignment
from tests.recovery.launcher.test_participation import commit, orders, sources, trained_until, verified


@pytest.fixture
def rerouting(options: RunOptions) -> RunOptions:
    """Two nodes, each with a replica of two stages; no standby anywhere."""
    return dataclasses.replace(options, spares=0, on_loss=LossPolicy.REROUTE, parity_every=2)


def assignments(world: Any, generation: int) -> set[WorkAssignment | None]:
    return {order.assignment for order in orders(world, generation).values()}


def test_only_the_lost_rank_is_away_and_comes_back_with_a_peers_state(
    rerouting: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 2: "live"}
            assert assignments(world, 2) == {WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),))}
            commit(world, (0, 1, 2), 6)
            recovered = await world.until_event("recovery_completed")
            assert recovered["data"]["absent_ranks"] == [3]
            assert "absent_replicas" not in recovered["data"]
            assert recovered["data"]["steps_lost"] == 0
            await verified(world, (0, 1, 2), 7, 1)
            assert world.events("recovery_verified")[0]["data"]["digest_match"] is True
            await trained_until(world, (0, 1, 2), 10, 3)
            assert sources(world, 3) == {0: "live", 1: "live", 2: "live", 3: "peer_copy"}
            assert assignments(world, 3) == {None}
            (epoch,) = {order.restore.epoch for order in orders(world, 3).values()}
            await verified(world, (0, 1, 2, 3), epoch + 1, 2)
            assert "absent_ranks" not in world.events("recovery_completed")[1]["data"]
            assert world.coordinator.job.state.recoveries == 1, "to come back is no failure"

    play(work())


def test_a_second_rank_of_another_pipeline_and_stage_is_lost_meanwhile(
    rerouting: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            commit(world, (0, 1, 2), 6)
            await world.until_event("recovery_completed")
            world.nodes[0].slow = True
            world.nodes[0].kill(0)
            await world.until_state("running", 3)
            assert sources(world, 3) == {1: "live", 2: "live"}
            assert assignments(world, 3) == {WorkAssignment(replicas=(0, 1), absent_positions=((0, 0), (1, 1)))}
            commit(world, (1, 2), 7)
            second = await world.until_event("recovery_completed", 2)
            assert second["data"]["absent_ranks"] == [0, 3]
            await verified(world, (1, 2), 8, 1)
            await world.until(lambda: 0 in world.nodes[0].pids)
            world.nodes[0].slow = False
            world.nodes[0].join(0)
            await world.until(lambda: world.coordinator.job.members.ranks[0].waits)
            await trained_until(world, (1, 2), 11, 4)
            assert sources(world, 4) == {0: "peer_copy", 1: "live", 2: "live"}, "rank 3 has no process yet"
            assert assignments(world, 4) == {WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),))}

    play(work())


def test_where_a_stage_has_nobody_left_all_wait(rerouting: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            commit(world, (0, 1, 2), 6)
            await world.until_event("recovery_completed")
            world.nodes[0].kill(1)
            await world.until(lambda: {1, 3} <= world.nodes[0].pids.keys() | world.nodes[1].pids.keys())
            world.nodes[1].slow = False
            world.nodes[1].join(3)
            await world.until_state("running", 3)
            assert sources(world, 3) == {0: "live", 1: "local_slot", 2: "live", 3: "peer_copy"}
            assert assignments(world, 3) == {None}

    play(work())


def test_a_pipeline_that_loses_all_its_ranks_is_dropped(rerouting: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.lose(1)
            await world.until_state("running", 2)
            assert assignments(world, 2) == {WorkAssignment(replicas=(0,))}
            commit(world, (0, 1), 6)
            recovered = await world.until_event("recovery_completed")
            assert (recovered["data"]["absent_ranks"], recovered["data"]["absent_replicas"]) == ([2, 3], [1])

    play(work())


def test_a_lost_node_across_pipelines_takes_one_stage_of_each(rerouting: RunOptions, play: Any, running: Any) -> None:
    """Four nodes of one rank: the third has the first stage of the second replica."""
    options = dataclasses.replace(rerouting, nnodes=4, nproc=1, dp=2, pp=2, quorum=2)

    async def work() -> None:
        async with running(options) as world:
            world.lose(2)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 3: "live"}
            assert assignments(world, 2) == {WorkAssignment(replicas=(0, 1), absent_positions=((1, 0),))}
            back = await world.connect(2)
            await world.until(lambda: world.coordinator.job.members.ranks[2].waits)
            await trained_until(world, (0, 1, 3), 6, 3)
            assert sources(world, 3) == {0: "live", 1: "live", 2: "peer_copy", 3: "live"}
            assert back.pids.keys() == {2}

    play(work())


def test_of_a_script_that_does_not_ask_for_its_schedule_the_replica_is_dropped(
    rerouting: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.coordinator.participation._routed[0] = False
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live"}
            assert assignments(world, 2) == {WorkAssignment(replicas=(0,))}

    play(work())


def test_a_warm_standby_takes_the_rank_and_nobody_is_away(rerouting: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(rerouting, spares=1)) as world:
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 2: "live", 3: "local_slot"}

    play(work())


def test_the_work_of_a_rank_that_is_away_is_not_assigned_by_speed(
    rerouting: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            participation = world.coordinator.participation
            participation.paces.propose_assignment({0: 1.0, 1: 0.5})
            assert participation.assignment() == WorkAssignment(replicas=(0, 1), shares=(1.0, 0.5))
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert assignments(world, 2) == {WorkAssignment(replicas=(0, 1), absent_positions=((1, 1),))}

    play(work())


LEFT_OUT = [
    (RecoveryStrategyName.REROUTE_COUPLED, False, (3,)),
    (RecoveryStrategyName.DROP_AND_HEAL, False, (2, 3)),
    (RecoveryStrategyName.LOCAL_SLOT, False, ()),
    (None, False, ()),
    (None, True, (3,)),
    (RecoveryStrategyName.LOCAL_SLOT, True, (3,)),
    (RecoveryStrategyName.DROP_AND_HEAL, True, (2, 3)),
]
"""What costs least, whether rank 3 has no place to run, and who is left out."""


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_job_that_decides_each_time_leaves_out_as_it_decided(
    rerouting: RunOptions, play: Any, running: Any, case: tuple[RecoveryStrategyName | None, bool, tuple[int, ...]]
) -> None:
    """Whoever has no place to run cannot be waited for; then as few as possible are left out."""
    way, unplaced, away = case

    async def work() -> None:
        async with running(dataclasses.replace(rerouting, on_loss=LossPolicy.AUTO)) as world:
            participation, ranks = world.coordinator.participation, world.coordinator.job.members.ranks
            lost = GenerationFailure(ranks={3}, time=1.0, reason="rank 3 ended")
            staying = participation.refresh({3}, lost)
            assert staying == RemainingRanks(dropped={0, 1}, rerouted={0, 1, 2})
            ranks[3].unplaced = unplaced
            participation.choose(staying, lost, way)
            assert world.coordinator.job.members.absent == away
            assert participation.by_position is (away == (3,))

    play(work())


def test_who_is_away_is_in_no_group_and_its_peer_stands_for_it(rerouting: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(rerouting) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            members, guard = world.coordinator.job.members, world.coordinator.durability
            assert sorted(m.rank for group in arrange(members, rerouting)[0] for m in group) == [0, 1, 2]
            assert guard._layout().away == {3: 1}

    play(work())
