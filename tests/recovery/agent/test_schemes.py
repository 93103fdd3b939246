"""Reed-Solomon and copies between real agents: several losses at once, every pattern, and what may not be released."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest

from bench.lib_slots import read_slot
from mainstay.recovery.agent.errors import NoSuchSlotError
from mainstay.recovery.agent.messages import GroupMember, Rebuild
from mainstay.recovery.agent.parity import Geometry
from mainstay.recovery.agent.peer_messages import Head, RowState
from mainstay.recovery.agent.rebuild import MemberHolding, plan_decode
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import Word

processes = pytest.mark.processes
SIZES = (90_001, 17)


def _check(arena: Arena, epoch: int, expected) -> None:
    found = read_slot(arena, epoch)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


def _protected(made, epoch: int) -> bool:
    return all(rank.arena.word(Word.PARITY_EPOCH) == epoch for rank in made)


@pytest.mark.parametrize(("members", "parity"), [(2, 1), (3, 2), (4, 1), (4, 2), (5, 3), (8, 2)])
def test_every_place_has_the_same_share_and_none_covers_itself(members: int, parity: int) -> None:
    geometry = Geometry(members, parity)
    for place in range(members):
        assert len(geometry.words_of(place)) == geometry.data
        rows = geometry.rows_of(place)
        assert len(set(rows)) == parity
        for number, word in enumerate(rows):
            assert geometry.parity_places(word)[number] == place
            assert place not in geometry.data_places(word)
            assert geometry.block(word, place) == geometry.data + number
        spans = [geometry.span(word, place, 64, 64 * geometry.data - 5) for word in geometry.words_of(place)]
        assert sum(length for _, length in spans) == 64 * geometry.data - 5
    assert all(
        sorted(geometry.block(word, p) for p in range(members)) == list(range(members)) for word in range(members)
    )


def _held(geometry: Geometry, lost: set[int], epoch_digests: tuple[int, ...]) -> dict[int, MemberHolding]:
    return {
        place: MemberHolding(
            Head(present=True, newest=4, slot_nbytes=9, digest=epoch_digests[place]),
            RowState(present=True, digests=epoch_digests, parity=geometry.parity),
        )
        for place in range(geometry.members)
        if place not in lost
    }


def _order(members: int) -> Rebuild:
    group = tuple(GroupMember(node=f"n{i}", endpoint=f"h:{i}", rank=10 + i) for i in range(members))
    return Rebuild(rank=10, epoch=4, group=group)


@pytest.mark.parametrize(("members", "parity"), [(3, 1), (4, 2), (6, 3)])
def test_a_decode_is_planned_for_every_loss_within_tolerance_and_for_none_beyond(members: int, parity: int) -> None:
    geometry, digests = Geometry(members, parity), tuple(range(1, members + 1))
    for count in range(members):
        for more in combinations(range(1, members), count):
            held = _held(geometry, {0, *more}, digests)
            if count + 1 > parity:
                with pytest.raises(NoSuchSlotError, match="rank 10 epoch 4 cannot be decoded"):
                    plan_decode(_order(members), held)
                continue
            requests = plan_decode(_order(members), held)
            assert sorted(r.word for r in requests) == list(geometry.words_of(0))
            for request in requests:
                places = {request.place, *(source.place for source in request.sources)}
                assert len(places) == geometry.data
                assert not places & {0, *more}
                assert request.place in geometry.parity_places(request.word)


def test_a_row_or_slot_of_another_history_is_left_out() -> None:
    """One member too many has stale rows, another stale data: what is left is enough, then it is not."""
    geometry, digests = Geometry(4, 2), (1, 2, 3, 4)
    held = _held(geometry, {0}, digests)
    held[3] = MemberHolding(held[3].head, RowState(present=True, digests=(9, 9, 9, 9), parity=2))
    requests = plan_decode(_order(4), held)
    assert all(request.place != 3 for request in requests)
    held[2] = MemberHolding(Head(present=True, newest=4, slot_nbytes=9, digest=77), held[2].row)
    requests = plan_decode(_order(4), held)
    held[1] = MemberHolding(Head(present=True, newest=4, slot_nbytes=9, digest=78), held[1].row)
    with pytest.raises(NoSuchSlotError):
        plan_decode(_order(4), held)


@processes
def test_two_nodes_lost_at_once_come_back_under_rs_2(agents, ranks, contents, eventually) -> None:
    """Their processes and their memory go; each newcomer decodes with nothing of the other's."""
    nodes = [agents(f"n{i}", "--parity-interval", "2") for i in range(4)]
    made = [ranks(i, node, sizes=(*SIZES, 64 * i)) for i, node in enumerate(nodes)]
    for node in nodes:
        node.client().configure_parity((tuple(n.member(i) for i, n in enumerate(nodes)),), 2, "rs:2")
    for epoch in (1, 2, 3):
        for rank in made:
            rank.step(epoch)
    eventually(lambda: _protected(made, 2))
    for victim in (1, 2):
        nodes[victim].lose()
    for victim in (1, 2):
        nodes[victim].start()
    # As the coordinator names them: a lost member has no address.
    group = tuple(
        GroupMember(node=f"n{i}", endpoint="" if i in (1, 2) else n.endpoint, rank=i) for i, n in enumerate(nodes)
    )
    for victim in (1, 2):
        made[victim] = ranks(victim, nodes[victim], sizes=(*SIZES, 64 * victim))
        nodes[victim].client().rebuild(victim, 2, group)
        _check(made[victim].arena, 2, contents(victim, 2, made[victim].sizes))
    # A third loss before anything is protected again is beyond the promise as to rows: data of all four is there.
    rows = {p.place for node in nodes for p in node.client().inventory().parity}
    assert rows == {0, 3}


@processes
def test_a_damaged_slot_and_a_damaged_row_count_as_lost(agents, ranks, contents, eventually) -> None:
    """Under rs:2 one loss and one flipped bit are two failures: the bit is found before it is decoded with."""
    nodes = [agents(f"n{i}", "--parity-interval", "1") for i in range(4)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    for node in nodes:
        node.client().configure_parity((tuple(n.member(i) for i, n in enumerate(nodes)),), 1, "rs:2")
    for rank in made:
        rank.step(1)
    eventually(lambda: _protected(made, 1))
    made[2].arena.slot_bytes(made[2].arena.find(1).slot)[1234] ^= 8
    nodes[0].lose()
    nodes[0].start()
    back = ranks(0, nodes[0])
    nodes[0].client().rebuild(0, 1, tuple(n.member(i) for i, n in enumerate(nodes)))
    _check(back.arena, 1, contents(0, 1, back.sizes))


@processes
def test_a_copy_is_listed_served_and_found_at_home(agents, ranks, contents, eventually) -> None:
    """Copies on the two next members of a ring of five; two adjacent nodes are lost, and a rank moves to its copy."""
    nodes = [agents(f"n{i}", "--parity-interval", "2") for i in range(5)]
    made = [ranks(i, node, sizes=(*SIZES, 64 * i)) for i, node in enumerate(nodes)]
    for node in nodes:
        node.client().configure_parity((tuple(n.member(i) for i, n in enumerate(nodes)),), 2, "copies:3")
    for epoch in (1, 2, 3, 4, 5):
        for rank in made:
            rank.step(epoch)
        eventually(lambda wanted=epoch - epoch % 2: _protected(made, wanted or -1))
    listed = {slot.rank for slot in nodes[0].client().inventory().slots if slot.epoch == 4 and slot.verified}
    assert listed == {0, 3, 4}
    nodes[4].kill()
    nodes[4].start()  # an agent that starts again finds its copies again
    assert {s.rank for s in nodes[4].client().inventory().slots if s.epoch == 4} == {4, 2, 3}
    nodes[1].lose()
    nodes[2].lose()
    moved = ranks(2, nodes[4], sizes=made[2].sizes)  # its copy lies here: it has its slot at once
    _check(moved.arena, 4, contents(2, 4, made[2].sizes))
    nodes[1].start()
    back = ranks(1, nodes[1], sizes=made[1].sizes)
    nodes[1].client().fetch(1, 4, 1, nodes[3].endpoint)
    _check(back.arena, 4, contents(1, 4, made[1].sizes))


@processes
def test_a_rank_that_comes_back_to_an_old_arena_finds_its_newer_copy_there(agents, ranks, contents, eventually) -> None:
    """It lived here once; what it left is older than the copy that was kept since."""
    a, b = agents("a", "--parity-interval", "1"), agents("b", "--parity-interval", "1")
    left = ranks(0, b)
    left.step(1)
    made = [ranks(0, a), ranks(1, b)]
    for node in (a, b):
        node.client().configure_parity(((a.member(0), b.member(1)),), 1, "copies:2")
    for epoch in (1, 2):
        for rank in made:
            rank.step(epoch)
        eventually(lambda wanted=epoch: _protected(made, wanted))
    assert {(s.rank, s.epoch) for s in b.client().inventory().slots} >= {(0, 2)}
    a.lose()
    back = ranks(0, b)
    _check(back.arena, 2, contents(0, 2, back.sizes))


@processes
def test_no_group_lets_its_epoch_go_before_all_groups_have_a_newer_one(agents, ranks, eventually) -> None:
    """Two groups; in one a member is late. The other has made its rows, and keeps the epoch before all the same."""
    nodes = [agents(f"n{i}", "--parity-interval", "2") for i in range(4)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]
    groups = (tuple(nodes[i].member(i) for i in (0, 1)), tuple(nodes[i].member(i) for i in (2, 3)))
    for node in nodes:
        node.client().configure_parity(groups, 2)
    for rank in made:
        rank.step(2)
    eventually(lambda: _protected(made, 2))
    for rank in made[:3]:
        rank.step(3)
        rank.step(4)
    eventually(lambda: {p.epoch for p in nodes[0].client().inventory().parity} == {2, 4})
    assert _protected(made, 2)
    assert {s.epoch for s in nodes[0].client().inventory().slots} == {2, 3, 4}
    made[3].step(3)
    made[3].step(4)
    eventually(lambda: _protected(made, 4))


@processes
def test_what_belongs_to_the_groups_of_an_earlier_generation_does_not_count(agents, ranks, eventually) -> None:
    """Regrouped: one node has not heard yet. Its old protection is no reason to release the old rows."""
    nodes = [agents(f"n{i}", "--parity-interval", "1") for i in range(4)]
    made = [ranks(i, node) for i, node in enumerate(nodes)]

    def group(*members: int) -> tuple[GroupMember, ...]:
        return tuple(nodes[i].member(i) for i in members)

    for node in nodes:
        node.client().configure_parity((group(0, 1, 2, 3),), 1)
    for rank in made:
        rank.step(1)
    eventually(lambda: _protected(made, 1))
    for node in nodes[:3]:
        node.client(generation=2).configure_parity((group(0, 1), group(2, 3)), 1)
    for node in nodes[:2]:
        eventually(lambda asked=node: {p.ranks for p in asked.client().inventory().parity} >= {(0, 1)})
    time.sleep(0.5)  # longer than a member waits between two questions
    for node in nodes[:2]:
        assert {p.ranks for p in node.client().inventory().parity} == {(0, 1), (0, 1, 2, 3)}
    nodes[3].client(generation=2).configure_parity((group(0, 1), group(2, 3)), 1)
    eventually(lambda: all({len(p.ranks) for p in n.client().inventory().parity} == {2} for n in nodes))
