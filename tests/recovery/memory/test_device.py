"""Copies off a device by chunks, against a stream that keeps a log: there is no GPU here."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from mainstay.recovery.memory.device import BOUNCE_BYTES, Bounce, DeviceCopier, StridedCopier

DATA = torch.arange(1, 26, dtype=torch.uint8)


@dataclass
class Log:
    """A stream, its events, and a pacer."""

    said: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    events: int = 0

    def wait_event(self, event: object) -> None:
        self.said.append(f"after {event}")

    def record_event(self) -> Event:
        self.events += 1
        return Event(self, self.events)

    def wait(self) -> float:
        self.said.append("may go")
        return 0.0

    def copied(self, nbytes: int, seconds: float) -> None:
        assert 0.0 <= seconds < 60.0
        self.sizes.append(nbytes)


@dataclass
class Event:
    log: Log
    number: int

    def synchronize(self) -> None:
        self.log.said.append(f"chunk {self.number} is there")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr("mainstay.recovery.memory.device.BOUNCE_BYTES", 10)
    monkeypatch.setattr("torch.cuda.stream", nullcontext)
    return Log()


def bounce_of(log: Log) -> Bounce:
    made = Bounce()
    made._streams[None] = log  # type: ignore[index]
    made._buffers = [torch.zeros(10, dtype=torch.uint8) for _ in range(2)]
    return made


def test_a_chunk_comes_while_the_one_before_is_put_in_place(log: Log) -> None:
    out = np.zeros(25, np.uint8)
    bounce_of(log).read(DATA, "the step", out)
    assert out.tolist() == list(range(1, 26))
    assert log.said == ["after the step", *(f"chunk {n} is there" for n in (1, 2, 3))]
    assert log.events == 3, "10, 10 and 5 bytes"


def test_a_pacer_is_asked_before_each_chunk_and_told_after_it(log: Log) -> None:
    bounce, out = bounce_of(log), np.zeros(25, np.uint8)
    bounce.pacer = log  # type: ignore[assignment]
    bounce.read(DATA, None, out)
    there = [f"chunk {n} is there" for n in (1, 2, 3)]
    assert log.said == ["may go", "may go", there[0], "may go", *there[1:]]
    assert log.sizes == [10, 10, 5]
    assert out.tolist() == DATA.tolist()


@pytest.mark.parametrize("covered", [True, False])
def test_pinned_memory_needs_no_buffer(log: Log, covered: bool) -> None:
    @dataclass
    class Pins:
        def covers(self, part: np.ndarray) -> bool:
            return covered and len(part) == 25

    bounce, out = bounce_of(log), np.zeros(25, np.uint8)
    bounce.pinned = Pins()  # type: ignore[assignment]
    bounce.read(DATA, None, out)
    assert out.tolist() == DATA.tolist()
    assert [int(buffer[0]) for buffer in bounce._buffers] == ([0, 0] if covered else [21, 11])


def test_a_part_of_a_part_begins_where_the_first_one_does(log: Log) -> None:
    whole = DeviceCopier(DATA.reshape(5, 5), bounce_of(log), None)
    part = whole.part(3, 20).part(2, 9)
    out = np.zeros(7, np.uint8)
    part.copy_into(out)
    assert out.tolist() == [6, 7, 8, 9, 10, 11, 12]
    full = np.zeros(25, np.uint8)
    whole.copy_into(full)
    assert full.tolist() == DATA.tolist()
    turned = StridedCopier(torch.arange(6, dtype=torch.int16).reshape(2, 3).t())
    piece = np.zeros(4, np.uint8)
    turned.part(2, 12).part(2, 6).copy_into(piece)
    assert piece.view(np.int16).tolist() == [1, 4], "of 0 3 1 4 2 5"


def test_a_strided_tensor_is_made_contiguous_in_the_stream_after_the_step(log: Log) -> None:
    """Outside it, chunks could be read before that copy is made: a torn snapshot."""

    class Strided(torch.Tensor):
        def contiguous(self, *_: object, **__: object) -> torch.Tensor:
            log.said.append("made contiguous")
            return self.as_subclass(torch.Tensor).contiguous()

    turned = torch.arange(6, dtype=torch.int16).reshape(2, 3).t().as_subclass(Strided)
    out = np.zeros(8, np.uint8)
    DeviceCopier(turned, bounce_of(log), "the step").part(2, 10).copy_into(out)
    assert log.said == ["after the step", "made contiguous", "chunk 1 is there"]
    assert out.view(np.int16).tolist() == [3, 1, 4, 2], "of 0 3 1 4 2 5"


def test_without_a_gpu_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert Bounce().mark() is None
    assert BOUNCE_BYTES == 33_554_432
