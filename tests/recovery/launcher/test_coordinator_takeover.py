"""A coordinator that takes over: what it knows from the coordinator state, what from the ledgers, and who is let in."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from mainstay.recovery.calibration import PredictionAccuracy
from mainstay.recovery.membership.coordinator_election import EXIT_LOST, CoordinatorLoss, ElectionResult
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol import coordinator_state as wills
from mainstay.recovery.protocol.messages import Exited, RankReport, RankReports
from mainstay.recovery.protocol.worker_messages import Attached, Joined, Resumed, StepRecord, StepsTotal
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.work_assignment import LossPolicy

EPOCH = 5


def won(lost_at: float, spares: int = 2) -> ElectionResult:
    """Three nodes of two ranks; node 2 coordinated, in generation 3."""
    electors = tuple(
        wills.ElectionMember(
            node=f"node-{number}", node_rank=number, nproc=2, spares=spares, pid=1, election_endpoint="",
            agent_endpoint="127.0.0.1:9", domain="", excluded=0, alive=True,
        )
        for number in range(3)
    )  # fmt: skip
    coordinator_state = wills.CoordinatorState(
        term=1, version=4, generation=3, electors=electors, homes=(0, 0, 1, 1, 2, 2), recoveries=2, started_at=7.0,
        formed_once=True, returns=((4, 2),), parameters_equal=True, replicated=True, groups=(), run="run",
        resumed=None, disk_every=0, parity_every=0, prices={"fence_s": (3, 0.5)},
        accuracy={RecoveryStrategyName.LOCAL_SLOT: PredictionAccuracy(events=4, ratio=0.1)},
    )  # fmt: skip
    return ElectionResult(2, coordinator_state, 6, CoordinatorLoss("the coordinator is lost", lost_at), "node-2")


def rank_report(rank: int, *, asks: int = 0, **changed: Any) -> RankReport:
    """A rank that has trained up to ``EPOCH``; ``asks``: for so many micro-batches."""
    said = (
        Joined(generation=1, dp=3, pp=2, tp=1),
        Attached(state_bytes=100, slots=2, protected=True),
        StepsTotal(total=40),
        Resumed(generation=1, epoch=0, source=None, seconds=0.0, nbytes=0, ok=True),
        StepRecord(
            generation=3,
            epoch=EPOCH,
            step_time=0.1,
            compute_time=0.1,
            snapshot_blocked=0.0,
            end_ns=1,
            loss=None,
            micro_batches=asks,
        ),
    )
    return RankReport(**{"rank": rank, "pid": 100 + rank, "words": said} | changed)


async def taken_over(world: Any, ledgers: dict[int, list[RankReport]], spares: int = 2) -> None:
    """The coordinator of term 2, and the launchers that are left with what they know."""
    lost_at = asyncio.get_running_loop().time()
    world.port = await world.coordinator.succeed(won(lost_at, spares), "127.0.0.1")
    for number, ranks in ledgers.items():
        node = await world.connect(number)
        for word in ranks:
            if word.pid is not None and word.exited is None:
                node.pids[word.rank] = word.pid
                node.live[word.rank] = node.slots[word.rank] = EPOCH
                node.since[word.rank] = 3
        node.stream.send(RankReports(ranks=tuple(ranks)))


def three(options: RunOptions) -> RunOptions:
    return dataclasses.replace(options, nnodes=3, quorum=2, spares=2)


def test_survivors_keep_their_processes_and_the_lost_node_moves(options: RunOptions, play: Any, new_world: Any) -> None:
    async def work() -> None:
        world = new_world(three(options))
        world.coordinator.job.new_store = lambda: ("127.0.0.1", 2)
        try:
            await taken_over(world, {0: [rank_report(0), rank_report(1)], 1: [rank_report(2), rank_report(3)]})
            await world.until_state("running", 7)
            c = world.coordinator
            assert [rank.pid for rank in c.job.members.ranks][:4] == [100, 101, 102, 103]
            assert {c.job.members.ranks[rank].node for rank in (4, 5)} <= {"node-0", "node-1"}
            assert (c.job.state.steps_total, c.job.state.recoveries, c.job.state.started_at) == (40, 3, 7.0)
            assert c.job.history.returns[0] == (4, 2)
            world.commit_all(EPOCH + 1)
            recovered = await world.until_event("recovery_completed")
            assert recovered["data"]["steps_lost"] == 0
            lost = await world.until_event("node_lost")
            assert (lost["node"], lost["data"]["ranks"]) == ("node-2", [4, 5])
            assert c.job.prices.seen["fence_s"][0] == 4, "and this recovery has added to it"
            assert c.job.calibration.strategies[RecoveryStrategyName.LOCAL_SLOT].events == 4
            decision = (await world.until_event("recovery_planned"))["data"]["decision"]
            assert (decision["fault"], decision["lost"]) == ("node", [1, 1])
        finally:
            await world.close()

    play(work())


def test_what_died_with_the_coordinator_is_told_and_replaced(options: RunOptions, play: Any, new_world: Any) -> None:
    """Rank 1 had ended without a report; a process for rank 3 is still on its way."""

    async def work() -> None:
        world = new_world(three(options))
        gone = Exited(rank=1, pid=101, exit_code=None, signal=9, expected=False, time=1.0)
        try:
            await taken_over(
                world,
                {0: [rank_report(0), rank_report(1, exited=gone)], 1: [rank_report(2), RankReport(rank=3, pid=None)]},
            )
            await world.until(
                lambda: world.coordinator.job.state.generation == 7 and world.coordinator.job.members.ranks[1].pid
            )
            exited = await world.until_event("process_exit")
            assert (exited["rank"], exited["data"]["signal"]) == (1, 9)
            three_ = world.coordinator.job.members.ranks[3]
            assert (three_.pid, three_.lost, three_.node) == (None, False, "node-1")
        finally:
            await world.close()

    play(work())


def test_a_launcher_that_was_no_part_of_the_job_is_turned_away(options: RunOptions, play: Any, new_world: Any) -> None:
    async def work() -> None:
        world = new_world(three(options))
        try:
            await taken_over(world, {0: [rank_report(0), rank_report(1)]})
            stranger = await world.connect(3)
            stopped = await world.until(lambda: stranger.stopped)
            assert "was no part of this job" in stopped.reason
            again = await world.connect(1, pid=4711)
            assert "start it once more" in (await world.until(lambda: again.stopped)).reason
        finally:
            await world.close()

    play(work())


def test_a_new_coordinator_takes_spare_nodes(options: RunOptions, play: Any, new_world: Any) -> None:
    """Once it knows what is left: a launcher under a known name must be another process then."""

    async def work() -> None:
        world = new_world(dataclasses.replace(three(options), spare_nodes=1))
        c = world.coordinator
        c.job.new_store = lambda: ("127.0.0.1", 2)
        try:
            await taken_over(world, {0: [rank_report(0), rank_report(1)], 1: [rank_report(2), rank_report(3)]})
            await world.until_state("running", 7)
            given_up = await world.connect(2)
            assert "this node was given up" in (await world.until(lambda: given_up.stopped)).reason
            await world.connect(2, pid=77)
            await world.connect(3)
            await world.until(lambda: {n.name for n in c.job.members.alive()} == {f"node-{n}" for n in range(4)})
        finally:
            await world.close()

    play(work())


def dropping(options: RunOptions) -> RunOptions:
    return dataclasses.replace(three(options), spares=0, on_loss=LossPolicy.DROP)


def test_whole_replicas_go_on_and_the_old_coordinators_node_is_taken_back(
    options: RunOptions, play: Any, new_world: Any
) -> None:
    """Node 2 died with the coordinator in it and no standby anywhere; its launcher is started again."""

    async def work() -> None:
        world = new_world(dropping(options))
        world.coordinator.job.new_store = lambda: ("127.0.0.1", 2)
        c = world.coordinator
        try:
            ledgers = {number: [rank_report(2 * number + i, asks=2) for i in range(2)] for number in range(2)}
            await taken_over(world, ledgers, spares=0)
            await world.until_state("running", 7)
            assert c.job.members.absent == (4, 5), "no rank waits for a node that is gone"
            back = await world.connect(2, pid=77)
            await world.until(lambda: back.pids.keys() == {4, 5})
            epoch = EPOCH
            while c.job.state.generation < 8:
                epoch += 1
                for node in world.nodes[:2]:
                    for rank in node.pids:
                        node.commit(rank, epoch, digest=40 + epoch + rank % 2)
                await world.until(lambda e=epoch: c.job.state.committed >= e or c.job.state.generation >= 8)
            await world.until_state("running", 8)
            assert c.job.members.absent == ()
            assert {rank.node for rank in c.job.members.ranks} == {"node-0", "node-1", "node-2"}
        finally:
            await world.close()

    play(work())


@pytest.mark.parametrize(
    "case",
    [
        (LossPolicy.WAIT, 77, "the job has gone on without it (--on-loss drop would take it back)"),
        (LossPolicy.DROP, 1, "takes back what is started again"),
    ],
    ids=["no node is taken back", "the launcher that was given up"],
)
def test_who_comes_too_late_is_told_why_it_is_turned_away(
    options: RunOptions, play: Any, new_world: Any, case: tuple[LossPolicy, int, str]
) -> None:
    async def work() -> None:
        on_loss, pid, why = case
        world = new_world(dataclasses.replace(three(options), on_loss=on_loss))
        world.coordinator.job.new_store = lambda: ("127.0.0.1", 2)
        try:
            await taken_over(world, {0: [rank_report(0), rank_report(1)], 1: [rank_report(2), rank_report(3)]})
            await world.until_state("running", 7)
            late = await world.connect(2, pid=pid)
            assert why in (await world.until(lambda: late.stopped)).reason
        finally:
            await world.close()

    play(work())


def test_where_every_rank_was_lost_the_next_coordinator_knows_the_shape(
    options: RunOptions, play: Any, new_world: Any
) -> None:
    """No rank is left that could say it: without it the script would be taken for one without the SDK."""

    async def work() -> None:
        world = new_world(three(options))
        shape = MeshShape(dp=world.dp, pp=world.pp)
        try:
            known = won(asyncio.get_running_loop().time(), 2)
            state = msgspec.structs.replace(known.coordinator_state, shape=shape)
            known = dataclasses.replace(known, coordinator_state=state)
            world.port = await world.coordinator.succeed(known, "127.0.0.1")
            for number in (0, 1):
                (await world.connect(number)).stream.send(RankReports(ranks=()))
            await world.until(lambda: world.coordinator.job.state.generation >= 7)
            assert world.coordinator.job.members.shape == shape
            await world.until(lambda: world.events("recovery_failed"))  # no node holds a snapshot: the job ends
        finally:
            await world.close()

    play(work())


def test_a_coordinator_that_has_resigned_ends_its_own_launcher_and_admits_none(
    options: RunOptions, play: Any, new_world: Any
) -> None:
    async def work() -> None:
        world = new_world(three(options))
        try:
            world.port = await world.coordinator.succeed(won(asyncio.get_running_loop().time(), 2), "127.0.0.1")
            world.coordinator.resign("node node-1 coordinates now (term 3)")
            own, other = await world.connect(0), await world.connect(1)
            await world.until(lambda: own.stopped)
            assert own.stopped.exit_code == EXIT_LOST
            await world.until(other._task.done)
            assert other.stopped is None, "it finds the other coordinator"
        finally:
            await world.close()

    play(work())
