"""Files that are replaced in one step, also when the disk refuses."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mainstay.probes.durable_files import replace_file, write_durably


@pytest.mark.parametrize("write", [replace_file, write_durably])
def test_the_content_is_replaced_and_nothing_else_is_left(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"first", b"second"):
        write(path, content)
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_leaves_the_old_content_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_durably(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_durably(tmp_path / "token", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
