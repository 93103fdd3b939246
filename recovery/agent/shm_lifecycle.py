"""Whose files lie in shared memory, and when they may go.

Files live at ``ROOT/mainstay-UID/JOB/NODE``. Beside them stand a lock, held by the one agent that serves them, and
``owner.json`` with the process for which they exist. They are garbage once that process is gone, no agent holds
the lock and no process has touched them for a while; or at once after a reboot.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import time
from pathlib import Path
from typing import IO, Final

import msgspec

from mainstay.probes.core_types import validate_name
from mainstay.probes.data_dir import require_private
from mainstay.probes.decoding import UNREADABLE

GRACE_SECONDS: Final = 300.0
"""A launcher that is started again finds its memory if it comes back within this time."""
LOCK_SECONDS: Final = 3.0
"""How long a new agent waits for the old one to be gone."""

logger = logging.getLogger("mainstay.agent")


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    started: int
    """Clock ticks since boot, so that a re-used pid is not mistaken."""
    boot: str
    agent: int
    """The agent's own pid; for the operator."""


def node_directory(root: Path, job: str, node: str) -> Path:
    """Where the arenas of ``node`` in ``job`` live.

    Raises:
        ValueError: an id that may not become a path.
    """
    return _base(root) / validate_name(job, "job") / validate_name(node, "node")


def default_root() -> Path:
    return Path(os.environ.get("MAINSTAY_SHM_DIR", "/dev/shm"))  # noqa: S108 - shared memory, in a directory of our own


def _base(root: Path) -> Path:
    return root / f"mainstay-{os.getuid()}"


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def own_directory(directory: Path) -> Path:
    """Make a ``node_directory``, or check an existing one; each level below the root is this user's alone.

    Any user may make files in the root, ``/dev/shm``: one made there in advance would receive the snapshots.

    Raises:
        PermissionError: a level belongs to another user, or others may make files there.
        OSError: it cannot be made, or is a link.
    """
    levels = [directory, *directory.parents][2::-1]
    levels[0].parent.mkdir(parents=True, exist_ok=True)
    for level in levels:
        try:
            level.mkdir(mode=0o700)
        except FileExistsError:
            _require_own(level)
    return directory


def _require_own(directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise NotADirectoryError(f"{directory} is a link or a file: remove it, or choose another --shm-dir") from error
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(
                f"{directory} belongs to user {status.st_uid}, who could read or replace snapshots: remove it, or "
                "choose another --shm-dir"
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            require_private(directory)  # names what to do: another user may have put files there
        os.fchmod(descriptor, stat.S_IRWXU)
    finally:
        os.close(descriptor)


def take_lock(directory: Path, seconds: float = LOCK_SECONDS) -> IO[bytes]:
    """Hold ``directory`` until the file returned is closed.

    Raises:
        RuntimeError: another agent serves it and does not end.
        OSError: see ``own_directory``.
    """
    own_directory(directory)
    file = (directory / "agent.lock").open("ab")
    deadline = time.monotonic() + seconds
    while not _try_lock(file):
        if time.monotonic() > deadline:
            file.close()
            raise RuntimeError(f"another agent serves {directory}; end it first")
        time.sleep(0.02)
    return file


def _try_lock(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_owner(directory: Path, pid: int) -> None:
    """Record for which process the files exist."""
    owner = OwnerRecord(pid=pid, started=process_start(pid) or 0, boot=boot_id(), agent=os.getpid())
    (directory / "owner.json").write_bytes(msgspec.json.encode(owner))


def collect_garbage(root: Path, *, grace: float = GRACE_SECONDS) -> list[Path]:
    """Remove what dead jobs left behind; returns the directories that went."""
    removed = []
    for owner_file in sorted(_base(root).glob("*/*/owner.json")):
        directory = owner_file.parent
        if _is_garbage(owner_file, grace):
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
            logger.warning("removed the snapshot memory of a dead job: %s", directory)
            with contextlib.suppress(OSError):  # other nodes of the job
                directory.parent.rmdir()
    return removed


def _is_garbage(owner_file: Path, grace: float) -> bool:
    try:
        owner = msgspec.json.decode(owner_file.read_bytes(), type=OwnerRecord)
        age = time.time() - owner_file.stat().st_mtime
    except (OSError, *UNREADABLE):
        return False
    if owner.boot != boot_id():
        return True
    if process_start(owner.pid) == owner.started or age < grace:
        return False
    return _unlocked(owner_file.with_name("agent.lock"))


def remove_node_files(directory: Path) -> None:
    """Remove everything in a node's directory: snapshots, fence, parity group. For a run that begins or has ended.

    Raises:
        RuntimeError: an agent serves it and does not end.
    """
    if not directory.exists():
        return
    lock = take_lock(directory)
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        lock.close()
    with contextlib.suppress(OSError):  # other nodes of the job on this machine still need it
        directory.parent.rmdir()


def _unlocked(path: Path) -> bool:
    try:
        with path.open("ab") as file:
            return _try_lock(file)
    except OSError:
        return True
