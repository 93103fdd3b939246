"""A bit that flips on the local disk before the upload: the step is passed over, and no copy of that bit is made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.encoding.encoded_slot import read_index
from mainstay.recovery.checkpoint.levels import open_level
from mainstay.recovery.checkpoint.load import checked
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.upload import Uploader
from mainstay.recovery.checkpoint.upload_state import CLAIM, UploadProgress
from mainstay.recovery.checkpoint.writer import Writer
from mainstay.recovery.memory.layout import Layout
from tests.recovery.checkpoint.encoded_job import EncodedJob
from tests.recovery.checkpoint.own_disks import OwnDisks
from tests.recovery.checkpoint.upload_place import Place

pytestmark = pytest.mark.slow


def flip(file: Path, at: int) -> None:
    """Change a bit of a file in place."""
    with file.open("r+b") as opened:
        opened.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        (byte,) = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 0x10]))


def upload(place: Place, **changes: Any) -> tuple[list[int], list[str]]:
    """The steps that an uploader completes, and its problems; until nothing is left for it."""
    told = list[UploadProgress]()
    with open_level(place.url) as level:
        uploader = Uploader(level, place.request(**changes), told.append)
        found = [epoch for _, epoch in iter(uploader.upload_next, None)]
    return found, list(dict.fromkeys(progress.problem for progress in told if progress.problem))


def objects(place: Place, epoch: int, name: str) -> list[str]:
    """Objects of a file of a step."""
    with open_level(place.url) as level:
        there = level.storage.children(f"{place.job.run_id}/step-{epoch:08d}")[1]
    return [each for each in there if each.startswith((name, "manifest"))]


@pytest.mark.parametrize("nbytes", [1, 7, 1000, 10_000])
def test_pieces_may_end_anywhere(place: Place, nbytes: int) -> None:
    shapes = {"param.w": (300,), "param.empty": (0, 4), "param.b": (3,), "param.last": (0,)}
    layout = Layout.build({name: ("float32", shape) for name, shape in shapes.items()})
    slot = np.random.default_rng(1).integers(0, 256, layout.nbytes, np.uint8)
    part = save.write_image(place.job.target(), (10, 0, 1), layout, slot)
    raw = place.job.run.data_file(part).read_bytes()

    def passed(content: bytes) -> Iterator[bytes]:
        return checked(place.job.run, part, (content[at : at + nbytes] for at in range(0, len(content), nbytes)))

    assert b"".join(passed(raw)) == raw
    for entry in part.listed:
        for at in range(entry.at, entry.at + entry.nbytes, 5):
            wrong, seen = bytearray(raw), list[bytes]()
            wrong[at] ^= 1
            with pytest.raises(CheckpointError, match=f"tensor '{entry.name}' has digest"):
                seen.extend(passed(bytes(wrong)))
            assert len(b"".join(seen)) < entry.at + entry.nbytes
    with pytest.raises(CheckpointError, match=f"has {len(raw) - 1} bytes, not {len(raw)}"):
        b"".join(passed(raw[:-1]))


def test_a_flipped_bit_in_any_tensor_is_named_and_an_older_step_goes_up(place: Place, tmp_path: Path) -> None:
    """When the disk gives the right bytes again, so does the newer one: nothing wrong is in its way."""
    for epoch in (10, 20):
        place.job.whole(epoch)
    part = place.job.run.part(20, 1, 1)
    file, done = place.job.run.data_file(part), list[int]()
    for entry in part.listed:
        for at in (entry.at, entry.at + entry.nbytes - 1):
            flip(file, at)
            found, problems = upload(place)
            done += found
            assert [problem.partition(" has digest ")[0] for problem in problems] == [
                f"step 20 is passed over: {file}: tensor {entry.name!r}"
            ]
            assert objects(place, 20, file.name) == []
            flip(file, at)
    assert (done, place.complete()) == ([10], [10])
    assert upload(place) == ([20], [])
    place.check(tmp_path / "back", 20)


def test_likewise_in_a_bucket_where_an_uploader_without_this_check_has_left_the_file(
    bucket: Place, tmp_path: Path
) -> None:
    for epoch in (10, 20):
        bucket.job.whole(epoch)
    part = bucket.job.run.part(20, 1, 1)
    file = bucket.job.run.data_file(part)
    flip(file, part.tensors[2].at)
    with open_level(bucket.url) as level:
        level.storage.put_file(f"{bucket.job.run_id}/step-00000020/{file.name}.{part.check}", file)
    assert upload(bucket)[0] == [10]
    assert bucket.complete() == [10]
    flip(file, part.tensors[2].at)
    assert upload(bucket) == ([20], [])
    bucket.check(tmp_path / "back", 20)


@pytest.mark.parametrize("encoding", ["exact", "8bit"])
def test_a_flipped_bit_in_an_encoded_part_is_seen_without_its_base(tmp_path: Path, encoding: Any) -> None:
    """In a tensor, in the index, and in the footer. A base that was damaged after its own upload does no harm."""
    job = EncodedJob(tmp_path, keep=3, encoding=encoding)
    place = Place(job, str(tmp_path / "level"))
    for epoch in (1, 2, 3):
        job.whole(epoch)
    file = job.run.data_file(job.run.part(3, 1, 1))
    assert file.suffix == ".encoded"
    in_bias = read_index(file).blobs[0].nbytes + 40
    for at, words in (in_bias, "tensor 'param.bias' has digest"), (-40, "has a damaged index"), (-1, "is truncated or"):
        flip(file, at)
        (problem,) = upload(place, policy=RetentionPolicy(last=1))[1]
        assert problem.startswith(f"step 3 is passed over: {file}")
        assert words in problem
        assert objects(place, 3, file.name) == []
        flip(file, at)
    assert place.complete() == ([1, 2] if encoding == "exact" else [2])
    base = job.run.data_file(job.run.part(1, 0, 1))
    flip(base, 1000)
    assert upload(place, policy=RetentionPolicy(last=1)) == ([3], [])
    place.check(tmp_path / "back", 3)
    assert job.holds(3, RunDirectory(tmp_path / "back" / job.run_id)) == (encoding == "exact")


def test_a_flipped_bit_in_a_base_stops_what_is_built_on_it(tmp_path: Path) -> None:
    job = EncodedJob(tmp_path)
    place = Place(job, str(tmp_path / "level"))
    for epoch in (1, 2, 3):
        job.whole(epoch)
    part = job.run.part(1, 1, 1)
    flip(job.run.data_file(part), part.tensors[0].at + 7)
    found, problems = upload(place)
    assert found == place.complete() == []
    damaged = f"{job.run.data_file(part)}: tensor {part.tensors[0].name!r} has digest"
    assert problems[0].startswith(f"step 3 is passed over: {damaged}")
    job.writer = Writer()
    job.whole(4)  # in full, as after each start
    assert upload(place)[0] == [4]
    place.check(tmp_path / "back", 4)


def test_a_flipped_bit_in_a_copy_goes_up_from_no_disk(ranks: Callable[..., Any], tmp_path: Path) -> None:
    """The owner, which is late, still completes the step."""
    disks = OwnDisks(Place(ranks(dp=1, pp=2, sharded=True), str(tmp_path / "level")), tmp_path)
    disks.write_all(10)
    run = disks.run(0)
    save.leave_upload(run.step(10), 1, 1)
    disks.job.write(1, 10, disks.target(0))
    os.utime(run.step(10) / CLAIM.format(1, 1), (0, 0))
    part = run.part(10, 1, 1)
    flip(run.data_file(part), part.tensors[-1].at)
    found, problems = upload(disks.place, directory=str(run.path.parent), node="n0")
    assert (found, disks.place.complete()) == ([], [])
    (problem,) = problems
    assert problem.startswith(f"step 10 is passed over: {run.data_file(part)}: tensor {part.tensors[-1].name!r}")
    assert objects(disks.place, 10, part.file) == []
    assert disks.upload(1) == [10]
    disks.place.check(tmp_path / "back", 10)
