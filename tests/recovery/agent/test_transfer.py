"""Bytes between nodes: peer copy, and the rebuild of whichever node is lost."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest

from bench.lib_slots import read_slot
from mainstay.recovery.agent.errors import AgentError, CorruptError, NoSuchSlotError, PeerError, RefusedError, TornError
from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import Word

pytestmark = pytest.mark.processes


def _check(arena: Arena, epoch: int, expected) -> None:
    found = read_slot(arena, epoch)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def test_a_slot_is_fetched_bit_equal(agents, ranks, contents):
    a, b = agents("a"), agents("b")
    source, target = ranks(0, a, sizes=(3_000_001, 5)), ranks(2, b, sizes=(3_000_001, 5))
    source.step(4)
    source.step(5)
    done = b.client().fetch(2, 5, 0, a.endpoint)
    assert done.nbytes == target.layout.nbytes
    assert done.seconds > 0
    _check(target.arena, 5, contents(0, 5, source.sizes))
    assert target.arena.find(5).digest == done.digest == source.arena.find(5).digest
    assert b.client().inventory().rates.net > 0
    target.step(6)  # and it continues from there
    assert {s.epoch for s in b.client().inventory().slots} == {5, 6}


def test_an_arena_is_made_first_but_not_in_place_of_one_that_a_rank_has_come_to(agents, ranks, contents):
    a, b = agents("a"), agents("b")
    source, other = ranks(0, a, sizes=(5000,)), ranks(0, b, sizes=(70,))
    source.step(5)
    other.step(3)
    with pytest.raises(RefusedError, match="other tensors"):  # of this generation
        b.client().fetch(0, 5, 0, a.endpoint, open_first=True)
    _check(other.arena, 3, contents(0, 3, other.sizes))
    assert {slot.epoch for slot in b.client().inventory().slots} == {3}
    b.client(generation=2).fetch(0, 5, 0, a.endpoint, open_first=True)  # left behind, before the job moved on
    assert {slot.epoch for slot in b.client().inventory().slots} == {5}


def test_what_cannot_be_fetched_is_refused_and_what_was_there_stays(agents, ranks):
    a, b = agents("a"), agents("b")
    source, target = ranks(0, a), ranks(2, b)
    source.step(5)
    target.step(1)
    client = b.client()
    with pytest.raises(NoSuchSlotError, match=r"epoch 4.*\[5\]"):
        client.fetch(2, 4, 0, a.endpoint)
    with pytest.raises(NoSuchSlotError, match="rank 7"):
        client.fetch(2, 5, 7, a.endpoint)
    ranks(3, b, sizes=(5,))
    with pytest.raises(RefusedError, match="other tensors"):
        client.fetch(3, 5, 0, a.endpoint)
    a.kill()
    with pytest.raises(PeerError, match="no agent answers"):
        client.fetch(2, 5, 0, a.endpoint)
    assert target.arena.newest().epoch == 1


def test_a_slot_that_was_damaged_is_never_passed_on(agents, ranks):
    a, b = agents("a"), agents("b")
    source, target = ranks(0, a), ranks(2, b)
    source.step(5)
    a.client().inventory()  # verified
    source.arena.slot_bytes(source.arena.find(5).slot)[1234] ^= 1
    with pytest.raises(CorruptError, match="digest"):
        b.client().fetch(2, 5, 0, a.endpoint)
    assert target.arena.newest() is None


def test_a_slot_that_is_overwritten_while_it_is_sent_is_not_accepted(agents, ranks):
    """The source continues training without a pin; the result must be a whole epoch or an error."""
    a, b = agents("a"), agents("b")
    source, target = ranks(0, a, sizes=(2_000_000,)), ranks(2, b, sizes=(2_000_000,))
    source.step(1)
    ended = threading.Event()

    def train() -> None:
        epoch = 1
        while not ended.is_set():
            epoch += 1
            source.arrays["t0"][:] = epoch % 256
            source.writer.start(epoch, 1)
            source.writer.wait()

    trainer = threading.Thread(target=train)
    trainer.start()
    client = b.client()
    accepted = refused = 0
    try:
        while accepted < 5 and refused < 200:
            epoch = source.arena.newest().epoch
            try:
                client.fetch(2, epoch, 0, a.endpoint)
            except (TornError, NoSuchSlotError, CorruptError):
                refused += 1
            else:
                accepted += 1
                assert (read_slot(target.arena, epoch)["t0"] == (epoch % 256 if epoch > 1 else 0)).all() or epoch == 1
    finally:
        ended.set()
        trainer.join()
    assert accepted + refused


def _groups(nodes, ranks_of) -> tuple[tuple[GroupMember, ...], ...]:
    """Ranks at the same place of their nodes protect one another."""
    return tuple(
        tuple(node.member(rank) for node, rank in zip(nodes, ranks, strict=True))
        for ranks in zip(*ranks_of, strict=True)
    )


def _protected(made, epoch: int) -> bool:
    return all(rank.arena.word(Word.PARITY_EPOCH) == epoch for rank in made)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=SLOW), pytest.param(4, marks=SLOW)])
def test_any_lost_node_is_rebuilt_bit_equal(agents, ranks, contents, eventually, count):
    """Two ranks a node, of different sizes; each node in turn dies with its memory and is rebuilt on another."""
    nodes = [agents(f"n{i}", "--parity-interval", "2") for i in range(count)]
    ranks_of = [(i, count + i) for i in range(count)]
    sizes = {r: (40_000 + 1000 * (r % count), 3, 64 * r) for group in ranks_of for r in group}
    made = {r: ranks(r, nodes[i], sizes=sizes[r]) for i, own in enumerate(ranks_of) for r in own}
    for node in nodes:
        node.client().configure_parity(_groups(nodes, ranks_of), 2)
    epoch = 0
    for victim in range(count):
        for _ in range(3):
            epoch += 1
            for rank in made.values():
                rank.step(epoch)
        protected = epoch - epoch % 2
        eventually(lambda wanted=protected: _protected(made.values(), wanted))
        nodes[victim].lose()
        nodes[victim].start()
        client = nodes[victim].client()
        for place, r in enumerate(ranks_of[victim]):
            made[r] = ranks(r, nodes[victim], sizes=sizes[r])
            done = client.rebuild(r, protected, _groups(nodes, ranks_of)[place])
            assert done.nbytes == made[r].layout.nbytes
            _check(made[r].arena, protected, contents(r, protected, sizes[r]))
        assert all(s.verified for s in client.inventory().slots)
        for node in nodes:  # the group is the same but one endpoint is new; the survivors go back too
            node.client().configure_parity(_groups(nodes, ranks_of), 2)
            node.client().discard_after(protected)
        epoch = protected
        eventually(lambda wanted=protected: _protected(made.values(), wanted))  # protected again at once
    rates = nodes[0].client().inventory().rates
    assert rates.xor > 0


def test_the_pinned_epoch_stays_while_training_goes_on(agents, ranks, contents, eventually, caplog):
    nodes = [agents(f"n{i}", "--parity-interval", "10") for i in range(3)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    group = tuple(node.member(i) for i, node in enumerate(nodes))
    for node in nodes:
        node.client().configure_parity((group,), 10)
    for epoch in range(10, 18):
        for rank in made:
            rank.step(epoch)
    assert "DEGRADED" not in caplog.text
    eventually(lambda: _protected(made, 10))
    for epoch in range(18, 20):
        for rank in made:
            rank.step(epoch)
    infos = nodes[0].client().inventory()
    assert {s.epoch for s in infos.slots} == {10, 18, 19}
    assert [(p.epoch, p.ranks, p.complete) for p in infos.parity] == [(10, (0, 1, 2), True)]
    nodes[1].lose()
    nodes[1].start()
    back = ranks(1, nodes[1])
    regrouped = tuple(node.member(i) for i, node in enumerate(nodes))
    nodes[1].client().rebuild(1, 10, regrouped)
    _check(back.arena, 10, contents(1, 10, back.sizes))


def test_a_rebuild_refuses_data_of_another_history(agents, ranks, eventually):
    """Survivors that hold other bytes under the same epoch must not be mixed with the old parity."""
    nodes = [agents(f"n{i}", "--parity-interval", "1") for i in range(3)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    group = tuple(node.member(i) for i, node in enumerate(nodes))
    for node in nodes:
        node.client().configure_parity((group,), 1)
    for rank in made:
        rank.step(1)
    eventually(lambda: _protected(made, 1))
    nodes[0].lose()
    nodes[2].client().configure_parity((), 0)
    made[2].writer.rollback(0)
    made[2].arrays["t0"][:] = 9
    made[2].writer.start(1, 1)
    made[2].writer.wait()
    nodes[0].start()
    back = ranks(0, nodes[0])
    regrouped = tuple(node.member(i) for i, node in enumerate(nodes))
    with pytest.raises(RefusedError, match=r"cannot be decoded: .* not of one history"):
        nodes[0].client().rebuild(0, 1, regrouped)
    assert back.arena.newest() is None


def test_parity_survives_the_restart_of_an_agent(agents, ranks, contents, eventually):
    nodes = [agents(f"n{i}", "--parity-interval", "1", "--listen", "127.0.0.1:0") for i in range(3)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    for node in nodes:
        node.client().configure_parity((tuple(n.member(i) for i, n in enumerate(nodes)),), 1)
    for rank in made:
        rank.step(1)
    eventually(lambda: _protected(made, 1))
    nodes[2].kill()
    nodes[2].start()  # at another port, with what it had in its files
    assert [p.epoch for p in nodes[2].client().inventory().parity] == [1]
    nodes[0].lose()
    nodes[0].start()
    back = ranks(0, nodes[0])
    nodes[0].client().rebuild(0, 1, tuple(n.member(i) for i, n in enumerate(nodes)))
    _check(back.arena, 1, contents(0, 1, back.sizes))


def test_training_goes_on_without_parity_when_the_agent_is_gone(agents, ranks, eventually, caplog):
    nodes = [agents(f"n{i}", "--parity-interval", "2") for i in range(2)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    for node in nodes:
        node.client().configure_parity((tuple(n.member(i) for i, n in enumerate(nodes)),), 2)
    for rank in made:
        rank.step(2)
    eventually(lambda: _protected(made, 2))
    nodes[0].kill()
    for epoch in range(3, 9):
        made[0].step(epoch)
    assert "DEGRADED rank 0" in caplog.text
    assert {r.epoch for r in made[0].arena.records()} >= {2, 8}  # what is protected is given up last


def test_a_member_that_never_comes_costs_the_deadline_once(agents, ranks, eventually, caplog):
    node = agents("n0", "--parity-interval", "2")
    rank = ranks(0, node)
    rank.writer._pin_seconds = 0.3
    absent = GroupMember(node="gone", endpoint="127.0.0.1:1", rank=1)
    node.client().configure_parity(((node.member(0), absent),), 2)
    for epoch in range(2, 7):
        rank.step(epoch)
    assert "DEGRADED rank 0" in caplog.text
    assert "not ready within 0.3 s" in caplog.text
    eventually(lambda: any("parity of rank 0" in words for words in node.client().inventory().degraded))


@pytest.mark.slow
def test_an_agent_killed_in_mid_transfer_leaves_nothing_half_done(agents, ranks, contents, eventually):
    """The receiver and the sender in turn; then the same is done again, to the end."""
    sizes = (20_000_000,)
    nodes = [agents(f"n{i}", "--parity-interval", "1") for i in range(3)]
    made = [ranks(i, node, sizes=sizes) for i, node in enumerate(nodes)]
    target = ranks(9, nodes[1], sizes=sizes)
    made[0].step(1)
    chance = np.random.default_rng(11)
    for turn in range(6):
        victim = nodes[turn % 2]
        order = threading.Thread(target=_fetch_or_fail, args=(nodes[1].client(), nodes[0].endpoint))
        order.start()
        time.sleep(chance.uniform(0, 0.05))
        victim.kill()
        order.join()
        victim.start()
        for record in target.arena.records():
            if record.committed:
                target.arena.check(record)
                _check(target.arena, 1, contents(0, 1, sizes))
        assert nodes[1].client().fetch(9, 1, 0, nodes[0].endpoint).nbytes == target.layout.nbytes
        _check(target.arena, 1, contents(0, 1, sizes))
        target.arena.discard_after(0)


def _fetch_or_fail(client, endpoint: str) -> None:
    with contextlib.suppress(AgentError):
        client.fetch(9, 1, 0, endpoint)
