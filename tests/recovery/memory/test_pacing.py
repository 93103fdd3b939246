"""Pacing: copies give way to the rank's own transfers, but are done in time."""

from __future__ import annotations

import pytest

from mainstay.recovery.memory.pacing import POLL, SHARE, Pacer

MB = 10**6
CHUNK = 10 * MB
SECONDS = 0.01
"""A chunk at 1 GB/s."""


class World:
    """A clock, and the spans of it in which the rank is busy."""

    def __init__(self):
        self.now, self.busy = 0.0, []
        self.pacer = Pacer(self.is_busy, clock=lambda: self.now, sleep=self.sleep)

    def is_busy(self):
        return any(begin <= self.now < end for begin, end in self.busy)

    def sleep(self, seconds):
        assert seconds == POLL
        self.now += seconds

    def step(self, seconds, chunks):
        """A step: a snapshot of so many chunks in it. Returns when each was copied, and when the snapshot was done."""
        begun, at = self.now, []
        self.pacer.begin_copy(chunks * CHUNK)
        for _ in range(chunks):
            self.pacer.wait()
            at.append(self.now - begun)
            self.now += SECONDS
            self.pacer.copied(CHUNK, SECONDS)
        done = self.now - begun
        self.now = max(self.now, begun + seconds)
        return at, done


@pytest.fixture
def world():
    made = World()
    for _ in range(4):
        made.step(1.0, 5)
    return made


def test_a_copy_gives_way_and_goes_on_afterwards(world):
    world.busy = [(world.now + 0.015, world.now + 0.3)]
    at, done = world.step(1.0, 5)
    assert at[:2] == pytest.approx([0.0, 0.01])
    assert at[2] == pytest.approx(0.3, abs=2 * POLL), "the chunk under way ends, the next one waits"
    assert done == pytest.approx(0.33, abs=2 * POLL)
    assert world.pacer.paused == pytest.approx(0.28, abs=2 * POLL)


def test_a_rank_that_is_always_busy_still_saves_in_time(world):
    world.busy = [(world.now, world.now + 100.0)]
    at, done = world.step(1.0, 5)
    assert done == pytest.approx(SHARE, abs=0.01)
    assert at[0] == pytest.approx(SHARE - 5 * SECONDS, abs=2 * POLL), "as late as possible, then without a pause"


def test_where_there_is_no_time_nothing_pauses(world):
    for _ in range(20):
        world.step(0.05, 5)
    world.busy = [(world.now, world.now + 100.0)]
    at, _ = world.step(0.05, 5)
    assert at == pytest.approx([i * SECONDS for i in range(5)])


def test_nothing_pauses_until_steps_and_link_are_known():
    world = World()
    world.busy = [(0.0, 100.0)]
    assert world.pacer.slack() == 0.0
    for _ in range(3):
        _, done = world.step(1.0, 2)
        assert done == pytest.approx(2 * SECONDS)
    assert world.step(1.0, 2)[1] > 0.5, "from the fourth on it gives way"


def test_no_window_no_pause(world):
    assert world.step(1.0, 5)[1] == pytest.approx(5 * SECONDS)
    assert world.pacer.paused == 0.0
