"""Live migration with launchers that only pretend: what is refused, what moves, what happens if it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainstay.recovery.controller.workflows.migration_controller import RequestRejectedError, choose
from mainstay.recovery.job_request import (
    JobRequest,
    JobRequestResult,
    RequestKind,
    RequestState,
    write_request,
)
from mainstay.recovery.options import RunOptions

PAIRS = {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}
HOMES = {0: "a", 1: "a", 2: "b", 3: "b"}


def move(**about: Any) -> JobRequest:
    return JobRequest(**{"id": "one", "kind": RequestKind.MIGRATE, "reason": "it runs hot"} | about)


async def answered(world: Any, state: RequestState, number: int = 0) -> JobRequestResult:
    """The result of a request once it is ``state``; ranks commit steps meanwhile."""
    epoch = max(rank.epoch for rank in world.coordinator.job.members.ranks)

    def happened() -> JobRequestResult | None:
        nonlocal epoch
        c = world.coordinator
        ranks = c.job.members.ranks
        if c.job.state.phase == "running" and all(rank.live and rank.pid and rank.epoch >= epoch for rank in ranks):
            epoch += 1
            world.commit_all(epoch, digest=40 + epoch)
        found = c.workflows.requests.results()
        return found[number] if len(found) > number and found[number].state is state else None

    answer: JobRequestResult = await world.until(happened)
    return answer


def places(world: Any) -> dict[int, str]:
    return {rank.number: rank.node for rank in world.coordinator.job.members.ranks}


def test_a_rank_goes_away_from_its_replicas_first() -> None:
    assert choose([0], HOMES, {"b": 5, "c": 1}, PAIRS.__getitem__) == {0: "c"}
    assert choose([0, 1], HOMES, {"b": 1, "c": 1}, PAIRS.__getitem__) == {0: "c", 1: "b"}


def test_then_where_most_standbys_wait_and_never_more_than_there_are() -> None:
    moves = choose([0, 1], HOMES, {"c": 1, "d": 2}, PAIRS.__getitem__)
    assert moves == {0: "d", 1: "c"}


def test_standbys_of_the_nodes_that_are_left_do_not_count() -> None:
    with pytest.raises(RequestRejectedError, match="2 warm standbys on other nodes are needed and 1 are ready"):
        choose([0, 1], HOMES, {"a": 3, "c": 1}, PAIRS.__getitem__)


def test_where_to_go_may_be_said() -> None:
    assert choose([0], HOMES, {"b": 5, "c": 1}, PAIRS.__getitem__, "b") == {0: "b"}
    for target, why in {
        "a": "what is to move is on a already",
        "z": "the job has no living node z: its nodes are b, c",
        "c": "2 warm standbys on c are needed and 1 are ready",
    }.items():
        with pytest.raises(RequestRejectedError, match=why):
            choose([0, 1], HOMES, {"b": 5, "c": 1}, PAIRS.__getitem__, target)


def test_a_node_is_left_by_all_its_ranks_and_nothing_is_lost(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            source, target = world.nodes[1], world.nodes[0]
            world.coordinator.job.members.nodes["node-0"].standbys = 2
            world.coordinator.job.members.nodes["node-0"].excluded = -1  # room for two
            before = dict(target.pids)
            write_request(options.state_dir, move(node="node-1"))
            answer = await answered(world, RequestState.COMPLETED)
            assert places(world) == dict.fromkeys(range(4), "node-0")
            assert not source.pids
            assert {r: p for r, p in target.pids.items() if r in before} == before  # no other rank was stopped
            assert answer.steps_lost == 0
            assert answer.seconds is not None
            assert [b.epoch for b in target.brings[:2]] == [-1, -1]  # ahead of the fence
            assert len({b.epoch for b in target.brings[2:]}) == 1
            assert source.slots.keys() == {2, 3}
            await world.until_event("migration_finished")  # written by a thread of its own
            (started,), (finished,) = world.events("migration_started"), world.events("migration_finished")
            assert started["data"]["reason"] == "it runs hot"
            assert finished["data"]["ok"] is True
            assert finished["data"]["moves"] == [
                {"rank": 2, "from": "node-1", "to": "node-0"}, {"rank": 3, "from": "node-1", "to": "node-0"},
            ]  # fmt: skip
            assert world.coordinator.job.state.recoveries == 0
            assert not world.events("recovery_planned", "process_exit", "recovery_completed")
            sources = {o.rank: o.order.restore.source for o in target.orders if o.order.generation == 3}
            assert sources == {0: "live", 1: "live", 2: "local_slot", 3: "local_slot"}

    play(work())


def test_a_slot_that_cannot_be_fetched_ahead_stops_nobody(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.nodes[0].bring_problem = "no memory"
            world.coordinator.workflows.requests.submit([move(rank=3)])
            answer = await answered(world, RequestState.FAILED)
            assert "no rank was stopped" in answer.detail
            assert "rank 3: no memory" in answer.detail
            assert world.coordinator.job.state.generation == 1

    play(work())


def test_a_fetch_that_fails_behind_the_fence_leaves_all_where_they_were(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            pids = {rank: pid for node in world.nodes for rank, pid in node.pids.items()}
            world.nodes[0].fenced_bring_problem = "the link is down"
            world.coordinator.workflows.requests.submit([move(rank=3)])
            answer = await answered(world, RequestState.FAILED)
            assert answer.detail == "rank 3: the link is down"
            assert places(world)[3] == "node-1"
            assert {rank: pid for node in world.nodes for rank, pid in node.pids.items()} == pids
            assert world.coordinator.job.state.phase == "running"

    play(work())


def test_a_source_that_dies_meanwhile_is_a_recovery_like_any_other(
    options: RunOptions, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.nodes[0].silent = {0}  # the fence waits for it
            world.coordinator.workflows.requests.submit([move(rank=3)])
            await answered(world, RequestState.ACCEPTED)
            await answered_until_generation(world, 2)
            world.nodes[0].silent = set()
            world.nodes[1].kill(3)
            answer = await answered(world, RequestState.FAILED)
            assert "something failed meanwhile" in answer.detail
            assert world.coordinator.job.state.recoveries == 1
            await world.until_state("running", 3)

    play(work())


async def answered_until_generation(world: Any, generation: int) -> None:
    epoch = 5

    def happened() -> bool:
        nonlocal epoch
        if world.coordinator.job.state.generation < generation:
            epoch += 1
            world.commit_all(epoch)
        return bool(world.coordinator.job.state.generation >= generation)

    await world.until(happened)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"rank": 9}, "the job has no rank 9: its ranks are 0 to 3"),
        ({"node": "other"}, "the job has no node other: its nodes are node-0, node-1"),
        ({"rank": 3, "target": "node-1"}, "what is to move is on node-1 already"),
        ({"node": "node-1"}, "2 warm standbys on other nodes are needed and 1 are ready (see --standbys)"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    options: RunOptions, play: Any, running: Any, about: dict[str, Any], why: str
) -> None:
    async def work() -> None:
        async with running(options) as world:
            world.coordinator.workflows.requests.submit([move(**about)])
            assert (await answered(world, RequestState.REJECTED)).detail == why
            assert world.coordinator.job.state.generation == 1

    play(work())


def test_one_answer_of_the_service_brings_requests_and_hazards(options: RunOptions, play: Any, running: Any) -> None:
    """Both are heard, whoever began to listen last."""

    async def work() -> None:
        async with running(options) as world:
            guard = world.coordinator.durability
            guard.protect()
            hazard = {"reason": "hot", "factor": 10.0, "since": 1.0, "corrupt": False}
            given = {"id": "one", "kind": "migrate", "rank": 9, "target": None, "finding": "f", "reason": "hot"}
            answer = {"node_warnings": {"node-1": hazard}, "requests": [given]}
            await asyncio.to_thread(world.reporter._hand_on, answer)
            assert (await answered(world, RequestState.REJECTED)).id == "one"
            await world.until(lambda: "node-1" in (world.coordinator.job.members.warnings.reported or {}))

    play(work())


def test_the_same_request_is_followed_once(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            for _ in range(3):  # as with every answer of the service until it has heard
                world.coordinator.workflows.requests.submit([move(rank=3)])
            await answered(world, RequestState.COMPLETED)
            world.coordinator.workflows.requests.submit([move(rank=3), move(id="two", node="node-9")])
            await answered(world, RequestState.REJECTED, 1)
            await world.until_event("migration_finished")
            assert len(world.events("migration_started")) == 1

    play(work())
