"""``mainstay checkpoint pin|unpin|upload|download``, and ``ls`` over both levels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint.retention import RetentionPolicy
from tests.recovery.checkpoint.test_checkpoint_cli import call
from tests.recovery.checkpoint.upload_place import Place


def test_a_pinned_step_outlives_the_policy(ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    job = ranks(dp=1)
    for epoch in (10, 20, 30):
        job.whole(epoch)
    assert call(capsys, "pin", str(job.directory), "--step", "10")[1] == f"step 10 of run {job.run_id} is pinned\n"
    job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [10, 30]
    assert "complete (local; pinned)" in call(capsys, "ls", str(job.directory))[1]
    call(capsys, "unpin", str(job.directory), "--step", "10")
    job.whole(40)
    job.run.prune(RetentionPolicy(last=1), ())
    assert job.run.steps() == [40]
    code, _, err = call(capsys, "pin", str(job.directory), "--step", "30")
    assert (code, "has no step 30" in err) == (2, True)


def test_steps_move_between_levels_and_ls_says_where_they_are(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, directory = place.job, str(place.job.directory)
    for epoch in (10, 20):
        job.whole(epoch)
    code, out, _ = call(capsys, "upload", directory, place.url)
    assert (code, out.count("is uploaded")) == (0, 2)
    assert "no more steps are complete" in call(capsys, "upload", directory, place.url)[1]
    call(capsys, "pin", directory, "--step", "20")
    assert (Path(place.url) / job.run_id / "step-00000020" / "pinned").exists()
    shutil.rmtree(job.run.step(10))
    job.whole(30)
    rows = json.loads(call(capsys, "ls", directory, "--upload", place.url, "--json")[1])
    found = {row["step"]: (row["levels"], row["pinned"]) for row in rows}
    assert found == {10: (["upload"], False), 20: (["local", "upload"], True), 30: (["local"], False)}
    assert all(row["disk_bytes"] > 0 and row["shape"] == [2, 1, 1] for row in rows)
    rows = json.loads(call(capsys, "ls", place.url, "--json")[1])
    assert [(row["step"], row["state"], row["levels"]) for row in rows] == [
        (epoch, "complete", ["upload"]) for epoch in (10, 20)
    ]
    code, _, err = call(capsys, "verify", place.url)
    assert (code, "is an upload level: mainstay checkpoint download reads it" in err) == (2, True)
    back = str(tmp_path / "back")
    assert len(json.loads(call(capsys, "ls", back, "--upload", place.url, "--json")[1])) == 2
    code, out, _ = call(capsys, "download", place.url, back, "--step", "10")
    assert (code, "--resume latest" in out) == (0, True)
    assert call(capsys, "verify", back)[0] == 0
    call(capsys, "unpin", directory, "--step", "20")
    assert not (Path(place.url) / job.run_id / "step-00000020" / "pinned").exists()


@pytest.mark.parametrize("words", [
    ("upload", "DIR", "ftp://x"), ("download", "s3://", "DIR"), ("ls", "DIR", "--upload", "s3://b/p?x=1"),
    ("upload", "DIR/missing", "DIR/level"), ("download", "DIR/empty", "DIR"), ("ls", "DIR", "--upload", "DIR/empty"),
])  # fmt: skip
def test_what_names_no_place_is_one_line(
    ranks: Callable[..., Any], capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    job = ranks(dp=1)
    job.whole(10)
    code, _, err = call(capsys, *(word.replace("DIR", str(job.directory)) for word in words))
    assert code == 2
    assert err.count("\n") == 1
    assert not (job.directory / "empty").exists()
