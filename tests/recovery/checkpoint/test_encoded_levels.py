"""Encoded steps move between levels with what they refer to, restore in other shapes, and convert."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mainstay.recovery.agent.checkpoint_reader import CheckpointReader
from mainstay.recovery.agent.messages import LoadDisk
from mainstay.recovery.agent.node import AgentNode, AgentSettings
from mainstay.recovery.agent.parity_store import ParityStore
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint import open_checkpoint
from mainstay.recovery.checkpoint.catalog import DOWNLOADS, PINNED, RunDirectory, find
from mainstay.recovery.checkpoint.levels import fetch_parts
from mainstay.recovery.checkpoint.reshape import gather, sources
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, encode
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.mesh_shape import MeshShape
from tests.recovery.checkpoint.encoded_job import ROWS, EncodedJob, arrays, slot_of
from tests.recovery.checkpoint.test_checkpoint_cli import call
from tests.recovery.checkpoint.upload_place import Place


@pytest.fixture
def job(tmp_path: Path) -> EncodedJob:
    made = EncodedJob(tmp_path)
    for epoch in (1, 2, 3):
        made.whole(epoch)
    return made


def test_a_chain_goes_up_and_comes_back(job: EncodedJob, tmp_path: Path) -> None:
    place = Place(job, str(tmp_path / "level"))
    assert place.upload(policy=RetentionPolicy(last=1)) == [3]
    assert place.complete() == [1, 2, 3]
    job.whole(4)
    assert place.upload(policy=RetentionPolicy(last=1)) == [4]
    assert place.complete() == [1, 2, 3, 4]  # what step 4 refers to stays
    place.check(tmp_path / "back", 4)
    back = RunDirectory(tmp_path / "back" / job.run_id)
    assert back.steps() == [1, 2, 3, 4]
    assert job.holds(4, back)
    fetch_parts(tmp_path / DOWNLOADS, place.url, job.run_id, 4, [(1, 0)])
    downloaded = RunDirectory(tmp_path / DOWNLOADS / job.run_id)
    assert {part.rank for epoch in downloaded.steps() for part in downloaded.parts(epoch)} == {1}
    assert np.array_equal(job.read(4, 1, downloaded), slot_of(job.layout, 1, 4))


def test_a_damaged_base_is_repaired_from_the_upload_level(job: EncodedJob, tmp_path: Path) -> None:
    place = Place(job, str(tmp_path / "level"))
    place.upload()
    file = job.run.step(2) / "__1_1.encoded"
    file.write_bytes(file.read_bytes()[:100])
    fetch_parts(job.directory, place.url, job.run_id, 3, [(1, 0)])
    assert job.holds(3)


def test_retention_removes_no_base(job: EncodedJob) -> None:
    (job.run.step(3) / PINNED).touch()
    for epoch in range(4, 9):
        job.whole(epoch)
    job.writer = EncodedJob(job.directory.parent).writer  # the next step is full
    for epoch in range(9, 12):
        job.whole(epoch)
    job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [1, 2, 3, 9, 10, 11]
    assert job.holds(3)
    assert job.holds(11)


def test_replicas_on_a_node_share_one_read(job: EncodedJob, tmp_path: Path) -> None:
    store = ArenaStore(tmp_path / "memory-after", slots=2, disk_every=1)
    (tmp_path / "memory-after").mkdir()
    settings = AgentSettings(
        job="job", node="node", tls=job_tls("secret", "job", Authority.SNAPSHOTS), directory=tmp_path / "memory-after",
        disk_every=1, disk_keep=RetentionPolicy(),
    )  # fmt: skip
    node, read = AgentNode(settings, store, ParityStore(tmp_path / "memory-after")), list[int]()
    node.meter.add_transfer = lambda _, nbytes, __: read.append(nbytes)  # type: ignore[assignment,method-assign]
    reader = CheckpointReader(node)
    for rank in range(2):
        store.open(rank, job.layout)
        order = LoadDisk(rank=rank, epoch=3, directory=str(job.directory), run=job.run_id)
        assert reader.load(order, 1, job.run_id).nbytes == job.layout.nbytes
        arena = store.arena(rank)
        found = arena.slot_bytes(arena.find(3).slot)[: job.layout.nbytes]
        assert np.array_equal(found, slot_of(job.layout, rank, 3))
    assert read == [job.layout.specs()["rng.torch"].nbytes + sum(t.nbytes for t in job.layout.tensors[:4]), 64]


def test_a_job_of_another_shape_takes_its_tensors(job: EncodedJob) -> None:
    """Two replicas saved it; a job of four, whose part of the state a rank gathers by name."""
    manifest = find(job.directory).manifest
    parts = sources(manifest, MeshShape(dp=4, pp=1), 3)
    found = gather(job.run, 3, parts, job.layout, {}, stages=1)
    wanted = arrays(1, 3)
    assert all(np.array_equal(found[name], wanted[name]) for name in job.layout.specs())


def test_pieces_of_cut_tensors_keep_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two ranks holds half of the rows, as with FSDP2."""

    def cut(rank: int, epoch: int) -> dict[str, np.ndarray]:
        whole = arrays(rank, epoch)
        rows = [name for name in whole if whole[name].shape[:1] == (ROWS,)]
        places = {name: GlobalSlice((2 * ROWS, 16), (rank * ROWS, 0)) for name in rows}
        return whole | {name: whole[name] + rank for name in places} | {SLICES: encode(places)}

    (tmp_path / "cut").mkdir()
    monkeypatch.setattr("tests.recovery.checkpoint.encoded_job.arrays", cut)
    sharded = EncodedJob(tmp_path / "cut")
    for epoch in (1, 2, 3):
        manifest = sharded.whole(epoch)
    assert manifest.needs_all
    assert sharded.run.part(3, 1, 1).is_encoded
    wanted = np.concatenate([cut(rank, 3)["param.table"] for rank in range(2)])
    assert np.array_equal(open_checkpoint(sharded.run.step(3)).tensors["model.table"].read(), wanted)
    alone = Layout.build({"param.table": ("float32", (2 * ROWS, 16))})
    parts = sources(manifest, MeshShape(dp=1, pp=1), 0)
    assert np.array_equal(gather(sharded.run, 3, parts, alone, {}, stages=1)["param.table"], wanted)


def test_the_command_line_knows_encoded_steps(
    job: EncodedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, step = str(job.directory), str(job.run.step(3))
    rows = json.loads(call(capsys, "ls", directory, "--json")[1])
    assert [row["bases"] for row in rows] == [[], [1], [1, 2]]
    assert rows[2]["disk_bytes"] < 0.12 * rows[0]["disk_bytes"]
    assert {row["full_bytes"] for row in rows} == {2 * job.layout.nbytes}, "a difference restores all of the state"
    assert "complete (local; built on 1, 2" in call(capsys, "ls", directory)[1]
    assert call(capsys, "verify", directory)[0] == 0
    assert call(capsys, "verify", step)[0] == 0
    cat = json.loads(call(capsys, "cat", step, "model.table[7,3]", "--json")[1])
    assert cat["values"] == pytest.approx(float(arrays(0, 3)["param.table"][7, 3]))
    assert "as differences to step-00000002" in call(capsys, "du", step)[1]
    out = tmp_path / "out.safetensors"
    assert call(capsys, "convert", step, str(out), "--to", "safetensors")[0] == 0
    assert call(capsys, "diff", step, str(out))[1] != ""
    again = tmp_path / "again"
    assert call(capsys, "convert", step, str(again), "--to", "mainstay")[0] == 0
    run = find(again).run
    assert all(np.array_equal(job.read(3, rank, run), slot_of(job.layout, rank, 3)) for rank in range(2))
    assert call(capsys, "diff", step, str(again))[0] == 0
    shutil.rmtree(job.run.step(2))
    assert "refers to step 2, which is not complete" in call(capsys, "ls", directory)[1]
    assert call(capsys, "verify", directory, "--step", "3")[0] == 2


def test_a_step_at_the_upload_level_says_its_bytes(
    job: EncodedJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(job, str(tmp_path / "level"))
    place.upload()
    local = {row["step"]: row["disk_bytes"] for row in json.loads(call(capsys, "ls", str(job.directory), "--json")[1])}
    shutil.rmtree(job.directory)
    rows = json.loads(call(capsys, "ls", str(job.directory), "--upload", place.url, "--json")[1])
    assert {row["step"]: row["disk_bytes"] for row in rows if row["step"] > 1} == {2: local[2], 3: local[3]}
