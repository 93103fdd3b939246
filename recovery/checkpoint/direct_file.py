"""Write a file in one pass, past the page cache: FastPersist's double buffers (Wang et al. 2024, arXiv 2406.13768).

Bytes are copied into aligned blocks, digested there, and written with ``O_DIRECT`` by a thread of the file's own, while
the next block is filled. The page cache is a second copy of everything and a stop in ``fsync``; a writer beside
training wants neither. Blocks of 8 MiB keep the device busy without ``io_uring``: see decision 66. Where the page cache
is faster all the same, it takes bytes from where they are: it is the copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np
import xxhash

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import align

BLOCK: Final = 8 * 1024 * 1024
"""Bytes of one write."""
DEPTH: Final = 2
"""Blocks that are written at a time, beside the one that is filled."""
BUFFER_BYTES: Final = BLOCK * (DEPTH + 1)
"""Memory of one file that is being written."""
_PIECE: Final = 512 * 1024
"""Bytes copied, and digested while they are in the cache."""
_copying: Final = threading.BoundedSemaphore(max(1, (os.cpu_count() or 1) // 8))
"""Files that are copied at a time. One core copies faster than a device writes; a second one is taken from training."""
_SECTOR: Final = 4096
"""What ``O_DIRECT`` wants offsets, sizes, and addresses to be a multiple of; 512 or 4,096 on all known devices."""
_REFUSED: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


class Digest(Protocol):
    """An xxh3 state."""

    def update(self, data: memoryview, /) -> None: ...


class DirectFile:
    """A new file, written from its first byte to its last.

    Use it as a context manager: what is left early is closed, and its content is worthless.
    """

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """Create ``path``; ``direct`` past the page cache, where the file system can.

        Raises:
            OSError: the file exists or cannot be made.
        """
        self._fd, self.direct = _create(path, direct=direct)
        self._buffers = _take_buffers()
        self._blocks = itertools.cycle(self._buffers)
        self._block = next(self._blocks)
        self._writing: deque[Future[None]] = deque()
        self._threads = ThreadPoolExecutor(DEPTH, thread_name_prefix="checkpoint-write")
        self._filled = 0
        self._written = 0
        self.digest: Digest | None = None
        """Fed with what is appended, as long as it is set."""

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._written + self._filled

    def append(self, data: Bytes) -> int:
        """Write ``data`` (uint8) behind what there is; its xxh3_64. It must not change before ``finish`` returns.

        Raises:
            OSError: an earlier block could not be written.
        """
        state, done = xxhash.xxh3_64(), 0
        while done < len(data):
            left = data[done : done + BLOCK]
            done += self._fill(left, state) if self.direct or len(left) < _PIECE else self._pass(left, state)
        return int(state.intdigest())

    def append_bytes(self, data: bytes) -> int:
        """``append`` of a few bytes."""
        return self.append(np.frombuffer(data, np.uint8))

    def pad(self) -> None:
        """Fill with zeros to the next multiple of 64."""
        self.append_bytes(bytes(align(self.size) - self.size))

    def finish(self) -> None:
        """Write the rest and wait until everything is durable.

        Raises:
            OSError: the disk refused a write or the ``fsync``.
        """
        size = self.size
        self._flush()
        while self._writing:
            self._writing.popleft().result()
        os.ftruncate(self._fd, size)
        os.fsync(self._fd)
        if not self.direct:  # what was written is not read again soon, and training needs the memory
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _fill(self, data: Bytes, state: Digest) -> int:
        """Copy the beginning of ``data`` into the block, and digest the copy while it is in the cache; how much."""
        piece = self._block[self._filled :][: min(len(data), _PIECE)]
        with _copying:
            np.copyto(piece, data[: len(piece)])
            self._feed(piece, state)
        self._filled += len(piece)
        if self._filled == BLOCK:
            self._flush()
        return len(piece)

    def _pass(self, data: Bytes, state: Digest) -> int:
        """Have the page cache copy ``data``, a block at most, and begin to write that to the device; how much.

        Here and not in threads: those of one file wait for each other, on a processor.
        """
        self._flush()
        begin = self._written
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._feed(piece, state)
            self._write(piece, self._written)
            self._written += len(piece)
        os.posix_fadvise(self._fd, begin, len(data), os.POSIX_FADV_DONTNEED)  # not only when fsync asks for it
        return len(data)

    def _feed(self, piece: Bytes, state: Digest) -> None:
        state.update(piece.data)
        if self.digest is not None:
            self.digest.update(piece.data)

    def _flush(self) -> None:
        """Write what the block holds, up to a whole sector, and take the next one."""
        if not self._filled:
            return
        tail = align(self._filled, _SECTOR) if self.direct else self._filled
        self._block[self._filled : tail] = 0
        self._writing.append(self._threads.submit(self._write, self._block[:tail], self._written))
        self._written, self._filled = self._written + tail, 0
        if len(self._writing) > DEPTH:  # the next block is one of those
            self._writing.popleft().result()
        self._block = next(self._blocks)

    def _write(self, data: Bytes, at: int) -> None:
        left = data.data
        while left:
            direct = self.direct  # another thread may leave the mode while this one is refused
            try:
                count = os.pwrite(self._fd, left, at)
            except OSError as error:
                if not (direct and error.errno in _REFUSED):
                    raise
                self._leave_direct()
                continue
            left, at = left[count:], at + count

    def _leave_direct(self) -> None:
        """Some file systems accept the flag and refuse the write."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.direct = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        os.close(self._fd)
        _unused.append(self._buffers)


_unused: list[list[Bytes]] = []
"""Buffers of files that are written: the next one does not have to touch new pages."""


def _take_buffers() -> list[Bytes]:
    try:
        return _unused.pop()
    except IndexError:
        return [_new_buffer() for _ in range(DEPTH + 1)]


def _new_buffer() -> Bytes:
    memory = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _create(path: Path, *, direct: bool) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o644), True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            path.unlink(missing_ok=True)  # the file system made it before it refused
    return os.open(path, flags, 0o644), False


class WriteMode:
    """Whether files of a directory are written past the page cache: what was faster, measured on the first of them."""

    SMALLEST: Final = 16 * 1024 * 1024
    """Bytes that say anything about speed."""

    def __init__(self) -> None:
        self._rates: dict[bool, float] = {}

    @property
    def direct(self) -> bool:
        """The mode to use next: the one that has not been tried, else the faster."""
        untried = [mode for mode in (True, False) if mode not in self._rates]
        return untried[0] if untried else self._rates[True] >= self._rates[False]

    def measure(self, nbytes: int, seconds: float, *, direct: bool) -> None:
        """Note that ``nbytes`` took ``seconds``."""
        if nbytes >= self.SMALLEST:
            self._rates[direct] = nbytes / max(seconds, 1e-9)
