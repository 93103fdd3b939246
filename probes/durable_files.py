"""Small files that are replaced in one step: who reads one finds the old content or the new, never a part."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file; a loss of power may bring the old content back.

    Raises:
        OSError: it cannot be written.
    """
    scratch = path.with_suffix(".new")
    scratch.write_bytes(content)
    scratch.replace(path)


def write_json(path: Path, content: object) -> None:
    """Replace a file by ``content`` as JSON; see ``replace_file``."""
    replace_file(path, msgspec.json.encode(content))


def write_durably(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a file so that a loss of power cannot bring the old content back.

    Args:
        path: The file; other threads and processes may write it at the same time.
        content: Its new content.
        mode: Permissions of the file, less the umask.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    with new_file(path, mode) as file:
        file.write(content)


@contextmanager
def new_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file that takes the place of ``path``, durably as ``write_durably``, unless its writer raises an error.

    Until then it can be read under its ``name``.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    scratch.unlink(missing_ok=True)  # of a process that had this number and was killed
    try:
        with open(scratch, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names of new and replaced files in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
