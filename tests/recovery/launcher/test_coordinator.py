"""The coordinator's table of states, tried against launchers that only pretend: every failure, at every moment."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from typing import Any

import pytest

from mainstay.recovery.controller.state.job_state import TRANSITIONS, JobPhase
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.secure_streams import open_stream
from mainstay.recovery.protocol.worker_messages import CollectiveFailed, RankDone, ScriptFailed, StepsTotal
from mainstay.recovery.recovery_plan import RestoreSource


def sources(world: Any, generation: int) -> dict[int, Any]:
    return {
        order.rank: order.order.restore.source if order.order.restore else None
        for node in world.nodes
        for order in node.orders
        if order.order.generation == generation
    }


def test_the_table_of_states() -> None:
    assert {state for moves in TRANSITIONS.values() for state in moves} | {JobPhase.FORMING} == set(JobPhase)
    assert [state for state, moves in TRANSITIONS.items() if not moves] == [
        JobPhase.FINISHED,
        JobPhase.FAILED,
    ]
    assert all(reason for moves in TRANSITIONS.values() for reason in moves.values())


def test_a_lost_rank_comes_back_and_the_others_stay(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "live", 1: "live", 2: "live", 3: "local_slot"}
            for epoch in (6, 7, 8):
                world.commit_all(epoch, digest=40)
            recovered = await world.until_event("recovery_completed")
            verified = await world.until_event("recovery_verified")
            after = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            assert {rank for rank in before if before[rank] != after[rank]} == {3}
            assert recovered["data"]["steps_lost"] == 0
            assert recovered["data"]["epoch"] == 5
            assert verified["data"] | {"recovery": ""} == {"recovery": "", "steps_committed": 3, "digest_match": True}
            kinds = [event["kind"] for event in world.events()]
            assert kinds.index("process_exit") < kinds.index("recovery_planned") < kinds.index("recovery_completed")
            (plan,) = world.events("recovery_planned")
            assert plan["data"]["recovery"] == recovered["data"]["recovery"]

    play(work())


def test_replicas_that_differ_after_a_recovery_are_told(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.node_of(0).kill(0)
            await world.until_state("running", 2)
            for epoch in (6, 7, 8):
                for node in world.nodes:
                    for rank in node.pids:
                        node.commit(rank, epoch, digest=rank)
            assert (await world.until_event("recovery_verified"))["data"]["digest_match"] is False

    play(work())


def test_a_second_failure_begins_the_recovery_anew(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.nodes[1].silent = {2}  # holds the first recovery up
            world.node_of(0).kill(0)
            await world.until_state("recovering", 2)
            world.nodes[1].silent = set()
            world.node_of(3).kill(3)
            await world.until_state("running", 3)
            assert sources(world, 3) == {0: "local_slot", 1: "live", 2: "live", 3: "local_slot"}
            world.commit_all(6)
            await world.until_event("recovery_completed")
            ids = {event["data"]["recovery"] for event in world.events("recovery_planned", "recovery_completed")}
            assert len(ids) == 1

    play(work())


def test_a_survivor_that_does_not_come_out_is_replaced(options: RunOptions, play: Any, running: Any) -> None:
    options = dataclasses.replace(options, ready_seconds=0.2)

    async def work() -> None:
        async with running(options) as world:
            node = world.node_of(2)
            stuck = node.pids[2]
            node.silent = {2}
            world.node_of(0).kill(0)
            await world.until_state("running", 3)
            assert node.pids[2] != stuck
            assert sources(world, 3) == {0: "local_slot", 1: "live", 2: "local_slot", 3: "live"}

    play(work())


def test_survivors_a_step_apart_meet_at_the_older_one(options: RunOptions, play: Any, running: Any) -> None:
    """Rank 0 saw the vote of step 6 pass, the others did not: all go back to step 5."""

    async def work() -> None:
        async with running(options) as world:
            world.node_of(0).commit(0, 6)
            await world.until(lambda: world.coordinator.job.state.committed == 6)
            world.node_of(3).kill(3)
            await world.until_state("running", 2)
            assert sources(world, 2) == {0: "local_slot", 1: "live", 2: "live", 3: "local_slot"}
            world.commit_all(6)
            assert (await world.until_event("recovery_completed"))["data"]["steps_lost"] == 1

    play(work())


def test_a_source_that_fails_is_not_tried_again(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            for node in world.nodes:
                node.broken = {RestoreSource.LOCAL_SLOT}
            world.node_of(3).kill(3)
            await world.until_state("running", 3)
            assert sources(world, 2)[3] == "local_slot"
            assert sources(world, 3) == {0: "live", 1: "live", 2: "live", 3: "peer_copy"}
            await world.until_event("action_finished", 4)  # fence, restore, fence, restore
            restores = [e["data"] for e in world.events("action_finished") if e["data"]["action"] == "restore rank 3"]
            assert [data["ok"] for data in restores] == [False, True]

    play(work())


def test_a_lost_node_moves_to_the_standbys(options: RunOptions, play: Any, running: Any) -> None:
    options = dataclasses.replace(options, spares=2)

    async def work() -> None:
        async with running(options) as world:
            world.lose(1)
            await world.until_state("running", 2)
            assert set(world.nodes[0].pids) == {0, 1, 2, 3}
            assert sources(world, 2) == {0: "live", 1: "live", 2: "peer_copy", 3: "peer_copy"}
            event = await world.until_event("node_lost")
            assert (event["node"], event["data"]["ranks"]) == ("node-1", [2, 3])

    play(work())


def test_a_lost_node_without_enough_standbys_ends_the_job(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.lose(1)
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 1
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "only 1 spare places are left" in stopped.reason
            event = await world.until_event("job_finished")
            assert event["data"]["state"] == "failed"

    play(work())


def test_a_broken_collective_without_a_death_brings_all_together_again(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            before = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            world.node_of(1).send_report(1, CollectiveFailed(generation=1, reason="Connection reset by peer"))
            await world.until_state("running", 2)
            assert set(sources(world, 2).values()) == {"live"}
            assert before == {rank: node.pids[rank] for node in world.nodes for rank in node.pids}

    play(work())


def test_a_failure_before_training_began_starts_afresh(options: RunOptions, play: Any, new_world: Any) -> None:
    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            first = await world.connect(0)
            await asyncio.sleep(0)
            second = await world.connect(1)
            await world.until(lambda: len(first.pids) + len(second.pids) == 4)
            first.kill(0)
            await world.until(
                lambda: world.coordinator.job.state.generation == 2 and world.coordinator.job.state.phase == "running"
            )
            assert set(sources(world, 2).values()) <= {None, "local_slot", "live"}
        finally:
            await world.close()

    play(work())


def test_a_failure_before_any_script_has_spoken(options: RunOptions, play: Any, new_world: Any) -> None:
    """It might be a script without the SDK, so all start again; then the scripts speak."""

    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            nodes = [await world.connect(number) for number in range(2)]
            for node in nodes:
                node.slow = True
            await world.until(lambda: sum(len(node.pids) for node in nodes) == 4)
            nodes[0].kill(0)
            await world.until(
                lambda: (world.coordinator.job.state.phase, world.coordinator.job.state.generation) == ("running", 2)
            )
            await world.until(lambda: sum(len(node.pids) for node in nodes) == 4)
            for node in nodes:
                for rank in node.pids:
                    node.join(rank)
            await world.until(lambda: world.coordinator.job.state.formed_once)
            assert set(sources(world, 2)) == {0, 1, 2, 3}
        finally:
            await world.close()

    play(work())


def test_the_limit_of_recoveries(options: RunOptions, play: Any, running: Any) -> None:
    options = dataclasses.replace(options, max_restarts=1)

    async def work() -> None:
        async with running(options) as world:
            world.node_of(0).kill(0)
            await world.until_state("running", 2)
            world.commit_all(6)
            await world.until_event("recovery_completed")
            world.node_of(1).kill(1)
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 137
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "--max-restarts 1 are used up" in stopped.reason

    play(work())


def test_a_script_that_fails_again_and_again_is_given_up(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            for generation in (2, 3):
                node = world.node_of(2)
                node.send_report(2, ScriptFailed(error="ValueError: no", traceback="trace"))
                node.kill(2, exit_code=3, signal=None)
                await world.until_state("running", generation)
            node = world.node_of(2)
            node.send_report(2, ScriptFailed(error="ValueError: no", traceback="trace"))
            node.kill(2, exit_code=3, signal=None)
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 3
            exits = [await world.until_event("process_exit", count) for count in (1, 2, 3)]
            assert exits[0]["data"]["error"] == "ValueError: no"
            assert exits[0]["data"]["exit_code"] == 3

    play(work())


def test_all_ranks_end_well(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.node_of(0).send_report(0, StepsTotal(total=5))
            for rank in range(4):
                world.node_of(rank).send_report(rank, RankDone(epoch=5))
                world.node_of(rank).kill(rank, exit_code=0, signal=None)
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 0
            assert world.coordinator.job.state.phase is JobPhase.FINISHED
            await world.until(lambda: world.nodes[1].stopped)

    play(work())


def test_a_rank_lost_after_the_last_step_restarts_all_from_memory(options: RunOptions, play: Any, running: Any) -> None:
    """Some have left the loop for good: no rank can wait for them in a collective, so all run the end again."""

    async def work() -> None:
        async with running(options) as world:
            before = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            for rank in (0, 1, 2, 3):
                world.node_of(rank).send_report(rank, RankDone(epoch=5))
            world.node_of(1).kill(1)
            await world.until_state("running", 2)
            assert set(sources(world, 2).values()) == {"local_slot"}
            after = {rank: node.pids[rank] for node in world.nodes for rank in node.pids}
            assert not set(before.values()) & set(after.values())

    play(work())


def test_a_rank_that_finished_while_another_was_lost_is_not_waited_for(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            node = world.node_of(3)
            node.silent = {3}  # it has left the loop: it does not answer the fence
            world.node_of(0).kill(0)
            await world.until_state("recovering", 2)
            node.send_report(3, RankDone(epoch=5))
            await world.until_state("running", 3)
            assert set(sources(world, 3).values()) == {"local_slot"}

    play(work())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"job": "other"}, "this is job job"),
        ({"nproc": 3}, "--nproc-per-node 2"),
        ({"node": "node-0"}, "a node named node-0 is here already"),
        ({"node_rank": 0}, "--node-rank 0 is here already"),
    ],
)
def test_a_launcher_that_does_not_fit_is_turned_away(
    options: RunOptions, play: Any, changed: Any, said: str, new_world: Any
) -> None:
    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            await world.connect(0)
            await world.until(lambda: world.coordinator.job.members.nodes)
            node = await world.connect(1, **changed)
            stopped = await world.until(lambda: node.stopped)
            assert said in stopped.reason
            assert stopped.exit_code == 2
            assert len(world.coordinator.job.members.nodes) == 1
        finally:
            await world.close()

    play(work())


def test_a_launcher_with_another_token_is_not_of_the_job(options: RunOptions, play: Any, new_world: Any) -> None:
    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            stranger = dataclasses.replace(options, token="guess").control_tls
            with pytest.raises(ssl.SSLCertVerificationError):
                await open_stream("127.0.0.1", world.port, stranger)
            assert not world.coordinator.job.members.nodes
        finally:
            await world.close()

    play(work())


def test_nodes_that_do_not_come_end_the_job(options: RunOptions, play: Any, new_world: Any) -> None:
    options = dataclasses.replace(options, join_seconds=0.1)

    async def work() -> None:
        world = new_world(options)
        await world.start()
        try:
            await world.connect(0)
            assert await asyncio.wait_for(world.coordinator.outcome, 60.0) == 1
        finally:
            await world.close()

    play(work())


def test_the_words_of_a_replaced_process_are_not_heard(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            node = world.node_of(3)
            old = node.pids[3]
            node.kill(3)
            await world.until_state("running", 2)
            new, node.pids[3] = node.pids[3], old
            node.commit(3, 99)
            node.pids[3] = new
            world.commit_all(6)
            await world.until_event("recovery_completed")
            assert world.coordinator.job.state.committed == 6

    play(work())
