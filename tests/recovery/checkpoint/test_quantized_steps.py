"""Steps of near values: how near is stated, and none passes for exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.encoding.encoded_slot import read_index
from mainstay.recovery.checkpoint.load import part_file
from mainstay.recovery.checkpoint.manifest import (
    MANIFEST,
    CheckpointError,
    part_name,
    write_checked,
)
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.checkpoint.summary import read_step
from tests.recovery.checkpoint.commands import call
from tests.recovery.checkpoint.encoded_job import EncodedJob, arrays, kill_at


@pytest.fixture(params=["8bit", "4bit"])
def job(tmp_path: Path, request: pytest.FixtureRequest) -> EncodedJob:
    return EncodedJob(tmp_path, encoding=request.param)


def restored(job: EncodedJob, epoch: int, rank: int = 0) -> dict[str, np.ndarray]:
    return dict(job.layout.views(job.read(epoch, rank)))


def bound_of(job: EncodedJob, epoch: int) -> QuantizationBound:
    bound = job.run.manifest(epoch).quantized
    assert bound is not msgspec.UNSET
    return bound


def test_values_are_as_near_as_the_step_says(job: EncodedJob) -> None:
    bits = int(job.encoding[0])
    for epoch in (1, 2, 3):
        manifest = job.whole(epoch)
        assert manifest.replicated, "equal replicas decode to equal values"
        assert manifest.bases is msgspec.UNSET
        bound, near, saved = bound_of(job, epoch), restored(job, epoch, 1), arrays(1, epoch)
        assert bound.bits == bits
        table, moments = "param.table", "optim.table.exp_avg"
        assert 0 < np.abs(near[table] - saved[table]).max() <= bound.absolute
        assert (np.abs(near[moments] - saved[moments]) <= bound.relative * saved[moments]).all()
        for name in ("param.bias", "optim.table.step", "rng.torch"):
            assert np.array_equal(near[name], saved[name]), "small tensors and what is no float stay exact"
        part = job.run.part(epoch, 0, 1)
        assert (part.encoded or 0) < 0.45 * bits / 8 * job.layout.nbytes
        assert read_index(job.run.step(epoch) / part.file).bound == part.quantized
    assert job.run.steps() == [2, 3]


def test_the_last_step_of_a_job_is_exact(job: EncodedJob) -> None:
    job.whole(1)
    job.whole(2)
    job.write(job.order((job.step(0, 3), job.step(1, 3)), final=True))
    assert job.run.manifest(3).quantized is msgspec.UNSET
    assert job.holds(3)
    job.write(job.order((job.step(0, 2), job.step(1, 2)), final=True))  # it was written, quantized
    assert job.run.manifest(2).quantized is msgspec.UNSET
    assert job.holds(2)
    assert not [*job.run.step(2).glob("*.encoded")]


def test_a_manifest_of_replaced_parts_does_not_stay(tmp_path: Path) -> None:
    """Of two nodes, one looked at the other's quantized part, and writes the manifest after that was replaced."""
    job = EncodedJob(tmp_path, encoding="8bit")
    job.whole(1)
    job.write(job.order((job.step(0, 1),), final=True))
    assert bound_of(job, 1).bits == 8, "rank 1 is still quantized"
    late = (job.run.step(1) / MANIFEST).read_bytes()
    last = job.order((job.step(1, 1),), final=True)
    job.write(last)
    (job.run.step(1) / MANIFEST).write_bytes(late)
    job.write(last)
    assert job.run.manifest(1).quantized is msgspec.UNSET
    assert job.holds(1)


def test_a_step_that_is_committed_again_keeps_its_manifest(tmp_path: Path) -> None:
    """As by an agent that has outlived its job."""
    job = EncodedJob(tmp_path, encoding="8bit")
    job.whole(1)
    last = job.order((job.step(0, 1), job.step(1, 1)), final=True)
    job.write(last)
    manifest = job.run.step(1) / MANIFEST
    raw, written = manifest.read_bytes(), manifest.stat().st_mtime_ns
    job.write(last)
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == (raw, written)
    manifest.write_bytes(raw[:-2])
    job.write(last)
    assert job.holds(1), "a damaged one is replaced"


def test_a_kill_as_a_quantized_step_is_replaced_leaves_no_false_step(tmp_path: Path) -> None:
    job = EncodedJob(tmp_path, encoding="8bit")
    for epoch in (1, 2):
        job.whole(epoch)
    backup, moments, states = tmp_path / "backup", 0, set()
    shutil.copytree(job.run.step(2), backup)
    while not kill_at(job, moments, 2, final=True):
        moments += 1
        manifest = find(job.directory).manifest
        states.add((manifest.epoch, manifest.quantized is msgspec.UNSET))
        for rank in range(job.dp):
            job.read(manifest.epoch, rank)  # every digest is checked
        assert manifest.quantized is not msgspec.UNSET or job.holds(manifest.epoch)
        shutil.rmtree(job.run.step(2))
        shutil.copytree(backup, job.run.step(2))
    assert moments > 8
    assert {(2, False), (1, False)} <= states
    assert job.run.manifest(2).quantized is msgspec.UNSET


def test_a_quantized_file_does_not_pass_for_exact(job: EncodedJob) -> None:
    job.whole(1)
    part = job.run.part(1, 0, 1)
    claimed = write_checked(job.run.step(1) / part_name(0, 1), msgspec.structs.replace(part, quantized=msgspec.UNSET))
    with pytest.raises(CheckpointError, match="is quantized: it restores values near"), part_file(job.run, claimed):
        pass


def test_a_damaged_file_is_refused(job: EncodedJob) -> None:
    job.whole(1)
    file = job.run.step(1) / job.run.part(1, 0, 1).file
    other = job.run.step(1) / job.run.part(1, 1, 1).file
    whole = file.read_bytes()
    for damaged in (whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], whole[:-1], other.read_bytes()):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            job.read(1)
    file.write_bytes(whole)
    assert restored(job, 1).keys() == arrays(0, 1).keys()


def test_a_share_of_values_that_cannot_be_quantized_stays_exact(
    job: EncodedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = arrays(0, 1)
    odd["param.table"][7, 3] = np.inf
    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", lambda *_: odd)
    job.whole(1)
    assert np.array_equal(restored(job, 1)["param.table"], odd["param.table"])


def test_commands_say_that_a_step_is_quantized(
    job: EncodedJob, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job.whole(1)
    bound, directory, step = bound_of(job, 1), str(job.directory), str(job.run.step(1))
    said = f"quantized: {bound.bits} bits a value, with errors of at most {bound.absolute:.2g}"
    assert said in call(capsys, "ls", directory)[1]
    (row,) = json.loads(call(capsys, "ls", directory, "--json")[1])
    assert row["quantized"] == msgspec.to_builtins(bound)
    assert read_step(job.run, 1).quantized == bound
    code, out, err = call(capsys, "verify", directory)
    assert (code, "all digests hold" in out, said in err) == (0, True, True)
    assert json.loads(call(capsys, "verify", directory, "--json")[1])["quantized"] == row["quantized"]
    code, out, err = call(capsys, "cat", step, "model.table[0:2]")
    assert (code, said in err) == (0, True)
    assert call(capsys, "diff", step, step)[2].count(said) == 2
    for to, name in (("safetensors", "a"), ("mainstay", "b")):
        code, out, err = call(capsys, "convert", step, str(tmp_path / name), "--to", to)
        assert (code, "convert its near values with --accept-quantized" in err) == (2, True)
        assert not (tmp_path / name).exists()
        assert call(capsys, "convert", step, str(tmp_path / name), "--to", to, "--accept-quantized")[0] == 0
    near = open_checkpoint(job.run.step(1)).tensors["model.table"].read()
    assert np.array_equal(open_checkpoint(tmp_path / "b").tensors["model.table"].read(), near)


def test_exact_steps_are_described_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = EncodedJob(tmp_path)
    for epoch in (1, 2):
        assert b"quantized" not in msgspec.json.encode(job.whole(epoch))
        assert b"quantized" not in (job.run.step(epoch) / part_name(0, 1)).read_bytes()
    index = job.run.step(2) / job.run.part(2, 0, 1).file
    assert b"bound" not in index.read_bytes()[-2000:], "an index that other releases wrote keeps its check"
    assert "quantized" not in "".join(map(str, call(capsys, "ls", str(job.directory))))
