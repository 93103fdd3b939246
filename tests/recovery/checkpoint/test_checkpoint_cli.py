"""``mainstay checkpoint``: what is there, whether it is whole, out of it and back in, and one line for bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import find
from tests.recovery.checkpoint.commands import call

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_ls_names_what_is_whole_and_why_the_rest_is_not(
    ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=2)
    job.whole(10)
    job.write(0, 20)
    code, out, _ = call(capsys, "ls", str(job.directory), "--json")
    rows = json.loads(out)
    assert (code, [row["step"] for row in rows], [row["state"] for row in rows]) == (
        0,
        [10, 20],
        ["complete", "incomplete"],
    )
    assert rows[0]["shape"] == [2, 1, 1]
    assert "parts of ranks [1] are missing" in rows[1]["problem"]
    code, out, _ = call(capsys, "ls", str(job.directory))
    assert code == 0
    assert "complete (local)" in out
    assert "incomplete: parts of ranks [1] are missing (local)" in out


def test_verify_finds_the_damaged_rank(ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    job = ranks(dp=2)
    job.whole(10)
    assert call(capsys, "verify", str(job.directory))[0] == 0
    part = job.run.part(10, 1, 1)
    path = job.run.step(10) / part.file
    raw = bytearray(path.read_bytes())
    raw[part.tensors[0].at] ^= 1
    path.write_bytes(raw)
    code, out, _ = call(capsys, "verify", str(job.directory), "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["step"]) == (1, False, 10)
    assert [bool(row["problem"]) for row in found["ranks"]] == [False, True]
    assert "tensor 'param.w' has digest" in found["ranks"][1]["problem"]
    code, out, _ = call(capsys, "verify", str(job.directory))
    assert "1 of 2 ranks are damaged" in out


def test_verify_tells_a_part_that_the_manifest_does_not_mean(
    ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=1)
    job.whole(10)
    save.write_part(job.arenas[0], job.arenas[0].find(10), job.target())  # the same again, at another time
    code, out, _ = call(capsys, "verify", str(job.directory))
    assert code == 1
    assert "not the one that the manifest names" in out


def test_a_converted_directory_is_plain_dcp(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=2)
    job.whole(10)
    out = tmp_path / "out"
    code, said, _ = call(capsys, "convert", str(job.directory), str(out), "--json")
    assert (code, json.loads(said)["step"]) == (0, 10)
    wanted = {"model.w": torch.zeros(5, 3), "optimizer.state.w.exp_avg": torch.zeros(5, 3, dtype=torch.float64)}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(out), no_dist=True)
    assert wanted["model.w"].numpy().tobytes() == job.state(0, 10)["param.w"].tobytes()
    assert sorted(path.name for path in out.iterdir()) == [".metadata", "__0_0.distcp"]
    code, _, err = call(capsys, "convert", str(job.directory), str(out))
    assert (code, err) == (2, f"mainstay checkpoint: {out} exists already\n")


def test_a_converted_file_has_nested_state_dicts(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=1)
    job.whole(10)
    assert call(capsys, "convert", str(job.directory), str(tmp_path / "one.pt"), "--to", "torch")[0] == 0
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert sorted(loaded["model"]) == ["n", "w"]
    assert list(loaded["optimizer"]["state"]) == ["w"]
    assert loaded["step"] == 10
    assert loaded["model"]["w"].numpy().tobytes() == job.state(0, 10)["param.w"].tobytes()


def test_stages_with_names_of_their_own_stay_apart(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=1, pp=2)
    job.whole(10)
    assert call(capsys, "convert", str(job.directory), str(tmp_path / "one.pt"), "--to", "torch")[0] == 0
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert loaded["pp1.tp0.model.w"].numpy().tobytes() == job.state(1, 10)["param.w"].tobytes()


def test_a_damaged_step_is_not_converted(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=1)
    job.whole(10)
    part = job.run.part(10, 0, 1)
    path = job.run.step(10) / part.file
    raw = bytearray(path.read_bytes())
    raw[part.tensors[0].at] ^= 1
    path.write_bytes(raw)
    for form in ("dcp", "torch"):
        out = tmp_path / ("out.pt" if form == "torch" else "out")
        code, _, err = call(capsys, "convert", str(job.directory), str(out), "--to", form)
        assert code == 2
        assert "tensor 'param.w' has digest" in err
        assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_what_dcp_copied_is_converted_back_to_the_bit(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read and written again by torch: other archives, other metadata, no manifest."""
    job = ranks(dp=2, pp=2)
    job.whole(40)
    from mainstay.recovery.checkpoint.dcp import read_metadata

    state = {t.key: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in read_metadata(job.run.step(40))}
    dcp.load(state, storage_reader=dcp.FileSystemReader(job.run.step(40)), no_dist=True)
    dcp.save(state, checkpoint_id=tmp_path / "step-40", no_dist=True)
    directory = tmp_path / "back"
    words = ("convert", str(tmp_path / "step-40"), str(directory), "--to", "mainstay", "--dp", "2", "--pp", "2")
    code, out, _ = call(capsys, *words)
    assert code == 0
    source = find(directory)
    assert f"--resume {source.manifest.run}" in out
    assert (source.manifest.epoch, source.manifest.replicated) == (40, True)
    for rank in range(4):
        ours, theirs = job.run.part(40, rank, 1), source.run.part(40, rank, 1)
        assert ours.layout_digest == theirs.layout_digest
        assert [t.digest for t in ours.tensors] == [t.digest for t in theirs.tensors]


def test_a_step_survives_the_way_through_dcp_without_options(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=2)
    job.whole(10)
    assert call(capsys, "convert", str(job.directory), str(tmp_path / "there"))[0] == 0
    assert call(capsys, "convert", str(tmp_path / "there"), str(tmp_path / "back"), "--to", "mainstay")[0] == 0
    source = find(tmp_path / "back")
    assert (source.manifest.epoch, source.manifest.dp) == (10, 2)
    code, out, _ = call(capsys, "diff", str(job.directory), str(tmp_path / "back"))
    assert (code, out) == (0, "9 tensors are equal, 0 differ\n")


def test_cat_du_and_diff(ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ranks(dp=1)
    job.whole(10)
    job.whole(20)
    first, second = str(job.run.step(10)), str(job.run.step(20))
    w = job.state(0, 10)["param.w"]
    code, out, _ = call(capsys, "cat", first, "model.w[-2:, 1]", "--json")
    assert (code, json.loads(out)["values"]) == (0, w[-2:, 1].tolist())
    code, out, _ = call(capsys, "cat", first, "model.w[3]")
    assert (code, out.splitlines()[0]) == (0, "model.w float32[5, 3]")
    code, out, _ = call(capsys, "du", first, "--json")
    found = json.loads(out)
    assert found["names"]["model.w"] == 60
    assert found["places"] == {"rank 0": found["nbytes"]}
    assert "total" in call(capsys, "du", first)[1]
    assert call(capsys, "diff", first, first)[0] == 0
    code, out, _ = call(capsys, "diff", first, second, "--json")
    changed = {row["name"]: row["difference"] for row in json.loads(out)["different"]}
    largest = abs(w.astype(float) - job.state(0, 20)["param.w"].astype(float)).max()
    assert (code, changed["model.w"]) == (1, f"15 of 15 elements differ, by at most {largest:g}")
    torch.save({"w": torch.zeros(5, 4)}, tmp_path / "one.pt")
    code, out, _ = call(capsys, "diff", first, str(tmp_path / "one.pt"))
    assert (code, "model.w: float32[5, 3] and float32[5, 4]" in out, "model.n: only in" in out) == (1, True, True)


def test_a_file_of_another_program_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.pt"
    torch.save({"w": torch.arange(100.0)}, path)
    assert call(capsys, "verify", str(path))[0] == 0
    raw = bytearray(path.read_bytes())
    raw[raw.index(torch.arange(100.0).numpy().tobytes()) + 7] ^= 1
    path.write_bytes(raw)
    code, out, _ = call(capsys, "verify", str(path))
    assert (code, "has CRC-32" in out, "1 of them damaged" in out) == (1, True, True)
    assert json.loads(call(capsys, "verify", str(path), "--json")[1])["ok"] is False


def test_bad_input_is_one_line(ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ranks(dp=2)
    job.whole(10)
    theirs = tmp_path / "step-7"
    dcp.save({"w": torch.zeros(3)}, checkpoint_id=theirs, no_dist=True)
    evil = tmp_path / "step-8"
    shutil.copytree(theirs, evil)
    (evil / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    shutil.copytree(theirs, tmp_path / "unnamed")
    cases = {
        ("ls", str(tmp_path / "none")): "is not a directory",
        ("verify", str(job.directory), "--run", "x"): "no run 'x'",
        ("verify", str(job.directory), "--step", "11"): "no step 11 of any run",
        ("convert", str(job.directory), str(tmp_path / "o"), "--to", "zip"): "must be one of dcp",
        ("convert", str(theirs), str(tmp_path / "b"), "--to", "mainstay"): "lacks rank0.mainstay.layout",
        ("convert", str(theirs), str(tmp_path / "b"), "--to", "mainstay", "--dp", "-1"): "must be positive",
        ("convert", str(evil), str(tmp_path / "b")): "names os.system",
        ("convert", str(tmp_path / "unnamed"), str(tmp_path / "b"), "--to", "mainstay"): "does not say its step",
        ("convert", str(tmp_path / "step-9"), str(tmp_path / "b")): "does not exist",
        ("verify", str(tmp_path)): "no checkpoint that Mainstay reads",
        ("cat", str(job.directory), "model.v"): "no tensor 'model.v'; near it are model.w",
        ("cat", str(job.directory), "model.w[1,2,3]"): "3 dimensions, model.w has 2",
        ("cat", str(job.directory), "model.w[9]"): "outside of dimension 0",
        ("cat", str(job.directory), "model.w[::2]"): "neither a number nor START:STOP",
        ("cat", str(job.directory), "model.w[1-2]"): "neither a number nor START:STOP",
        ("cat", str(job.directory), "model.w[a]"): "'a' is neither a number nor START:STOP",
        ("cat", str(job.directory), "model.w[,1]"): "'' is neither a number nor START:STOP",
        ("cat", str(job.directory), "model\nw"): "no tensor",
        ("verify", str(theirs), "--step", "7"): "is no directory of runs, in which --run and --step choose",
        ("verify", str(job.run.path), "--step", "10"): "is no directory of runs",
        ("convert", str(theirs), str(tmp_path / "b.pt")): "--to dcp cannot write",
        ("convert", str(theirs), str(tmp_path / "b"), "--to", "torch"): "--to torch cannot write",
        ("convert", str(theirs), str(tmp_path / "b"), "--to", "deepspeed", "--dp", "-2"): "must be positive",
        ("du", str(theirs / "__0_0.distcp")): "no checkpoint that Mainstay reads",
        ("du", str(theirs), "--depth", "0"): "--depth 0 must be at least 1",
        ("cat", str(theirs), "zzz"): "has no tensor 'zzz'; mainstay checkpoint du lists names",
        (
            "convert",
            str(theirs),
            str(tmp_path / "b"),
            "--zero-stage",
            "1",
        ): "--zero-stage is only for --to deepspeed, not for --to dcp",
        ("convert", str(theirs), str(tmp_path / "b"), "--like", str(job.directory)): "--like is only for --to mainstay",
        ("convert", str(theirs), str(tmp_path / "b"), "--dp", "2"): "--dp is only for --to mainstay or deepspeed",
        ("convert", str(theirs), str(tmp_path / "b"), "--to", "deepspeed", "--dp", "2"): "--dp needs --zero-stage",
        ("convert", str(theirs), str(evil / ".metadata" / "b")): "/.b.new: Not a directory",
        ("rebuild", str(tmp_path / "unnamed")): "unnamed has no step of any run",
    }
    for words, expected in cases.items():
        code, _, err = call(capsys, *words)
        assert code == 2, words
        assert len(err.strip().splitlines()) == 1, err
        assert expected in err
    assert not (tmp_path / "b").exists()
