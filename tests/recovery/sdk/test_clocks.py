"""The thread's own clock stands still while it waits for a core, and asks the kernel only when it may have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from mainstay.recovery.sdk.clocks import ThreadClock


class Machine:
    """A core, moved by hand: seconds that passed, that the thread ran, that it waited for the core."""

    def __init__(self) -> None:
        self.now = self.ran = self.waited = 0.0
        self.reads = 0
        self.lost_after_read = 0.0

    def run(self, seconds: float) -> None:
        self.now, self.ran = self.now + seconds, self.ran + seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, seconds: float) -> None:
        self.now, self.waited = self.now + seconds, self.waited + seconds

    def pread(self, *_: object) -> bytes:
        self.reads += 1
        told = f"{round(self.ran * 1e9)} {round(self.waited * 1e9)} 1".encode()
        self.wait(self.lost_after_read)
        self.lost_after_read = 0.0
        return told


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine()
    with monkeypatch.context() as patch:
        patch.setattr("mainstay.recovery.sdk.clocks.time.perf_counter", lambda: found.now)
        patch.setattr("mainstay.recovery.sdk.clocks.time.clock_gettime", lambda _: found.ran)
        patch.setattr("mainstay.recovery.sdk.clocks.os.pread", found.pread)
        yield found


def test_a_thread_that_kept_its_core_asks_nobody(machine: Machine) -> None:
    clock = ThreadClock()
    begun, reads = clock.own(), machine.reads
    for _ in range(10):
        machine.run(0.003)
        clock.own()
    assert clock.own() - begun == pytest.approx(0.03)
    assert machine.reads == reads


def test_waiting_for_a_core_is_left_out_and_sleeping_is_not(machine: Machine) -> None:
    clock = ThreadClock()
    begun = clock.own()
    machine.run(0.01)
    machine.wait(0.5)
    assert clock.own() - begun == pytest.approx(0.01)
    machine.sleep(0.02)
    assert clock.own() - begun == pytest.approx(0.03)
    assert clock.read()[1] == pytest.approx(0.5)


def test_a_core_that_is_lost_while_it_asks_is_no_time_of_its_own(machine: Machine) -> None:
    clock = ThreadClock()
    begun = clock.own()
    machine.sleep(0.02)
    machine.lost_after_read = 0.3
    assert clock.own() - begun == pytest.approx(0.02)


def test_any_thread_may_ask_for_the_one_that_made_it() -> None:
    """As autograd's threads do on a device."""
    clock = ThreadClock()
    found: list[float] = []

    def request_lock() -> None:
        time.sleep(0.05)
        found.append(time.clock_gettime(clock._processor))

    before = time.thread_time()
    asker = threading.Thread(target=request_lock)
    asker.start()
    asker.join()
    assert before <= found[0] <= time.thread_time()
