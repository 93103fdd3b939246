"""What a job does when nodes join, hang, and are lost, told step by step in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mainstay.recovery.controller.coordinator_lease import CoordinatorLease
from mainstay.recovery.job_request import JobRequest, RequestKind
from mainstay.recovery.membership.coordinator_election import EXIT_LOST
from mainstay.recovery.node_warning import cordon
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy
from tests.recovery.simulated.cluster import SimulatedCluster, default_options
from tests.recovery.simulated.ranks import ViolationError
from tests.recovery.simulated.run import play

Scenario = Callable[[SimulatedCluster], Coroutine[Any, Any, None]]


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    """Two nodes of one rank, without standbys."""
    return replace(default_options(tmp_path), spares=0)


async def start(cluster: SimulatedCluster, *numbers: int, steps: int = 3) -> None:
    """Start these nodes, and wait until the job has made some steps."""
    for number in numbers:
        cluster.start(number)
    assert await cluster.until(lambda: cluster.truth.committed >= steps), "the job does not begin"


async def trains_on(cluster: SimulatedCluster, steps: int = 3) -> None:
    begun = cluster.truth.committed
    assert await cluster.until(lambda: cluster.truth.committed >= begun + steps), "the job does not continue"


async def standbys(cluster: SimulatedCluster, number: int, count: int) -> None:
    """Wait until node ``number`` has warm processes."""

    def warm() -> bool:
        workers = cluster.node(number).workers
        return workers is not None and workers.standbys >= count

    assert await cluster.until(warm), f"node {number} has no standbys"


def hang(cluster: SimulatedCluster, rank: int) -> None:
    holder = cluster.holder(rank)
    assert holder is not None
    assert holder.process is not None
    holder.process.hangs = True


# Hangs before training


def test_a_rank_that_hangs_while_the_first_generation_forms_is_replaced(options: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        cluster.start(0)
        cluster.start(1)
        assert await cluster.until(lambda: cluster.holder(1))
        before = cluster.holder(1)
        hang(cluster, 1)
        await trains_on(cluster)
        assert cluster.holder(1) is not before

    play(options, (2, 1), scenario)


def test_a_new_process_that_hangs_while_the_others_wait_for_it_is_replaced(options: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        before = cluster.holder(1)
        assert before is not None
        before.exits(None, 9)
        assert await cluster.until(lambda: (now := cluster.holder(1)) is not None and now is not before)
        hang(cluster, 1)
        await trains_on(cluster)

    play(options, (2, 1), scenario)


# Ranks without a place


def lose_two_of_four(cluster: SimulatedCluster) -> None:
    """Of each replica one rank: none of them is whole."""
    for number in (1, 2):
        cluster.kill(cluster.node(number))


def test_where_no_replica_is_whole_the_job_waits_for_a_node_that_comes_back(options: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1, 2, 3)
        lose_two_of_four(cluster)
        await asyncio.sleep(20.0)
        cluster.start(1)
        await trains_on(cluster)
        assert cluster.homes()[:2] == [0, 1]

    play(replace(options, nnodes=4, on_loss=LossPolicy.DROP), (2, 2), scenario)


def test_where_none_comes_back_the_job_ends(options: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1, 2, 3)
        lose_two_of_four(cluster)
        left = [cluster.node(number) for number in (0, 3)]
        assert await cluster.until(lambda: all(node.exit_code for node in left), options.join_seconds + 60.0)

    play(replace(options, nnodes=4, on_loss=LossPolicy.DROP), (2, 2), scenario)


def test_a_cordoned_node_that_comes_back_takes_no_rank_until_it_may(options: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        cluster.cordoned["node-1"] = cordon("power brake")
        await asyncio.sleep(20.0)
        cluster.kill(cluster.node(1))
        await trains_on(cluster)
        cluster.start(1)
        await trains_on(cluster, 20)
        assert cluster.homes() == [0, None]
        cluster.cordoned.clear()
        await trains_on(cluster)
        assert await cluster.until(lambda: cluster.homes() == [0, 1])

    play(replace(options, on_loss=LossPolicy.DROP), (2, 1), scenario)


def test_a_step_after_a_migration_is_not_lost_with_the_next_failure(options: RunOptions) -> None:
    """The migration had all ranks stop at one step; what they commit after it counts, also before it is reported."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        cluster.loop.network.slowest = 0.0
        cluster.requests.append(JobRequest(id="move", kind=RequestKind.MIGRATE, rank=1))
        assert await cluster.until(lambda: cluster.homes() == [0, 0])
        reports = cluster.node(0).workers
        assert reports is not None
        reports.pipe_seconds = 2.0  # the first step after it is committed long before the coordinator knows
        moved, holder = cluster.truth.committed, cluster.holder(1)
        assert holder is not None
        assert await cluster.until(lambda: cluster.truth.committed > moved)
        holder.exits(None, 9)
        await trains_on(cluster)

    play(replace(options, spares=1), (2, 1), scenario)


# A coordinator that is cut off


async def cut_off(cluster: SimulatedCluster) -> None:
    """The coordinator's node could continue alone, and the two others do with another coordinator."""
    await start(cluster, 0, 1, 2)
    cluster.loop.network.cut({cluster.node(0).launcher.host: 1})
    await trains_on(cluster, 20)
    assert cluster.homes() == [None, 1, 2]
    assert cluster.node(0).exit_code == EXIT_LOST


def test_a_coordinator_that_is_cut_off_ends_its_ranks_and_another_continues(options: RunOptions) -> None:
    play(replace(options, nnodes=3, on_loss=LossPolicy.DROP), (3, 1), cut_off)


def test_two_coordinators_at_once_would_be_noticed(options: RunOptions) -> None:
    """The rules that random runs check can be broken: without the lease both sides train on."""

    async def always(self: CoordinatorLease, generation: int = 0) -> bool:
        del generation
        return not self._job.state.over

    with mock.patch.object(CoordinatorLease, "check", always), pytest.raises(ViolationError, match="commits after"):
        play(replace(options, nnodes=3, on_loss=LossPolicy.DROP), (3, 1), cut_off)


# Spare nodes


@pytest.fixture
def with_spare(options: RunOptions) -> RunOptions:
    """Two nodes of two ranks, which may become three."""
    return replace(options, nproc=2, spare_nodes=1)


def test_the_next_node_that_joins_is_the_next_spare(with_spare: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        cluster.start(2)
        await standbys(cluster, 2, 2)
        cluster.kill(cluster.node(1))
        await trains_on(cluster)
        assert cluster.homes() == [0, 0, 2, 2]
        cluster.start(1)
        await standbys(cluster, 1, 2)
        cluster.kill(cluster.node(2))
        await trains_on(cluster)
        assert cluster.homes() == [0, 0, 1, 1]

    play(with_spare, (4, 1), scenario)


def test_losing_a_spare_node_stops_no_rank(with_spare: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        cluster.start(2)
        await standbys(cluster, 2, 2)
        before = cluster.truth.newest_generation
        cluster.kill(cluster.node(2))
        await trains_on(cluster, 10)
        assert cluster.truth.newest_generation == before

    play(with_spare, (4, 1), scenario)


def test_without_a_spare_node_the_job_waits_for_one(with_spare: RunOptions) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await start(cluster, 0, 1)
        cluster.kill(cluster.node(1))
        await asyncio.sleep(20.0)
        cluster.start(2)
        await trains_on(cluster)
        assert cluster.homes() == [0, 0, 2, 2]

    play(with_spare, (4, 1), scenario)
