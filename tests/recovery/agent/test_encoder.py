"""What comes late, or changes while an epoch is published, leaves no member waiting. The test gives the order.

Agents serve on real sockets; the test calls each turn of their encoders, in place of a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainstay.recovery.agent.encoder import LATER, ParityEncoder
from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.agent.node import AgentSettings
from mainstay.recovery.agent.server import AgentServer, listen_tcp
from mainstay.recovery.agent.service import AgentService
from mainstay.recovery.agent.store import ArenaStoreState
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import Word

LAYOUT = Layout.build({"t": ("uint8", (5000,))})
TURNS = 4
"""Of all agents: to make, to see that all have made, and to ask the other groups; one to spare."""


class Node:
    """One rank, its agent, and its endpoint."""

    def __init__(self, rank: int, directory: Path) -> None:
        directory.mkdir()
        tls = job_tls("secret", "job-1", Authority.SNAPSHOTS)
        settings = AgentSettings(job="job-1", node=f"n{rank}", tls=tls, directory=directory, parity_every=2)
        self.service = AgentService(settings)
        self.service.store.open(rank, LAYOUT)
        self.rank, self.arena = rank, self.service.store.arena(rank)
        self.listener = listen_tcp("127.0.0.1:0")
        self.refusals = 0
        AgentServer(self.service).listen(self)
        host, port = self.listener.getsockname()
        self.member = GroupMember(node=f"n{rank}", endpoint=f"{host}:{port}", rank=rank)

    @property
    def encoder(self) -> ParityEncoder:
        return self.service._encoder

    # As a listening socket, which refuses the first callers

    def accept(self):
        while True:
            sock, source = self.listener.accept()
            if not self.refusals:
                return sock, source
            self.refusals -= 1
            sock.close()

    def fileno(self) -> int:
        return self.listener.fileno()

    @property
    def family(self) -> int:
        return self.listener.family

    # What happens to it

    def commit(self, epoch: int, value: int = 1) -> None:
        slot = self.arena.choose().slot
        self.arena.begin_write(slot, 1)[:] = value + self.rank
        self.arena.commit(slot, epoch, 1)

    def configure(self, *groups: tuple[Node, ...], generation: int = 1) -> None:
        members = tuple(tuple(node.member for node in group) for group in groups)
        self.encoder.configure(members, 2, "xor", generation)

    def go_back(self, epoch: int) -> None:
        self.service.store.discard_after(epoch)
        self.service.rows.discard_after(epoch)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    made = [Node(rank, tmp_path / f"n{rank}") for rank in range(4)]
    yield made
    for node in made:
        node.listener.close()


def protected(nodes: list[Node], epoch: int) -> bool:
    """Whether ``epoch`` is protected everywhere, within a few turns of all."""
    for _ in range(TURNS):
        for node in nodes:
            node.encoder.run_once()
    return all(node.arena.word(Word.PARITY_EPOCH) == epoch for node in nodes)


def test_an_epoch_that_is_older_than_the_groups_is_protected_once_the_last_agent_knows_them(nodes: list[Node]) -> None:
    for node in nodes:
        node.commit(2)
    for node in nodes:
        assert not protected(nodes, 2)
        node.configure(tuple(nodes))
    assert protected(nodes, 2)


def test_a_member_that_refuses_connections_for_a_while_is_asked_again(nodes: list[Node]) -> None:
    for node in nodes:
        node.configure(tuple(nodes))
        node.commit(2)
    nodes[2].refusals = 3  # of the three others
    for node in (nodes[0], nodes[1], nodes[3]):
        node.encoder.run_once()
    assert nodes[2].refusals == 0
    assert protected(nodes, 2)


def test_a_member_that_is_away_for_long_is_asked_at_a_steady_rate(nodes: list[Node]) -> None:
    for node in nodes[:2]:
        node.configure(tuple(nodes[:2]))
        node.commit(2)
    nodes[1].listener.close()
    assert {nodes[0].encoder.run_once() for _ in range(2000)} >= {LATER}
    assert nodes[0].encoder.run_once() == LATER


def test_a_fence_that_comes_while_groups_are_saved_stays(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    store = nodes[0].service.store
    save, fence = store.save, threading.Thread(target=store.fence, args=(7,))

    def save_beside(config: ArenaStoreState) -> None:
        if not config.fence:
            fence.start()
            fence.join(0.5)  # it may have to wait for this
        save(config)

    monkeypatch.setattr(store, "save", save_beside)
    nodes[0].configure(tuple(nodes))
    fence.join()
    assert (store.config.fence, len(store.config.groups)) == (7, 1)


def regroup(nodes: list[Node]) -> None:
    for node in nodes:
        node.configure(tuple(nodes[:2]), tuple(nodes[2:]), generation=2)


def go_back(nodes: list[Node]) -> None:
    for node in nodes:
        node.go_back(1)
        node.commit(2, value=100)


@pytest.mark.parametrize("change", [regroup, go_back])
@pytest.mark.parametrize("give_up", [False, True])
def test_what_changes_while_an_epoch_is_settled_is_settled_again(
    nodes: list[Node], change: Callable[[list[Node]], None], give_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settled for good under the groups, or the future, of before, one member would leave the others waiting."""
    for node in nodes:
        node.configure(tuple(nodes))
        node.commit(2)
    for node in nodes:
        node.encoder.run_once()
    last = nodes[0].encoder
    asked = last._other_groups

    def meanwhile(task: object) -> tuple[bool, bool]:
        given_up, complete = asked(task)
        change(nodes)
        return given_up or give_up, complete

    with monkeypatch.context() as patch:
        patch.setattr(last, "_other_groups", meanwhile)
        last.run_once()
    assert protected(nodes, 2)
    size = 2 if change is regroup else 4
    assert {len(key.ranks) for node in nodes for key, _ in node.service.rows.all()} == {size}
