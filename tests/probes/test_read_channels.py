"""Read channels: a hang affects one channel, is reported once, and ends; a late reading is never used."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from mainstay.probes.core_types import EventKind
from mainstay.probes.read_channels import RunningTime
from mainstay.probes.sample_collector import OPENING_S, SampleCollector
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, SourceEvent, Support, Tell
from mainstay.probes.samplers.protocol import Message, SamplerHello, SampleRow
from mainstay.probes.signals import SignalSource

INTERVAL = 0.2
DEADLINE = 0.3


class Cards:
    """Cards whose reading can be held up one by one; a reading says in which round it was asked for."""

    name, source = "cards", SignalSource.GPU

    def __init__(self, count: int = 3) -> None:
        self.ids = [f"card-{k}" for k in range(count)]
        self.gates = {id_: threading.Event() for id_ in self.ids}
        self.faults: dict[str, Exception] = {}
        self.opening = threading.Event()
        self.reads: dict[str, int] = dict.fromkeys(self.ids, 0)
        self.tell: Tell = lambda _: None
        self.free()

    def free(self) -> None:
        for gate in [*self.gates.values(), self.opening]:
            gate.set()

    def supported(self) -> Support:
        self.opening.wait()
        return Support(ok=True)

    def devices(self) -> tuple[DeviceIdentity, ...]:
        return tuple(DeviceIdentity(id=id_, index=k, kind="gpu", model="m") for k, id_ in enumerate(self.ids))

    def sample(self, t: float) -> Mapping[str, Readings]:
        return {id_: {"gpu_power_watts": t} for id_ in self.ids}

    def channels(self) -> tuple[ReadChannel, ...]:
        return tuple(ReadChannel(f"cards/{id_}", (id_,), self.reader(id_)) for id_ in self.ids)

    def reader(self, id_: str) -> Callable[[float], Mapping[str, Readings]]:
        def read(t: float) -> Mapping[str, Readings]:
            self.reads[id_] += 1
            self.gates[id_].wait()
            if id_ in self.faults:
                raise self.faults[id_]
            return {id_: {"gpu_power_watts": t}}

        return read

    def listen(self, tell: Tell) -> None:
        self.tell = tell

    def close(self) -> None:
        pass


class Rig:
    """A board with its samplers, run tick by tick, and what it said."""

    def __init__(self, *samplers: Cards) -> None:
        self.said: list[Message] = []
        self.samplers = samplers
        self.board = SampleCollector(samplers, self.said.append, interval=INTERVAL, deadline=DEADLINE)
        self.t = 0.0

    def ticks(self, count: int) -> None:
        for _ in range(count):
            started = time.monotonic()
            self.t += 1.0
            self.board.sample(self.t)
            time.sleep(max(0.0, INTERVAL - (time.monotonic() - started)))

    @property
    def power(self) -> list[list[float]]:
        """Row by row what stands for each card."""
        found = []
        hello: SamplerHello | None = None
        for message in self.said:
            hello = message if isinstance(message, SamplerHello) else hello
            if isinstance(message, SampleRow) and hello is not None and hello.devices:
                column, width = hello.catalog.narrow.index("gpu_power_watts"), len(hello.catalog.narrow)
                values = struct.unpack(f"<{len(message.values) // 4}f", message.values)
                found.append([values[k * width + column] for k in range(len(hello.devices))])
        return found

    def outages(self, *, cleared: bool) -> list[SourceEvent]:
        told = [m for m in self.said if isinstance(m, SourceEvent) and m.kind is EventKind.PROBE_UNRESPONSIVE]
        return [m for m in told if bool(m.data.get("cleared")) is cleared]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    monkeypatch.setattr("mainstay.probes.sample_collector._LEAST_BUDGET_S", 0.12)
    made = Cards()
    yield made
    made.free()


def test_one_hanging_card_costs_only_itself_and_is_said_once(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(2)
    cards.gates["card-1"].clear()
    rig.ticks(5)
    assert rig.power[:2] == [[1, 1, 1], [2, 2, 2]]
    for t, row in enumerate(rig.power[2:], 3):
        assert row[0] == row[2] == t, "the others are read in every tick"
        assert math.isnan(row[1])
    (silence,) = rig.outages(cleared=False)
    assert silence.device == "card-1"
    assert (silence.data["sampler"], silence.data["channel"], silence.data["hung"]) == ("cards", "cards/card-1", True)
    assert DEADLINE <= silence.data["seconds"] < DEADLINE + INTERVAL
    assert cards.reads["card-1"] == 3, "no calls pile up on a channel that hangs"


def test_a_hang_is_reported_when_its_time_is_over_not_at_the_next_tick(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(1)
    cards.gates["card-0"].clear()
    started = time.monotonic()
    rig.ticks(2)
    assert rig.outages(cleared=False)
    assert time.monotonic() - started < 2 * INTERVAL + 0.15


def test_when_the_call_returns_the_channel_works_again_and_what_came_late_is_thrown_away(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(1)
    cards.gates["card-1"].clear()
    rig.ticks(3)
    cards.gates["card-1"].set()
    time.sleep(0.05)  # let its thread run before the next tick
    rig.ticks(3)
    seen = [row[1] for row in rig.power]
    assert [t for t in seen if not math.isnan(t)] == [1, 5, 6, 7], "the reading of tick 2 stands nowhere"
    cleared = [told.device for told in rig.outages(cleared=True)]
    assert cleared.count("card-1") == 2, "once at its first answer, once now"
    assert len(rig.outages(cleared=False)) == 1


def test_a_reading_that_comes_within_the_tick_but_after_the_row_is_thrown_away_too(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(1)
    cards.gates["card-2"].clear()
    late = threading.Timer(INTERVAL * 0.95, cards.gates["card-2"].set)
    late.start()
    rig.ticks(3)
    late.join()
    assert all(math.isnan(row[2]) or row[2] == t for t, row in enumerate(rig.power, 1))
    assert not rig.outages(cleared=False), "once is chance"


def test_a_channel_that_fails_is_reported_at_the_third_time_and_cleared_when_it_answers(cards: Cards) -> None:
    rig = Rig(cards)
    cards.faults["card-0"] = ValueError("nonsense from the driver")
    rig.ticks(2)
    assert not rig.outages(cleared=False)
    rig.ticks(2)
    (silence,) = rig.outages(cleared=False)
    assert silence.data["reason"] == "ValueError: nonsense from the driver"
    assert silence.data["hung"] is False
    cards.faults.clear()
    rig.ticks(1)
    assert "card-0" in [told.device for told in rig.outages(cleared=True)]


def test_a_source_that_hangs_while_it_opens_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, cards: Cards) -> None:
    monkeypatch.setattr("mainstay.probes.sample_collector._FIRST_ROW_S", 0.1)
    monkeypatch.setattr("mainstay.probes.sample_collector.OPENING_S", 0.5)
    stuck = Cards(1)
    stuck.name, stuck.ids = "stuck", ["other"]
    stuck.opening.clear()
    rig = Rig(cards, stuck)
    rig.ticks(4)
    assert rig.power == [[t, t, t] for t in (1, 2, 3, 4)]
    (silence,) = rig.outages(cleared=False)
    assert (silence.device, silence.data["channel"]) == (None, "stuck/open")
    hello = next(message for message in rig.said if isinstance(message, SamplerHello))
    assert hello.missing == {"stuck": "has not answered yet"}
    stuck.opening.set()
    rig.ticks(2)
    assert [len(m.devices) for m in rig.said if isinstance(m, SamplerHello)] == [3, 4], (
        "it is let in when it has opened"
    )
    assert None in [told.device for told in rig.outages(cleared=True)]
    assert OPENING_S >= 10, "a driver with many cards takes seconds"


def test_a_card_that_is_gone_is_no_longer_silent(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(1)
    cards.gates["card-2"].clear()
    rig.ticks(3)
    cards.ids = cards.ids[:2]
    rig.t = 20.0
    rig.ticks(1)
    assert rig.outages(cleared=True)[-1].data["gone"] is True
    assert rig.power[-1] == [21.0, 21.0]


def test_what_a_source_tells_goes_out_at_once_from_any_thread(cards: Cards) -> None:
    rig = Rig(cards)
    rig.ticks(1)
    xid = SourceEvent(kind=EventKind.XID, t=1.0, device="card-0", data={"code": 79})
    teller = threading.Thread(target=cards.tell, args=(xid,))
    teller.start()
    teller.join()
    assert rig.said[-1] == xid


def test_what_we_overslept_proves_nothing() -> None:
    now = [100.0]
    running = RunningTime(lambda: now[0])
    now[0] += 0.4
    assert running.passed(1.0) == pytest.approx(0.4)
    now[0] += 3600.0  # suspended
    assert running.passed(1.0) == pytest.approx(1.4)
    now[0] -= 5.0
    assert running.passed(1.0) == pytest.approx(1.4)


def test_a_board_that_was_stopped_blames_nobody(cards: Cards) -> None:
    now = [0.0]
    rig = Rig(cards)
    real = time.monotonic
    # A minute: no real wait of this test comes near it, and the hour's sleep exceeds it.
    rig.board = SampleCollector(
        [cards], rig.said.append, interval=INTERVAL, deadline=60.0, clock=lambda: real() + now[0]
    )
    rig.ticks(1)
    cards.gates["card-0"].clear()
    rig.board.sample(2.0)
    now[0] += 3600.0
    rig.ticks(1)
    cards.gates["card-0"].set()
    rig.ticks(2)
    assert not rig.outages(cleared=False)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("seconds", [1.0, 2.0, 60.0])
def test_a_round_that_took_longer_than_its_interval_ends_all_the_same(
    cards: Cards, seconds: float, hangs: bool
) -> None:
    now, said = [0.0], list[Message]()

    def collect_message(message: Message) -> None:
        said.append(message)
        now[0] += seconds if isinstance(message, SampleRow) else 0.0

    real = time.monotonic
    board = SampleCollector([cards], collect_message, interval=1.0, deadline=DEADLINE, clock=lambda: real() + now[0])
    board.sample(1.0)
    if hangs:
        cards.gates["card-1"].clear()
    board.sample(2.0)
    silent = [m for m in said if isinstance(m, SourceEvent) and not m.data.get("cleared")]
    assert [m.device for m in silent] == (["card-1"] if hangs else []), "what has had its time is reported first"


@pytest.mark.slow
def test_nine_channels_cost_almost_nothing() -> None:
    rig = Rig(Cards(9))
    board = SampleCollector(rig.samplers, rig.said.append)
    board.sample(1.0)
    started = time.process_time()
    for t in range(2, 202):
        board._interval = 0.0  # no waiting for what comes after the row
        board.sample(float(t))
    assert (time.process_time() - started) / 200 < 0.003, "0.3 % of a core at 1 Hz"
