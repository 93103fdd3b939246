"""``mainstay backup`` and ``restore``. What cannot be done gives one clear line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mainstay.detectors.cli_errors import AsJson, Flag
from mainstay.probes.command_options import fail
from mainstay.probes.data_dir import keep_files_private
from mainstay.service.config.options import DatabaseOptions, settings_of

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.backup.manifest import BackupManifest


def backup(
    destination: Path,
    options: DatabaseOptions = DatabaseOptions(),
    *,
    telemetry: bool = True,
    as_json: AsJson = False,
) -> None:
    """Save the state of the service, which may run meanwhile.

    Parameters
    ----------
    destination
        Make this directory, or this file if the name ends in .tar.
    telemetry
        Save the raw telemetry too.
    """
    from mainstay.service.backup.backup import write_backup
    from mainstay.service.backup.manifest import BackupError
    from mainstay.service.server import CannotServeError

    settings = settings_of(options, "backup")
    keep_files_private()
    try:
        manifest = write_backup(settings, destination.absolute(), telemetry=telemetry, now=time.time())
    except (BackupError, CannotServeError, OSError) as error:
        fail("backup", str(error), 1)
    _report("Saved to", destination, manifest, as_json=as_json)


def restore(
    source: Path, options: DatabaseOptions = DatabaseOptions(), *, force: Flag = False, as_json: AsJson = False
) -> None:
    """Restore the state of the service from a backup, while no service runs.

    Parameters
    ----------
    source
        Read this directory or tar file.
    force
        Replace what the data directory and the database hold.
    """
    from mainstay.service.backup.manifest import BackupError
    from mainstay.service.backup.restore import restore_backup
    from mainstay.service.server import CannotServeError

    settings = settings_of(options, "restore")
    keep_files_private()
    try:
        manifest = restore_backup(settings, source.absolute(), force=force)
    except (BackupError, CannotServeError, OSError) as error:
        fail("restore", str(error), 1)
    _report("Restored into", settings.data_dir, manifest, as_json=as_json)


def _report(what: str, place: Path, manifest: BackupManifest, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print(json.dumps({"path": str(place), **msgspec.to_builtins(manifest)}, indent=2))
        return
    mebibytes = sum(file.size for file in manifest.files) / 2**20
    told = f"{len(manifest.files)} files, {mebibytes:.1f} MiB, {manifest.database}, schema {manifest.schema_revision}"
    print(f"{what} {place}: {told}, {manifest.created_at}")
