"""Where ranks are placed while nodes are not trusted, with launchers that only pretend."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import msgspec
import pytest

from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.job_request import JobRequest, RequestKind, RequestState
from mainstay.recovery.node_warning import NodeWarning
from mainstay.recovery.options import CorruptionPolicy, RunOptions
from mainstay.recovery.work_assignment import LossPolicy
from tests.recovery.launcher.test_migration_controller import answered
from tests.recovery.launcher.test_participation import trained_until

SUSPECT = NodeWarning(reason="power brake on gpu-0", factor=10.0, since=1.0)
CORDONED = NodeWarning(reason="it is draining: a fan is loose", factor=1.0, since=1.0, cordoned=True)


@pytest.fixture
def three(options: RunOptions) -> RunOptions:
    """Three nodes of one rank, two standbys each."""
    return dataclasses.replace(options, nnodes=3, nproc=1, spares=2)


def warn(world: Any, **found: NodeWarning) -> None:
    """The service reports these warnings, and no others; ``node_1`` is node-1."""
    world.coordinator.durability.set_warnings({node.replace("_", "-"): warning for node, warning in found.items()})


def homes(world: Any) -> list[str]:
    return [rank.node for rank in world.coordinator.job.members.ranks]


def move(node: str, request: str, target: str | None = None) -> JobRequest:
    return JobRequest(id=request, kind=RequestKind.MIGRATE, node=node, target=target, reason="power brake")


async def moved(world: Any, node: str, number: int, target: str | None = None) -> None:
    world.coordinator.workflows.requests.submit([move(node, f"move-{number}", target)])
    await answered(world, RequestState.COMPLETED, number)


def test_no_migration_goes_back_to_a_node_before_it_is_trusted_again(
    three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            warn(world, node_1=SUSPECT)
            await moved(world, "node-1", 0)
            assert "node-1" not in homes(world)
            there = homes(world)[1]
            (other,) = {"node-0", "node-2"} - {there}
            warn(world, node_1=SUSPECT, **{there.replace("-", "_"): SUSPECT})
            assert world.coordinator.job.members.standbys() == {"node-1": 0, there: 0, other: 2}
            await moved(world, there, 1)
            assert homes(world) == [other] * 3, "never back to node-1, where the brake still holds"
            warn(world, node_1=SUSPECT, **{there.replace("-", "_"): SUSPECT, other.replace("-", "_"): SUSPECT})
            world.coordinator.workflows.requests.submit([move(other, "move-2"), move(other, "move-3", "node-1")])
            detail = (await answered(world, RequestState.REJECTED, 2)).detail
            assert "3 warm standbys on other nodes are needed and 0 are ready" in detail
            assert "node-1 takes no rank: power brake on gpu-0" in detail
            detail = (await answered(world, RequestState.REJECTED, 3)).detail
            assert "node-1 takes no rank while it is not trusted: power brake on gpu-0" in detail
            warn(world, **{there.replace("-", "_"): SUSPECT})
            world.coordinator.job.members.nodes["node-1"].standbys = 3
            await moved(world, other, 4)
            assert homes(world) == ["node-1"] * 3

    play(work())


def test_a_migration_is_given_up_where_its_target_is_not_trusted_any_more(
    three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            world.coordinator.workflows.requests.submit([move("node-1", "one", "node-2")])
            world.coordinator.workflows.requests.run_once()
            await world.until(lambda: world.nodes[2].brings)
            warn(world, node_2=SUSPECT)
            answer = await answered(world, RequestState.FAILED)
            assert answer.detail == (
                "no rank was stopped and nothing has moved: node-2 is not trusted now: power brake on gpu-0"
            )
            assert homes(world)[1] == "node-1"

    play(work())


def test_a_migration_is_given_up_where_its_target_is_cordoned_once_the_ranks_stand_still(
    three: RunOptions, play: Any, running: Any, monkeypatch: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            fencing = world.coordinator.executor.fencing
            wait = fencing.wait_for_survivors

            async def then_cordon(*arguments: Any) -> bool:
                stopped = await wait(*arguments)
                warn(world, node_2=CORDONED)
                return bool(stopped)

            monkeypatch.setattr(fencing, "wait_for_survivors", then_cordon)
            world.coordinator.workflows.requests.submit([move("node-1", "one", "node-2")])
            world.coordinator.workflows.requests.run_once()
            await world.until(lambda: world.nodes[2].brings)
            await trained_until(world, (0, 1, 2), 6, 2)
            world.commit_all(world.coordinator.job.state.committed + 1)
            answer = await answered(world, RequestState.FAILED)
            assert answer.detail.startswith("node-2 is not trusted now: ")
            assert homes(world)[1] == "node-1"

    play(work())


@pytest.mark.parametrize("warning", [SUSPECT, CORDONED])
def test_a_lost_rank_leaves_a_node_that_is_not_trusted(
    three: RunOptions, play: Any, running: Any, warning: NodeWarning
) -> None:
    async def work() -> None:
        async with running(three) as world:
            warn(world, node_0=SUSPECT, node_1=warning)
            world.nodes[1].kill(1)
            await world.until_state("running", 2)
            assert homes(world) == ["node-0", "node-2", "node-2"], "the rank that runs on node-0 stays"

    play(work())


def test_where_every_node_is_suspect_a_rank_starts_where_it_was(
    three: RunOptions, play: Any, running: Any, caplog: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            warn(world, node_0=SUSPECT, node_1=SUSPECT, node_2=SUSPECT)
            with caplog.at_level(logging.WARNING, "mainstay.coordinator"):
                world.nodes[1].kill(1)
                await world.until_state("running", 2)
            assert homes(world) == ["node-0", "node-1", "node-2"]
            (line,) = [record.message for record in caplog.records if "is not trusted" in record.message]
            assert line == (
                "DEGRADED job: ranks [1] start on node node-1, which is not trusted (power brake on gpu-0): "
                "no other node has room"
            )

    play(work())


def test_a_rank_of_a_lost_node_goes_to_a_suspect_one_only_if_there_is_no_other(
    three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            warn(world, node_1=SUSPECT)
            world.lose(0)
            await world.until_state("running", 2)
            assert homes(world) == ["node-2", "node-1", "node-2"]
            warn(world, node_1=SUSPECT, node_2=CORDONED)
            world.nodes[1].kill(2)
            await world.until_state("running", 3)
            assert homes(world) == ["node-2", "node-1", "node-1"]

    play(work())


def test_a_job_ends_rather_than_start_a_rank_on_a_node_out_of_service(
    three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            warn(world, node_0=CORDONED, node_1=CORDONED, node_2=CORDONED)
            world.nodes[1].kill(1)
            await world.until(lambda: world.coordinator.job.state.phase.value == "failed")
            reason = world.events("job_finished")[0]["data"]["reason"]
            assert "node node-1 takes no rank (it is draining: a fan is loose)" in reason
            assert "these take no rank: node-0 (it is draining: a fan is loose), node-2" in reason

    play(work())


def test_without_a_replica_whose_node_takes_no_rank_the_others_train_on_until_it_does(
    options: RunOptions, play: Any, running: Any
) -> None:
    dropping = dataclasses.replace(options, spares=0, on_loss=LossPolicy.DROP)

    async def work() -> None:
        async with running(dropping) as world:
            warn(world, node_1=CORDONED)
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            assert world.coordinator.job.members.absent == (2, 3)
            assert 3 not in world.nodes[1].pids
            warn(world, node_1=CORDONED)
            assert 3 not in world.nodes[1].pids
            warn(world, node_1=SUSPECT)
            await world.until(lambda: 3 in world.nodes[1].pids)

    play(work())


def test_a_rank_that_idles_is_not_started_again_on_a_node_that_takes_none(
    options: RunOptions, play: Any, running: Any, monkeypatch: Any
) -> None:
    dropping = dataclasses.replace(options, spares=0, on_loss=LossPolicy.DROP)
    monkeypatch.setattr("mainstay.recovery.controller.participation.AGAIN_SECONDS", 0.0)

    async def work() -> None:
        async with running(dropping) as world:
            world.nodes[1].slow = True
            world.nodes[1].kill(3)
            await world.until_state("running", 2)
            await world.until(lambda: 3 in world.nodes[1].pids)
            warn(world, node_1=CORDONED)
            world.nodes[1].kill(3)
            ranks = world.coordinator.job.members.ranks
            await world.until(lambda: ranks[3].unplaced)
            assert 3 not in world.nodes[1].pids
            warn(world)
            await world.until(lambda: 3 in world.nodes[1].pids)
            assert not ranks[3].unplaced

    play(work())


def test_the_next_coordinator_knows_the_same(three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three) as world:
            c = world.coordinator
            c.job.warn(c.job.members.warnings.suspect("node-2", "its rank hangs"))
            warn(world, node_1=CORDONED)
            state = capture_state(c.job, 9).warnings
            assert state.reported == {"node-1": CORDONED}
            assert state.own["node-2"].reason == "its rank hangs"
            warn(world)
            assert state.reported == {"node-1": CORDONED}, "a capture does not change"

    play(work())


def test_without_a_service_a_node_that_ranks_were_moved_from_takes_none(
    three: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            await moved(world, "node-1", 0)
            there = homes(world)[1]
            (other,) = {"node-0", "node-2"} - {there}
            await moved(world, there, 1)
            assert homes(world) == [other] * 3
            world.coordinator.job.members.nodes["node-1"].standbys = 3
            await moved(world, other, 2, "node-1")  # an operator names it
            assert homes(world) == ["node-1"] * 3

    play(work())


def test_ranks_of_a_new_shape_fill_trusted_nodes_first(three: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(three, spares=1)) as world:
            members = world.coordinator.job.members
            warn(world, node_0=SUSPECT, node_1=CORDONED)
            assert (members.places(), members.places(last_resort=True)) == (2, 4)
            assert members.homes(3) == ("node-2", "node-2", "node-0")

    play(work())


def test_a_late_verdict_ends_no_job_whose_ranks_have_no_other_place(three: RunOptions, play: Any, running: Any) -> None:
    """It would run on corrupt steps as before, but a fence would leave its rank without a node."""

    async def work() -> None:
        rollback = dataclasses.replace(three, on_corruption=CorruptionPolicy.ROLLBACK)
        async with running(rollback) as world:
            corrupt = msgspec.structs.replace(CORDONED, corrupt=True, since=time.time() + 10.0)
            nodes = frozenset({"node-0", "node-1", "node-2"})
            world.coordinator.durability.corrupt_steps.ledger.committed(6, corrupt.since + 5.0, nodes)
            warn(world, node_0=CORDONED, node_1=corrupt, node_2=CORDONED)
            assert (world.coordinator.job.state.phase.value, world.coordinator.job.state.generation) == ("running", 1)

    play(work())
