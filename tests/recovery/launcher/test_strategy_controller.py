"""The coordinator decides over every strategy, reports it, and keeps what then happened; launchers only pretend."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
import pytest

from mainstay.recovery.controller.planning.strategy_controller import TOLD
from mainstay.recovery.options import RunOptions
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.protocol.worker_messages import StepFailed
from mainstay.recovery.work_assignment import LossPolicy, WorkAssignment


@pytest.fixture
def bare(options: RunOptions) -> RunOptions:
    """Two nodes, each with a replica of two stages; no standby anywhere."""
    return dataclasses.replace(options, spares=0, on_loss=LossPolicy.AUTO)


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take half a minute, as far as is known."""
    monkeypatch.setattr("mainstay.recovery.controller.planning.measured_costs._SPAWN_COLD_S", 30.0)


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.recovery.controller.planning.measured_costs._SPAWN_COLD_S", 0.002)


def assignments(world: Any, generation: int) -> set[WorkAssignment | None]:
    return {
        told.order.assignment for node in world.nodes for told in node.orders if told.order.generation == generation
    }  # fmt: skip


async def back(world: Any, ranks: tuple[int, ...], epoch: int = 6) -> dict[str, Any]:
    """These ranks commit the next step; what the job then says."""
    for rank in ranks:
        world.node_of(rank).commit(rank, epoch)
    return (await world.until_event("recovery_completed"))["data"]


def test_auto_goes_on_without_what_would_take_long(bare: RunOptions, slow_start: None, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            assert assignments(world, 2) == {WorkAssignment(replicas=(0,))}
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert (told["chosen"], told["act"], told["fault"], told["lost"]) == (
                ["drop_and_heal"], True, "process", [0, 1],
            )  # fmt: skip
            outcome = (await back(world, (0, 1)))["outcome"]
            assert outcome["strategy"] == "drop_and_heal"
            assert outcome["error"] == pytest.approx(outcome["measured_s"] / outcome["predicted_s"] - 1.0)
            assert outcome["others"]["local_slot"] > 30.0
            assert outcome["excess_cost_s"] == 0.0

    play(work())


def test_auto_waits_for_what_is_there_at_once(bare: RunOptions, quick_start: None, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            assert assignments(world, 2) == {None}
            assert (await back(world, (0, 1, 2, 3)))["outcome"]["strategy"] == "local_slot"

    play(work())


def test_auto_does_not_wait_for_a_node_that_nothing_replaces(
    bare: RunOptions, quick_start: None, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.lose(1)
            await world.until_state("running", 2)
            assert assignments(world, 2) == {WorkAssignment(replicas=(0,))}
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert (told["chosen"], told["fault"], told["lost"]) == (["drop_and_heal"], "node", [1, 1])

    play(work())


def test_a_fixed_option_is_followed_and_what_would_have_cost_less_is_said(
    bare: RunOptions, slow_start: None, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(bare, on_loss=LossPolicy.WAIT)) as world:
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            assert assignments(world, 2) == {None}
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert told["chosen"] == ["drop_and_heal"]
            assert (await back(world, (0, 1, 2, 3)))["outcome"]["strategy"] == "local_slot"

    play(work())


def test_an_event_names_the_best_options_and_why_others_are_none(bare: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            options = (await world.until_event("recovery_planned"))["data"]["decision"]["options"]
            feasible = [option for option in options if option["feasible"]]
            assert 0 < len(feasible) <= TOLD + 1
            prices = [option["expected_s"] for option in feasible]
            assert prices == sorted(prices)
            for option in feasible:
                assert option["expected_s"] == pytest.approx(sum(option["parts"].values()))
                assert option["gpu_seconds"] == pytest.approx(4 * option["expected_s"])
            masked = {option["strategies"][0]: option["reason"] for option in options if not option["feasible"]}
            assert masked["reinstantiate"].endswith(".")
            assert masked["disk_restart"] == "No checkpoint is on disk."

    play(work())


def test_a_script_that_does_not_ask_is_never_split(bare: RunOptions, slow_start: None, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.coordinator.participation.asks = False
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            assert assignments(world, 2) == {None}
            options = (await world.until_event("recovery_planned"))["data"]["decision"]["options"]
            dropped = next(option for option in options if option["strategies"] == ["drop_and_heal"])
            assert dropped["reason"].startswith("The script does not ask")

    play(work())


def test_single_losses_are_decided_ahead(bare: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            judge = world.coordinator.strategies
            judge.prepare()
            await world.until(lambda: len(judge._ready) == 4)  # two kinds of loss, two stages
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert told["ready"]

    play(work())


def test_what_has_changed_since_is_not_looked_up(bare: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            judge = world.coordinator.strategies
            judge.prepare()
            await world.until(lambda: len(judge._ready) == 4)
            for node in world.coordinator.job.members.nodes.values():
                node.standbys, node.hello = 1, _with_spares(node.hello)
            world.node_of(3).kill(3, time=_now())
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert not told["ready"]
            assert told["chosen"][0] != "drop_and_heal", "a standby is warm now"

    play(work())


def test_a_recovery_corrects_what_the_next_is_predicted_to_take(
    bare: RunOptions, quick_start: None, play: Any, running: Any
) -> None:
    async def work() -> None:
        async with running(bare) as world:
            assert world.coordinator.inputs.costs.spawn_cold_s == 0.002
            world.node_of(3).kill(3, time=_now())
            await world.until_state("running", 2)
            await back(world, (0, 1, 2, 3))
            judge, costs = world.coordinator.strategies, world.coordinator.inputs.costs
            assert len(judge.records) == 1
            assert costs.fence_s != MachineCosts().fence_s
            assert costs.spawn_cold_s == 0.001, "it was there before anything was decided"

    play(work())


def test_an_error_of_a_process_that_lives_costs_no_process(bare: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.node_of(2).send_report(2, StepFailed(generation=1, error="Retry: once more"))
            await world.until_state("running", 2)
            told = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert (told["chosen"], told["fault"], told["lost"]) == (["in_process"], "error", [1, 0])
            assert (await back(world, (0, 1, 2, 3)))["outcome"]["strategy"] == "in_process"

    play(work())


def test_nothing_is_weighed_where_nothing_is_lost(bare: RunOptions, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(bare) as world:
            world.coordinator.store_ended("gone")
            await world.until_state("running", 2)
            assert "decision" not in (await world.until_event("recovery_planned"))["data"]
            assert "outcome" not in await back(world, (0, 1, 2, 3))

    play(work())


def _now() -> float:
    return time.time()


def _with_spares(hello: Any) -> Any:
    return msgspec.structs.replace(hello, spares=1)
