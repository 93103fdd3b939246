"""Chains of encoded steps in a directory: bit-equal at any length, whole or refused after a kill at any line.

``StepDirectory`` is the least that a run directory needs for them: files of the ranks, then a manifest with the bases.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.lib_encoded_slots import decoded, fill, readable
from mainstay.probes.durable_files import write_durably
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.encoding import encoded_slot, exact, tensor_blob
from mainstay.recovery.checkpoint.encoding.encoded_slot import (
    FullSlot,
    SlotDigests,
    SlotId,
    SlotIndex,
    changed_bytes,
    encode_slot,
    read_index,
    slot_digests,
    write_encoded_slot,
)
from mainstay.recovery.checkpoint.encoding.quantized import rounded_to_bfloat16
from mainstay.recovery.checkpoint.encoding.slot_chain import SlotChain, read_chain
from mainstay.recovery.checkpoint.encoding.tensor_blob import CastHeader, split
from mainstay.recovery.checkpoint.load import full_slot
from mainstay.recovery.checkpoint.manifest import CheckpointError, DiskConfig
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import TornSlotError
from mainstay.recovery.memory.layout import Layout

RUN = "01997c4e-8f00-7000-8000-000000000001"
RANKS = 2
LAYOUT = Layout.build({
    "param.table": ("float32", (300, 16)), "param.w": ("bfloat16", (40, 33)), "buffer.n": ("int64", (3,)),
    "optim.table.exp_avg": ("float32", (300, 16)), "optim.w.master": ("float32", (40, 33)),
    "optim.w.exp_avg_sq": ("float32", (40, 33)), "optim.step": ("float32", ()), "rng.torch": ("uint8", (500,)),
})  # fmt: skip


def state(rank: int, epoch: int) -> Bytes:
    """The slot of a rank: of the table, each step touches a twentieth; everything else changes a little."""
    slot = np.zeros(LAYOUT.nbytes, np.uint8)
    views: dict[str, Any] = LAYOUT.views(slot)
    random = np.random.default_rng(rank)
    for name in ("param.table", "optim.table.exp_avg", "optim.w.master"):
        views[name][...] = random.normal(0, 0.02, views[name].shape)
    views["optim.w.exp_avg_sq"][...] = np.square(random.normal(0, 1e-4, (40, 33)))
    for step in range(epoch):
        random = np.random.default_rng([rank, step])
        rows = random.choice(300, 15, replace=False)
        for name in ("param.table", "optim.table.exp_avg"):
            views[name][rows] += random.normal(0, 1e-3, (15, 16)).astype(np.float32)
        views["optim.w.master"][...] += random.normal(0, 1e-4, (40, 33)).astype(np.float32)
    views["param.w"][...] = rounded_to_bfloat16(views["optim.w.master"])
    views["optim.step"][...] = epoch
    views["rng.torch"][...] = np.random.default_rng([rank, epoch, 9]).integers(0, 256, 500)
    return slot


class StepManifest(msgspec.Struct):
    """What makes a step whole."""

    epoch: int
    bases: list[int]
    """Steps that a restore of this one needs: what retention must keep."""
    checks: list[int]
    """Of the index of each rank."""


class StepDirectory:
    """Steps of a run; each holds a file of every rank, then the manifest."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, slot: SlotId) -> Path:
        return self.path / f"step-{slot.epoch:08d}" / f"rank-{slot.rank}.g{slot.generation}.encoded"

    def write(self, epoch: int, base: int | None, *, reads: bool = False, bits: int | None = None) -> None:
        (self.path / f"step-{epoch:08d}").mkdir(exist_ok=True)
        checks = [self._write_rank(SlotId(RUN, epoch, rank, 1), base, reads, bits) for rank in range(RANKS)]
        bases = [] if base is None else [base, *self.manifest(base).bases]
        content = msgspec.json.encode(StepManifest(epoch, bases, checks))
        write_durably(self.path / f"step-{epoch:08d}" / "manifest.json", content)

    def _write_rank(self, slot: SlotId, base: int | None, reads: bool, bits: int | None) -> int:
        index, data = None, state(slot.rank, slot.epoch)
        known: SlotDigests | None = None
        if base is not None:
            index = read_index(self.file(SlotId(RUN, base, slot.rank, 1)))
            known = slot_digests(LAYOUT, state(slot.rank, base))
            known = readable(LAYOUT, data, state(slot.rank, base)) if reads else known
        blobs = encode_slot(LAYOUT, data, known, bits)
        return write_encoded_slot(self.file(slot), slot, LAYOUT, blobs, base=index).check

    def manifest(self, epoch: int) -> StepManifest:
        path = self.path / f"step-{epoch:08d}" / "manifest.json"
        if not path.exists():
            raise CheckpointError(f"{path.parent} is not complete")
        return msgspec.json.decode(path.read_bytes(), type=StepManifest)

    def read(self, epoch: int, rank: int, *, exact: bool = True) -> Bytes:
        slot, manifest = SlotId(RUN, epoch, rank, 1), self.manifest(epoch)
        _, chain = read_chain(self.file(slot), self.file)
        if chain[-1][1].check != manifest.checks[rank]:
            raise CheckpointError(f"{self.file(slot)} is not the file that the manifest names")
        assert [index.slot.epoch for _, index in chain[-2::-1]] == manifest.bases
        out = np.zeros(LAYOUT.nbytes, np.uint8)
        fill(SlotChain.open(self.file(slot), self.file, exact=exact), out)
        return out


@pytest.fixture
def steps(tmp_path: Path) -> StepDirectory:
    return StepDirectory(tmp_path)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("kind", ["consecutive", "one_shot"])
def test_every_step_of_a_chain_is_bit_equal(steps: StepDirectory, kind: str, reads: bool) -> None:
    steps.write(0, None)
    for epoch in range(1, 8):
        steps.write(epoch, 0 if kind == "one_shot" else epoch - 1, reads=reads)
    for epoch in range(8):
        for rank in range(RANKS):
            assert np.array_equal(steps.read(epoch, rank), state(rank, epoch))


def test_the_bfloat16_weights_are_cast_from_their_master_copy() -> None:
    blobs = dict(zip(LAYOUT.specs(), encode_slot(LAYOUT, state(0, 3)), strict=True))
    header, _ = split(blobs["param.w"], LAYOUT.specs()["param.w"])
    assert isinstance(header, CastHeader)
    assert header.source == "optim.w.master"
    assert len(blobs["param.w"]) < 100


def test_changed_bytes_predict_the_difference() -> None:
    new, old = state(0, 5), state(0, 4)
    rows = 15 * 64 * 2
    dense = LAYOUT.nbytes - 300 * 64 * 2
    ours, theirs = slot_digests(LAYOUT, new), slot_digests(LAYOUT, old)
    assert rows < changed_bytes(LAYOUT, ours, theirs) <= rows + dense
    assert changed_bytes(LAYOUT, ours, ours) == 0


def test_an_unchanged_slot_takes_next_to_nothing(steps: StepDirectory) -> None:
    steps.write(0, None)
    first = state(0, 0)
    assert sum(map(len, encode_slot(LAYOUT, first, slot_digests(LAYOUT, first)))) < 100 * len(LAYOUT.tensors)


def test_a_quantized_step_is_refused_where_the_bits_matter(steps: StepDirectory) -> None:
    steps.write(0, None, bits=8)
    with pytest.raises(CheckpointError, match="quantized: it restores values near"):
        steps.read(0, 0)
    steps.write(1, 0)
    with pytest.raises(CheckpointError, match="its base is another one"):
        steps.read(1, 0)
    found, wanted = (LAYOUT.views(slot) for slot in (steps.read(0, 0, exact=False), state(0, 0)))
    for name in ("buffer.n", "optim.step", "rng.torch"):
        assert np.array_equal(found[name], wanted[name])
    error = np.abs(found["param.table"].astype(np.float64) - wanted["param.table"].astype(np.float64))
    assert 0 < error.max() < 0.001


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_quantized_steps_stay_near(steps: StepDirectory, bits: int) -> None:
    steps.write(4, None, bits=bits)
    found, wanted = (LAYOUT.views(slot) for slot in (steps.read(4, 1, exact=False), state(1, 4)))
    error = np.abs(found["param.table"].astype(np.float64) - wanted["param.table"].astype(np.float64))
    assert error.max() < 0.15 / (2**bits - 1)


def test_what_is_not_finite_stays_exact() -> None:
    layout = Layout.build({"param.w": ("float32", (50, 64))})
    values = np.random.default_rng(1).normal(0, 1, 3200).astype(np.float32)
    values[100] = np.nan
    blobs = encode_slot(layout, values.view(np.uint8), bits=4)
    assert np.array_equal(decoded(layout, blobs), values.view(np.uint8))


def test_a_truncated_file_is_refused_at_any_length(steps: StepDirectory) -> None:
    steps.write(0, None)
    steps.write(1, 0)
    path = steps.file(SlotId(RUN, 0, 0, 1))
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 211), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:length])
        for epoch in (0, 1):
            with pytest.raises(CheckpointError, match="rank-0"):
                steps.read(epoch, 0)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError):
        steps.read(0, 0)


def test_each_flipped_byte_of_a_chain_is_found(steps: StepDirectory) -> None:
    steps.write(0, None)
    steps.write(1, 0)
    needed = 0
    for epoch in (0, 1):
        path = steps.file(SlotId(RUN, epoch, 0, 1))
        whole = path.read_bytes()
        for at in range(0, len(whole), 37):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match="rank-0"):
                steps.read(epoch, 0)
            try:
                assert np.array_equal(steps.read(1, 0), state(0, 1))
            except CheckpointError:
                needed += 1
        path.write_bytes(whole)
    assert needed > 1000  # not of tensors that are new as a whole
    assert np.array_equal(steps.read(1, 0), state(0, 1))


def test_a_missing_a_replaced_and_a_circular_base_are_refused(steps: StepDirectory) -> None:
    for epoch, base in ((0, None), (1, 0), (2, 1)):
        steps.write(epoch, base)
    first, second = (steps.file(SlotId(RUN, epoch, 0, 1)) for epoch in (0, 1))
    whole = first.read_bytes()
    first.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        steps.read(2, 0)
    blobs = encode_slot(LAYOUT, state(0, 3))
    write_encoded_slot(first, SlotId(RUN, 0, 0, 1), LAYOUT, blobs)
    with pytest.raises(CheckpointError, match="is not the base"):
        steps.read(2, 0)
    first.write_bytes(second.read_bytes())
    with pytest.raises(CheckpointError, match="is not the base"):
        steps.read(2, 0)
    first.write_bytes(whole)
    assert np.array_equal(steps.read(2, 0), state(0, 2))


def test_a_chain_begins_at_a_step_that_other_tools_read(tmp_path: Path) -> None:
    """A part as ``write_image`` writes it, and differences to it beside it in the directory of the run."""
    config = DiskConfig(run=RUN, generation=1, every=1, dp=1, pp=1, tp=1)
    target = save.WriteTarget(tmp_path, "job", config)
    save.begin_step(target)
    part = save.write_image(target, (0, 0, 1), LAYOUT, state(0, 0))
    assert save.commit(target, 0)

    def find(slot: SlotId) -> Path | FullSlot:
        encoded = target.run.step(slot.epoch) / f"rank-{slot.rank}.g{slot.generation}.encoded"
        if encoded.exists():
            return encoded
        part = target.run.part(slot.epoch, slot.rank, slot.generation)
        return full_slot(target.run, part)

    base: SlotIndex | FullSlot = full_slot(target.run, part)
    for epoch in (1, 2):
        slot = SlotId(RUN, epoch, 0, 1)
        target.run.step(epoch).mkdir()
        path = target.run.step(epoch) / "rank-0.g1.encoded"
        known = slot_digests(LAYOUT, state(0, epoch - 1))
        base = write_encoded_slot(path, slot, LAYOUT, encode_slot(LAYOUT, state(0, epoch), known), base=base)
        out = np.zeros(LAYOUT.nbytes, np.uint8)
        fill(SlotChain.open(path, find), out)
        assert np.array_equal(out, state(0, epoch))
    save.write_image(target, (0, 0, 1), LAYOUT, state(0, 3))
    with pytest.raises(CheckpointError, match="is not the base"):
        SlotChain.open(path, find)


def test_a_tensor_of_another_size_is_refused(steps: StepDirectory) -> None:
    steps.write(0, None)
    chain = SlotChain.open(steps.file(SlotId(RUN, 0, 0, 1)), steps.file)
    for name, nbytes in (("param.w", 8), ("param.v", 40 * 33 * 2)):
        with pytest.raises(CheckpointError, match=rf"no tensor '{name}' of {nbytes} bytes"):
            chain.read(name, np.zeros(nbytes, np.uint8))


def test_a_full_disk_leaves_nothing(steps: StepDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    steps.write(0, None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            steps.write(1, 0)
    assert not [*(steps.path / "step-00000001").iterdir()]
    with pytest.raises(CheckpointError, match="not complete"):
        steps.read(1, 0)


def test_a_slot_that_is_overwritten_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    def torn() -> None:
        raise TornSlotError("overwritten")

    blobs = encode_slot(LAYOUT, state(0, 0))
    with pytest.raises(TornSlotError):
        write_encoded_slot(tmp_path / "a", SlotId(RUN, 0, 0, 1), LAYOUT, blobs, still=torn)
    assert not [*tmp_path.iterdir()]


# Kills


def _lines_of(limit: int) -> Any:
    """A trace function that ends the process, as a kill does, at the line number ``limit`` of those it sees."""
    seen = 0
    files = {module.__file__ for module in (encoded_slot, exact, tensor_blob, sys.modules[write_durably.__module__])}
    files.add(__file__)

    def trace(frame: FrameType, event: str, _value: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in files:
            return None
        seen += event == "line"
        if seen == limit:
            os._exit(9)
        return trace

    return trace


def _write_until(steps: StepDirectory, limit: int) -> bool:
    """Write step 2 in a process that ends at a line; whether it got to its end."""
    child = os.fork()
    if not child:
        try:
            sys.settrace(_lines_of(limit))
            steps.write(2, 1)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0


def _points() -> Iterator[int]:
    """Lines at which to end: all of the first, then ever fewer."""
    at = 1.0
    while True:
        yield int(at)
        at = max(at + 1, at * 1.03)


@pytest.mark.slow
def test_after_a_kill_at_any_line_a_step_is_whole_or_refused(steps: StepDirectory) -> None:
    steps.write(0, None)
    steps.write(1, 0)
    wanted = [state(rank, 2) for rank in range(RANKS)]
    refused = 0
    for limit in _points():
        finished = _write_until(steps, limit)
        try:
            assert all(np.array_equal(steps.read(2, rank), wanted[rank]) for rank in range(RANKS))
        except CheckpointError:
            assert not finished
            refused += 1
        if finished:
            break
        for path in (steps.path / "step-00000002").glob("*"):
            path.unlink()
    assert refused > 100
    assert np.array_equal(steps.read(1, 0), state(0, 1))
    assert np.array_equal(steps.read(2, 0), wanted[0])
