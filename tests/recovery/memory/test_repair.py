"""Damaged records: what one cell lost the other still says, and only data with the right digest is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import SlotState, cell_at
from mainstay.recovery.memory.repair import RecordDamage, RecordShadow, read_cell

LAYOUT = Layout.build({"a": ("uint8", (500,))})


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    """Epoch 5 in slot 0, verified; slot 1 was never written."""
    made = Arena.create(tmp_path / "x.arena", rank=3, layout=LAYOUT, slots=2)
    made.begin_write(0, 1)[: LAYOUT.nbytes] = 7
    made.verify(made.commit(0, 5, 1))
    return made


def damage(arena: Arena, slot: int, *, agent: bool) -> None:
    arena.raw[cell_at(slot, agent=agent) + 8] ^= 1


def test_nothing_is_wrong_with_a_sound_arena(arena: Arena) -> None:
    assert RecordShadow().repair(arena) == RecordDamage(0, 0, ())
    assert not arena.repair_static()


def test_the_agents_cell_restores_the_writers(arena: Arena) -> None:
    damage(arena, 0, agent=False)
    assert RecordShadow().repair(arena).lost == 0
    found = arena.record(0)
    assert (found.epoch, found.committed, found.nbytes) == (5, True, LAYOUT.nbytes)
    assert (arena.slot_bytes(0)[: found.nbytes] == 7).all()


def test_data_that_changed_too_is_worth_nothing(arena: Arena) -> None:
    damage(arena, 0, agent=False)
    arena.slot_bytes(0)[3] = 0
    assert RecordShadow().repair(arena) == RecordDamage(1, 1, ())
    assert arena.record(0).state is SlotState.INVALID


def test_without_the_agents_cell_the_data_is_to_be_digested_again(arena: Arena) -> None:
    damage(arena, 0, agent=True)
    found = RecordShadow().repair(arena)
    assert (found.records, found.lost) == (1, 0)
    assert [(record.epoch, record.state) for record in found.doubtful] == [(5, SlotState.COPIED)]


def test_the_agent_remembers_its_cell(arena: Arena) -> None:
    shadow = RecordShadow()
    shadow.repair(arena)
    damage(arena, 0, agent=True)
    assert shadow.repair(arena) == RecordDamage(1, 0, ())
    assert arena.record(0).state is SlotState.VERIFIED
    damage(arena, 0, agent=True)
    damage(arena, 0, agent=False)
    assert shadow.repair(arena).lost == 0
    assert arena.record(0).epoch == 5


def test_a_memory_of_an_earlier_write_is_not_believed(arena: Arena) -> None:
    shadow = RecordShadow()
    shadow.repair(arena)
    arena.begin_write(0, 1)[: LAYOUT.nbytes] = 9
    arena.commit(0, 6, 1)
    damage(arena, 0, agent=True)
    assert [(record.epoch, record.state) for record in shadow.repair(arena).doubtful] == [(6, SlotState.COPIED)]


def test_a_slot_of_which_no_cell_is_left_is_lost(arena: Arena) -> None:
    damage(arena, 0, agent=True)
    damage(arena, 0, agent=False)
    assert RecordShadow().repair(arena) == RecordDamage(1, 1, ())
    assert not arena.record(0).committed


def test_header_and_layout_are_put_back(arena: Arena) -> None:
    before = arena.raw[:8192].copy()
    arena.raw[4096 + 5] ^= 1
    arena.raw[9] ^= 1
    assert arena.repair_static()
    np.testing.assert_array_equal(arena.raw[: 4096 + 64], before[: 4096 + 64])


def test_every_repair_leaves_nothing_to_repair(arena: Arena) -> None:
    """Slot 0 is verified, slot 1 was never written; of each the writer's, the agent's, and both cells are damaged."""
    for slot, cells in (
        (0, (False,)),
        (0, (True,)),
        (1, (False,)),
        (1, (True,)),
        (1, (True, False)),
        (0, (True, False)),
    ):
        for agent in cells:
            damage(arena, slot, agent=agent)
        found = RecordShadow().repair(arena)
        assert (found.records, found.lost) == (1, len(cells) - 1)
        assert RecordShadow().repair(arena) == RecordDamage(0, 0, ()), (slot, cells)
        if slot == 0 and len(cells) == 1:
            arena.verify(arena.record(0))
    assert [arena._sequence(slot) for slot in (0, 1)] == [1, 1]


def test_a_slot_that_lost_its_data_is_counted_as_written_again(arena: Arena) -> None:
    damage(arena, 0, agent=False)
    arena.slot_bytes(0)[3] = 0
    RecordShadow().repair(arena)
    assert read_cell(arena, 0, agent=False).sequence == 2
    assert read_cell(arena, 0, agent=True).sequence == 1


def test_header_layout_and_the_rest_are_looked_at_byte_by_byte(arena: Arena) -> None:
    for at in (0, 67, 4096, 4096 + arena.header.layout_bytes - 1):
        arena.raw[at] ^= 1
        assert arena.repair_static()
        assert not arena.repair_static()
    arena.raw[4096 + arena.header.layout_bytes] ^= 1
    assert not arena.repair_static(), "behind the layout"
