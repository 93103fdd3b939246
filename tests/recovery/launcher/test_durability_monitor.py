"""Whom not to trust and what is done about it, with launchers that only pretend; and what inventories add up to."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
import pytest

from mainstay.recovery.agent.messages import Inventory, ParityInfo, ScrubState, SlotInfo, TransferRates
from mainstay.recovery.checkpoint.listed_files import PartFile
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.monitors.snapshot_inventory import JobLayout, build_inventory
from mainstay.recovery.durability import durability
from mainstay.recovery.memory.records import NO_EPOCH
from mainstay.recovery.node_warning import NodeWarning
from mainstay.recovery.options import CorruptionPolicy, RunOptions
from mainstay.recovery.protection_scheme import parse
from mainstay.recovery.protocol.messages import ConfigureJobParity

HOT = NodeWarning(reason="hot", factor=10.0, since=1.0)


def extra_copies(guard: DurabilityMonitor) -> dict[str, list[int]]:
    return {node: [member.rank for member in kept] for node, kept in guard.extra_copies().items()}


def guard_of(world: Any) -> DurabilityMonitor:
    found: DurabilityMonitor = world.coordinator.durability
    return found


@pytest.fixture
def three(options: RunOptions) -> RunOptions:
    """Three nodes of one rank; the state of each is its own."""
    return dataclasses.replace(options, nnodes=3, nproc=1)


def test_ranks_of_a_degrading_node_are_copied_until_it_is_trusted_again(
    three: Any, play: Any, running: Any, monkeypatch: Any
) -> None:
    async def work() -> None:
        async with running(three) as world:
            guard, told = guard_of(world), list[ConfigureJobParity]()
            world.coordinator.job.state.replicated = False
            stream = world.coordinator.job.connections["node-0"].stream
            monkeypatch.setattr(
                stream, "send", lambda message: isinstance(message, ConfigureJobParity) and told.append(message)
            )
            guard.answered(
                {"node_warnings": {"node-1": {"reason": "hot", "factor": 10.0, "since": 1.0, "corrupt": False}}}
            )
            assert extra_copies(guard) == {"node-0": [1]}
            (order,) = told
            assert [(extra_copy.node, extra_copy.rank, extra_copy.endpoint) for extra_copy in order.extra_copies] == [
                ("node-1", 1, "127.0.0.1:9001")
            ]
            guard.set_warnings({"node-1": HOT})
            assert len(told) == 1  # nothing new
            guard.set_warnings({"node-0": HOT, "node-1": HOT})
            assert extra_copies(guard) == {"node-2": [0, 1]}
            guard.set_warnings({})
            assert extra_copies(guard) == {}
            assert told[-1].extra_copies == ()

    play(work())


def test_a_replica_on_a_good_node_is_copy_enough(three: Any, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three) as world:
            guard = guard_of(world)
            world.coordinator.job.state.replicated = True  # dp is 3
            guard.set_warnings({"node-1": HOT})
            assert extra_copies(guard) == {}
            guard.set_warnings(dict.fromkeys(("node-0", "node-1", "node-2"), HOT))
            assert extra_copies(guard) == {}  # no node is left to keep one

    play(work())


def test_an_answer_that_is_none_changes_nothing(three: Any, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three) as world:
            guard = guard_of(world)
            guard.set_warnings({"node-1": HOT})
            for answer in (None, [], {}, {"node_warnings": 3}, {"node_warnings": {"node-2": {"reason": 5}}}):
                guard.answered(answer)
            assert set(world.coordinator.job.members.warnings.reported) == {"node-1"}
            guard.answered({"node_warnings": {"stranger": {"reason": "hot", "factor": 10.0, "since": 1.0}}})
            assert world.coordinator.job.members.warnings.reported == {}

    play(work())


def test_memory_that_flips_bits_is_not_trusted(three: Any, play: Any, running: Any) -> None:
    async def work() -> None:
        async with running(three) as world:
            guard = guard_of(world)
            stale = ScrubState(passes=1, nbytes=1, found=1, repaired=1, lost=0, drills=1, drills_failed=1, last="drill")
            guard.note_damage({"node-2": with_scrub(inventory("node-2"), stale)})
            assert world.coordinator.job.members.warnings.current() == {}, (
                "parity that was wrong from the start says nothing of memory"
            )
            flip = msgspec.structs.replace(stale, found=2, flipped=1, last="slot 1")
            guard.note_damage({"node-2": with_scrub(inventory("node-2"), flip)})
            assert world.coordinator.job.members.warnings.current()["node-2"].reason == "its memory flips bits: slot 1"

    play(work())


def with_scrub(told: Inventory, scrub: ScrubState) -> Inventory:
    return Inventory(
        node=told.node, slots=told.slots, parity=told.parity, disk=told.disk, rates=told.rates, degraded=(), scrub=scrub
    )


@pytest.mark.parametrize("mode", [CorruptionPolicy.REPORT, CorruptionPolicy.ROLLBACK])
def test_a_late_verdict_gives_corrupt_steps_up_where_asked(
    three: Any, play: Any, running: Any, mode: CorruptionPolicy
) -> None:
    async def work() -> None:
        async with running(dataclasses.replace(three, on_corruption=mode)) as world:
            guard, since = guard_of(world), time.time() + 10.0
            ledger = guard.corrupt_steps.ledger
            # Steps 1 to 5 were committed by now; 6 comes when the node has gone bad.
            ledger.committed(6, since + 5.0, frozenset({"node-0", "node-1", "node-2"}))
            world.commit_all(6)
            await world.until(lambda: min(r.epoch for r in world.coordinator.job.members.ranks) == 6)
            bad = {"reason": "wrong bits", "factor": 100.0, "since": since, "corrupt": True}
            guard.answered({"node_warnings": {"node-1": bad}})
            guard.answered({"node_warnings": {"node-1": bad}})  # told again and again, acted upon once
            (taint,) = guard.corrupt_steps.report()
            assert (taint["node"], taint["clean"], taint["corrupt"]) == ("node-1", 5, True)
            if mode is CorruptionPolicy.REPORT:
                assert world.coordinator.job.state.generation == 1
                return
            await world.until_state("running", 2)
            assert {o.order.restore.epoch for n in world.nodes for o in n.orders if o.order.generation == 2} == {5}
            assert guard.corrupt_steps.report()[0]["corrupt"] is False
            world.commit_all(6, digest=3)
            assert (await world.until_event("recovery_completed"))["data"]["epoch"] == 5
            assert any(fence.exclude == (1,) for node in world.nodes for fence in node.fences)

    play(work())


# What inventories add up to


def inventory(
    node: str, slots: dict[int, tuple[int, ...]] | None = None, parity: tuple[ParityInfo, ...] = (), disk: Any = ()
) -> Inventory:
    return Inventory(
        node=node,
        slots=tuple(
            SlotInfo(rank=rank, epoch=epoch, generation=1, nbytes=1, verified=True)
            for rank, epochs in (slots or {}).items()
            for epoch in epochs
        ),
        parity=parity, disk=disk, rates=TransferRates(), degraded=(),
    )  # fmt: skip


def row(place: int, epoch: int, *, complete: bool = True) -> ParityInfo:
    return ParityInfo(epoch=epoch, ranks=(0, 1, 2), place=place, parity=1, nbytes=1, complete=complete)


def job(text: str = "xor") -> JobLayout:
    nodes = ("a", "b", "c")
    loss = dict.fromkeys(nodes, 0.1)
    return JobLayout(home=nodes, replicas=(), scheme=parse(text, 3), groups=((0, 1, 2),), loss=loss)


def test_parity_counts_once_all_members_have_it_whole() -> None:
    told = {n: inventory(n, {r: (4, 6)}, (row(r, 4), row(r, 6))) for r, n in enumerate("abc")}
    assert build_inventory(job(), told).protected == 6
    told["b"] = inventory("b", {1: (4, 6)}, (row(1, 4), row(1, 6, complete=False)))
    found = build_inventory(job(), told)
    assert (found.protected, found.newest) == (4, 6)
    assert found.holding is not None
    assert durability(found.holding).least == 2
    told["c"] = inventory("c", {2: (5, 6)}, (row(2, 4),))  # the slot that the rows cover is gone
    found = build_inventory(job(), told)
    assert found.protected is None
    assert found.holding is not None
    assert durability(found.holding).least == 1


def test_what_is_not_said_is_not_known() -> None:
    told = {"a": inventory("a", {0: (4,)}), "b": inventory("b")}
    found = build_inventory(job(), told)
    assert found.holding is None
    assert found.unknown == ("the agent of node c does not answer", "rank 1 has no verified snapshot yet")


def test_extra_copies_count_while_they_keep_up() -> None:
    told = {n: inventory(n, {r: (6, 7)}) for r, n in enumerate("abc")}
    told["b"] = inventory("b", {1: (6, 7), 0: (5, 6)})
    found = build_inventory(job(), told)
    assert found.holding is not None
    assert found.holding.extra == {0: frozenset("b")}
    told["b"] = inventory("b", {1: (6, 7), 0: (4, 5)})
    found = build_inventory(job(), told)
    assert found.holding is not None
    assert found.holding.extra == {}


def test_copies_of_a_scheme_and_parts_on_disk() -> None:
    slots = [{0: (4, 5), 2: (4,)}, {1: (4, 5), 0: (4,)}, {2: (4, 5), 1: (4,)}]
    part = [PartFile(rank=r, epoch=2, nbytes=1, generation=1) for r in range(3)]
    told = {n: inventory(n, slots[r], disk=(part[r],)) for r, n in enumerate("abc")}
    found = build_inventory(job("copies:2"), told)
    assert (found.protected, found.disk) == (4, 2)
    assert build_inventory(job("copies:2"), told | {"c": inventory("c", slots[2])}).disk is None


def test_the_newest_step_that_all_disks_give_together() -> None:
    def disk(*parts: tuple[int, int]) -> tuple[PartFile, ...]:
        return tuple(PartFile(rank=rank, epoch=epoch, nbytes=1, generation=1) for rank, epoch in parts)

    own = {n: inventory(n, disk=disk((r, 2), (r, 4), (r, 6))) for r, n in enumerate("abc")}
    found = build_inventory(job(), own)
    assert (found.common, found.reached) == ({2, 4, 6}, 6)
    own["b"] = inventory("b", disk=disk((1, 2), (1, 4), (1, 8)))
    found = build_inventory(job(), own)
    assert (found.common, found.reached) == ({2, 4}, 6)
    away = dataclasses.replace(job(), away={1: 0})
    assert build_inventory(away, own).common == {2, 4, 6}
    replicas = dataclasses.replace(job(), replicas=((0, 1, 2),))
    assert build_inventory(replicas, own).common == {2, 4}, "a replica has other random numbers"
    shared = {n: inventory(n, disk=disk((0, 2), (1, 2), (2, 2))) for n in "abc"}
    for inventories in (shared, {}):
        found = build_inventory(job(), inventories)
        assert (found.common, found.reached) == (frozenset(), NO_EPOCH)


def test_a_thousand_nodes_are_looked_at_in_no_more_than_their_slots_take() -> None:
    nodes = [f"n{i}" for i in range(1000)]
    told = {n: inventory(n, dict.fromkeys(range(8 * i, 8 * i + 8), (6, 7))) for i, n in enumerate(nodes)}
    home, loss = tuple(n for n in nodes for _ in range(8)), dict.fromkeys(nodes, 0.1)
    begun = time.process_time()
    found = build_inventory(JobLayout(home=home, replicas=(), scheme=parse("none", 3), groups=(), loss=loss), told)
    assert time.process_time() - begun < 1.0  # ranks times nodes take 2.4
    assert found.newest == 7
