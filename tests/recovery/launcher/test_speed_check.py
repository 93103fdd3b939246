"""A speed check with launchers that only pretend: who is asked, what is made of the answers, and what can go wrong."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.recovery.controller.workflows import speed_check
from mainstay.recovery.controller.workflows.speed_check import compare, slow
from mainstay.recovery.job_request import RequestKind, RequestState
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import SpeedMeasured
from tests.recovery.launcher.test_job_requests import ended, send_request

SOUND = {"matmul": 0.001, "copy": 0.002, "host": 0.003}


async def answer_all(world: Any, **unlike: dict[str, float]) -> set[int]:
    """Have the ranks that are asked answer; who they were."""
    await world.until(lambda: all(node.measures for node in world.nodes))
    asked = set()
    for node in world.nodes:
        for rank in node.measures[-1].ranks:
            asked.add(rank)
            seconds = unlike.get(f"rank{rank}", SOUND)
            node.send_report(rank, SpeedMeasured(request=node.measures[-1].request, seconds=seconds))
    return asked


def test_a_slow_rank_is_found_and_reported(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            name = send_request(world, RequestKind.CHECK, rank=3)
            asked = await answer_all(world, rank3=SOUND | {"matmul": 0.0019})
            assert asked == {0, 1, 2, 3}
            found = await ended(world, name)
            assert found.state is RequestState.COMPLETED
            assert found.detail == "rank 3 is slow: matmul takes 1.90 times as long as on its peers"
            (event,) = world.events("speed_check_finished")
            assert event["data"] == {
                "summary": found.detail,
                "reason": "it is slow",
                "peers": [1, 0, 2],
                "ranks": [
                    {"rank": 3, "node": "node-1", "slow": True, "ratios": {"copy": 1.0, "host": 1.0, "matmul": 1.9}}
                ],
            }
            assert world.coordinator.job.state.generation == 1
            assert not any(node.fences for node in world.nodes), "no rank stopped"

    play(work())


def test_all_ranks_of_a_node_are_compared_with_those_of_others(options: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(options) as world:
            name = send_request(world, RequestKind.CHECK, node="node-1")
            second = send_request(world, RequestKind.CHECK, rank=0)
            assert (await ended(world, second)).detail == "another check is under way"
            await answer_all(world)
            found = await ended(world, name)
            assert found.detail == "rank 2 is as fast as its peers; rank 3 is as fast as its peers"
            (event,) = world.events("speed_check_finished")
            assert event["data"]["peers"] == [0, 1]
            name = send_request(world, RequestKind.CHECK, rank=9)
            assert (await ended(world, name)).detail == "the job has no rank 9: its ranks are 0 to 3"

    play(work())


def test_what_is_not_measured_is_not_judged(
    options: RunOptions, play: Any, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(options) as world:
            name = send_request(world, RequestKind.CHECK, rank=0)
            await world.until(lambda: all(node.measures for node in world.nodes))
            for node in world.nodes:
                request = node.measures[-1].request
                for rank in node.measures[-1].ranks:
                    problem = "CUDA out of memory." if rank == 2 else ""
                    node.send_report(rank, SpeedMeasured(request=request, seconds=SOUND, problem=problem))
            found = await ended(world, name)
            assert (found.state, found.detail) == (RequestState.FAILED, "rank 2: CUDA out of memory.")

            monkeypatch.setattr(speed_check, "ANSWER_SECONDS", 0.2)
            name = send_request(world, RequestKind.CHECK, rank=0)
            await world.until(lambda: all(len(node.measures) == 2 for node in world.nodes))
            node = world.nodes[0]
            node.send_report(0, SpeedMeasured(request=node.measures[-1].request - 1, seconds=SOUND))  # too late
            node.send_report(1, SpeedMeasured(request=node.measures[-1].request, seconds=SOUND))
            found = await ended(world, name)
            assert found.state is RequestState.FAILED
            assert found.detail.startswith("ranks [0, 2, 3] gave no answer within ")
            assert world.events("speed_check_finished") == []

    play(work())


def test_peers_are_replicas_on_other_nodes_where_there_are_any(options: RunOptions, play: Any, running: Any) -> None:
    """Ranks 0 and 1 (node-0), 2 and 3 (node-1): a replica of two stages on each node."""

    async def work() -> None:
        async with running(options) as world:
            peers = world.coordinator.workflows.speeds._peers
            assert peers({0}) == [2, 3, 1]
            assert peers({3}) == [1, 0, 2]
            assert peers({2, 3}) == [0, 1]
            assert peers({0, 1, 2, 3}) == []

    play(work())


def test_the_median_of_the_peers_is_the_measure() -> None:
    seconds = {rank: dict(SOUND) for rank in range(5)}
    seconds[4] = {name: 2 * value for name, value in SOUND.items()}  # a peer that is slow itself
    assert not slow(compare(seconds, {0}, [1, 2, 4])[0])
    assert compare(seconds, {4}, [1, 2, 3])[4] == {"copy": 2.0, "host": 2.0, "matmul": 2.0}
    del seconds[2]["host"]
    assert set(compare(seconds, {4}, [1, 2, 3])[4]) == {"copy", "matmul"}
    limit = speed_check.SLOWER
    assert [slow({"host": ratio}) for ratio in (limit - 0.01, limit)] == [False, True]
    for broken in ({}, {"host": 0.0}, {"host": float("nan")}, {"host": float("inf")}):
        assert compare({0: SOUND, 1: broken}, {0}, [1]) == {0: {}}
