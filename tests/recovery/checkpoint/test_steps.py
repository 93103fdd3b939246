"""Steps on disk: whole or not there, told apart by run and generation, read back to the bit or refused."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import catalog, save
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.load import verify_part
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError, DiskConfig, RunInfo, holds, write_checked
from mainstay.recovery.checkpoint.reshape import substitute_part
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.writer import SlotOrder, SlotResult, WriteRequest, WriteResult
from mainstay.recovery.memory.errors import CorruptArenaError, LayoutMismatchError
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.mesh_shape import MeshShape

LATER = "01997c4e-8f00-7000-8000-000000000002"


def test_a_step_comes_back_to_the_bit(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2, pp=2)
    manifest = job.whole(20)
    assert (manifest.epoch, manifest.replicated, len(manifest.parts)) == (20, True, 4)
    for rank in range(4):
        part = job.run.part(20, rank, 1)
        out = np.full(part.layout().nbytes, 7, np.uint8)
        read_slot(job.run, part, part.layout(), out)
        views = part.layout().views(out)
        for name, value in job.state(rank, 20).items():
            assert views[name].tobytes() == value.tobytes()


def test_a_step_is_whole_only_with_every_rank(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    save.begin_step(job.target())
    job.write(0, 5)
    assert save.commit(job.target(), 5) is None
    with pytest.raises(CheckpointError, match=r"step-00000005 is not complete: parts of ranks \[1\] are missing"):
        job.run.manifest(5)
    with pytest.raises(CheckpointError, match="no complete step of any run"):
        find(job.directory)
    job.write(1, 5)
    assert save.commit(job.target(), 5) is not None
    assert find(job.directory).manifest.epoch == 5


def test_where_replicas_are_equal_one_stands_for_a_lost_one(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2, pp=2)
    save.begin_step(job.target())
    job.write(0, 5)
    job.write(2, 5)
    assert save.commit(job.target(), 5, partial=True) is None  # no rank has stage 1
    job.write(3, 5)
    made = save.commit(job.target(), 5, partial=True)
    assert made is not None
    assert [part.rank for part in made.parts] == [0, 2, 3]
    assert [substitute_part(made, made.shape, rank)[0] for rank in range(4)] == [0, 3, 2, 3]


def test_state_that_is_sharded_over_replicas_is_never_taken_for_another(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2, sharded=True)
    manifest = job.whole(5)
    assert not manifest.replicated
    assert substitute_part(manifest, MeshShape(dp=2, pp=1), 1) == (1, 1)
    with pytest.raises(CheckpointError, match=r"made with dp=2, this job has dp=1; its state is sharded"):
        substitute_part(manifest, MeshShape(dp=1, pp=1), 0)


def test_another_data_parallel_size_takes_a_replica_of_the_same_stage(ranks: Callable[..., Any]) -> None:
    manifest = ranks(dp=2, pp=2).whole(5)
    assert [substitute_part(manifest, MeshShape(dp=1, pp=2), rank)[0] for rank in range(2)] == [0, 1]
    assert [substitute_part(manifest, MeshShape(dp=3, pp=2), rank)[0] for rank in range(6)] == [0, 1, 2, 3, 0, 1]
    with pytest.raises(CheckpointError, match="pp=2 tp=1, this job has pp=4 tp=1: other pipeline or tensor sizes"):
        substitute_part(manifest, MeshShape(dp=1, pp=4), 0)


def test_the_newest_step_is_found_by_manifests_of_the_newest_run_that_has_one(ranks: Callable[..., Any]) -> None:
    first, second = ranks(), ranks(run=LATER)
    first.whole(10)
    first.whole(30)
    save.begin_step(second.target())
    second.write(0, 40)
    assert (find(first.directory).manifest.run, find(first.directory).manifest.epoch) == (first.run_id, 30)
    second.whole(20)
    assert (find(first.directory).manifest.run, find(first.directory).manifest.epoch) == (LATER, 20)
    assert find(first.directory, first.run_id).manifest.epoch == 30
    with pytest.raises(CheckpointError, match="no run 'x'; runs there"):
        find(first.directory, "x")


def test_a_future_that_was_given_up_is_no_step_to_go_on_from(ranks: Callable[..., Any]) -> None:
    job = ranks()
    job.whole(10)
    job.whole(20)
    returns = ((10, 2),)
    save.begin_step(job.target(2, returns))
    assert find(job.directory).manifest.epoch == 10
    with pytest.raises(CheckpointError, match="a future that the job has gone back from"):
        job.run.manifest(20)
    job.run.prune(RetentionPolicy(), returns)
    assert job.run.steps() == [10]
    job.whole(20, 2, returns)
    assert {part.generation for part in find(job.directory).manifest.parts} == {2}


def test_parts_of_two_generations_make_a_step_if_both_hold(ranks: Callable[..., Any]) -> None:
    """A rank that was lost after the step committed it again when it was back: nothing was gone back from."""
    job = ranks()
    save.begin_step(job.target())
    job.write(0, 20)
    returns = ((20, 2),)
    job.write(1, 20, job.target(2, returns), 2)
    made = save.commit(job.target(2, returns), 20)
    assert made is not None
    assert [part.generation for part in made.parts] == [1, 2]
    assert holds(returns, 20, 1)
    assert not holds(returns, 21, 1)


def test_old_steps_go_and_nothing_that_is_still_needed(ranks: Callable[..., Any]) -> None:
    job = ranks()
    save.begin_step(job.target())
    job.write(0, 5)  # for ever incomplete
    for epoch in (10, 20, 30):
        job.whole(epoch)
    job.write(0, 40)
    job.run.prune(RetentionPolicy(), ())
    assert job.run.steps() == [20, 30, 40]


def damaged(path: Path) -> list[bytes]:
    whole = path.read_bytes()
    flips = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in (40, len(whole) // 2, len(whole) - 40)]
    return [whole[:-1], whole[:100], b"", b"{}", b"\xff\xfe", *flips]


def test_a_damaged_description_is_refused_in_words(ranks: Callable[..., Any]) -> None:
    job = ranks()
    job.whole(5)
    path = job.run.step(5) / "rank-0.g1.json"
    for body in damaged(path):
        path.write_bytes(body)
        with pytest.raises(CheckpointError, match=r"rank-0\.g1\.json"):
            job.run.part(5, 0, 1)
    path = job.run.step(5) / MANIFEST
    for body in damaged(path):
        path.write_bytes(body)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            job.run.manifest(5)
        with pytest.raises(CheckpointError, match="no complete step"):
            find(job.directory)


def test_every_flipped_bit_of_a_tensor_is_found(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(5)
    part = job.run.part(5, 0, 1)
    assert verify_part(job.run, part) == sum(t.nbytes for t in part.tensors)
    path = job.run.step(5) / part.file
    whole = path.read_bytes()
    for tensor in part.tensors:
        for at in {tensor.at, tensor.at + tensor.nbytes // 2, tensor.at + tensor.nbytes - 1}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(CheckpointError, match=f"tensor '{tensor.name}' has digest"):
                verify_part(job.run, part)
    path.write_bytes(whole[: part.tensors[-1].at + 3])
    with pytest.raises(CheckpointError, match="ends before byte"):
        verify_part(job.run, part)


def test_other_tensors_are_refused_by_name(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(5)
    other = Layout.build({"param.w": ("float32", (4, 3))})
    with pytest.raises(LayoutMismatchError, match=r"tensor 'param\.w' is"):
        read_slot(job.run, job.run.part(5, 0, 1), other, np.zeros(other.nbytes, np.uint8))


def test_a_full_disk_leaves_nothing_and_names_the_bytes(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ranks(dp=1)
    save.begin_step(job.target())
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
        with pytest.raises(OSError, match=r"needs \d+ bytes, 10 are free"):
            job.write(0, 5)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            job.write(0, 5)
    assert list(job.run.step(5).iterdir()) == []


def test_the_run_is_what_its_newest_generation_says(ranks: Callable[..., Any]) -> None:
    job = ranks()
    for generation in range(1, 5):
        save.begin_step(job.target(generation, ((generation, generation),)))
    assert job.run.info().generation == 4
    assert [run.id for run in catalog.runs(job.directory)] == [job.run_id]
    (job.run.path / "run.g9.json").write_text("{")
    assert job.run.info().generation == 4
    write_checked(job.run.path / "run.g10.json", RunInfo(run="r", job="j", generation=10, dp=1, pp=1, tp=1, version=9))
    assert job.run.info().generation == 4


def converse(process: subprocess.Popen[bytes], order: WriteRequest) -> WriteResult:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    process.stdin.flush()
    return msgspec.json.decode(process.stdout.readline(), type=WriteResult)


def test_the_process_that_writes_needs_no_torch_and_ends_with_whoever_asks(
    ranks: Callable[..., Any], tmp_path: Path
) -> None:
    job = ranks(dp=1)
    arena = job.step(0, 8)
    code = "import sys; sys.modules['torch'] = None; from mainstay.recovery.checkpoint.writer import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    config = DiskConfig(run=job.run_id, generation=1, every=4, dp=1, pp=1, tp=1)
    order = WriteRequest(directory=str(job.directory), job="job", config=config, keep=RetentionPolicy())
    assert converse(process, order) == WriteResult()
    slot = SlotOrder(arena=str(arena.path), rank=0, epoch=8)
    written = msgspec.structs.replace(order, slots=(slot,))
    first = converse(process, written)
    assert (first.problem, first.slots) == ("", (SlotResult(nbytes=arena.layout.nbytes),))
    assert converse(process, written).slots == (SlotResult(),)  # it is there
    missing = converse(process, msgspec.structs.replace(order, slots=(msgspec.structs.replace(slot, epoch=9), slot)))
    assert "no slot of epoch 9" in missing.slots[0].problem
    assert missing.slots[1] == SlotResult()
    assert process.stdin is not None
    process.stdin.close()
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.stdout.close()
    assert process.wait(20) == 0
    assert find(job.directory).manifest.epoch == 8


def test_a_bit_that_flipped_in_memory_is_not_written_with_a_digest_of_its_own(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    save.begin_step(job.target())
    arena = job.step(0, 5)
    arena.slot_bytes(arena.find(5).slot)[3] ^= 1
    with pytest.raises(CorruptArenaError, match="epoch 5 in slot"):
        save.write_part(arena, arena.find(5), job.target())
    assert list(job.run.step(5).iterdir()) == []


def test_a_manifest_goes_with_the_parts_that_were_given_up(ranks: Callable[..., Any]) -> None:
    """Else a step that is half of one future and half of another would count among those that are kept."""
    job = ranks()
    for epoch in (10, 20):
        job.whole(epoch)
    returns = ((10, 2),)
    target = job.target(2, returns)
    save.begin_step(target)
    job.write(1, 20, target, 2)
    job.run.prune(RetentionPolicy(last=1), returns)
    assert job.run.steps() == [10, 20]
    assert [(part.rank, part.generation) for part in job.run.parts(20)] == [(1, 2)]
    assert [manifest.epoch for manifest in job.run.complete()] == [10]


def test_replicas_divide_what_they_hold_alike(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=4, pp=2)
    config = msgspec.structs.replace(job.target().config, copies=1)
    assert [config.share(rank) for rank in range(0, 8, 2)] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    two = msgspec.structs.replace(config, copies=2)
    assert [two.share(rank) for rank in range(1, 8, 2)] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert msgspec.structs.replace(two, away=(2,)).share(0) == (0, 2)
    assert msgspec.structs.replace(two, away=(2,)).share(4) is None, "three replicas: one writes a copy alone"
    assert msgspec.structs.replace(config, copies=4).share(0) is None
    target = save.WriteTarget(job.directory, "job", config)
    save.begin_step(target)
    for rank in range(8):
        assert save.commit(target, 5) is None
        job.write(rank, 5, target)
    made = save.commit(target, 5)
    assert made is not None
    assert (made.replicated, made.shares) == (True, True)
    parts = [job.run.part(5, rank, 1) for rank in range(8)]
    rows = [t.shape[0] for part in parts if part.rank % 2 == 0 for t in part.tensors if t.name == "param.w"]
    assert sum(rows) == 5, "each row is written once"
    for rank in range(8):
        arena = job.arenas[rank]
        slot = np.empty(arena.layout.nbytes, np.uint8)
        read_slot(job.run, parts[rank], arena.layout, slot)
        assert slot.tobytes() == arena.slot_bytes(arena.find(5).slot)[: arena.layout.nbytes].tobytes()


def test_a_step_is_not_whole_without_the_share_of_a_replica_that_is_gone(ranks: Callable[..., Any]) -> None:
    """Rank 1 was to write the other half; that it is away now does not make one half a whole."""
    job = ranks(dp=2)
    config = msgspec.structs.replace(job.target().config, copies=1)
    target = save.WriteTarget(job.directory, "job", config)
    save.begin_step(target)
    job.write(0, 5, target)
    alone = save.WriteTarget(job.directory, "job", msgspec.structs.replace(config, away=(1,)))
    assert save.commit(alone, 5) is None
    assert save.commit(alone, 5, partial=True) is None
    job.write(0, 6, alone)
    assert save.commit(alone, 6) is not None, "alone it writes all"


def test_the_last_save_writes_all_where_a_replica_may_be_gone(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    target = save.WriteTarget(job.directory, "job", msgspec.structs.replace(job.target().config, copies=1))
    save.begin_step(target)
    job.write(0, 5, target)
    arena = job.arenas[0]
    assert save.written(target, arena.find(5), 0)
    assert not save.written(target, arena.find(5), 0, final=True)
    assert save.commit(target, 5, partial=True) is None
    save.write_part(arena, arena.find(5), target, final=True)
    made = save.commit(target, 5, partial=True)
    assert made is not None
    assert made.shares is msgspec.UNSET
    assert substitute_part(made, made.shape, 1) == (0, 1)


class Killed(BaseException):
    """SIGKILL, as far as what it leaves on disk."""


class MortalWriter:
    """Dies before its n-th write, fsync or rename; the dead clean nothing up."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: int) -> None:
        self._left = moment
        rename = self._dying(os.replace)
        patch.setattr(Path, "replace", rename)
        for name in ("pwrite", "fsync"):
            patch.setattr(os, name, self._dying(getattr(os, name)))
        for owner, name in ((save, "remove_file"), (Path, "unlink")):
            patch.setattr(owner, name, self._while_alive(getattr(owner, name)))

    def _dying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Killed
            return function(*arguments)

        return call

    def _while_alive(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            if self._left >= 0:
                function(*arguments, **options)

        return call


def test_a_writer_killed_at_any_moment_leaves_a_whole_step_or_none(
    ranks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each write, fsync and rename in turn; then the same again to the end."""
    job = ranks(dp=2)
    target = job.target()
    save.begin_step(target)
    job.write(0, 5)
    job.step(1, 5)
    arena, whole, moment = job.arenas[1], False, 0
    while not whole:
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            MortalWriter(patch, moment)
            save.write_part(arena, arena.find(5), target)
            whole = save.commit(target, 5) is not None
        if not (job.run.step(5) / MANIFEST).exists():
            assert list(job.run.complete()) == []
        else:
            assert [m.epoch for m in job.run.complete()] == [5]
        moment += 1
    assert moment > 12
    for entry in find(job.directory).manifest.parts:
        verify_part(job.run, job.run.part(5, entry.rank, entry.generation))
    save.write_part(arena, arena.find(5), target)
    assert not list(job.run.step(5).glob(".__1_*.new"))
