"""Waiting is bounded in number and in time; what is refused is of the least value, counted, and logged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from mainstay.service.common.back_pressure import BackPressure, BusyError, GroupWriter, ShedRecord, TurnQueue
from mainstay.service.common.loops import Loop
from mainstay.service.common.quota import Quota, QuotaExceededError


def test_a_queue_refuses_whoever_comes_when_it_is_full_or_waits_too_long() -> None:
    async def scene() -> tuple[list[str], ShedRecord]:
        shed, order = ShedRecord(), list[str]()
        queue = TurnQueue("reports", at_once=1, longest=1, seconds=0.05, shed=shed)

        async def work(name: str) -> None:
            async with queue.hold_turn():
                order.append(name)

        async with queue.hold_turn():
            waiting = asyncio.create_task(work("waits"))
            await asyncio.sleep(0)
            with pytest.raises(BusyError, match="reports") as full:
                await work("comes")
            assert full.value.headers == {"Retry-After": "2"}
            with pytest.raises(BusyError):
                await waiting
        await work("later")
        return order, shed

    order, shed = asyncio.run(scene())
    assert order == ["later"]
    assert (shed.totals, shed.recent()) == ({"reports": 2}, ["reports"])


class Slow:
    """A writer whose first batch lasts until the gate opens."""

    def __init__(self, *, size: int, longest: int) -> None:
        self.pressure, self.gate, self.batches = BackPressure(), threading.Event(), list[list[str]]()
        self.writer = GroupWriter[str, str]("events", self.store, size=size, longest=longest, pressure=self.pressure)

    def store(self, batch: Sequence[str]) -> Sequence[str | Exception]:
        self.gate.wait(30.0)
        self.batches.append(list(batch))
        return [item.upper() for item in batch]


def test_low_value_is_refused_first_and_the_rest_when_nothing_fits() -> None:
    async def scene() -> tuple[Slow, list[str]]:
        slow = Slow(size=2, longest=4)
        kept = [asyncio.create_task(slow.writer.write("a", key=0))]
        await asyncio.sleep(0)  # the first batch leaves the queue
        kept += [asyncio.create_task(slow.writer.write(item, key=item)) for item in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="low value"):
            await slow.writer.write("low", key="low", low_value=True)
        kept += [asyncio.create_task(slow.writer.write(item, key=item)) for item in "de"]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await slow.writer.write("f", key="f")
        slow.gate.set()
        return slow, await asyncio.gather(*kept)

    slow, answers = asyncio.run(scene())
    assert answers == ["A", "B", "C", "D", "E"]
    assert slow.batches == [["a"], ["b", "c"], ["d", "e"]]
    assert slow.pressure.shed.totals == {"events of low value": 1, "events": 1}


def test_what_was_refused_is_one_line_for_all_since_the_last(caplog: pytest.LogCaptureFixture) -> None:
    shed = ShedRecord()
    for what in ("reports", "reports", "events of low value"):
        shed.note(what)
    shed.report()
    shed.report()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "1 events of low value, 2 reports" in line


def test_a_quota_refills_and_refuses_the_whole_when_it_does_not_fit() -> None:
    time = [0.0]
    quota = Quota("events", per_second=2.0, burst=10, monotonic=lambda: time[0])
    quota.charge("t1", 10)
    quota.charge("t2", 10)
    time[0] = 1.0
    with pytest.raises(QuotaExceededError, match="too many events") as refused:
        quota.charge("t1", 5)
    assert refused.value.headers == {"Retry-After": "2"}
    quota.charge("t1", 2)
    time[0] = 100.0
    quota.charge("t1", 10)


def test_a_loop_is_late_while_its_turns_fail_and_says_why() -> None:
    fails, turned = threading.Event(), threading.Event()

    def run_turn() -> None:
        turned.set()
        if fails.is_set():
            raise OSError("no")

    loop = Loop("x", 0.005, run_turn)
    assert loop.late_seconds() == 0.0, "not started"
    loop.start()
    assert turned.wait(30.0)
    fails.set()
    pause, before = threading.Event(), 0.0
    for _ in range(3000):
        if loop.last_error and loop.late_seconds() > before + 0.2:
            break
        pause.wait(0.01)
    assert loop.late_seconds() > 0.2
    assert loop.last_error == "OSError"
    fails.clear()
    turns = loop.turns
    for _ in range(3000):
        if loop.turns > turns:
            break
        pause.wait(0.01)
    loop.stop()
    assert loop.last_error == ""
