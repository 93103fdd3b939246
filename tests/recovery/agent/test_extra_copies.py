"""Extra copies of a distrusted node: kept up, served when the node is gone, released when trust is back."""

from __future__ import annotations

import numpy as np
import pytest

from bench.lib_slots import read_slot

pytestmark = pytest.mark.processes


def _epochs(client, rank: int) -> list[int]:
    return sorted(slot.epoch for slot in client.inventory().slots if slot.rank == rank and slot.verified)


def test_the_newest_slot_of_a_lost_node_comes_from_its_extra_copy(agents, ranks, contents, eventually) -> None:
    """No scheme at all: the extra copy of another agent is all that is left of the node."""
    source, holder, other = (agents(f"node-{i}") for i in range(3))
    rank = ranks(0, source)
    for epoch in (1, 2):
        rank.step(epoch)
    client = holder.client()
    client.configure_parity((), 0, extra_copies=(source.member(0),))
    eventually(lambda: _epochs(client, 0)[-1:] == [2])
    rank.step(3)
    eventually(lambda: _epochs(client, 0) == [2, 3])
    expected = contents(0, 3, rank.sizes)
    source.lose()
    new = ranks(0, other)
    new.client.fetch(0, 3, 0, holder.endpoint)
    found = read_slot(new.arena, 3)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_a_copy_goes_when_the_node_is_trusted_again(agents, ranks, eventually) -> None:
    source, holder = agents("node-0"), agents("node-1")
    ranks(0, source).step(1)
    client = holder.client()
    client.configure_parity((), 0, extra_copies=(source.member(0),))
    eventually(lambda: _epochs(client, 0) == [1])
    client.configure_parity((), 0)
    assert _epochs(client, 0) == []
    assert not list(holder.directory.glob("copy-*.arena"))


def test_a_scheme_does_not_let_go_of_extra_copies(agents, ranks, eventually) -> None:
    """Completing parity retains what the scheme keeps, and the extra copies beside it."""
    source, a, b = (
        agents("node-0"),
        agents("node-1", "--parity-interval", "1"),
        agents("node-2", "--parity-interval", "1"),
    )
    ranks(0, source).step(1)
    made = [ranks(1, a), ranks(2, b)]
    group = (a.member(1), b.member(2))
    a.client().configure_parity((group,), 1, extra_copies=(source.member(0),))
    b.client().configure_parity((group,), 1)
    for epoch in (1, 2):
        for rank in made:
            rank.step(epoch)
        eventually(lambda epoch=epoch: any(p.epoch == epoch and p.complete for p in a.client().inventory().parity))
    eventually(lambda: _epochs(a.client(), 0) == [1])


def test_a_node_that_does_not_answer_is_said(agents, ranks, eventually) -> None:
    source, holder = agents("node-0"), agents("node-1")
    client, extra_copy = holder.client(), source.member(0)
    source.kill()
    client.configure_parity((), 0, extra_copies=(extra_copy,))
    eventually(lambda: any("extra copy of rank 0" in words for words in client.inventory().degraded))
