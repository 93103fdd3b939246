"""What the workers print, with their rank before each line, on a thread of its own.

A reader of the launcher's output that stalls may stall the ranks (as with any program), never the launcher itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

TAIL_LINES: Final = 20
LAST_WORDS_SECONDS: Final = 0.05
"""What explains an exit is read within a millisecond; and whoever else holds the pipes keeps no recovery waiting."""
_READ_BYTES: Final = 65536
_LINE_BYTES: Final = 8192
"""A line longer than this is cut into pieces: the tail is evidence, not storage."""


@dataclass(slots=True)
class OutputTail:
    """The last lines of one process, and the name to print before them."""

    label: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    """Those on stderr: what a loop prints on stdout must not push a traceback out."""
    pipes: int = 0
    """How many of its pipes have not been read to their end."""

    async def ended(self, seconds: float) -> None:
        """Wait until both pipes are read to their end, for at most ``seconds``: another thread reads them."""
        for _ in range(round(seconds / 0.001)):
            if not self.pipes:
                return
            await asyncio.sleep(0.001)


@dataclass(eq=False, slots=True)
class _Source:
    read_fd: int
    to: int
    of: OutputTail
    rest: bytes = b""


class OutputPump:
    """Copies lines from child pipes to this process's stdout and stderr."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._incoming: deque[_Source] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mainstay-output", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def open(self, tail: OutputTail) -> Iterator[tuple[int, int]]:
        """Write ends for a child's stdout and stderr, open until the caller has handed them over."""
        ends = []
        for to in (sys.stdout.fileno(), sys.stderr.fileno()):
            read_fd, write_fd = os.pipe()
            os.set_blocking(read_fd, False)
            tail.pipes += 1
            self._incoming.append(_Source(read_fd, to, tail))
            ends.append(write_fd)
        os.write(self._wake_w, b"+")
        try:
            yield ends[0], ends[1]
        finally:
            for end in ends:
                os.close(end)

    def close(self, seconds: float = 1.0) -> None:
        """Print what is still in the pipes, for at most ``seconds``."""
        self._closing = True
        os.write(self._wake_w, b"-")
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=0.0 if self._closing else None):
                if key.data is None:
                    os.read(self._wake_r, 64)
                else:
                    self._copy(key.data)
            while self._incoming:
                source = self._incoming.popleft()
                self._selector.register(source.read_fd, selectors.EVENT_READ, source)
            if self._closing and not self._selector.select(timeout=0.0):
                return

    def _copy(self, source: _Source) -> None:
        data = os.read(source.read_fd, _READ_BYTES)
        *lines, source.rest = (source.rest + data).split(b"\n")
        if not data or len(source.rest) > _LINE_BYTES:
            lines, source.rest = [*lines, source.rest], b""
        prefix = f"[{source.of.label}] ".encode()
        text = [line for line in lines if line]
        shown = [line.decode("utf-8", "replace") for line in text]
        source.of.lines.extend(shown)
        if source.to == sys.stderr.fileno():
            source.of.errors.extend(shown)
        _write_all(source.to, b"".join(prefix + line + b"\n" for line in text))
        if not data:
            self._selector.unregister(source.read_fd)
            os.close(source.read_fd)
            source.of.pipes -= 1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            continue
        except OSError:  # whoever read our output has gone; the ranks continue
            return
