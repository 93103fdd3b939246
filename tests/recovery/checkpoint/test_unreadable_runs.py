"""A run that the disk refuses to read is no run without steps, and none without what it has gone back from."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.catalog import LATEST, Age, find
from mainstay.recovery.checkpoint.file_errors import refusal
from mainstay.recovery.checkpoint.levels import find_nearest
from mainstay.recovery.checkpoint.manifest import MANIFEST, CheckpointError, run_name
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.summary import UPLOADED, CheckpointLevel, RunReader
from mainstay.recovery.checkpoint.upload_state import UPLOAD
from tests.recovery.checkpoint.commands import call
from tests.recovery.checkpoint.test_steps import LATER
from tests.recovery.checkpoint.upload_place import Place


def refuse(monkeypatch: pytest.MonkeyPatch, call_name: str, refused: Path, code: int = errno.EIO) -> None:
    """Have ``call_name`` of ``refused`` fail as a device does."""
    real = getattr(Path, call_name)

    def fail(path: Path) -> Any:
        if path == refused:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(Path, call_name, fail)


@pytest.mark.parametrize(("call_name", "name"), [("iterdir", ""), ("read_bytes", run_name(2))])
def test_a_refusal_is_an_error_that_names_the_place(
    ranks: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call_name: str,
    name: str,
) -> None:
    """Steps 20 and 30 are given up: only the newest file of the run lists that."""
    job = ranks(dp=1)
    for epoch in (10, 20, 30):
        job.whole(epoch)
    save.begin_step(job.target(2, returns=((10, 2),)))
    place = job.run.path / name
    with monkeypatch.context() as patch:
        refuse(patch, call_name, place)
        for read in (job.run.info, job.run.returns, lambda: [*job.run.complete()], lambda: find(job.directory),
                     RunReader(job.run).read):  # fmt: skip
            with pytest.raises(CheckpointError, match=f"{place}: Input/output error") as found:
                read()
            assert refusal(found.value).errno == errno.EIO
        job.run.prune(RetentionPolicy(last=1), ())
        code, out, _ = call(capsys, "ls", str(job.directory))
        assert (code, f"{place}: Input/output error" in out) == (0, True)
    with monkeypatch.context() as patch:
        refuse(patch, "iterdir", foreign := job.directory / "lost+found", errno.EACCES)
        foreign.mkdir()
        assert find(job.directory).run.id == job.run_id
    assert job.run.steps() == [10, 20, 30]
    assert job.run.returns() == ((10, 2),)
    assert [manifest.epoch for manifest in job.run.complete()] == [10]


def test_what_is_missing_or_damaged_is_no_refusal(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(10)
    (job.run.path / run_name(1)).write_bytes(b"{")
    assert (job.run.returns(), [manifest.epoch for manifest in job.run.complete()]) == ((), [10])
    (job.run.step(10) / MANIFEST).unlink()
    with pytest.raises(CheckpointError) as found:
        job.run.manifest(10)
    assert refusal(found.value) is None


def test_only_steps_before_another_are_found(ranks: Callable[..., Any], tmp_path: Path) -> None:
    """A run that began later is newer as a whole: its steps too that have a lower number."""
    first, second, url = ranks(dp=1), ranks(dp=1, run=LATER), str(tmp_path / "level")
    for job, epochs in ((first, (50, 60)), (second, (0, 10))):
        for epoch in epochs:
            job.whole(epoch)
        Place(job, url).upload()

    def check(before: Age, found: Age, run: str = LATEST) -> None:
        sources = (
            find(first.directory, run, before=before),
            find_nearest(first.directory, None, run, before),
            find_nearest(first.directory, url, run, before),
            find_nearest(tmp_path / "empty", url, run, before),
        )
        assert {(source.manifest.run, source.manifest.epoch) for source in sources} == {found}

    check((LATER, 10), (LATER, 0))
    check((LATER, 0), (first.run_id, 60))
    check((first.run_id, 60), (first.run_id, 50))
    for where in (first.directory, tmp_path / "empty"):
        with pytest.raises(CheckpointError, match=f"has no older complete step of run {LATER}"):
            find_nearest(where, url, LATER, (LATER, 0))


def test_an_upload_that_is_noted_in_no_text_is_made_again(place: Place, tmp_path: Path) -> None:
    run, name = place.job.run, f"{place.job.run_id}/step-00000010/{MANIFEST}"
    place.job.whole(10)
    place.upload()
    (Path(place.url) / name).write_bytes(b'{"run": "\xff"}')
    (run.step(10) / UPLOAD).write_bytes(b'{"url": "\xff", "node": ""}')
    (run.path / UPLOADED).write_bytes(b'[{"problem": "\xff"}]')
    assert [step.levels for step in RunReader(run).read()] == [(CheckpointLevel.LOCAL,)]
    assert place.upload() == [10]
    place.check(tmp_path / "back", 10)
