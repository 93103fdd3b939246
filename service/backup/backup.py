"""Makes a backup of the control plane's state while it runs; one that was interrupted is not there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from mainstay import __version__
from mainstay.probes.durable_files import sync_directory
from mainstay.service import server
from mainstay.service.auth.service import ADMIN_TOKEN_FILE
from mainstay.service.backup import databases
from mainstay.service.backup.manifest import DATABASES, MANIFEST, BackupError, BackupFile, BackupManifest
from mainstay.service.common import migrate
from mainstay.service.common.db import Database, normalize_url
from mainstay.service.config.load import FILE_NAME
from mainstay.service.settings import Settings

KEPT: Final = (ADMIN_TOKEN_FILE, FILE_NAME)
"""Files of the data directory that are copied as they are, where they exist."""
BLOCKS: Final = "blocks"


def write_backup(settings: Settings, destination: Path, *, telemetry: bool, now: float) -> BackupManifest:
    """Write a directory, or a tar file where the name ends in ``.tar``.

    Raises:
        BackupError: nothing is at ``destination`` but what was there before.
        CannotServeError: the database does not answer.
        OSError: the disk refused.
    """
    url = normalize_url(settings.resolved_database_url)
    if destination.exists():
        raise BackupError(f"{destination} exists: choose another name")
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise BackupError(f"there is no database at {url.database}: give the service's --data-dir or --database-url")
    with server.open_database(settings) as database, _scratch(destination) as scratch:
        revision = next(iter(migrate.revisions(database)), None)
        if revision is None:
            raise BackupError("the database has no schema of Mainstay: there is nothing to back up")
        _copy_state(settings, database, scratch, telemetry=telemetry)
        manifest = BackupManifest(
            mainstay_version=__version__,
            schema_revision=revision,
            created_at=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
            database="sqlite" if database.is_sqlite else "postgresql",
            telemetry=telemetry,
            files=tuple(_describe(path, scratch) for path in sorted(scratch.rglob("*")) if path.is_file()),
        )
        (scratch / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _publish(scratch, destination)
    return manifest


def _copy_state(settings: Settings, database: Database, scratch: Path, *, telemetry: bool) -> None:
    # Blocks first: each then finds its catalog in the copy of the database.
    for file in sorted((settings.data_dir / BLOCKS).glob("blocks-*.db")) if telemetry else ():
        (scratch / BLOCKS).mkdir(exist_ok=True)
        try:
            databases.copy_sqlite(file, scratch / BLOCKS / file.name)
        except BackupError:
            if file.exists():  # else its time has passed meanwhile
                raise
    if database.is_sqlite:
        databases.copy_sqlite(Path(database.url.database or ""), scratch / DATABASES["sqlite"], check=True)
    else:
        databases.dump_postgres(database, scratch / DATABASES["postgresql"], telemetry=telemetry)
    for name in KEPT:
        if (settings.data_dir / name).is_file():
            shutil.copyfile(settings.data_dir / name, scratch / name)


def _describe(path: Path, scratch: Path) -> BackupFile:
    """Size and checksum of a file that is durable from now on."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return BackupFile(path.relative_to(scratch).as_posix(), path.stat().st_size, digest)


@contextmanager
def _scratch(destination: Path) -> Iterator[Path]:
    """A directory beside the destination, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as made:
        content = Path(made) / "content"
        content.mkdir(mode=0o700)
        yield content


def _publish(scratch: Path, destination: Path) -> None:
    """Give the complete backup its name."""
    made = scratch
    if destination.suffix == ".tar":
        made = scratch.with_name("archive")
        with tarfile.open(made, "w") as archive:
            archive.add(scratch, arcname="")
    for path in (made, made / BLOCKS, made / MANIFEST):
        if path.exists():
            sync_directory(path)
    made.rename(destination)
    sync_directory(destination.parent)
