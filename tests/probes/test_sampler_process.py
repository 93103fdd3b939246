"""The sampler child: an absolute schedule, rows in the announced shape, nonsense left out."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.sample_collector import SampleCollector
from mainstay.probes.sampler_process import ticks
from mainstay.probes.samplers.base import DeviceIdentity, ReadChannel, Readings, SourceEvent, Support, Tell
from mainstay.probes.samplers.protocol import (
    MAX_MESSAGE_BYTES,
    Message,
    SamplerHello,
    SampleRow,
    SourceEntered,
    Unpacker,
    pack,
)
from mainstay.probes.signals import WIDE_MISSING, Catalog, SignalSource


class Clock:
    """A clock that stands still unless someone sleeps; ``late`` seconds are added to every sleep."""

    def __init__(self, now: float, late: float = 0.0) -> None:
        self.now, self.late, self.slept = now, late, 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds + self.late


def test_ticks_are_whole_multiples_and_do_not_drift() -> None:
    clock = Clock(1000.3, late=0.2)
    assert list(islice(ticks(1.0, clock, clock.sleep), 5)) == [1001, 1002, 1003, 1004, 1005]


def test_missed_ticks_are_skipped_and_never_made_up() -> None:
    clock = Clock(1000.3)
    stream = ticks(1.0, clock, clock.sleep)
    assert next(stream) == 1001
    clock.now = 1004.7
    assert [next(stream), next(stream)] == [1005, 1006]


def test_a_clock_set_back_is_followed() -> None:
    clock = Clock(5000.5)
    stream = ticks(1.0, clock, clock.sleep)
    assert next(stream) == 5001
    clock.now = 1000.5
    assert [next(stream), next(stream)] == [1001, 1002]
    assert clock.slept == 3


def test_a_sleep_that_ends_early_is_gone_on_with() -> None:
    clock = Clock(1000.0)
    stream = ticks(2.0, clock, lambda seconds: clock.sleep(seconds / 2 if seconds > 0.1 else seconds))
    assert [next(stream), next(stream)] == [1002, 1004]
    assert clock.now >= 1004


@given(st.floats(1, 1e9), st.sampled_from([0.1, 0.5, 1.0, 10.0]), st.lists(st.floats(0, 30), max_size=20))
def test_ticks_only_go_forward_on_a_clock_that_does(start: float, interval: float, delays: list[float]) -> None:
    clock = Clock(start)
    stream, last = ticks(interval, clock, clock.sleep), 0.0
    for delay in delays:
        tick = next(stream)
        assert tick > last
        assert 0 <= clock.now - tick < interval + 1e-6
        last, clock.now = tick, clock.now + delay


class Toy:
    """A sampler that returns what the test sets."""

    name, source = "toy", SignalSource.HOST

    def __init__(self, readings: Readings, support: Support | None = None) -> None:
        self.readings, self.support, self.ids = readings, support or Support(ok=True), ["a", "b"]

    def supported(self) -> Support:
        return self.support

    def devices(self) -> tuple[DeviceIdentity, ...]:
        return tuple(DeviceIdentity(id=id_, index=k, kind="host", model="toy") for k, id_ in enumerate(self.ids))

    def sample(self, t: float) -> Mapping[str, Readings]:
        return {"a": self.readings}

    def channels(self) -> tuple[ReadChannel, ...]:
        return (ReadChannel("toy", tuple(self.ids), self.sample),)

    def listen(self, tell: Tell) -> None:
        pass

    def close(self) -> None:
        pass


def rows(said: list[Message]) -> list[SampleRow]:
    return [message for message in said if isinstance(message, SampleRow)]


def hellos(said: list[Message]) -> list[SamplerHello]:
    return [message for message in said if isinstance(message, SamplerHello)]


def test_a_row_is_the_catalogs_order_with_holes_where_nothing_was_read() -> None:
    said: list[Message] = []
    SampleCollector([Toy({"load_1m": 2.5, "context_switches_total": 7})], said.append).sample(10.0)
    (hello,), (row,) = hellos(said), rows(said)
    narrow = struct.unpack(f"<{2 * len(hello.catalog.narrow)}f", row.values)
    wide = struct.unpack(f"<{2 * len(hello.catalog.wide)}q", row.wide)
    assert narrow[hello.catalog.narrow.index("load_1m")] == 2.5
    assert sum(not math.isnan(value) for value in narrow) == 1
    assert wide[hello.catalog.wide.index("context_switches_total")] == 7
    assert sum(value != WIDE_MISSING for value in wide) == 1


@pytest.mark.parametrize("value", [-1.0, 2.0, math.inf, -math.inf, math.nan])
def test_an_implausible_value_is_left_out_and_said_once(value: float, caplog: pytest.LogCaptureFixture) -> None:
    said: list[Message] = []
    board = SampleCollector(
        [Toy({"cpu_utilization_ratio": value, "context_switches_total": value - 2.0**70})], said.append
    )
    board.sample(1.0)
    board.sample(2.0)
    for row in rows(said):
        assert all(math.isnan(number) for (number,) in struct.iter_unpack("<f", row.values))
        assert all(number == WIDE_MISSING for (number,) in struct.iter_unpack("<q", row.wide))
    assert caplog.text.count("cpu_utilization_ratio reads") == 1


def test_changed_hardware_is_announced_before_its_rows() -> None:
    said: list[Message] = []
    toy = Toy({"load_1m": 1.0})
    board = SampleCollector([toy], said.append)
    board.sample(1.0)
    toy.ids = ["a"]
    board.sample(12.0)
    kinds = [type(message) for message in said if not isinstance(message, SourceEntered | SourceEvent)]
    assert kinds == [SamplerHello, SampleRow, SamplerHello, SampleRow]
    assert [len(hello.devices) for hello in hellos(said)] == [2, 1]


def test_a_source_that_comes_late_is_let_in() -> None:
    said: list[Message] = []
    toy = Toy({"load_1m": 1.0}, Support(ok=False, reason="the driver is not loaded"))
    board = SampleCollector([toy], said.append)
    board.sample(1.0)
    toy.support = Support(ok=True)
    board.sample(2.0)
    assert [hello.missing for hello in hellos(said)][-1] == {"toy": "the driver is not loaded"}
    board.sample(61.0)
    assert hellos(said)[-1].missing == {}
    assert len(rows(said)[-1].values) > 0


def test_a_device_that_nobody_announced_is_asked_about_at_once() -> None:
    said: list[Message] = []
    toy = Toy({"load_1m": 1.0})
    toy.ids = []
    board = SampleCollector([toy], said.append)
    board.sample(1.0)
    toy.ids = ["a"]
    board.sample(2.0)
    assert [len(hello.devices) for hello in hellos(said)] == [0, 1]


def test_messages_survive_any_cutting() -> None:
    messages = [
        SourceEntered("x"),
        SamplerHello((), Catalog(()), {}),
        SampleRow(1.0, b"a", b""),
    ]
    stream = b"".join(pack(message) for message in messages)
    for size in (1, 3, 7, len(stream)):
        unpacker = Unpacker()
        got = [m for k in range(0, len(stream), size) for m in unpacker.feed(stream[k : k + size])]
        assert got == messages


@pytest.mark.parametrize("junk", [struct.pack("<I", MAX_MESSAGE_BYTES + 1), struct.pack("<I", 2) + b"\xc1\xc1"])
def test_a_stream_that_is_none_is_refused(junk: bytes) -> None:
    with pytest.raises(ValueError, match=r"bytes from the sampler child|MessagePack"):
        Unpacker().feed(junk)


@pytest.mark.processes
def test_the_real_child_keeps_the_grid_and_ends_with_its_parent() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mainstay.probes.sampler_process", "--interval", "0.1"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    unpacker, got = Unpacker(), list[SampleRow]()
    deadline = time.monotonic() + 30
    while len(got) < 5 and time.monotonic() < deadline:
        got += rows(unpacker.feed(os.read(process.stdout.fileno(), 1 << 16)))
    assert all(abs(row.t / 0.1 - round(row.t / 0.1)) < 1e-4 for row in got)
    assert [row.t for row in got] == sorted({row.t for row in got})
    process.stdout.close()
    assert process.wait(30) == 0, "a broken pipe is an orderly end"


@pytest.mark.processes
@pytest.mark.parametrize(("channel", "code"), [("host", 0), ("host/open", 0), ("host/other", 1), ("nothing/at-all", 2)])
def test_one_channel_can_be_tried_in_a_process_of_its_own(channel: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mainstay.probes.sampler_process", "--try", channel], timeout=60, check=False
    )
    assert done.returncode == code
