"""Registration with CUDA, against a runtime that keeps books: there is no GPU here."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from mainstay.recovery.memory import pinning
from mainstay.recovery.memory.pinning import Pinned
from mainstay.recovery.memory.records import PAGE


class Books:
    """A CUDA runtime that registers pieces of up to ``largest`` bytes until ``room`` is used up."""

    def __init__(self, largest=1 << 40, room=1 << 40):
        self.largest, self.room = largest, room
        self.held: dict[int, int] = {}
        self.refused: list[int] = []

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802 - CUDA's name
        assert flags == 1
        assert address % PAGE == 0
        if nbytes > self.largest or sum(self.held.values()) + nbytes > self.room:
            self.refused.append(nbytes)
            return 2  # cudaErrorMemoryAllocation
        assert not any(a < address + nbytes and address < a + n for a, n in self.held.items()), "registered twice"
        self.held[address] = nbytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        return 0 if self.held.pop(address, None) else 1


@pytest.fixture
def memory(monkeypatch):
    """Twenty-one pages that begin at one; pieces of eight pages and of two."""
    monkeypatch.setattr(pinning, "PIECE", 8 * PAGE)
    monkeypatch.setattr(pinning, "SMALL_PIECE", 2 * PAGE)
    room = np.zeros(23 * PAGE, np.uint8)
    start = -room.ctypes.data % PAGE
    return room[start : start + 21 * PAGE]


def test_all_of_it_in_large_pieces(memory):
    books = Books()
    pinned = Pinned(memory, books)
    assert sorted(books.held.values()) == [5 * PAGE, 8 * PAGE, 8 * PAGE]
    assert pinned.complete
    assert pinned.covers(memory)
    pinned.close()
    pinned.close()
    assert not books.held
    assert not pinned.covers(memory[:1])


def test_smaller_pieces_where_large_ones_are_refused(memory):
    books = Books(largest=2 * PAGE)
    pinned = Pinned(memory, books)
    assert books.refused == [8 * PAGE, 8 * PAGE, 5 * PAGE]
    assert set(books.held.values()) == {2 * PAGE, PAGE}
    assert pinned.complete
    assert pinned.covers(memory[3 : 17 * PAGE])


def test_what_cannot_be_pinned_is_said_and_left_to_the_buffer(memory, caplog):
    books = Books(room=12 * PAGE)
    with caplog.at_level(logging.ERROR, "mainstay.memory"):
        pinned = Pinned(memory, books)
    assert "DEGRADED only 49152 of 86016 bytes" in caplog.text
    assert not pinned.complete
    assert pinned.covers(memory[: 12 * PAGE])
    assert not pinned.covers(memory[: 12 * PAGE + 1])
    assert not pinned.covers(memory[12 * PAGE :])
    pinned.close()
    assert not books.held


def test_only_whole_pages_count(memory):
    books = Books()
    pinned = Pinned(memory[1:-1], books)
    assert sum(books.held.values()) == 19 * PAGE
    assert not pinned.covers(memory[1:2])
    assert pinned.covers(memory[PAGE : 20 * PAGE])
    assert not Pinned(memory[1:5], Books()).nbytes
