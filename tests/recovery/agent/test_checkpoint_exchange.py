"""Replicas on several nodes restore from disk with one read between them.

Agents are of this process, with real arenas and sockets, where none dies and their reads need not be told apart.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib_agents import LocalAgent
from bench.lib_slots import read_slot
from bench.lib_source import ArraySource
from mainstay.recovery.agent.checkpoint_exchange import divide
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import CorruptError, RefusedError
from mainstay.recovery.agent.messages import Fetched, Group, GroupMember, LoadDisk
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.layout import Layout

RUN, EPOCH, NODES = "run-1", 7, 4
MIB = 1024 * 1024
TENSORS = 8


@cache
def state(rank: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shared = {f"param.{i}": random.integers(0, 256, (8, MIB // 16), np.uint8) for i in range(TENSORS)}
    return shared | {"buffer.mean": np.full(4096, rank, np.uint8), "rng.torch": np.full(64, rank + 1, np.uint8)}


@cache
def layout(rank: int = 0) -> Layout:
    return ArraySource(state(rank)).layout


@pytest.fixture(params=[0, 1], ids=["whole parts", "shares"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A step of four replicas."""
    config = DiskConfig(run=RUN, generation=1, every=1, dp=NODES, pp=1, tp=1, copies=request.param)
    target = save.WriteTarget(tmp_path, "job-1", config)
    save.begin_step(target)
    for rank in range(NODES):
        data = np.zeros(layout().nbytes, np.uint8)
        for name, view in layout().views(data).items():
            view[:] = state(rank)[name]
        save.write_image(target, (EPOCH, rank, 1), layout(), data, share=config.share(rank))
    assert save.commit(target, EPOCH) is not None
    return tmp_path


@dataclass
class Nodes:
    """One replica on each."""

    clients: list[AgentClient]
    group: Group
    disk: Path
    pool: ThreadPoolExecutor

    def load(self, rank: int, *, open_first: bool = False) -> Fetched:
        client = self.clients[rank]
        if not open_first:
            client.open_arena(rank, layout(rank))
        return client.load(self.request(rank, open_first=open_first))

    def request(self, rank: int, *, open_first: bool = False) -> LoadDisk:
        return LoadDisk(rank=rank, epoch=EPOCH, directory=str(self.disk), run=RUN, group=self.group, open=open_first)

    def submit(self, *ranks: int, open_first: bool = False) -> list[Future[Fetched]]:
        return [self.pool.submit(self.load, rank, open_first=open_first) for rank in ranks]

    def arena(self, rank: int) -> Arena:
        return Arena.attach(Path(self.clients[rank].open_arena(rank, layout(rank)).path))

    def holds(self, rank: int) -> bool:
        found = read_slot(self.arena(rank), EPOCH)
        return all(np.array_equal(found[name], value) for name, value in state(rank).items())


def read_bytes(pid: int | str = "self") -> int:
    """That the process has read from files."""
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.split("rchar: ")[1].split()[0])


@pytest.fixture
def nodes(disk: Path) -> Iterator[Nodes]:
    memory = Path(tempfile.mkdtemp(prefix="mainstay-test-", dir="/dev/shm"))
    agents = [LocalAgent(memory, f"node-{number}") for number in range(NODES)]
    group = tuple(GroupMember(node=f"node-{n}", endpoint=agent.endpoint, rank=n) for n, agent in enumerate(agents))
    with ThreadPoolExecutor(NODES) as pool:
        yield Nodes([agent.client for agent in agents], group, disk, pool)
    for agent in agents:
        agent.close()
    shutil.rmtree(memory)


def test_nodes_read_a_step_once_between_them(nodes: Nodes) -> None:
    before = read_bytes()
    loading = nodes.submit(*range(NODES))
    assert [future.result().nbytes for future in loading] == [layout().nbytes] * NODES
    assert TENSORS * MIB // 2 < read_bytes() - before <= 1.05 * layout().nbytes
    assert all(nodes.holds(rank) for rank in range(NODES))


@pytest.mark.parametrize("disk", [0], indirect=True)
@pytest.mark.parametrize("begun", [False, True], ids=["before it reads", "while it reads"])
def test_a_node_dies_and_the_others_read_its_part_from_disk(
    disk: Path, agents: Callable[..., Any], eventually: Callable[..., None], *, begun: bool
) -> None:
    made = [agents(f"node-{number}") for number in range(3)]
    group = tuple(agent.member(rank) for rank, agent in enumerate(made))
    mine = layout().nbytes / len(made)
    with ThreadPoolExecutor(3) as pool:
        nodes = Nodes([agent.client() for agent in made], group, disk, pool)
        before = [read_bytes(agent.process.pid) for agent in made]

        def read(rank: int) -> float:
            return (read_bytes(made[rank].process.pid) - before[rank]) / mine

        loading = nodes.submit(0, 1, 2) if begun else nodes.submit(0, 1)
        if begun:
            eventually(lambda: read(2) > 0.1)
        else:  # they have read their own parts, once, and wait
            eventually(lambda: min(read(0), read(1)) >= 0.7)
            assert max(read(0), read(1)) <= 1.4
            assert not any(future.done() for future in loading)
        made[2].kill()
        for rank in range(2):
            assert loading[rank].result().nbytes == layout().nbytes
            assert nodes.holds(rank)
            assert begun or 1.5 < read(rank) <= 2.5


def test_a_damaged_tensor_is_found_by_who_reads_it(nodes: Nodes) -> None:
    (owner,) = [rank for rank, part in enumerate(divide(layout().tensors, NODES)) if part[0].name == "param.2"]
    files = sorted((nodes.disk / RUN / f"step-{EPOCH:08d}").glob("__*.distcp"))
    for path in files:  # the tensor, where it is whole or a share
        raw = bytearray(path.read_bytes())
        at = raw.find(state(0)["param.2"].tobytes()[:4096])
        if at >= 0 and path.name.startswith((f"__{owner}_", "__1_")):
            raw[at] ^= 1
            path.write_bytes(bytes(raw))
    problems = [future.exception() for future in nodes.submit(*range(NODES))]
    assert isinstance(problems[owner], CorruptError)
    assert ".distcp" in str(problems[owner])
    assert all(nodes.holds(rank) for rank, problem in enumerate(problems) if problem is None)


def test_a_tensor_that_is_not_what_was_read_any_more_comes_from_disk(nodes: Nodes) -> None:
    for future in nodes.submit(*range(NODES)):
        future.result()
    arena = nodes.arena(0)
    slot = arena.slot_bytes(arena.find(EPOCH).slot)
    slot[:] ^= 1
    arena = nodes.arena(1)
    arena.invalidate(arena.find(EPOCH))
    nodes.load(1)
    assert nodes.holds(1)


def test_a_slot_that_was_read_before_its_rank_came_is_not_read_again(nodes: Nodes) -> None:
    for future in nodes.submit(*range(NODES), open_first=True):
        future.result()
    before = read_bytes()
    nodes.load(2)
    assert read_bytes() - before < MIB // 8
    assert nodes.holds(2)


def test_an_arena_that_was_made_in_vain_is_replaced(nodes: Nodes) -> None:
    for future in nodes.submit(*range(NODES), open_first=True):
        future.result()
    client = nodes.clients[0]
    client.open_arena(0, ArraySource({"param.0": np.zeros(100, np.uint8)}).layout)
    assert client.inventory().slots == ()
    with pytest.raises(RefusedError, match=r"uint8\[100\]|other tensors"):
        client.load(nodes.request(0))


def test_a_rank_that_came_first_is_not_written_into(nodes: Nodes) -> None:
    """Its prefetch is late: the rank has restored and saves steps, or has tensors of its own."""
    nodes = replace(nodes, group=())
    nodes.load(0)
    arena = nodes.arena(0)
    arena.invalidate(arena.find(EPOCH))  # as a step that is copied into the slot does
    client = nodes.clients[1]
    path = Path(client.open_arena(1, ArraySource({"param.0": np.zeros(100, np.uint8)}).layout).path)
    before = path.stat().st_ino
    for rank in (0, 1):
        with pytest.raises(RefusedError, match=r"came first|uint8\[100\]|other tensors"):
            nodes.load(rank, open_first=True)
    assert not any(record.committed for record in arena.records())
    assert path.stat().st_ino == before


def test_parts_have_about_equal_bytes_and_are_the_same_on_each_node() -> None:
    sizes = [5, 900, 40, 300, 300, 7, 0, 310]
    tensors = Layout.build({f"t{i}": ("uint8", (size,)) for i, size in enumerate(sizes)}).tensors
    parts = divide(tensors, 3)
    assert sorted(spec.name for part in parts for spec in part) == sorted(spec.name for spec in tensors)
    assert [sum(spec.nbytes for spec in part) for part in parts] == [905, 340, 617]
    assert divide(tensors, 3) == parts
