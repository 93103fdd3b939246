"""Encoded steps in a run's directory: differences that restore the same bits, or steps that do not count."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import encoded_writer, open_checkpoint
from mainstay.recovery.checkpoint.catalog import bases_of, find
from mainstay.recovery.checkpoint.encoding import exact
from mainstay.recovery.checkpoint.manifest import MANIFEST, METADATA, CheckpointError, encoded_name
from tests.recovery.checkpoint.encoded_job import ROWS, EncodedJob, arrays, kill_at


@pytest.fixture
def job(tmp_path: Path) -> EncodedJob:
    return EncodedJob(tmp_path)


def on_disk(job: EncodedJob, epoch: int) -> int:
    return sum(part.nbytes for part in job.run.parts(epoch))


def test_steps_after_a_full_one_hold_what_changed(job: EncodedJob) -> None:
    for epoch in range(1, 8):
        manifest = job.whole(epoch)
        assert job.holds(epoch)
        if epoch > 1:
            assert on_disk(job, epoch) < 0.12 * on_disk(job, 1)
            assert bases_of(manifest) == [*range(1, epoch)]
            assert sum(part.nbytes for part in manifest.parts) == on_disk(job, epoch)
    assert job.run.steps() == [*range(1, 8)]  # two are kept, and what they refer to
    assert manifest.replicated


def test_other_tools_find_metadata_of_full_steps_alone(job: EncodedJob) -> None:
    job.whole(1)
    assert (job.run.step(1) / METADATA).exists()
    (job.run.step(2)).mkdir()
    (job.run.step(2) / METADATA).write_bytes(b"of parts that were given up")
    job.whole(2)
    assert not (job.run.step(2) / METADATA).exists()


def test_a_new_process_begins_with_a_full_step(job: EncodedJob, tmp_path: Path) -> None:
    job.whole(1)
    job.whole(2)
    again = EncodedJob(tmp_path)
    assert bases_of(again.whole(3)) == []
    assert not again.run.part(3, 0, 1).is_encoded
    assert bases_of(again.whole(4)) == [3]
    assert again.holds(4)


def dense(change: float) -> Callable[[int, int], dict[str, np.ndarray]]:
    """All values change: each step by ``change`` of a value more, in relation to the first."""

    def arrays_of(_rank: int, epoch: int) -> dict[str, np.ndarray]:
        first = np.random.default_rng(1).normal(0, 1, (400, 64))
        noise = np.random.default_rng([1, epoch]).normal(0, 1, first.shape)
        return {"param.w": (first * (1 + change * epoch * noise)).astype(np.float32), "param.b": np.ones(99, np.int64)}

    return arrays_of


@pytest.fixture
def dense_job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EncodedJob:
    """``request.param``: what a step changes of each value."""
    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", dense(request.param))
    return EncodedJob(tmp_path)


@pytest.mark.parametrize("dense_job", [1.0], indirect=True)
def test_what_changes_as_a_whole_stands_alone(dense_job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is gained from a base, but something from the encoding."""
    monkeypatch.setattr(encoded_writer, "MAX_LINKS", 3)
    for epoch in range(1, 6):
        assert bases_of(dense_job.whole(epoch)) == []
        assert dense_job.holds(epoch)
        if 1 < epoch < 5:
            assert on_disk(dense_job, epoch) < 0.95 * dense_job.layout.nbytes * 2
            assert dense_job.run.steps() == [epoch - 1, epoch]
    assert [dense_job.run.part(epoch, 0, 1).is_encoded for epoch in (4, 5)] == [
        True,
        False,
    ]  # to see if a base pays by now


@pytest.mark.parametrize("dense_job", [1e-5], indirect=True)
def test_a_dense_step_is_subtracted_from_the_last_full_one(dense_job: EncodedJob) -> None:
    fulls, sizes = [], []
    for epoch in range(1, 30):
        bases = bases_of(dense_job.whole(epoch))
        assert dense_job.holds(epoch)
        fulls += [] if bases else [epoch]
        assert bases in ([], fulls[-1:])
        sizes.append(on_disk(dense_job, epoch))
    assert sizes[1] < 0.7 * sizes[0]
    assert sizes[2] > sizes[1], "the base ages"
    assert 1 < len(fulls) < 10
    assert sum(sizes) < 0.8 * len(sizes) * sizes[0]


@pytest.mark.parametrize("dense_job", [1e-5], indirect=True)
def test_a_base_that_cannot_be_read_costs_no_step(dense_job: EncodedJob, caplog: pytest.LogCaptureFixture) -> None:
    dense_job.whole(1)
    part = dense_job.run.part(1, 0, 1)
    file, (entry,) = dense_job.run.step(1) / part.file, [entry for entry in part.tensors if entry.name == "param.w"]
    whole = file.read_bytes()
    file.write_bytes(whole[: entry.at] + bytes([whole[entry.at] ^ 1]) + whole[entry.at + 1 :])
    assert bases_of(dense_job.whole(2)) == [1]  # of rank 1 alone
    assert dense_job.run.part(2, 0, 1).is_encoded
    assert dense_job.run.part(2, 0, 1).base is msgspec.UNSET
    assert dense_job.holds(2)
    (dense_job.run.step(1) / dense_job.run.part(1, 1, 1).file).unlink()
    dense_job.whole(3)
    assert dense_job.run.part(3, 1, 1).base is msgspec.UNSET
    said = [record.getMessage() for record in caplog.records]
    assert "step 2 is written without its base: tensor 'param.w' of the base is damaged on disk" in said[0]
    assert "__1_1.distcp: No such file or directory" in said[1]
    assert dense_job.holds(3)


@pytest.mark.parametrize("dense_job", [1e-5], indirect=True)
def test_a_stored_base_is_never_in_memory_as_a_whole(dense_job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CHUNK", 1000)
    monkeypatch.setattr(exact, "_SAMPLE", 1000)
    largest, read = 0, os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal largest
        largest = max(largest, sum(map(len, buffers)))
        return read(fd, buffers, offset)

    dense_job.whole(1)
    monkeypatch.setattr(os, "preadv", counted)
    dense_job.write(dense_job.order((dense_job.step(0, 2), dense_job.step(1, 2))))
    monkeypatch.undo()
    assert 0 < largest <= 4000
    assert dense_job.run.part(2, 0, 1).base == (1, 1)


def test_what_no_encoding_makes_smaller_is_written_in_full(job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def noise(_rank: int, epoch: int) -> dict[str, np.ndarray]:
        return {"param.w": np.random.default_rng(epoch).integers(0, 256, (200, 64)).astype(np.uint8)}

    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", noise)
    for epoch in (1, 2, 3):
        job.whole(epoch)
    assert [job.run.part(epoch, 0, 1).is_encoded for epoch in (2, 3)] == [False, False]


def test_a_chain_is_no_longer_than_a_restore_may_take(job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_writer, "RESTORE_SECONDS", 0.0)
    job.whole(1)
    full = on_disk(job, 1)
    for epoch in range(2, 40):
        job.whole(epoch)
        chain = [epoch, *bases_of(job.run.manifest(epoch))]
        nbytes = sum(on_disk(job, step) for step in chain)
        assert nbytes <= encoded_writer.RESTORE_RATIO * full * 1.05
    assert any(not bases_of(job.run.manifest(epoch)) for epoch in job.run.steps() if epoch > 1)


def test_after_going_back_no_step_rests_on_what_was_given_up(job: EncodedJob) -> None:
    for epoch in (10, 20, 30):
        job.whole(epoch)
    returns = ((10, 2),)
    assert bases_of(job.whole(20, 2, returns)) == [10]
    assert [part.generation for part in job.run.parts(20)] == [2, 2]
    assert job.run.steps() == [10, 20]
    assert bases_of(job.whole(30, 2, returns)) == [10, 20]
    assert job.holds(30)
    assert bases_of(job.whole(10, 3, ((0, 3),))) == []


def test_a_step_whose_base_is_gone_is_not_complete(job: EncodedJob) -> None:
    for epoch in (1, 2, 3):
        job.whole(epoch)
    shutil.rmtree(job.run.step(2))
    with pytest.raises(CheckpointError, match="step-00000003 is not complete: it refers to step 2"):
        job.run.manifest(3)
    assert find(job.directory).manifest.epoch == 1
    assert bases_of(job.whole(4)) == [1]
    shutil.rmtree(job.run.step(1))
    assert bases_of(job.whole(5)) == []
    assert job.holds(5)


def test_where_another_node_is_late_the_first_step_is_the_base(job: EncodedJob) -> None:
    job.whole(1)
    job.whole(2)
    (job.run.step(2) / MANIFEST).unlink()
    assert bases_of(job.whole(3)) == [1]
    assert bases_of(job.whole(4)) == [1, 3]
    assert job.holds(4)


def test_a_step_waits_until_its_base_is_complete(job: EncodedJob) -> None:
    """Of rank 1 the part of the base was not written: no step may be complete on top of it."""
    job.whole(1)
    job.whole(2)
    (job.run.step(2) / MANIFEST).rename(job.run.step(2) / "hidden")
    order = job.order((job.step(0, 3), job.step(1, 3)))
    encoder = job.writer.encoders[0]
    encoder._usable = lambda *_: True  # type: ignore[method-assign]
    job.write(order)
    assert job.run.part(3, 0, 1).base == (2, 1)
    assert not (job.run.step(3) / MANIFEST).exists()
    (job.run.step(2) / "hidden").rename(job.run.step(2) / MANIFEST)
    job.write(order)
    assert bases_of(job.run.manifest(3)) == [1, 2]
    assert job.holds(3)


def test_a_damaged_base_is_named(job: EncodedJob) -> None:
    for epoch in (1, 2, 3):
        job.whole(epoch)
    file = job.run.step(2) / encoded_name(0, 1)
    whole = file.read_bytes()
    file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    with pytest.raises(CheckpointError, match=r"step-00000002/__0_1\.encoded: encoded tensor .* is damaged"):
        job.read(3)
    file.write_bytes(whole)
    part = job.run.step(1) / "rank-0.g1.json"
    part.write_bytes(part.read_bytes().replace(b'"rank":0', b'"rank":1'))
    with pytest.raises(CheckpointError, match="step-00000001"):
        job.read(3)


def test_a_bit_that_flips_in_memory_is_not_written(job: EncodedJob) -> None:
    job.whole(1)
    order = job.order((job.step(0, 2), job.step(1, 2)))
    arena = job._arenas[0]
    arena.slot_bytes(arena.find(2).slot)[100] ^= 4
    result = job.writer.carry_out(order)
    assert "epoch 2 in slot" in result.slots[0].problem
    assert [path.name for path in job.run.step(2).glob("*0_1*")] == []


def test_any_program_reads_an_encoded_step(job: EncodedJob) -> None:
    for epoch in (1, 2, 3):
        job.whole(epoch)
    found = open_checkpoint(job.run.step(3))
    table = found.tensors["model.table"]
    assert np.array_equal(table.read(), arrays(0, 3)["param.table"])
    assert np.array_equal(table.read((slice(3, 5), slice(2, 3))), arrays(0, 3)["param.table"][3:5, 2:3])
    assert "differences to step-00000002" in table.boxes[0].place
    assert table.shape == (ROWS, 16)
    for tensor in found.tensors.values():
        for box in tensor.boxes:
            assert box.verify is not None
            box.verify()


def test_a_writer_that_is_killed_leaves_a_complete_step_or_none(job: EncodedJob) -> None:
    for epoch in (1, 2):
        job.whole(epoch)
    moments = 0
    while not kill_at(job, moments, 3):
        moments += 1
        newest = find(job.directory).manifest.epoch
        assert newest in (2, 3)
        assert job.holds(newest)
        shutil.rmtree(job.run.step(3), ignore_errors=True)
    assert moments > 8
    assert find(job.directory).manifest.epoch == 3
    assert job.holds(3)


def test_what_a_killed_writer_left_does_not_stay_beside_a_full_part(job: EncodedJob, tmp_path: Path) -> None:
    job.whole(1)
    job.whole(2)
    for path in job.run.step(2).glob("*.json"):
        path.unlink()  # as if it was killed before
    EncodedJob(tmp_path).whole(2)
    assert sorted(path.suffix for path in job.run.step(2).glob("__*")) == [".distcp", ".distcp"]


def test_manifests_without_bases_are_as_they_were(job: EncodedJob) -> None:
    assert b"bases" not in msgspec.json.encode(job.whole(1))
    assert b"encoded" not in (job.run.step(1) / "rank-0.g1.json").read_bytes()
