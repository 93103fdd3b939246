"""The files of history in a local directory or an object store. This module imports Arrow: import it where it is used.

Arrow starts threads, which a process that forks must not have.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from mainstay.service.history.tiers import HistoryFile, Tier, day_start, day_text, parse_path, without_merged
from mainstay.service.telemetry.blocks import HOUR

_MARK: Final = re.compile(r"compacted/(\d+)-(\d+)-(\d+)")
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """What an hour was compacted from."""

    hour: int
    """Unix hours."""
    blocks: int
    """Blocks that were stored for it and for the hour before it."""
    parts: int
    """Files that each source is split into."""

    @property
    def path(self) -> str:
        return f"compacted/{self.hour}-{self.blocks}-{self.parts}"


class Archive:
    """Files under ``url``: a directory, or ``s3://bucket/prefix`` and what else Arrow reads.

    Raises:
        ValueError, OSError: the address cannot be used.
    """

    def __init__(self, url: str) -> None:
        base, root = fs.FileSystem.from_uri(url)
        self._local = Path(root) if isinstance(base, fs.LocalFileSystem) else None
        self.files: Any = fs.SubTreeFileSystem(root, base)

    def days(self, tier: Tier) -> list[int]:
        """Days that the tier holds, ascending (Unix seconds of their start)."""
        found = []
        for name in self._names(tier.name):
            try:
                found.append(day_start(name))
            except ValueError:
                continue
        return sorted(found)

    def of_day(self, tier: Tier, day: int) -> list[HistoryFile]:
        """The tier's files of one day."""
        found = self.files.get_file_info(
            fs.FileSelector(f"{tier.name}/{day_text(day)}", recursive=True, allow_not_found=True)
        )
        return without_merged(one for info in found if (one := parse_path(info.path)) is not None)

    def marks(self) -> dict[int, Mark]:
        """Compacted hours whose blocks may still be stored."""
        found: dict[int, Mark] = {}
        for name in self._names("compacted"):
            if match := _MARK.fullmatch(f"compacted/{name}"):
                mark = Mark(int(match[1]), int(match[2]), int(match[3]))
                if mark.hour not in found or found[mark.hour].blocks < mark.blocks:
                    found[mark.hour] = mark
        return found

    def put_mark(self, mark: Mark) -> None:
        """Record that an hour is compacted; earlier records of it go."""
        with self.writing(mark.path):
            pass
        self._drop_marks(lambda known: known.hour == mark.hour and known != mark)

    def drop_marks_before(self, hour: int) -> None:
        self._drop_marks(lambda known: known.hour < hour)

    def _drop_marks(self, is_old: Any) -> None:
        for name in self._names("compacted"):
            match = _MARK.fullmatch(f"compacted/{name}")
            if match and is_old(Mark(int(match[1]), int(match[2]), int(match[3]))):
                self.delete(f"compacted/{name}")

    @contextmanager
    def writing(self, path: str) -> Iterator[pa.NativeFile]:
        """A stream whose content appears under ``path`` at once when the block ends, and not at all if it raises."""
        if self._local is None:
            # An object appears when its upload is complete; one that is given up never does.
            buffer = pa.BufferOutputStream()
            yield buffer
            with self.files.open_output_stream(path) as target:
                target.write(buffer.getvalue())
            return
        whole = self._local / path
        whole.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = whole.with_name(f"{whole.name}.{uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as target:
                yield pa.PythonFile(target)
                target.flush()
                os.fsync(target.fileno())
            temporary.replace(whole)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):  # another process deleted it
            self.files.delete_file(path)

    def delete_folder(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.files.delete_dir(path)

    def report_unreadable(self, file: HistoryFile, error: OSError | pa.ArrowInvalid) -> None:
        """Set a damaged file aside; of an unreachable store or a faulty disk, which name a cause, only log."""
        is_damaged = self._local is not None and getattr(error, "errno", None) is None
        if is_damaged or isinstance(error, pa.ArrowInvalid):
            self._set_aside(file, error)
        else:
            _log.error("cannot read %s: %s", file.path, error)

    def _set_aside(self, file: HistoryFile, error: Exception) -> None:
        """Rename the file. Its hour is compacted again if its blocks are still stored."""
        aside = f"{file.path}.damaged"
        try:
            self.files.move(file.path, aside)
        except FileNotFoundError:
            return
        self._drop_marks(lambda known: file.start <= known.hour * HOUR < file.stop)
        _log.error("%s is damaged (%s) and was set aside as %s", file.path, error, aside)

    def _names(self, folder: str) -> list[str]:
        found = self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in found]
