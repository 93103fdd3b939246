"""Restores a backup; nothing of the target changes before the backup was found complete and fit for it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import inspect

from mainstay.service import server
from mainstay.service.backup import databases
from mainstay.service.backup.backup import BLOCKS, KEPT
from mainstay.service.backup.manifest import (
    DATABASES,
    BackupError,
    BackupFile,
    BackupManifest,
    Reader,
    open_backup,
    read_manifest,
)
from mainstay.service.common import migrate
from mainstay.service.common.db import normalize_url
from mainstay.service.config.load import FILE_NAME
from mainstay.service.settings import Settings

_OF_NO_STATE: Final = frozenset({server.LOCK_FILE, FILE_NAME})
_PIECE: Final = 2**20


def restore_backup(settings: Settings, source: Path, *, force: bool) -> BackupManifest:
    """Put the state of a backup where the settings say, and bring its schema up to date.

    Args:
        settings: of the target.
        source: a directory or tar file that ``write_backup`` made.
        force: replace what is there.

    Raises:
        BackupError: the backup is damaged, of a newer version, or of the other kind of database; or something is there.
        CannotServeError: a service uses the data directory, or the database does not answer.
        OSError: the disk refused.
    """
    with open_backup(source) as read:
        manifest = read_manifest(read)
        _check_fit(settings, manifest)
        server.check_data_dir(settings.data_dir)
        with (
            closing(server.lock_data_dir(settings.data_dir)),
            tempfile.TemporaryDirectory(prefix=".restore-", dir=settings.data_dir) as made,
        ):
            staged = Path(made)
            for file in manifest.files:
                _stage(read, file, staged)
            held = [] if force else sorted(_held(settings, staged))
            if held:
                raise BackupError(f"the target holds {', '.join(held[:5])}: give another one, or --force to replace it")
            _place(settings, manifest, staged)
    with server.open_database(settings) as database:
        migrate.upgrade(database)
    return manifest


def _check_fit(settings: Settings, manifest: BackupManifest) -> None:
    kind = normalize_url(settings.resolved_database_url).get_backend_name()
    if manifest.database != kind:
        raise BackupError(f"a backup of {manifest.database} restores into {manifest.database} only, not into {kind}")
    if manifest.schema_revision not in migrate.known_revisions():
        raise BackupError(
            f"the backup is of a newer version of Mainstay ({manifest.mainstay_version}, schema"
            f" {manifest.schema_revision}): install that version"
        )
    if DATABASES[kind] not in {file.name for file in manifest.files}:
        raise BackupError(f"the backup holds no {DATABASES[kind]}")


def _stage(read: Reader, file: BackupFile, staged: Path) -> None:
    """Copy a file of the backup beside its target, and compare its checksum."""
    target, digest = staged / file.name, hashlib.sha256()
    target.parent.mkdir(exist_ok=True)
    with read(file.name) as original, target.open("wb") as copy:
        while piece := original.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
    if digest.hexdigest() != file.sha256:
        raise BackupError(f"{file.name} of the backup is damaged: its checksum is not that of the manifest")


def _held(settings: Settings, staged: Path) -> Iterator[str]:
    """State that the target has already."""
    yield from (path.name for path in settings.data_dir.iterdir() if path.name not in {*_OF_NO_STATE, staged.name})
    url = normalize_url(settings.resolved_database_url)
    if url.get_backend_name() == "sqlite":
        file = Path(url.database or "")
        yield from [str(file)] if file.exists() and file.parent != settings.data_dir else []
        return
    with server.open_database(settings) as database:
        yield from (f"table {name}" for name in inspect(database.engine).get_table_names())


def _place(settings: Settings, manifest: BackupManifest, staged: Path) -> None:
    """Replace the target's state by what is staged; a settings file that is there stays."""
    if manifest.database == "postgresql":
        with server.open_database(settings) as database:
            databases.restore_postgres(database, staged / DATABASES["postgresql"])
    else:
        target = Path(normalize_url(settings.resolved_database_url).database or "")
        for ending in ("", "-wal", "-shm"):
            Path(f"{target}{ending}").unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.move(staged / DATABASES["sqlite"], target)
    shutil.rmtree(settings.data_dir / BLOCKS, ignore_errors=True)
    for name in (BLOCKS, *KEPT):
        if (staged / name).exists() and not (name == FILE_NAME and (settings.data_dir / name).exists()):
            (staged / name).replace(settings.data_dir / name)
