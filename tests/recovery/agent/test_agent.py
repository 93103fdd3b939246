"""One agent and its ranks: arenas, inventory, restart, fences, memory that is too small."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from bench.lib_slots import read_slot
from mainstay.recovery.agent.errors import (
    AgentGoneError,
    NoMemoryError,
    NoSuchSlotError,
    RefusedError,
    StaleGenerationError,
)
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.errors import FencedError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotState

pytestmark = pytest.mark.processes


def _same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_slots_are_verified_and_listed(agents, ranks, contents, eventually):
    agent = agents()
    rank = ranks(3, agent)
    rank.step(1)
    rank.step(2)
    inventory = agent.client().inventory()
    assert [(s.rank, s.epoch, s.generation, s.verified) for s in inventory.slots] == [(3, 1, 1, True), (3, 2, 1, True)]
    assert inventory.node == "node-0"
    assert inventory.degraded == ()
    _same(read_slot(rank.arena, 2), contents(3, 2, rank.sizes))
    rank.step(3)
    eventually(lambda: rank.arena.find(3).state is SlotState.VERIFIED)  # without being asked


def test_an_agent_that_is_killed_finds_its_arenas_again(agents, ranks, contents):
    agent = agents()
    rank = ranks(0, agent)
    rank.step(1)
    agent.client().fence(2)
    rank.generation = 2
    rank.step(2)
    agent.kill()
    rank.step(3)  # training does not notice
    agent.start()
    inventory = agent.client(2).inventory()
    assert [(s.epoch, s.verified) for s in inventory.slots] == [(2, True), (3, True)]
    again = agent.client(2).open_arena(0, rank.layout)
    assert again == rank.info
    _same(read_slot(Arena.attach(Path(again.path)), 3), contents(0, 3, rank.sizes))
    with pytest.raises(StaleGenerationError):  # the fence was not forgotten
        agent.client(1).inventory()
    rank.step(4)
    rank.client.generation = 2
    assert {s.epoch for s in rank.client.inventory().slots} == {3, 4}


def test_a_client_outlives_its_agent(agents, ranks):
    agent = agents()
    rank = ranks(0, agent)
    rank.client.inventory()
    agent.kill()
    with pytest.raises(AgentGoneError, match="no agent answers"):
        rank.client.inventory()
    rank.client.committed(0, 1, 1, 0)  # one-way: never fatal
    agent.start()
    rank.client.inventory()


def test_a_fence_stops_old_generations_on_the_wire_and_in_memory(agents, ranks):
    agent = agents()
    rank = ranks(0, agent)
    rank.step(1)
    old, new = agent.client(1), agent.client(1)
    old.inventory()
    new.fence(5)
    assert new.generation == 5
    new.inventory()
    with pytest.raises(StaleGenerationError, match="generation 1"):
        old.inventory()
    with pytest.raises(StaleGenerationError):
        agent.client(4).inventory()
    with pytest.raises(FencedError, match="generation 1"):
        rank.writer.start(2, 1)
    assert rank.arena.newest().epoch == 1
    rank.generation = 5
    rank.step(2)
    new.fence(3)  # never back
    with pytest.raises(StaleGenerationError):
        agent.client(4).inventory()


def test_another_layout_replaces_the_arena(agents, ranks):
    agent = agents()
    ranks(0, agent).step(1)
    other = ranks(0, agent, sizes=(10,))
    assert agent.client().inventory().slots == ()
    other.step(7)
    assert [s.epoch for s in agent.client().inventory().slots] == [7]


def test_memory_that_is_too_small_is_refused_in_bytes(agents):
    agent = agents()
    huge = Layout.build({"weights": ("float32", (1 << 44,))})
    with pytest.raises(NoMemoryError, match=rf"{2 * huge.nbytes + 8192} bytes"):
        agent.client().open_arena(0, huge)
    agent.client().inventory()
    assert not list(agent.directory.glob("*.arena"))
    assert not list(agent.directory.glob(".*"))


def test_bad_requests_are_refused_in_words(agents):
    agent = agents()
    client = agent.client()
    with pytest.raises(NoSuchSlotError, match="rank 9"):
        client.fetch(9, 1, 0, "127.0.0.1:1")
    with pytest.raises(RefusedError, match="rank -1"):
        client.open_arena(-1, Layout.build({"a": ("uint8", (1,))}))
    client.open_arena(0, Layout.build({"a": ("uint8", (1,))}))
    with pytest.raises(RefusedError, match="not host:port"):
        client.fetch(0, 1, 0, "nowhere")
    with pytest.raises(RefusedError, match="cannot be decoded: of its group"):
        client.rebuild(0, 1, (agent.member(0),))
    with pytest.raises(RefusedError, match="twice"):
        client.configure_parity(((agent.member(0), agent.member(0)),), 2)


def test_drop_removes_every_arena(agents, ranks):
    agent = agents()
    ranks(0, agent).step(1)
    agent.client().drop()
    assert not list(agent.directory.glob("*.arena"))
    assert agent.client().inventory().slots == ()


def test_a_damaged_arena_is_reported_and_replaced(agents, ranks):
    agent = agents()
    rank = ranks(0, agent)
    rank.step(1)
    agent.kill()
    with Path(rank.info.path).open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    agent.start()
    inventory = agent.client().inventory()
    assert inventory.slots == ()
    assert "rank 0" in inventory.degraded[0]
    assert "checksum" in inventory.degraded[0]
    ranks(0, agent).step(2)
    assert agent.client().inventory().degraded == ()


def test_only_one_agent_serves_a_node(agents):
    agent = agents()
    with pytest.raises(AssertionError, match="another agent serves"):
        agents("node-0")
    agent.client().inventory()


def test_an_agent_ends_on_request_and_keeps_the_files(agents, ranks):
    agent = agents()
    ranks(0, agent).step(1)
    process = agent.process
    words = agent.kill(signal.SIGTERM)
    assert process.returncode == 0, words
    assert not agent.socket.exists()
    assert (agent.directory / "rank-0.arena").exists()


def test_an_agent_ends_when_its_owner_is_gone(agents, eventually):
    child = os.fork()
    if child == 0:
        signal.pause()
    agent = agents("node-0", "--owner-pid", str(child))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    eventually(lambda: agent.process.poll() is not None)
    assert agent.process.returncode == 0


def test_files_of_dead_jobs_are_collected(agents, ranks):
    agent = agents()
    ranks(0, agent).step(1)
    directory = agent.directory
    agent.kill()
    owner = directory / "owner.json"
    other = agents("node-1")
    assert directory.exists()  # its owner, this test, lives
    text = owner.read_text()
    owner.write_text(text.replace(f'"pid":{os.getpid()}', '"pid":4194305'))
    other.kill()
    other.start()
    assert directory.exists()  # dead, but its owner may come back for it soon
    os.utime(owner, (1, 1))
    other.kill()
    other.start()
    assert not directory.exists()
