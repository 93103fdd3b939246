"""Requests to other stores, read back by hand: what the servers get is what the fleet of the bench sends."""

from __future__ import annotations

import json

import numpy as np

from bench.lib_fleet import Samples
from bench.lib_remote_write import FRAME_SECONDS, JSON_LINES, PROTOBUF, Body, series
from mainstay.service.exposition.protobuf import varint
from tests.service.exposition.receiver import fields, read_varint

START = 1_800_000_000
STAMPS = [(START + second) * 1000 for second in range(FRAME_SECONDS)]
LONG = "n" * 200
"""Its length needs two bytes."""
GIVEN = (
    ({"__name__": "gpu_power_watts", "node": LONG}, list(np.array([500.25, 0.0, -1.5, 6e10, 0.1], np.float32))),
    ({"__name__": "gpu_processes", "node": "b"}, list(np.arange(FRAME_SECONDS, dtype=np.float32))),
)


def uncompressed(block: bytes) -> bytes:
    """A Snappy block whose first element is a literal with a length of four bytes, and its only one."""
    size, at = read_varint(block, 0)
    assert block[at] & 3 == 0
    assert block[at] >> 2 == 63
    assert int.from_bytes(block[at + 1 : at + 5], "little") + 1 == size
    assert len(block) == at + 5 + size
    return block[at + 5 :]


def test_remote_write_holds_labels_and_samples_in_order() -> None:
    body = Body(PROTOBUF, GIVEN)
    body.at(START - 60)
    found = []
    for number, one in fields(uncompressed(body.at(START))):
        assert number == 1
        parts = list(fields(one))
        labels = [tuple(text.decode() for _, text in fields(label)) for kind, label in parts if kind == 1]
        found.append((labels, [dict(fields(sample)) for kind, sample in parts if kind == 2]))
    assert found == [
        (sorted(labels.items()), [{1: float(v), 2: at} for v, at in zip(values, STAMPS, strict=True)])
        for labels, values in GIVEN
    ]
    assert body.samples == 2 * FRAME_SECONDS


def test_json_lines_hold_labels_and_samples_in_order() -> None:
    body = Body(JSON_LINES, GIVEN)
    body.at(START - 60)
    lines = [json.loads(line) for line in body.at(START).splitlines()]
    assert [(line["metric"], line["timestamps"]) for line in lines] == [(labels, STAMPS) for labels, _ in GIVEN]
    for line, (_, values) in zip(lines, GIVEN, strict=True):
        assert list(np.array(line["values"], np.float32)) == values


def test_varint_at_the_borders_of_a_byte() -> None:
    assert [varint(n) for n in (0, 127, 128, 16_383, 16_384)] == [
        b"\x00", b"\x7f", b"\x80\x01", b"\xff\x7f", b"\x80\x80\x01",
    ]  # fmt: skip


def test_series_are_the_readings_of_the_fleet() -> None:
    found = list(series(range(7, 9)))
    assert len({tuple(labels.items()) for labels, _ in found}) == len(found)
    assert {labels["node"] for labels, _ in found} == {"n00007", "n00008"}
    assert sum(len(values) for _, values in found) == 2 * Samples(FRAME_SECONDS).readings
    power = next(values for labels, values in found if labels["__name__"] == "gpu_power_watts")
    assert len(set(power)) == FRAME_SECONDS
    assert all(450 < value < 550 for value in power)
