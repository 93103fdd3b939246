"""Where the kernel log comes from: /dev/kmsg, else journald, else a file or pipe that was named. Each gives records.

A source is read by one thread. ``read`` waits at most so long, so that the thread can be ended; ``close`` ends what the
source started. A source that cannot be opened says why, in words for the operator.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from mainstay.probes.kernel_log.records import Record, from_journal, from_kmsg, from_line

KMSG: Final = Path("/dev/kmsg")
_RECORD_BYTES: Final = 16 * 1024
"""The kernel refuses a read with less room than a record needs; the largest is 8 KiB."""
_CHUNK_BYTES: Final = 64 * 1024
_LINE_BYTES: Final = 16 * 1024
"""A longer line is cut: no record is, and a file without line ends must not fill the memory."""
_BACKLOG: Final = 5000
"""Records of the journal that are looked through at the start; a kernel's own buffer holds about as many."""
_CHECK_S: Final = 5.0
_DRAIN: Final = 1000
"""Records taken in one go before the caller looks whether it is to end."""


class SourceError(Exception):
    """The kernel log cannot be read from there; the message says why."""


class KernelLogSource(Protocol):
    """A way to the kernel log."""

    name: str

    def read(self, timeout: float) -> Iterator[Record]:
        """Records that are there, waiting at most ``timeout`` seconds for the first."""

    def close(self) -> None:
        """Close the source; may be called twice."""


class Kmsg:
    """The kernel's own buffer, one record a read, from its beginning."""

    def __init__(self, path: Path = KMSG) -> None:
        self.name = str(path)
        self._emptied = False
        """Everything that was there at the start has been given."""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}{_restricted(error)}") from error

    def read(self, timeout: float) -> Iterator[Record]:
        if self._emptied:
            select.select([self._descriptor], [], [], timeout)
        for _ in range(_DRAIN):
            try:
                data = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                self._emptied = True
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten before it was read: continue behind it
                    continue
                raise
            if (record := from_kmsg(data)) is not None:
                yield record

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class _Lines:
    """Bytes cut into lines."""

    def __init__(self, decode: Callable[[bytes], Record | None]) -> None:
        self._decode = decode
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if (record := self._decode(line[:_LINE_BYTES])) is not None:
                yield record


class JournaldSource:
    """``journalctl`` as a child process: the journal's files have no stable format, its output has."""

    def __init__(self, command: str | None = None) -> None:
        program = command or shutil.which("journalctl")
        if program is None:
            raise SourceError("journalctl: not found")
        self.name = "journald"
        self._check(program)
        arguments = [program, "--dmesg", "--follow", "--boot", f"--lines={_BACKLOG}", "--output=json", "--quiet"]
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise SourceError(f"journalctl: {error.strerror}") from error
        assert self._process.stdout is not None
        self._descriptor = self._process.stdout.fileno()
        self._lines = _Lines(from_journal)

    def _check(self, program: str) -> None:
        """A follower that may see nothing waits for ever without a word: look first whether there is anything.

        Raises:
            SourceError: there is not.
        """
        arguments = [program, "--dmesg", "--boot", "--lines=1", "--output=cat", "--quiet"]
        try:
            done = subprocess.run(arguments, capture_output=True, timeout=_CHECK_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"journalctl: {error}") from error
        if not done.stdout.strip():
            raise SourceError("journalctl shows no kernel messages (needs the group systemd-journal or adm)")

    def read(self, timeout: float) -> Iterator[Record]:
        ready, _, _ = select.select([self._descriptor], [], [], timeout)
        if not ready:
            return
        data = os.read(self._descriptor, _CHUNK_BYTES)
        if not data:
            raise OSError(f"journalctl ended with status {self._process.wait(1.0)}")
        yield from self._lines.feed(data)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


class PlainFile:
    """A file or pipe with one record a line, in any spelling; read from its end on, followed when it is replaced."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        try:
            self._open(at_end=True)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error

    def _open(self, *, at_end: bool) -> None:
        piped = stat.S_ISFIFO(self._path.stat().st_mode)
        # A pipe is opened for writing too: it then never ends when its writer does.
        flags = (os.O_RDWR if piped else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags)
        self._piped = piped
        self._lines = _Lines(from_line)
        self._at = 0
        if at_end and not piped:
            self._at = os.lseek(self._descriptor, 0, os.SEEK_END)

    def read(self, timeout: float) -> Iterator[Record]:
        if self._piped:
            select.select([self._descriptor], [], [], timeout)
        elif not self._grown():
            return
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._at += len(data)
        yield from self._lines.feed(data)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to wait on: a plain file has to be looked at again after a while."""
        return not self._piped and not self._grown()

    def _grown(self) -> bool:
        """Whether there is more to read; a file that was cut or replaced is read from its beginning."""
        size = os.fstat(self._descriptor).st_size
        if size > self._at:
            return True
        if size < self._at:
            self._at = os.lseek(self._descriptor, 0, os.SEEK_SET)
            self._lines = _Lines(from_line)
            return size > 0
        with suppress(FileNotFoundError):
            there = self._path.stat()
            if not os.path.samestat(there, os.fstat(self._descriptor)):
                os.close(self._descriptor)
                self._open(at_end=False)
                return there.st_size > 0
        return False

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def open_source(where: str) -> KernelLogSource:
    """``auto``: /dev/kmsg, else journald; else the path that is named.

    Raises:
        SourceError: nothing can be read, and why.
    """
    if where not in ("", "auto"):
        path = Path(where)
        return Kmsg(path) if path == KMSG else PlainFile(path)
    reasons = []
    for source in (Kmsg, JournaldSource):
        try:
            return source()
        except SourceError as error:
            reasons.append(str(error))
    raise SourceError("; ".join(reasons))


def _restricted(error: OSError) -> str:
    return " (needs CAP_SYSLOG)" if error.errno in (errno.EPERM, errno.EACCES) else ""
