"""Samples of one device list become frames; each ends when it is full, at a gap or at other devices."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lib_receiver import Receiver
from mainstay.probes.daemon import Batcher, interleave
from mainstay.probes.samplers.base import DeviceIdentity
from mainstay.probes.samplers.protocol import SamplerHello, SampleRow
from mainstay.probes.shipper import FrameSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport


def hello(*ids: str) -> SamplerHello:
    devices = tuple(DeviceIdentity(id=id_, index=k, kind="host", model="m") for k, id_ in enumerate(ids))
    return SamplerHello(devices, Catalog(("load_1m",), ("context_switches_total",)), {})


def row(t: float, *values: float) -> SampleRow:
    return SampleRow(t, struct.pack(f"<{len(values)}f", *values), struct.pack(f"<{len(values)}q", *map(int, values)))


@pytest.fixture
def batched(tmp_path: Path, receiver: Receiver) -> Iterator[tuple[Batcher, Spool]]:
    with Spool(tmp_path / "frames") as spool:
        yield Batcher("n", 1.0, 3, FrameSender(spool, Transport(receiver.url))), spool


def framed(spool: Spool) -> list[tuple[float, int, tuple[str, ...]]]:
    from mainstay.probes.frame import decode

    frames = [decode(entry.payload) for entry in spool.peek(100)]
    return [(frame.t0, frame.samples, frame.entities) for frame in frames]


def test_a_frame_is_full_or_ends_at_a_gap_or_at_other_devices(batched: tuple[Batcher, Spool]) -> None:
    batcher, spool = batched
    batcher.greet(hello("a", "b"))
    for t in (1, 2, 3, 4, 6, 7):
        batcher.append_row(row(t, 1, 2))
    batcher.greet(hello("a"))
    batcher.append_row(row(8, 1))
    batcher.flush()
    batcher.flush()
    assert framed(spool) == [(1, 3, ("a", "b")), (4, 1, ("a", "b")), (6, 2, ("a", "b")), (8, 1, ("a",))]


def test_without_devices_there_are_no_frames(batched: tuple[Batcher, Spool]) -> None:
    batcher, spool = batched
    batcher.append_row(row(1))
    batcher.greet(hello())
    batcher.append_row(row(2))
    batcher.flush()
    assert framed(spool) == []


def test_time_runs_fastest_in_a_frame() -> None:
    rows = [struct.pack("<3f", *values) for values in ((1, 2, 3), (10, 20, 30))]
    assert struct.unpack("<6f", interleave(rows, 4)) == (1, 10, 2, 20, 3, 30)
    wide = [struct.pack("<2q", *values) for values in ((-1, 2**62), (5, 6))]
    assert struct.unpack("<4q", interleave(wide, 8)) == (-1, 5, 2**62, 6)
    assert interleave([b"", b""], 8) == b""
