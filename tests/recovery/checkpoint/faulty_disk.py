"""A disk that fails on purpose: what ``faulty_disk.c`` does to the calls of other processes on files below a path."""

from __future__ import annotations

import enum
import mmap
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import numpy as np

COMPILER: Final = shutil.which("cc") or shutil.which("gcc")
FOREVER: Final = 2**62


class Calls(enum.IntFlag):
    """Kinds of calls, as ``faulty_disk.c`` numbers them."""

    OPEN = 1
    WRITE = 2
    SYNC = 4
    RENAME = 8
    REMOVE = 16
    MKDIR = 32
    TRUNCATE = 64
    READ = 128
    STAT = 256
    LIST = 512


CHANGES: Final = Calls.OPEN | Calls.WRITE | Calls.SYNC | Calls.RENAME | Calls.REMOVE | Calls.MKDIR | Calls.TRUNCATE
"""Calls of a writer. An open for reading is one as well: directories are opened to be synced."""
READS: Final = Calls.OPEN | Calls.READ | Calls.STAT | Calls.LIST
SHORT: Final = -1
"""Instead of an errno: a write takes no more than ``amount`` bytes."""
DELAY: Final = -2
"""A call takes ``amount`` microseconds longer."""
KILL: Final = -3
"""SIGKILL before the call."""
NOT_DIRECT: Final = -4
"""A write with O_DIRECT is refused, as by a file system that takes the flag and does not know it."""


class FaultyDisk:
    """The device below ``path``, for processes that are started with ``environment``."""

    def __init__(self, path: Path, home: Path, *, program: str = "") -> None:
        """``home`` takes the library and its control words; ``program`` is text in the command lines that count.

        Raises:
            RuntimeError: there is no C compiler.
            ValueError: LD_PRELOAD cannot name the library, because of a space or colon in ``home``.
        """
        if COMPILER is None:
            raise RuntimeError("no C compiler")
        if {" ", ":"} & {*str(home)}:
            raise ValueError(f"{home} must have no space or colon")
        home.mkdir(parents=True, exist_ok=True)
        library, words = home / "faulty_disk.so", home / f"{len([*home.glob('*.control')])}.control"
        if not library.exists():
            source = Path(__file__).with_suffix(".c")
            subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        words.write_bytes(bytes(mmap.PAGESIZE))
        with words.open("r+b") as file:
            self._words = np.frombuffer(mmap.mmap(file.fileno(), mmap.PAGESIZE), np.int64)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAULTY_DISK_PATH": str(path.resolve()),
            "FAULTY_DISK_CONTROL": str(words.resolve()),
        } | ({"FAULTY_DISK_PROGRAM": program} if program else {})

    def fail(self, calls: Calls, fault: int, first: int = 1, *, last: int = FOREVER, amount: int = 0) -> None:
        """Calls number ``first`` to ``last`` of these kinds, from now on, get ``fault``: an errno, or see above."""
        self._words[:7] = calls, 0, first, last, fault, amount, 0

    def work_again(self) -> None:
        """No more faults."""
        self._words[2] = FOREVER

    def limit(self, rate: float) -> None:
        """A device that writes ``rate`` bytes per second for all its processes together; 0: no limit."""
        self._words[7] = rate

    @property
    def seen(self) -> int:
        """Calls since ``fail``."""
        return int(self._words[1])

    @property
    def struck(self) -> int:
        """Faults since ``fail``."""
        return int(self._words[6])

    def process_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}
