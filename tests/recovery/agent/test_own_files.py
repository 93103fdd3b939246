"""Snapshots lie in directories of this user alone, and tokens come from files of this user or root."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from mainstay.probes.data_dir import TooOpenError, read_secret
from mainstay.recovery.agent.shm_lifecycle import node_directory, own_directory
from mainstay.recovery.node.agent_supervisor import _address_towards

OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return node_directory(tmp_path, "job", "node")


def levels(directory: Path) -> list[Path]:
    return [directory.parents[1], directory.parent, directory]


def test_every_level_is_made_for_this_user_alone(directory: Path) -> None:
    before = os.umask(0)
    try:
        assert own_directory(own_directory(directory)) == directory
    finally:
        os.umask(before)
    assert [stat.S_IMODE(level.stat().st_mode) for level in levels(directory)] == [0o700] * 3


def test_one_that_others_could_only_read_is_closed(directory: Path) -> None:
    directory.mkdir(parents=True)
    for level in levels(directory):
        level.chmod(0o755)
    own_directory(directory)
    assert [stat.S_IMODE(level.stat().st_mode) for level in levels(directory)] == [0o700] * 3


@pytest.mark.parametrize("at", range(3))
def test_one_that_others_may_write_to_is_refused(directory: Path, at: int) -> None:
    own_directory(directory)
    level = levels(directory)[at]
    level.chmod(0o770)
    with pytest.raises(TooOpenError, match=f"the directory {level} .mode 0770.: run 'chmod 700"):
        own_directory(directory)


@pytest.mark.parametrize("at", range(3))
def test_a_link_is_refused(directory: Path, tmp_path: Path, at: int) -> None:
    level = levels(directory)[at]
    level.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (tmp_path / "other").mkdir()
    level.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=f"{level} is a link or a file: remove it"):
        own_directory(directory)
    assert list((tmp_path / "other").iterdir()) == []


@as_root
@pytest.mark.parametrize("at", range(3))
def test_one_of_another_user_is_refused(directory: Path, at: int) -> None:
    own_directory(directory)
    level = levels(directory)[at]
    os.chown(level, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match=f"{level} belongs to user {OTHER_USER}, who could read or replace"):
        own_directory(directory)


@as_root
def test_a_token_of_another_user_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" secret\n")
    assert read_secret(file) == "secret"
    os.chown(file, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match=f"{file} belongs to user {OTHER_USER}"):
        read_secret(file)


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1")])
def test_an_agent_listens_where_the_coordinator_is_reached_from(host: str, address: str) -> None:
    assert asyncio.run(_address_towards(host)) == address


def test_no_such_host_is_an_error() -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        asyncio.run(_address_towards("no-such-host.invalid"))
