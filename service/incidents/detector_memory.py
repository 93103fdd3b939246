"""What detectors that learn for hours keep over a restart of the service: one file each, beside the files of history.

Invariant: a file is written as a whole and never by the thread of detection, whose turn must not wait for a disk. It is
at most ``SAVE_SECONDS`` and one write old. A file that cannot be read costs what it held: the detector learns again.
"""

from __future__ import annotations

import logging
import threading
import zipfile
from collections.abc import Iterable
from io import BytesIO
from typing import Final

import numpy as np

from mainstay.detectors.base import Array, ArrayDetector
from mainstay.service.history.query import History

SAVE_SECONDS: Final = 300.0
_log: Final = logging.getLogger(__name__)


class DetectorMemory:
    """Reads and writes what the detectors of a shard learned."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._writer = threading.Thread()
        self._saved_at: float | None = None

    def restore(self, detectors: Iterable[ArrayDetector]) -> None:
        """Let fresh detectors continue from their files."""
        for detector in detectors:
            if not detector.learned():
                continue
            try:
                with self._history.archive.files.open_input_file(_path(detector.name)) as file:
                    held = BytesIO(file.read())
                with np.load(held, allow_pickle=False) as arrays:
                    detector.restore_learned(dict(arrays))
            except FileNotFoundError:
                continue
            except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
                detector.reset()
                _log.warning("detector %s learns again; what it had learned cannot be read: %s", detector.name, error)

    def save(self, detectors: Iterable[ArrayDetector], now: float) -> None:
        """Write the files if it is time; ``now`` is Unix seconds."""
        if self._saved_at is None:
            self._saved_at = now
        if abs(now - self._saved_at) < SAVE_SECONDS or self._writer.is_alive():
            return
        self._saved_at = now
        learned = {one.name: {name: x.copy() for name, x in one.learned().items()} for one in detectors}
        self._writer = threading.Thread(target=self._write, args=(learned,), name="detector-memory", daemon=True)
        self._writer.start()

    def wait(self) -> None:
        """Until what was last saved is written, or could not be."""
        if self._writer.ident is not None:
            self._writer.join()

    def _write(self, learned: dict[str, dict[str, Array]]) -> None:
        for name, arrays in learned.items():
            if not arrays:
                continue
            whole = BytesIO()
            np.savez(whole, **arrays)  # type: ignore[arg-type]
            try:
                with self._history.archive.writing(_path(name)) as file:
                    file.write(whole.getbuffer())
            except OSError as error:
                _log.warning("what detector %s learned cannot be written: %s", name, error)


def _path(detector: str) -> str:
    return f"detectors/{detector}.npz"
