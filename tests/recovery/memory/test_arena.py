"""Arenas: what is damaged is not believed, what is torn is not accepted, what does not fit is refused in bytes."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bench.lib_slots import read_slot
from bench.lib_source import ArraySource
from mainstay.recovery.memory.arena import PARITY_ARENA, Arena, free_bytes
from mainstay.recovery.memory.errors import (
    ArenaError,
    CorruptArenaError,
    FencedError,
    ShortMemoryError,
    SlotMissingError,
    TornSlotError,
)
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.records import NO_EPOCH, RECORD_BYTES, RECORDS_AT, SlotState, Word
from mainstay.recovery.memory.snapshot import SnapshotWriter

LAYOUT = Layout.build({"a": ("uint8", (5000,)), "b": ("float32", (3, 4))})


def _filled(path: Path, *epochs: int, slots: int = 2, verify: bool = True) -> Arena:
    arena = Arena.create(path, rank=3, layout=LAYOUT, slots=slots)
    for epoch in epochs:
        slot = arena.choose().slot
        arena.begin_write(slot, 1)[: LAYOUT.nbytes] = np.random.default_rng(epoch).integers(
            0, 256, LAYOUT.nbytes, np.uint8
        )
        record = arena.commit(slot, epoch, 1)
        if verify:
            arena.verify(record)
    return arena


def test_what_is_written_is_read_by_another_mapping(tmp_path):
    _filled(tmp_path / "x.arena", 1, 2)
    other = Arena.attach(tmp_path / "x.arena")
    assert other.layout == LAYOUT
    assert [r.epoch for r in other.records()] == [1, 2]
    assert all(r.state is SlotState.VERIFIED for r in other.records())
    expected = np.random.default_rng(2).integers(0, 256, LAYOUT.nbytes, np.uint8)
    assert np.array_equal(read_slot(other, 2)["a"], expected[:5000])
    with pytest.raises(SlotMissingError, match=r"epoch 9, only of \[1, 2\]"):
        read_slot(other, 9)


def test_a_slot_is_verified_only_for_the_write_that_was_digested(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    slot = arena.find(1).slot
    arena.begin_write(slot, 1)
    assert arena.record(slot).state is SlotState.INVALID
    arena.commit(slot, 1, 1)  # the same epoch again, other bytes
    assert arena.record(slot).state is SlotState.COPIED


def test_what_was_fenced_while_it_was_copied_is_not_committed(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    slot = arena.choose().slot
    arena.begin_write(slot, 1)
    arena.set_word(Word.FENCE, 2)
    with pytest.raises(FencedError, match="generation 1 was fenced"):
        arena.commit(slot, 2, 1)
    assert not arena.record(slot).committed
    assert arena.newest().epoch == 1


def test_a_verified_slot_goes_before_a_later_one_of_its_epoch_that_is_only_copied(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    verified = arena.find(1)
    slot = 1 - verified.slot
    for _ in range(3):
        arena.begin_write(slot, 2)
    copied = arena.commit(slot, 1, 2)
    assert (copied.state, copied.generation) == (SlotState.COPIED, 2)
    assert copied.sequence > verified.sequence
    assert arena.find(1) == verified
    assert arena.find(1).state is SlotState.VERIFIED


def test_reading_notices_that_the_slot_was_overwritten(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    record = arena.find(1)
    with pytest.raises(TornSlotError, match="epoch 1"), arena.reading(record):
        arena.begin_write(record.slot, 1)
    with pytest.raises(SlotMissingError):
        read_slot(arena, 1)


def test_a_record_that_cannot_be_read_says_nothing_of_its_slot(tmp_path):
    path = tmp_path / "x.arena"
    arena = _filled(path, 3)
    slot = arena.find(3).slot
    arena.close()
    raw = bytearray(path.read_bytes())
    raw[RECORDS_AT + slot * RECORD_BYTES + 20] ^= 1
    path.write_bytes(raw)
    arena = Arena.attach(path)
    found = arena.record(slot)
    assert found == arena.blank(slot, 0)
    assert (found.committed, NO_EPOCH < 0) == (False, True)


def test_every_flipped_bit_is_detected(tmp_path):
    """In data, record, layout and header; 400 places chosen by a seed, and all of a record."""
    path = tmp_path / "x.arena"
    arena = _filled(path, 1, 2)
    layout_bytes = arena.header.layout_bytes
    record, at = arena.find(2), arena.header.slot_at(arena.find(2).slot)
    arena.close()
    whole = path.read_bytes()
    chance = random.Random(5)
    cell = RECORDS_AT + record.slot * RECORD_BYTES
    places = [at + chance.randrange(LAYOUT.nbytes) for _ in range(200)]
    places += [4096 + chance.randrange(layout_bytes) for _ in range(100)]
    places += [chance.randrange(60) for _ in range(40)]
    places += range(cell, cell + 64)
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ArenaError):
            read_slot(Arena.attach(path), 2)
    path.write_bytes(whole)
    read_slot(Arena.attach(path), 2)


def test_a_damaged_verdict_of_the_agent_is_only_a_missing_one(tmp_path):
    path = tmp_path / "x.arena"
    slot = _filled(path, 2).find(2).slot
    data = bytearray(path.read_bytes())
    data[RECORDS_AT + slot * RECORD_BYTES + 64 + 40] ^= 4
    path.write_bytes(data)
    assert Arena.attach(path).record(slot).state is SlotState.COPIED


@pytest.mark.parametrize("size", [0, 10, 4095, 4096, 8192, -1])
def test_a_truncated_file_is_refused(tmp_path, size):
    path = tmp_path / "x.arena"
    _filled(path, 1)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CorruptArenaError, match=r"x\.arena"):
        Arena.attach(path)


def test_memory_that_is_too_small_is_named_in_bytes(tmp_path):
    free = free_bytes(tmp_path)
    layout = Layout.build({"a": ("uint8", (free,))})
    with pytest.raises(ShortMemoryError, match=rf"{2 * layout.nbytes // 10**9}\d* bytes"):
        Arena.create(tmp_path / "x.arena", rank=0, layout=layout, slots=2)
    assert list(tmp_path.iterdir()) == []


def test_one_slot_is_refused(tmp_path):
    with pytest.raises(ValueError, match="2 to 8 slots"):
        Arena.create(tmp_path / "x.arena", rank=0, layout=LAYOUT, slots=1)


def test_pages_are_there_before_the_first_write(tmp_path):
    path = Path(f"/dev/shm/mainstay-pages-{os.getpid()}.arena")
    try:
        arena = Arena.create(path, rank=0, layout=Layout.build({"a": ("uint8", (3_000_000,))}), slots=2)
        assert path.stat().st_blocks * 512 >= arena.header.file_bytes
        arena.prefault()
    finally:
        path.unlink(missing_ok=True)


def test_going_back_forgets_what_came_after(tmp_path):
    arena = _filled(tmp_path / "x.arena", 5, 6, 7, slots=3)
    arena.discard_after(5)
    assert [r.epoch for r in arena.records() if r.committed] == [5]
    assert arena.choose().slot != arena.find(5).slot


def _source(size: int = 5000) -> ArraySource:
    return ArraySource({"a": np.zeros(size, np.uint8)})


def _writer(path: Path, source: ArraySource, slots: int = 3, **options) -> SnapshotWriter:
    return SnapshotWriter(Arena.create(path, rank=0, layout=source.layout, slots=slots), source, **options)


def test_a_fenced_writer_stops_even_while_it_waits_for_parity(tmp_path, caplog):
    writer = _writer(tmp_path / "x.arena", _source(), pin_seconds=60)
    arena = writer.arena
    for word, value in ((Word.PARITY_EVERY, 2), (Word.PARITY_EPOCH, 2), (Word.PARITY_FLOOR, 2)):
        arena.set_word(word, value)
    for epoch in (2, 3, 4, 5):  # complete, free, pending, newest
        writer.start(epoch, 1)
        writer.wait()
    beat = threading.Event()
    beating = threading.Thread(target=_beat, args=(arena, beat))
    beating.start()
    try:
        writer.start(6, 1)
        with pytest.raises(TimeoutError):
            writer.wait(0.05)
        arena.set_word(Word.FENCE, 2)
        with pytest.raises(FencedError):
            writer.wait(60)
        assert {r.epoch for r in arena.records()} == {2, 4, 5}
        writer.start(6, 2)
        arena.set_word(Word.PARITY_FLOOR, 4)
        arena.set_word(Word.PARITY_EPOCH, 4)  # the parity of 4 is complete: 2 is free
        writer.wait(60)
        assert {r.epoch for r in arena.records()} == {4, 5, 6}
        assert "DEGRADED" not in caplog.text
    finally:
        beat.set()
        beating.join()
        writer.close()


def _beat(arena: Arena, ended: threading.Event) -> None:
    import time

    while not ended.wait(0.05):
        arena.set_word(Word.HEARTBEAT, time.monotonic_ns())


def test_start_twice_without_wait_is_a_mistake(tmp_path):
    source = _source(50_000_000)
    writer = _writer(tmp_path / "x.arena", source, slots=2)
    writer.start(1, 1)
    with pytest.raises(RuntimeError, match="before the previous one"):
        writer.start(2, 1)
    writer.wait()
    writer.close()


def test_an_error_of_the_copy_is_raised_by_wait_and_the_slot_stays_invalid(tmp_path):
    source = _source()
    writer = _writer(tmp_path / "x.arena", source, slots=2)
    source.arrays = {}
    writer.start(1, 1)
    with pytest.raises(ValueError, match="'a' is gone"):
        writer.wait()
    assert writer.arena.newest() is None
    assert writer.wait() == pytest.approx(0, abs=0.1)
    writer.close()


def test_a_source_of_another_layout_is_refused(tmp_path):
    arena = Arena.create(tmp_path / "x.arena", rank=0, layout=LAYOUT, slots=2)
    with pytest.raises(ArenaError, match=r"tensor 'a' is uint8\[5000\] at 0 here and uint8\[7\]"):
        SnapshotWriter(arena, _source(7))


def test_an_epoch_that_is_written_again_stands_once(tmp_path):
    source = _source()
    writer = _writer(tmp_path / "x.arena", source)
    for epoch in (1, 2, 2):
        source.arrays["a"][:] += 1
        writer.start(epoch, 1)
        writer.wait()
    assert sorted(r.epoch for r in writer.arena.records() if r.committed) == [1, 2]
    assert (read_slot(writer.arena, 2)["a"] == 3).all()
    writer.close()


def test_the_room_of_a_slot_is_its_own_bytes(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    rooms = [arena.slot_bytes(slot) for slot in range(arena.header.slots)]
    assert {len(room) for room in rooms} == {arena.header.slot_bytes}
    starts = [room.ctypes.data for room in rooms]
    assert all(b - a >= arena.header.slot_bytes for a, b in pairwise(starts))


def test_where_everything_lies_in_the_file(tmp_path):
    """The format of version 1, which an agent and a trainer of different releases share."""
    arena = _filled(tmp_path / "x.arena", 7, 9, slots=3, verify=False)
    arena.set_word(Word.FENCE, 6)
    raw, text = (tmp_path / "x.arena").read_bytes(), LAYOUT.to_json()
    fields = struct.unpack_from("<8sIIQQIIQQI", raw)
    assert fields == (b"MAINSTAY", 1, 3, 8192, LAYOUT.digest, len(text), 3, 8192, 8192 * 4, 0)
    words = struct.unpack_from("<7q", raw, 256)
    assert words[:6] == (NO_EPOCH, NO_EPOCH, 0, NO_EPOCH, 0, 6)
    assert 0 < words[6] <= time.monotonic_ns()
    assert raw[4096 : 4096 + len(text)] == text
    for slot, (state, epoch, generation, nbytes, sequence) in enumerate(
        [(1, 7, 1, 5120, 1), (1, 9, 1, 5120, 1), (0, -1, 0, 0, 0)]
    ):
        cell = struct.unpack_from("<IIqQQQQQ", raw, 512 + 128 * slot)
        assert cell == (state, slot, epoch, generation, LAYOUT.digest, nbytes, 0, sequence)
        assert struct.unpack_from("<IIqQQQQQ", raw, 512 + 128 * slot + 64)[:3] == (0, slot, -1)
    assert arena.slot_bytes(1).ctypes.data - arena.raw.ctypes.data == 8192 * 2
    assert len(arena.data) == 8192 * 3


@pytest.mark.parametrize(("seconds", "alive"), [(0.0, True), (2.5, True), (3.5, False)])
def test_an_agent_is_alive_for_three_seconds_after_a_beat(tmp_path, seconds, alive):
    arena = Arena.create(tmp_path / "x.arena", rank=0, layout=LAYOUT, slots=2)
    assert arena.agent_alive(), "a fresh arena was just made by one"
    arena.set_word(Word.HEARTBEAT, time.monotonic_ns() - int(seconds * 1e9))
    assert arena.agent_alive() is alive


def test_eight_slots_are_the_most(tmp_path):
    assert Arena.create(tmp_path / "x.arena", rank=0, layout=LAYOUT, slots=8).header.slots == 8
    with pytest.raises(ValueError, match="an arena has 2 to 8 slots, not 9"):
        Arena.create(tmp_path / "y.arena", rank=0, layout=LAYOUT, slots=9)


@pytest.mark.parametrize(
    ("gone", "said"), [(True, "the snapshot agent is gone"), (False, "parity was not ready within 0.0 s")]
)
def test_protection_is_given_up_in_words(tmp_path, caplog, gone, said):
    writer = _writer(tmp_path / "x.arena", _source(), slots=2, pin_seconds=0.0)
    for word, value in ((Word.PARITY_EVERY, 1), (Word.PARITY_EPOCH, 1), (Word.PARITY_FLOOR, 1)):
        writer.arena.set_word(word, value)
    if gone:
        writer.arena.set_word(Word.HEARTBEAT, time.monotonic_ns() - 4_000_000_000)
    for epoch in (1, 2, 3):
        writer.start(epoch, 1)
        writer.wait()
    writer.close()
    (record,) = caplog.records
    assert record.getMessage() == (
        f"DEGRADED rank 0 epoch 3: {said}; a parity_complete slot is overwritten and training continues"
    )
    assert [r.epoch for r in writer.arena.records()] == [3, 2]


def test_a_slot_that_was_written_again_is_not_the_one_that_was_read(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    record = arena.find(1)
    assert arena.unchanged(record)
    arena.begin_write(record.slot, 1)
    assert not arena.unchanged(record)
    for epoch in (2, 1):
        arena.commit(record.slot, epoch, 1)
        assert not arena.unchanged(record), "the same epoch, and another write"


def test_writes_are_counted_on_from_the_agents_cell_where_the_writers_is_damaged(tmp_path):
    arena = _filled(tmp_path / "x.arena", 1)
    slot = arena.find(1).slot
    for _ in range(3):
        arena.begin_write(slot, 1)
    arena.verify(arena.commit(slot, 4, 1))
    arena.raw[RECORDS_AT + slot * RECORD_BYTES] ^= 1
    arena.begin_write(slot, 1)
    assert arena.record(slot).sequence == 5
    assert Arena.create(tmp_path / "y.arena", rank=0, layout=LAYOUT, slots=2, kind=PARITY_ARENA).header.kind == 1


def test_the_copying_thread_keeps_no_process_alive(tmp_path):
    writer = _writer(tmp_path / "x.arena", _source())
    assert (writer._thread.daemon, writer._thread.name) == (True, "mainstay-snapshot")
    writer.close()
