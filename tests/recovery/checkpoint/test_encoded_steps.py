"""Encoded steps in a run's directory: differences that restore the same bits, or steps that do not count."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import encoded_writer, open_checkpoint
from mainstay.recovery.checkpoint.catalog import bases_of, find
from mainstay.recovery.checkpoint.manifest import MANIFEST, METADATA, CheckpointError, encoded_name
from tests.recovery.checkpoint.encoded_job import ROWS, EncodedJob, arrays


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


def test_what_changes_as_a_whole_stands_alone(job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense model: nothing is gained from a base, but something from the encoding."""
    dense = {"param.w": np.random.default_rng(1).normal(0, 1, (200, 64)).astype(np.float32)}

    def changed(_rank: int, epoch: int) -> dict[str, np.ndarray]:
        return {"param.w": (dense["param.w"] + np.float32(epoch)).astype(np.float32)}

    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", changed)
    for epoch in (1, 2, 3):
        manifest = job.whole(epoch)
    assert bases_of(manifest) == []
    assert job.run.part(3, 0, 1).is_encoded
    assert on_disk(job, 3) < 0.9 * job.layout.nbytes * 2 or on_disk(job, 3) < on_disk(job, 1)
    assert job.run.steps() == [2, 3]


def test_what_no_encoding_makes_smaller_is_written_in_full(job: EncodedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def noise(_rank: int, epoch: int) -> dict[str, np.ndarray]:
        return {"param.w": np.random.default_rng(epoch).integers(0, 256, (200, 64)).astype(np.uint8)}

    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", noise)
    for epoch in (1, 2, 3):
        job.whole(epoch)
    assert [job.run.part(epoch, 0, 1).is_encoded for epoch in (2, 3)] == [True, False]


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


def kill_at(job: EncodedJob, moment: int, epoch: int) -> bool:
    """Write a step in a process that ends at a call of the file system; whether it got to its end."""
    child = os.fork()
    if not child:
        try:
            left = moment
            job.writer._threads = ThreadPoolExecutor(1)  # threads stay behind in a fork

            def dying(function: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any, **named: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os._exit(9)
                    return function(*arguments, **named)

                return call

            for owner, name in ((os, "fsync"), (os, "replace"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
                setattr(owner, name, dying(getattr(owner, name)))
            job.write(job.order(tuple(job.step(rank, epoch) for rank in range(job.dp))))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0


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
