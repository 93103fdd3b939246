"""The agent finds and repairs bytes that change without a write; what was wrong from the start is found by a drill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.lib_agents import Cluster, contents, until
from bench.lib_slots import read_slot
from mainstay.recovery.agent import slot_reconstruction
from mainstay.recovery.agent.parity_store import ParityRowKey
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import CELL_BYTES, PAGE, Word, cell_at
from mainstay.recovery.protection_scheme import parse

pytestmark = pytest.mark.processes


@pytest.fixture(params=["xor", "rs:2", "copies:2"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Four agents in this process, epoch 1 protected; nothing scrubs unless a test starts it."""
    with Cluster(4, parse(request.param, None if request.param == "copies:2" else 4)) as made:
        made.step(1)
        yield made


def flip(arena: Arena, at: int, bit: int = 3) -> None:
    arena.raw[at] ^= 1 << bit


def whole(cluster: Cluster, rank: int, epoch: int = 1) -> bool:
    arena = cluster.arenas[rank]
    data = read_slot(arena, epoch)["state"]
    return bool(np.array_equal(data, contents(rank, epoch, len(data))))


def data_at(arena: Arena, epoch: int = 1) -> int:
    return arena.header.slot_at(arena.find(epoch).slot)


def test_a_flipped_bit_of_a_protected_slot_is_repaired_in_place(cluster: Cluster) -> None:
    arena, scrubber = cluster.arenas[2], cluster.agents[2].service.scrubber
    record = arena.find(1)
    flip(arena, data_at(arena) + 12_345)
    flip(arena, data_at(arena) + record.nbytes - 70)
    scrubber.scan()
    assert whole(cluster, 2)
    assert arena.find(1) == record  # the same slot, the same write: no rank went back
    found = cluster.agents[2].client.inventory()
    assert (found.scrub.found, found.scrub.repaired, found.scrub.lost) == (1, 1, 0)
    assert "rank 2 epoch 1 was damaged in 2 bytes and is repaired" in found.scrub.last
    scrubber.scan()
    assert scrubber.counts.found == 1


def test_an_unprotected_slot_is_declared_worthless_and_said_so(cluster: Cluster) -> None:
    arena, agent = cluster.arenas[1], cluster.agents[1]
    for other in cluster.agents:
        other.client.configure_parity((), 0)
    flip(arena, data_at(arena) + 5)
    agent.service.scrubber.scan()
    found = agent.client.inventory()
    assert [slot for slot in found.slots if slot.rank == 1] == []
    assert found.scrub.lost == 1
    assert any("rank 1 epoch 1 is damaged and cannot be repaired" in words for words in found.degraded)


def test_a_damaged_row_or_copy_is_made_again(cluster: Cluster) -> None:
    service = cluster.agents[0].service
    arenas = [arena for _, arena in [*service.node.rows.all(), *service.store.copies.all()]]
    assert arenas
    for arena in arenas:
        flip(arena, data_at(arena) + 100)
    service.scrubber.scan()
    assert service.scrubber.counts.found == len(arenas)

    def again() -> bool:
        now = [arena for _, arena in [*service.node.rows.all(), *service.store.copies.all()]]
        return len(now) == len(arenas) and all(r.epoch == 1 for arena in now for r in arena.records() if r.committed)

    until(lambda: cluster.arenas[0].word(Word.PARITY_FLOOR) == 1 and again(), "the row")
    assert all(cluster.bring_back(lost, 1, [lost]) for lost in range(1, 4))


def test_rows_or_copies_that_are_gone_whole_are_made_again(cluster: Cluster) -> None:
    service = cluster.agents[0].service
    service.node.rows.retain(())
    service.store.copies.retain(())
    service.scrubber.scan()
    until(lambda: cluster.arenas[0].word(Word.PARITY_FLOOR) == 1, "what is made again")
    assert service.node.rows.all() or service.store.copies.all()
    service.scrubber.scan()
    assert (service.scrubber.counts.found, service.scrubber.counts.lost) == (1, 0)


def test_a_record_that_only_the_file_knew_is_not_guessed(cluster: Cluster) -> None:
    """The agent never read this record before it was damaged: what it described is made again."""
    service = cluster.agents[0].service
    for _, arena in [*service.node.rows.all(), *service.store.copies.all()]:
        flip(arena, cell_at(arena.find(1).slot, agent=True) + 40)
    service.scrubber.scan()
    until(lambda: cluster.arenas[0].word(Word.PARITY_FLOOR) == 1, "what is made again")
    assert all(cluster.bring_back(lost, 1, [lost]) for lost in range(1, 4))
    assert service.scrubber.counts.lost == 0


@pytest.mark.parametrize("agent", [False, True])
def test_a_damaged_record_is_repaired_from_the_other_cell_or_from_memory(cluster: Cluster, agent: bool) -> None:
    arena, scrubber = cluster.arenas[3], cluster.agents[3].service.scrubber
    scrubber.scan()
    for slot in range(arena.header.slots):
        before = arena.record(slot)
        for at in (0, 8, 40, CELL_BYTES - 1):
            flip(arena, cell_at(slot, agent=agent) + at)
            scrubber.scan()
            assert arena.record(slot) == before
    assert scrubber.counts.found == scrubber.counts.repaired == 4 * arena.header.slots
    assert whole(cluster, 3)


def test_header_and_layout_are_put_right(cluster: Cluster) -> None:
    arena, scrubber = cluster.arenas[0], cluster.agents[0].service.scrubber
    for at in (0, 20, 60, PAGE, PAGE + 5):
        flip(arena, at)
        scrubber.scan()
    assert scrubber.counts.repaired == 5
    Arena.attach(arena.path).close()


def test_a_slot_that_is_written_while_it_is_repaired_is_never_believed(cluster: Cluster, monkeypatch) -> None:
    """The trainer begins at the worst moment, between the look and the write."""
    arena, service = cluster.arenas[2], cluster.agents[2].service
    record = arena.find(1)
    flip(arena, data_at(arena) + 7)
    real, looks = arena_of(service, 2).unchanged, []

    def unchanged(asked) -> bool:
        looks.append(asked)
        answer = real(asked)
        if len(looks) == 1:
            arena.begin_write(record.slot, 1)
            arena.slot_bytes(record.slot)[:] = 9
            arena.commit(record.slot, 2, 1)
        return answer

    monkeypatch.setattr(arena_of(service, 2), "unchanged", unchanged)
    service.scrubber.scan()
    assert all(r.epoch != 2 or not r.committed for r in arena.records())
    assert service.scrubber.counts.lost == 1


def arena_of(service, rank: int) -> Arena:
    return service.store.arena(rank)


@pytest.mark.parametrize("first", [0, 2, 3])
def test_a_drill_finds_planted_stale_parity_and_has_it_made_again(first: int) -> None:
    """Rows of other bytes under good digests: scrubbing cannot see it, and a rebuild would fail."""
    with Cluster(4, parse("rs:2", 4)) as cluster:
        cluster.step(1)
        rows = cluster.agents[1].service.node.rows
        ((key, _),) = rows.all()
        row = rows.find(key, 1)
        arena, slot, out = rows.begin_row(key, row.parity, row.size)
        for part in out:
            part[:] = 77
        rows.commit(arena, slot, 1, row.parity, row.parts)
        for agent in cluster.agents:
            agent.service.scrubber.scan()
            assert agent.service.scrubber.counts.found == 0
        assert cluster.agents[first].service.scrubber.drill() is False  # whoever's period ends first
        assert any("is stale" in w for agent in cluster.agents for w in agent.client.inventory().degraded)
        until(lambda: cluster.arenas[1].word(Word.PARITY_FLOOR) == 1, "the row")
        assert [agent.service.scrubber.drill() for agent in cluster.agents] == [True] * 4
        assert not any("drill" in w for agent in cluster.agents for w in agent.client.inventory().degraded)


def test_a_doubt_about_what_is_not_here_changes_nothing(cluster: Cluster) -> None:
    service = cluster.agents[0].service
    service.scrubber.doubted(ParityRowKey((9, 8), 0), 1)
    assert service.scrubber.counts.found == 0


@pytest.mark.parametrize("text", ["xor", "rs:2", "copies:2"])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_slot_that_is_damaged_since_it_was_checked_accuses_no_parity(
    monkeypatch: pytest.MonkeyPatch, text: str, damaged: int
) -> None:
    """The own slot, or one that members decode from: parity that is made again from it could not repair it."""
    with Cluster(4, parse(text, 4)) as cluster:
        cluster.step(1)
        real, arena = slot_reconstruction.query_members, cluster.arenas[damaged]

        def damage() -> None:
            for part in range(4):  # some of it is in every stripe
                flip(arena, data_at(arena) + part * arena.find(1).nbytes // 4 + 1)

        def checked(*given: Any) -> Any:
            held = real(*given)
            damage()
            return held

        if damaged and text != "copies:2":
            monkeypatch.setattr(slot_reconstruction, "query_members", checked)
        else:
            damage()
        drilled = cluster.agents[0].service.scrubber.drill()
        assert drilled is (True if damaged and text == "copies:2" else None)
        monkeypatch.undo()
        assert not any("drill" in w for agent in cluster.agents for w in agent.client.inventory().degraded)
        assert [arena.word(Word.PARITY_FLOOR) for arena in cluster.arenas.values()] == [1] * 4, "nothing is made again"
        scrubber = cluster.agents[damaged].service.scrubber
        scrubber.scan()
        assert (scrubber.counts.repaired, scrubber.counts.lost) == (1, 0)
        assert whole(cluster, damaged)


def settings(monkeypatch: pytest.MonkeyPatch, **changed: float) -> None:
    """Agents that a cluster makes from now on scrub by themselves."""
    from bench import lib_agents

    real = lib_agents.AgentSettings
    monkeypatch.setattr(lib_agents, "AgentSettings", lambda **words: replace(real(**words), **changed))


def test_the_thread_scrubs_and_drills_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, scrub_pause=0.05, drill_seconds=0.1)
    with Cluster(3, parse("xor", 3)) as cluster:
        cluster.step(1)
        arena = cluster.arenas[0]
        flip(arena, data_at(arena) + 1)
        until(lambda: cluster.agents[0].client.inventory().scrub.repaired >= 1, "the repair")
        assert whole(cluster, 0)
        until(lambda: cluster.agents[0].client.inventory().scrub.drills > 0, "a drill")


def test_a_verdict_that_the_verifier_renews_first_is_told_all_the_same(cluster: Cluster) -> None:
    arena, service = cluster.arenas[1], cluster.agents[1].service
    flip(arena, cell_at(arena.find(1).slot, agent=True) + 30)
    service.store.verify_newest(1)
    service.scrubber.scan()
    assert (service.scrubber.counts.found, service.scrubber.counts.repaired) == (1, 1)
