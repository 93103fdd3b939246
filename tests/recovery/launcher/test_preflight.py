"""Nodes are checked before ranks start and when one comes back, with launchers that only pretend to measure."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bench.lib_node_warnings import Warner
from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.benchmarks.pair_protocol import PAIR, PairTask, Role, bandwidth_name
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.recovery.admission import AdmissionPolicy
from mainstay.recovery.controller import preflight
from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import CheckNode, NodeChecked
from mainstay.recovery.work_assignment import LossPolicy

GOOD = DeviceCheck(device="cpu", cohort="processor", digest="a")
BAD = DeviceCheck(device="cpu", cohort="processor", digest="a", repeats=False)
WHY = "cpu: the same computation gives different bits"
SLOW = "transfers with node-2, node-0 reach at most 5% of the usual 2000 MB/s"


class Checks:
    """What the pretended launchers find, by node number."""

    def __init__(self) -> None:
        self.devices: dict[int, DeviceCheck | None] = {}
        """None: no answer."""
        self.slow: set[int] = set()
        self.silent: set[int] = set()
        """They answer nothing about pairs."""
        self.orders: list[tuple[int, CheckNode]] = []

    def answer(self, node: Any, order: CheckNode) -> None:
        """Answer as a launcher would."""
        self.orders.append((node.number, order))
        if order.pair is None:
            device = self.devices.get(node.number, GOOD)
            if device is not None:
                node.stream.send(NodeChecked(request=order.request, devices=(device,)))
        elif node.number not in self.silent:
            if order.pair.role is Role.LISTEN:
                node.stream.send(NodeChecked(request=order.request, port=7))
            else:
                assert order.pair.port == 7
            node.stream.send(NodeChecked(request=order.request, pair=self._result(node, order.pair)))

    def _result(self, node: Any, task: PairTask) -> BenchmarkResult:
        speed = 1e8 if self.slow & {node.number, int(task.peer.removeprefix("node-"))} else 2e9
        metric = MetricValues(name=bandwidth_name(task.sizes[0]), unit="B/s", better=Better.HIGHER, values=(speed,))
        return BenchmarkResult(
            benchmark=PAIR, state=BenchmarkState.OK, error=None, seconds=1.0, device="host", metrics=(metric,)
        )


class CheckedStream:
    """A launcher's connection that answers checks itself."""

    def __init__(self, node: Any, checks: Checks) -> None:
        self._node, self._stream, self._checks = node, node.stream, checks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        """The next message that is no check."""
        while isinstance(message := await self._stream.receive(), CheckNode):
            self._checks.answer(self._node, message)
        return message


@pytest.fixture
def checks(new_world: Any, monkeypatch: Any) -> Checks:
    found, connect = Checks(), new_world.connect

    async def connect_checked(world: Any, number: int, **changed: Any) -> Any:
        node = await connect(world, number, **changed)
        node.stream = CheckedStream(node, found)
        return node

    monkeypatch.setattr(new_world, "connect", connect_checked)
    monkeypatch.setattr(preflight, "PAIR_ANSWER_SECONDS", 0.2)
    return found


@pytest.fixture
def three(options: RunOptions) -> RunOptions:
    """Three nodes of one rank, a standby each."""
    return dataclasses.replace(options, nnodes=3, nproc=1, spares=1, preflight=AdmissionPolicy.ENFORCE)


@pytest.fixture
def started(play: Any, running: Any, caplog: Any) -> Callable[[RunOptions], tuple[list[str], list[str]]]:
    """Start a job; gives the node of each rank, and warnings about the check."""

    def start(options: RunOptions) -> tuple[list[str], list[str]]:
        found: list[str] = []

        async def work() -> None:
            async with running(options) as world:
                found.extend(homes(world))

        with caplog.at_level(logging.WARNING, "mainstay.coordinator"):
            play(work())
        return found, [r.message for r in caplog.records if r.module == "preflight"]

    return start


def homes(world: Any) -> list[str]:
    return [rank.node for rank in world.coordinator.job.members.ranks]


def test_healthy_nodes_take_their_ranks(three: RunOptions, checks: Checks, started: Any) -> None:
    assert started(three) == (["node-0", "node-1", "node-2"], [])
    assert len([order for _, order in checks.orders if order.pair is None]) == 3
    assert len([order for _, order in checks.orders if order.pair is not None]) == 6


def test_without_the_option_no_node_is_checked(three: RunOptions, checks: Checks, started: Any) -> None:
    checks.devices[1] = BAD
    assert started(dataclasses.replace(three, preflight=AdmissionPolicy.OFF)) == (["node-0", "node-1", "node-2"], [])
    assert checks.orders == []


@pytest.mark.parametrize("fault", ["device", "path"])
def test_a_bad_node_takes_no_rank_whatever_the_service_reports(
    three: RunOptions, checks: Checks, play: Any, running: Any, fault: str
) -> None:
    if fault == "device":
        checks.devices[1] = BAD
    else:
        checks.slow = {1}
    with Warner() as service:
        service.hazards = {"node-1": {"reason": "suspect", "factor": 1.0, "since": 0.0}}

        async def work() -> None:
            async with running(dataclasses.replace(three, service=service.url)) as world:
                assert homes(world) == ["node-0", "node-2", "node-0"]
                await world.until(lambda: world.coordinator.job.members.warnings.reported)
                world.nodes[2].kill(1)
                await world.until_state("running", 2)
                assert "node-1" not in homes(world)
                left = capture_state(world.coordinator.job, 9).warnings.current()["node-1"]
                assert left.cordoned
                assert left.reason == (WHY if fault == "device" else SLOW)

        play(work())


def test_the_job_ends_in_one_line_where_the_other_nodes_have_no_room(
    three: RunOptions, checks: Checks, play: Any, forming: Any
) -> None:
    checks.devices[1] = BAD

    async def work() -> None:
        async with forming(dataclasses.replace(three, spares=0)) as world:
            stopped = await world.until(lambda: world.nodes[2].stopped)
            assert stopped.exit_code == 1
            assert stopped.reason == (
                f"job job failed: the preflight check refuses node-1 ({WHY}); the other nodes have 2 of 3 places (see "
                "--standbys). Return the node to service, use another one, or start with --preflight warn"
            )
            assert not any(node.pids for node in world.nodes)

    play(work())


def test_a_warning_refuses_no_node(three: RunOptions, checks: Checks, started: Any) -> None:
    checks.devices[1] = BAD
    found, lines = started(dataclasses.replace(three, preflight=AdmissionPolicy.WARN))
    assert found == ["node-0", "node-1", "node-2"]
    what = "it takes ranks all the same (--preflight warn)"
    assert lines == [f"the preflight check finds node node-1 bad, {what}: {WHY}"]


def test_of_two_nodes_none_is_refused_for_a_slow_path(options: RunOptions, checks: Checks, started: Any) -> None:
    checks.silent = {1}
    found, (line,) = started(dataclasses.replace(options, preflight=AdmissionPolicy.ENFORCE))
    assert found == ["node-0", "node-0", "node-1", "node-1"]
    assert "between node-0 and node-1 (no transfer, one of the nodes or the path)" in line


@pytest.mark.parametrize("where", ["devices", "pairs"])
def test_a_node_that_does_not_answer_is_named(three: RunOptions, checks: Checks, started: Any, where: str) -> None:
    if where == "devices":
        checks.devices[1] = None
    else:
        checks.silent = {1}
    found, (line,) = started(dataclasses.replace(three, join_seconds=0.5))
    assert found == ["node-0", "node-2", "node-0"]
    why = "node: it gave no answer within 0.5 s" if where == "devices" else "transfers with node-2, node-0 do not work"
    assert line == f"the preflight check finds node node-1 bad, it takes no rank: {why}"


def test_a_node_that_leaves_during_the_check_is_replaced_and_the_others_are_checked_again(
    three: RunOptions, checks: Checks, play: Any, forming: Any
) -> None:
    checks.devices[1] = None

    async def work() -> None:
        async with forming(dataclasses.replace(three, join_seconds=60.0)) as world:
            await world.until(lambda: len(checks.orders) == 3)
            world.lose(1)
            await world.until(lambda: not world.coordinator.job.members.complete)
            checks.devices.clear()
            await world.connect(1)
            await world.until_state("running", 1)
            assert homes(world) == ["node-0", "node-1", "node-2"]
            assert [number for number, order in checks.orders if order.pair is None].count(1) == 2

    play(work())


@pytest.mark.parametrize("policy", [AdmissionPolicy.ENFORCE, AdmissionPolicy.WARN])
def test_a_node_that_comes_back_is_checked_alone_before_it_takes_ranks(
    three: RunOptions, checks: Checks, play: Any, running: Any, policy: AdmissionPolicy
) -> None:
    dropping = dataclasses.replace(three, spares=0, on_loss=LossPolicy.DROP, preflight=policy, join_seconds=60.0)

    async def work() -> None:
        async with running(dropping) as world:
            members, gate = world.coordinator.job.members, world.coordinator.admission
            world.lose(1)
            await world.until_state("running", 2)
            checks.orders.clear()
            checks.devices[1] = None
            back = await world.connect(1, pid=2)
            await world.until(lambda: checks.orders)
            assert not members.can_run("node-1"), "not before the answer"
            back.stream.send(NodeChecked(request=checks.orders[0][1].request, devices=(BAD,)))
            if policy is AdmissionPolicy.ENFORCE:
                await world.until(lambda: gate.preflight.bad == {"node-1": WHY})
                assert back.pids == {}
                world.lose(1)
                await world.until(lambda: not members.nodes["node-1"].alive)
                checks.devices.clear()
                back = await world.connect(1, pid=3)
            await world.until(lambda: back.pids)
            assert gate.preflight.bad == {}
            assert {number for number, _ in checks.orders} == {1}, "no node with a rank is checked"
            assert all(order.pair is None for _, order in checks.orders)

    play(work())


def test_a_check_lifts_no_other_warning(three: RunOptions, checks: Checks, play: Any, running: Any) -> None:
    dropping = dataclasses.replace(three, spares=0, on_loss=LossPolicy.DROP)

    async def work() -> None:
        async with running(dropping) as world:
            members = world.coordinator.job.members
            world.lose(1)
            await world.until_state("running", 2)
            world.coordinator.job.warn(members.warnings.suspect("node-1", "its ranks hung"))
            back = await world.connect(1, pid=2)
            await world.until(lambda: members.can_run("node-1"))
            assert members.warnings.current()["node-1"].reason == "its ranks hung"
            await world.until(lambda: back.pids)

    play(work())
