"""Replicas restore in another shape than the step has: agents put slots together, with one read between them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.lib_agents import LocalAgent
from bench.lib_cut_step import CutStep
from bench.lib_slots import read_slot
from mainstay.recovery.agent import checkpoint_exchange
from mainstay.recovery.agent.errors import CorruptError
from mainstay.recovery.agent.messages import Fetched, Group, GroupMember, LoadDisk
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.global_slices import GlobalSlice
from tests.recovery.agent.test_checkpoint_exchange import read_bytes

MIB = 1024 * 1024
NODES = 4


@pytest.fixture
def step(tmp_path: Path) -> CutStep:
    random = np.random.default_rng(0)
    tensors = {f"param.{i}": random.integers(0, 256, (8, MIB // 16), np.uint8) for i in range(8)}
    made = CutStep(tmp_path, "run-1", 7, tensors)
    made.write()
    return made


@pytest.fixture
def nodes() -> Iterator[list[LocalAgent]]:
    memory = Path(tempfile.mkdtemp(prefix="mainstay-test-", dir="/dev/shm"))
    agents = [LocalAgent(memory, f"node-{number}") for number in range(NODES)]
    yield agents
    for agent in agents:
        agent.close()
    shutil.rmtree(memory)


def group_of(nodes: list[LocalAgent]) -> Group:
    return tuple(GroupMember(node=f"node-{n}", endpoint=agent.endpoint, rank=n) for n, agent in enumerate(nodes))


def load(nodes: list[LocalAgent], step: CutStep, orders: list[LoadDisk]) -> list[Fetched]:
    """One replica on each node."""
    for order, node in zip(orders, nodes, strict=True):
        node.client.open_arena(order.rank, step.layout)
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda order, node: node.client.load(order), orders, nodes))


def holds(node: LocalAgent, step: CutStep, rank: int) -> bool:
    return step.same(read_slot(Arena.attach(Path(node.client.open_arena(rank, step.layout).path)), step.epoch))


def test_nodes_read_a_step_of_another_shape_once_between_them(nodes: list[LocalAgent], step: CutStep) -> None:
    orders = [step.order(rank, group_of(nodes)) for rank in range(NODES)]
    before = read_bytes()
    load(nodes, step, orders)
    assert read_bytes() - before <= 1.05 * step.layout.nbytes
    assert all(holds(node, step, rank) for rank, node in enumerate(nodes))


def test_replicas_on_one_node_read_a_step_of_another_shape_once(nodes: list[LocalAgent], step: CutStep) -> None:
    before = read_bytes()
    for rank in range(NODES):
        load(nodes[:1], step, [step.order(rank)])
    assert read_bytes() - before <= 1.05 * step.layout.nbytes
    assert all(holds(nodes[0], step, rank) for rank in range(NODES))


def test_a_copy_of_a_damaged_slot_is_noticed_and_read_from_disk(nodes: list[LocalAgent], step: CutStep) -> None:
    load(nodes[:1], step, [step.order(0)])
    arena = nodes[0].service.store.arena(0)
    arena.slot_bytes(arena.find(step.epoch).slot)[MIB] ^= 1
    load(nodes[:1], step, [step.order(1)])
    assert holds(nodes[0], step, 1)


def test_ranks_that_need_other_boxes_take_nothing_from_each_other(nodes: list[LocalAgent], step: CutStep) -> None:
    """As with FSDP2: each holds other rows, of the same sizes and out of the same pieces."""
    cut = CutStep(step.directory, step.run, step.epoch, {name: np.split(t, 4)[0] for name, t in step.tensors.items()})
    orders = []
    for rank, order in enumerate(step.order(rank, group_of(nodes)) for rank in range(NODES)):
        slices = {name: GlobalSlice(tensor.shape, (2 * rank, 0)) for name, tensor in step.tensors.items()}
        assert order.gather is not None
        orders.append(msgspec.structs.replace(order, gather=msgspec.structs.replace(order.gather, slices=slices)))
    load(nodes, cut, orders)
    for rank, node in enumerate(nodes):
        arena = Arena.attach(Path(node.client.open_arena(rank, cut.layout).path))
        found = read_slot(arena, step.epoch)
        assert all(
            np.array_equal(found[name], tensor[2 * rank : 2 * rank + 2]) for name, tensor in step.tensors.items()
        )


def test_ranks_that_divide_unlike_do_not_wait_for_each_other(
    nodes: list[LocalAgent], step: CutStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As experts do: other tensors beside those that all have."""
    monkeypatch.setattr(checkpoint_exchange, "PATIENCE_SECONDS", 1e6)
    tensors = list(step.tensors.items())
    steps = [CutStep(step.directory, step.run, step.epoch, dict(some)) for some in (tensors, tensors[::-1])]
    pool = ThreadPoolExecutor(2)
    for rank, one in enumerate(steps):
        nodes[rank].client.open_arena(rank, one.layout)
    loading = [
        pool.submit(nodes[rank].client.load, one.order(rank, group_of(nodes[:2]))) for rank, one in enumerate(steps)
    ]
    pool.shutdown(wait=False)
    for future in loading:
        future.result(60.0)
    assert all(holds(nodes[rank], one, rank) for rank, one in enumerate(steps))


def test_a_piece_that_is_damaged_is_said(nodes: list[LocalAgent], step: CutStep) -> None:
    path = next((step.directory / step.run).rglob("__1_1.distcp"))
    raw = bytearray(path.read_bytes())
    raw[raw.find(step.tensors["param.3"][4:].tobytes()[:4096])] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(CorruptError, match=r"__1_1.distcp: tensor 'param.3' has digest"):
        load(nodes[:1], step, [step.order(0)])
