"""Which slot may be overwritten: the rules, tried on every state that the strategies can make."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainstay.recovery.memory.records import NO_EPOCH, SlotRecord, SlotState
from mainstay.recovery.memory.slots import Pins, SlotChoice, choose_slot, newest

DONE, PENDING, DISK = "parity_complete", "parity_pending", "disk_pending"


def _record(slot: int, epoch: int | None, generation: int = 1) -> SlotRecord:
    if epoch is None:
        return SlotRecord(SlotState.INVALID, slot, NO_EPOCH, 0, 0, 0, 0, 1)
    return SlotRecord(SlotState.COPIED, slot, epoch, generation, 0, 64, 0, 1)


records = st.lists(st.tuples(st.none() | st.integers(0, 20), st.integers(1, 3)), min_size=2, max_size=4).map(
    lambda states: [_record(slot, epoch, generation) for slot, (epoch, generation) in enumerate(states)]
)
pins = st.builds(
    Pins,
    parity_epoch=st.integers(-1, 20),
    parity_floor=st.integers(-1, 20),
    parity_every=st.integers(0, 4),
    disk_floor=st.integers(-1, 20),
    disk_every=st.integers(0, 4),
)


@given(records, pins)
def test_the_newest_committed_epoch_is_never_overwritten(found, wanted):
    choice = choose_slot(found, wanted)
    assert found[choice.slot] is not newest(found)


@given(records, pins)
def test_a_pin_is_broken_only_when_there_is_no_choice(found, wanted):
    choice = choose_slot(found, wanted)
    keep = newest(found)
    loose = [r for r in found if not r.committed or (r is not keep and wanted.reason(r.epoch) is None)]
    if loose:
        assert choice.sacrifices is None
    if choice.sacrifices:
        assert wanted.reason(found[choice.slot].epoch) == choice.sacrifices


@given(records, pins)
def test_a_pinned_epoch_stays_somewhere_unless_it_is_reported(found, wanted):
    choice = choose_slot(found, wanted)
    kept = {r.epoch for r in found if r.committed and r.slot != choice.slot}
    lost = {r.epoch for r in found if r.committed} - kept
    if choice.sacrifices is None:
        assert not any(wanted.reason(epoch) for epoch in lost)


def _epochs(*epochs: int | None) -> list[SlotRecord]:
    return [_record(slot, epoch) for slot, epoch in enumerate(epochs)]


def test_the_rules_one_by_one():
    plain = Pins()
    assert choose_slot(_epochs(None, None), plain).slot == 0
    assert choose_slot(_epochs(5, None), plain).slot == 1
    assert choose_slot(_epochs(5, 6), plain).slot == 0
    complete = Pins(parity_epoch=4, parity_floor=4, parity_every=4)
    assert choose_slot(_epochs(4, 5, 6), complete).slot == 1  # 4 is what the group decodes from
    assert choose_slot(_epochs(4, 8, 7), complete).sacrifices is None
    assert choose_slot(_epochs(4, 8, 7), complete).slot == 2
    blocked = choose_slot(_epochs(4, 8, 9), complete)  # complete, pending, newest
    assert (blocked.slot, blocked.sacrifices) == (1, "parity_pending")
    moved = Pins(parity_epoch=8, parity_floor=8, parity_every=4)
    assert choose_slot(_epochs(4, 8, 9), moved).slot == 0
    disk = Pins(disk_floor=-1, disk_every=3)
    assert choose_slot(_epochs(3, 4), disk).sacrifices == "disk_pending"
    once = Pins(disk_once=3)
    assert choose_slot(_epochs(3, 4), once).sacrifices == "disk_pending"
    assert choose_slot(_epochs(2, 3, 4), once).slot == 0
    assert Pins(disk_once=3, disk_floor=3).reason(3) is None, "it is written"
    both = Pins(parity_epoch=4, parity_floor=4, parity_every=4, disk_floor=2, disk_every=3)
    assert choose_slot(_epochs(4, 3, 5), both).sacrifices == "disk_pending"  # what is complete goes last


def test_of_two_slots_of_one_epoch_the_later_generation_counts():
    found = [_record(0, 7, generation=2), _record(1, 7, generation=1)]
    assert newest(found) is found[0]
    assert choose_slot(found, Pins(parity_epoch=7, parity_floor=7, parity_every=7)).slot == 1


@pytest.mark.parametrize(
    ("pins", "reasons"),
    [
        (Pins(), [None] * 7),
        (Pins(parity_epoch=3), [None] * 7),
        (Pins(parity_epoch=3, parity_floor=6, parity_every=1), [None] * 3 + [DONE] + [None] * 3),
        (Pins(parity_epoch=0, parity_floor=2, parity_every=2), [DONE, None, None, None, PENDING, None]),
        (Pins(disk_floor=1, disk_every=1), [None, None, *[DISK] * 5]),
        (Pins(disk_floor=0, disk_every=3), [None, None, None, DISK, None, None, DISK]),
        (Pins(parity_epoch=4, parity_floor=4, parity_every=4, disk_every=4), [DISK, None, None, None, DONE]),
        (Pins(parity_every=2, disk_every=4), [DISK, None, PENDING, None, DISK]),
    ],
)  # fmt: skip
def test_why_an_epoch_must_stay(pins, reasons):
    assert [pins.reason(epoch) for epoch in range(len(reasons))] == reasons


def test_of_pins_alike_the_older_is_given_up():
    pending = Pins(parity_floor=-1, parity_every=1)
    assert choose_slot(_epochs(6, 5, 4), pending) == SlotChoice(2, "parity_pending")
    disk = Pins(parity_floor=3, parity_every=5, disk_floor=-1, disk_every=2)
    assert choose_slot(_epochs(2, 5, 6), disk) == SlotChoice(1, "parity_pending"), "before work that goes to disk"
    assert choose_slot(_epochs(4, 2, 6), disk) == SlotChoice(1, "disk_pending")
    twins = [_record(0, 4, generation=1), _record(1, 4, generation=1), _record(2, 5)]
    assert choose_slot(twins, Pins(disk_floor=-1, disk_every=4)) == SlotChoice(0, None), "the later slot of two alike"
    older = Pins(parity_epoch=4, parity_floor=4, parity_every=4, disk_floor=-1, disk_every=6)
    assert choose_slot(_epochs(4, 6, 7), older) == SlotChoice(1, "disk_pending"), "although what is complete is older"
