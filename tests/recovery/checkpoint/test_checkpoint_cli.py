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

from mainstay.recovery import checkpoint_cli
from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import find

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``mainstay checkpoint``."""
    try:
        code = checkpoint_cli.checkpoint(words, result_action="return_value")
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr()
    return int(code or 0), said.out, said.err


def test_ls_names_what_is_whole_and_why_the_rest_is_not(
    ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=2)
    job.whole(10)
    job.write(0, 20)
    code, out, _ = call(capsys, "ls", str(job.directory), "--json")
    rows = json.loads(out)
    assert (code, [row["step"] for row in rows], [row["whole"] for row in rows]) == (0, [10, 20], [True, False])
    assert rows[0]["shape"] == [2, 1, 1]
    assert "parts of ranks [1] are missing" in rows[1]["problem"]
    code, out, _ = call(capsys, "ls", str(job.directory))
    assert code == 0
    assert "complete" in out


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


def test_an_exported_directory_is_plain_dcp(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=2)
    job.whole(10)
    out = tmp_path / "out"
    code, said, _ = call(capsys, "export", str(job.directory), str(out), "--json")
    assert (code, json.loads(said)["tensors"]) == (0, 3)
    wanted = {"model.w": torch.zeros(5, 3), "optimizer.state.w.exp_avg": torch.zeros(5, 3, dtype=torch.float64)}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(out), no_dist=True)
    assert wanted["model.w"].numpy().tobytes() == job.state(0, 10)["param.w"].tobytes()
    assert sorted(path.name for path in out.iterdir()) == [".metadata", "__0_1.distcp"]
    code, _, err = call(capsys, "export", str(job.directory), str(out))
    assert (code, err) == (2, f"mainstay checkpoint: {out} exists already\n")


def test_an_exported_file_is_a_dict_of_tensors(
    ranks: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ranks(dp=1, pp=2)
    job.whole(10)
    assert call(capsys, "export", str(job.directory), str(tmp_path / "one.pt"), "--form", "torch")[0] == 0
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert sorted(loaded) == [
        f"pp{stage}.tp0.{name}" for stage in (0, 1) for name in ("model.n", "model.w", "optimizer.state.w.exp_avg")
    ]
    assert loaded["pp1.tp0.model.w"].numpy().tobytes() == job.state(1, 10)["param.w"].tobytes()


def test_a_damaged_step_is_not_exported(
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
        code, _, err = call(capsys, "export", str(job.directory), str(tmp_path / "out"), "--form", form)
        assert code == 2
        assert "tensor 'param.w' has digest" in err
        assert not [p for p in tmp_path.iterdir() if "out" in p.name]


def test_what_dcp_copied_is_imported_to_the_bit(
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
    code, out, _ = call(capsys, "import", str(tmp_path / "step-40"), str(directory), "--dp", "2", "--pp", "2")
    assert code == 0
    source = find(directory)
    assert f"--resume {source.manifest.run}" in out
    assert (source.manifest.epoch, source.manifest.replicated) == (40, True)
    for rank in range(4):
        ours, theirs = job.run.part(40, rank, 1), source.run.part(40, rank, 1)
        assert ours.layout_digest == theirs.layout_digest
        assert [t.digest for t in ours.tensors] == [t.digest for t in theirs.tensors]


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
        ("verify", str(tmp_path)): "no runs",
        ("export", str(job.directory), str(tmp_path / "o"), "--form", "zip"): "must be dcp or torch",
        ("import", str(theirs), str(tmp_path / "b"), "--dp", "1"): "lacks rank0.mainstay.layout",
        ("import", str(theirs), str(tmp_path / "b"), "--dp", "0"): "cannot be",
        ("import", str(evil), str(tmp_path / "b"), "--dp", "1"): "names os.system",
        ("import", str(tmp_path / "unnamed"), str(tmp_path / "b"), "--dp", "1"): "must be named step-N",
        ("import", str(tmp_path / "step-9"), str(tmp_path / "b"), "--dp", "1"): ".metadata",
    }
    for words, expected in cases.items():
        code, _, err = call(capsys, *words)
        assert code == 2, words
        assert len(err.strip().splitlines()) == 1, err
        assert expected in err
    assert not (tmp_path / "b").exists()
