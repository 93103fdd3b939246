"""Nodes with disks of their own: which step they give together, and from where each rank has its part."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainstay.recovery.agent.checkpoint_parity import PARTS_LISTED, RUNS_LISTED, STEPS_LISTED, list_runs
from mainstay.recovery.agent.errors import NoSuchSlotError
from mainstay.recovery.agent.messages import GroupMember, Rebuild
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.peer_messages import Head, RowState
from mainstay.recovery.agent.rebuild import MemberHolding, plan_decode
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile, RunOnDisk
from mainstay.recovery.checkpoint.manifest import (
    CheckpointPart,
    RunInfo,
    TensorEntry,
    data_name,
    part_name,
    run_name,
    step_name,
    write_checked,
)
from mainstay.recovery.controller.checkpoint_holders import CheckpointHolders, NodeFiles, newest_on_nodes
from mainstay.recovery.options import RunOptions
from mainstay.recovery.recovery_plan import RestoreSource
from tests.recovery.launcher.earlier_run import EARLIER, earlier_step

INFO = RunInfo(run=EARLIER, job="job", generation=3, dp=2, pp=2, tp=1)


def part(rank: int, epoch: int = 40, generation: int = 3) -> PartFile:
    return PartFile(rank, epoch, 100, generation)


def parity(rank: int, ranks: tuple[int, ...] = (0, 1, 2, 3), rows: int = 1, epoch: int = 40) -> ParityFile:
    return ParityFile(rank, epoch, ranks, rows)


def member(name: str, *found: RunOnDisk) -> Any:
    return SimpleNamespace(name=name, endpoint=f"{name}:1", hello=SimpleNamespace(runs=found))


def disks(*lost: int, rows: int = 1) -> CheckpointHolders:
    """Of four nodes of one rank each."""
    return CheckpointHolders(
        NodeFiles(member(f"n{rank}"), [part(rank)], [parity(rank, rows=rows)]) for rank in range(4) if rank not in lost
    )


def test_a_lost_part_is_decoded_by_its_group_or_taken_from_another_disk() -> None:
    found = disks(1).find(1, 40, "n4")
    assert [(one.rank, one.node, one.endpoint) for one in found] == [
        (0, "n0", "n0:1"), (1, "", ""), (2, "n2", "n2:1"), (3, "n3", "n3:1"),
    ]  # fmt: skip
    assert disks(1, 2).find(1, 40, "n4") == ()
    assert len(disks(1, 2, rows=2).find(1, 40, "n4")) == 4
    assert disks(1, 2, 3, rows=2).find(1, 40, "n4") == ()
    assert [(one.rank, one.node) for one in disks().find(1, 40, "n4")] == [(1, "n1")]
    own = disks()
    assert own.has(1, 40, "n1")
    assert len(own.find(1, 40, "n1")) == 4, "if its own part is damaged"
    assert disks(0).find(1, 40, "n1") == ()
    assert own.find(1, 35, "n1") == ()


@pytest.mark.parametrize(("members", "rows"), [(3, 1), (3, 2), (4, 1), (4, 2), (4, 3)])
def test_what_is_said_to_be_enough_is_what_agents_can_decode(members: int, rows: int) -> None:
    """Every combination of parts and rows that are left."""
    geometry = Geometry(members, rows)
    group = tuple(GroupMember(node="", endpoint="", rank=rank) for rank in range(members))
    others, order = range(1, members), Rebuild(rank=0, epoch=40, group=group)
    head, nothing = (
        Head(present=True, newest=40, slot_nbytes=1, digest=7),
        Head(present=False, newest=-1, slot_nbytes=0, digest=0),
    )
    row, none = RowState(present=True, digests=(7,) * members, parity=rows), RowState(present=False, digests=())
    sets = [set(chosen) for size in range(members) for chosen in combinations(others, size)]
    for parts, kept in product(sets, sets):
        held = {p: MemberHolding(head if p in parts else nothing, row if p in kept else none) for p in others}
        try:
            enough = bool(plan_decode(order, held))
        except NoSuchSlotError:
            enough = False
        assert geometry.covers(0, parts, kept) == enough, (parts, kept)


def on_disk(*ranks: int, info: RunInfo = INFO, epochs: tuple[int, ...] = (40,), rows: bool = True) -> RunOnDisk:
    files = [part(rank, epoch) for epoch in epochs for rank in ranks]
    return RunOnDisk(info, tuple(files), tuple(parity(p.rank, epoch=p.epoch) for p in files if rows))


def test_the_newest_step_that_is_enough_is_taken() -> None:
    whole = [member(f"n{rank}", on_disk(rank, epochs=(35, 40))) for rank in range(3)]
    found = newest_on_nodes([*whole, member("n3")], None)
    assert not isinstance(found, str)
    assert (found.age, [p.rank for p in found.manifest.parts]) == ((EARLIER, 40), [0, 1, 2, 3])
    found = newest_on_nodes([*whole[:2], member("n2", on_disk(2, epochs=(35,))), member("n3")], EARLIER)
    assert not isinstance(found, str)
    assert found.age == (EARLIER, 35)
    assert newest_on_nodes(whole[:2], None) == f"step 40 of run {EARLIER} lacks ranks [2, 3], and no parity has them"
    assert newest_on_nodes(whole, "another") == "the disks of the nodes have no step together either"
    assert newest_on_nodes([], None) == "the disks of the nodes have no step together either"


def test_what_the_run_went_back_from_does_not_count_whichever_node_knows_of_it() -> None:
    back = RunInfo(run=EARLIER, job="job", generation=5, dp=2, pp=2, tp=1, returns=((35, 5),))
    nodes = [member(f"n{rank}", on_disk(rank, epochs=(35, 40), rows=False)) for rank in range(3)]
    found = newest_on_nodes([*nodes, member("n3", on_disk(3, info=back, epochs=(35, 40), rows=False))], None)
    assert not isinstance(found, str)
    assert (found.age, found.info.generation) == ((EARLIER, 35), 5)


def test_equal_replicas_stand_for_one_another() -> None:
    equal = RunInfo(run=EARLIER, job="job", generation=3, dp=2, pp=2, tp=1, replicated=True)
    found = newest_on_nodes([member("n0", on_disk(0, 1, info=equal, rows=False)), member("n1")], None)
    assert not isinstance(found, str)
    members: Any = SimpleNamespace(
        alive=lambda: [member("n0", on_disk(0, 1, info=equal, rows=False)), member("n1")],
        ranks=[SimpleNamespace(node=f"n{rank // 2}") for rank in range(4)],
    )
    assert found.part_of(0, members) == (0, ())
    of, holders = found.part_of(2, members) or (None, ())
    assert (of, [(one.node, one.rank) for one in holders]) == (0, [("n0", 0)])
    members.alive = lambda: [member("n1")]
    assert found.part_of(2, members) is None


def write_part(run: Path, epoch: int, rank: int, **more: Any) -> None:
    step = run / step_name(epoch)
    step.mkdir(parents=True, exist_ok=True)
    entry = TensorEntry("t", "uint8", (1,), 0, 1, 0, 0, 1)
    content = CheckpointPart(
        run=run.name, job="job", rank=rank, epoch=epoch, generation=3, dp=2, pp=2, tp=1, file=data_name(rank, 3),
        nbytes=1, layout_digest=0, seconds=0.0, tensors=(entry,), described=entry, **more,
    )  # fmt: skip
    write_checked(step / part_name(rank, 3), content)
    (step / data_name(rank, 3)).write_bytes(b"1")


def test_launchers_list_only_what_a_disk_of_their_own_would_have(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none", None) == ()
    earlier_step(tmp_path, 40)
    assert list_runs(tmp_path, None) == (), "the step is complete here"
    run = tmp_path / EARLIER
    epochs = range(41, 41 + STEPS_LISTED + 1)
    for epoch in epochs:
        write_part(run, epoch, 1)
    (listed,) = list_runs(tmp_path, None)
    assert [found.epoch for found in listed.parts] == [*reversed(epochs)][:STEPS_LISTED]
    assert list_runs(tmp_path, "another") == ()
    assert list_runs(tmp_path, EARLIER) == (listed,)
    write_part(run, epochs[-1] + 1, 1, share=(0, 2))
    for rank in range(PARTS_LISTED + 1):
        write_part(run, epochs[-1] + 2, rank)
    (listed,) = list_runs(tmp_path, None)
    assert [found.epoch for found in listed.parts] == [*reversed(epochs)][: STEPS_LISTED - 2], (
        "shares, and what nodes share, are left out"
    )
    for number in range(2, 2 + RUNS_LISTED):
        newer = tmp_path / f"{EARLIER[:-1]}{number}"
        write_part(newer, 5, 1)
        write_checked(newer / run_name(3), RunInfo(run=newer.name, job="job", generation=3, dp=2, pp=2, tp=1))
    assert [found.info.run for found in list_runs(tmp_path, None)][::7] == [newer.name, f"{EARLIER[:-1]}2"]
    assert list_runs(tmp_path, EARLIER) == (listed,)


@pytest.fixture
def disk(options: RunOptions, tmp_path: Path) -> RunOptions:
    directory = tmp_path / "checkpoints"
    return dataclasses.replace(options, disk_every=5, checkpoint_dir=directory, checkpoint_parity=True, resume="latest")


@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_ranks_begin_with_what_the_disks_of_all_nodes_give(
    new_world: Any, disk: RunOptions, play: Callable[..., None], *, shares: bool
) -> None:
    """Node 0 has lost its disk with ranks 0 and 1; groups are of one rank a node."""

    async def scenario() -> None:
        world = new_world(dataclasses.replace(disk, shard_snapshots=shares))
        await world.start()
        try:
            rows = (parity(2, (0, 2)), parity(3, (1, 3)))
            await world.connect(0)
            await world.connect(1, runs=(RunOnDisk(INFO, (part(2), part(3)), rows),))
            await world.until(lambda: world.coordinator.job.state.phase == "running")
            orders = {o.rank: o.order.restore for node in world.nodes for o in node.orders}
            assert {rank: (o.epoch, o.run, o.part) for rank, o in orders.items()} == dict.fromkeys(
                range(4), (40, EARLIER, 0)
            )
            held = {rank: [(one.rank, one.node) for one in o.holders] for rank, o in orders.items()}
            replicas = {rank: [peer for peer in INFO.shape.dp_peers(rank) if peer != rank] for rank in range(4)}
            asked = {rank: [shard.rank for shard in o.shards] for rank, o in orders.items()}
            assert asked == (replicas if shares else {rank: [] for rank in range(4)})
            assert held == {0: [(0, ""), (2, "node-1")], 1: [(1, ""), (3, "node-1")], 2: [], 3: []}
            await world.until(lambda: all(node.runs for node in world.nodes))
            assert {config.resumed for node in world.nodes for config in node.runs} == {(EARLIER, 40)}
        finally:
            await world.close()

    play(scenario())


def test_a_job_that_cuts_its_state_otherwise_learns_what_to_do(
    new_world: Any, disk: RunOptions, play: Callable[..., None]
) -> None:

    async def scenario() -> None:
        world = new_world(disk)
        await world.start()
        try:
            for number in range(2):
                found = RunOnDisk(INFO, (part(2 * number), part(2 * number + 1)), ())
                (await world.connect(number, runs=(found,))).broken = {RestoreSource.DISK}
            await world.until(lambda: world.nodes[0].stopped)
            words = f"the bytes are gone; .* 'mainstay checkpoint rebuild ALL --run {EARLIER} --step 40', then"
            assert re.search(words, world.nodes[0].stopped.reason), world.nodes[0].stopped.reason
        finally:
            await world.close()

    play(scenario())


@pytest.mark.parametrize("case", [(range(4), 2, 45), (range(2), 2, 40), (range(4), 1, 40)])
def test_a_complete_step_gives_way_only_to_a_newer_one_of_the_same_shape_with_all_parts(
    new_world: Any, disk: RunOptions, play: Callable[..., None], case: tuple[range, int, int]
) -> None:
    assert disk.checkpoint_dir is not None
    earlier_step(disk.checkpoint_dir, 40)
    ranks, dp, epoch = case
    equal = RunInfo(run=EARLIER, job="job", generation=3, dp=dp, pp=4 // dp, tp=1, replicated=True)

    async def scenario() -> None:
        world = new_world(disk)
        await world.start()
        try:
            await world.connect(0)
            await world.connect(1, runs=(RunOnDisk(equal, tuple(part(rank, 45) for rank in ranks), ()),))
            await world.until(lambda: world.coordinator.job.state.phase == "running")
            assert world.coordinator.job.begun_at == epoch
        finally:
            await world.close()

    play(scenario())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (RunOnDisk(INFO, (part(2),), ()), "is not a directory; step 40 of run .* lacks ranks .0, 1, 3., and no parity"),
        (
            RunOnDisk(RunInfo(run=EARLIER, job="job", generation=3, dp=1, pp=4, tp=1), tuple(map(part, range(4))), ()),
            rf"'cp -r \S+/checkpoints/{EARLIER} ALL' on each node, .* rebuild ALL --run {EARLIER} --step 40'",
        ),
    ],
    ids=["too little", "another shape"],
)
def test_what_disks_do_not_give_is_one_clear_line(
    new_world: Any, disk: RunOptions, play: Callable[..., None], found: RunOnDisk, words: str
) -> None:

    async def scenario() -> None:
        world = new_world(disk)
        await world.start()
        try:
            await world.connect(0)
            await world.connect(1, runs=(found,))
            await world.until(lambda: world.nodes[0].stopped)
            assert re.search(words, world.nodes[0].stopped.reason), world.nodes[0].stopped.reason
        finally:
            await world.close()

    play(scenario())
