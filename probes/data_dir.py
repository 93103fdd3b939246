"""Where a process keeps its state, and that it is its owner's alone.

This module imports no package, so ``mainstay doctor`` can always use it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
"""What group and others may do: nothing."""


class TooOpenError(PermissionError):
    """Group or others may use a directory or a file that must be private; the message says how to close it."""


def default_data_dir() -> Path:
    """Return the system's state directory for root, and the user's own for anyone else."""
    if os.geteuid() == 0:
        return Path("/var/lib/mainstay/node")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "mainstay" / "node"


def private_directory(path: Path) -> Path:
    """Make a directory for its owner alone, or check that an existing one is.

    Raises:
        TooOpenError: group or others may use it.
        OSError: it cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_private(path)
    return path


def require_private(path: Path) -> None:
    """Raise ``TooOpenError`` when group or others may use an existing directory or file."""
    mode = path.stat().st_mode
    if mode & OTHERS:
        what, wanted = ("directory", 700) if stat.S_ISDIR(mode) else ("file", 600)
        raise TooOpenError(
            f"other users may use the {what} {path} (mode {stat.S_IMODE(mode):04o}): run 'chmod {wanted} {path}',"
            " or choose another one"
        )


def read_secret(path: Path) -> str:
    """Read a token from a file of this user or of root. Others could put in a secret that they know.

    Raises:
        PermissionError: another user owns the file.
        OSError, UnicodeDecodeError: it cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in {os.geteuid(), 0}:
            raise PermissionError(f"{path} belongs to user {owner}: only a file of this user or of root is trusted")
        return file.read().strip()


def keep_files_private() -> None:
    """From now on, what this process makes is its owner's alone."""
    os.umask(OTHERS)
