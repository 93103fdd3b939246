"""What a backup holds: its manifest names every file with size and checksum, and is written last."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Final, Literal

import msgspec

from mainstay.probes.decoding import UNREADABLE

MANIFEST: Final = "manifest.json"
DATABASES: Final = {"sqlite": "mainstay.db", "postgresql": "database.dump"}
"""Kind of database → its file in a backup."""
Name = Annotated[
    str, msgspec.Meta(pattern=r"^(mainstay\.(db|toml)|database\.dump|admin-token|blocks/blocks-[0-9]+\.db)$")
]
Reader = Callable[[str], IO[bytes]]
"""Opens a file of a backup by its name."""


class BackupError(Exception):
    """A backup cannot be made, read, or restored; the message is one line."""


class BackupFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    name: Name
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest; ``created_at`` is in ISO 8601."""

    mainstay_version: str
    schema_revision: str
    created_at: str
    database: Literal["sqlite", "postgresql"]
    telemetry: bool
    files: tuple[BackupFile, ...]


@contextmanager
def open_backup(source: Path) -> Iterator[Reader]:
    """A directory or tar file for as long as the block lasts.

    Raises:
        BackupError: it is neither, or lacks a file that is read.
    """
    try:
        if source.is_dir():
            yield lambda name: (source / name).open("rb")
            return
        with tarfile.open(source, "r:") as archive:
            yield partial(_member, archive)
    except FileNotFoundError as error:
        raise BackupError(f"{source} is no complete backup: {error.filename} is missing") from error
    except (tarfile.TarError, KeyError) as error:
        raise BackupError(f"{source} is no complete backup: {error}") from error


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file


def read_manifest(read: Reader) -> BackupManifest:
    """The manifest of an open backup.

    Raises:
        BackupError: it is not one.
    """
    try:
        with read(MANIFEST) as file:
            return msgspec.json.decode(file.read(), type=BackupManifest)
    except UNREADABLE as error:
        raise BackupError(f"{MANIFEST} of the backup cannot be read: {error}") from error
