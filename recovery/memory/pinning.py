"""Arena memory registered with CUDA, so that a GPU copies into it at the link's speed without a buffer between.

Registration belongs to the process that maps the arena: every trainer registers again after a restart, the agent never
does. It is done in pieces, because single registrations of 2 GiB fail with some drivers: a gibibyte each, and a quarter
where that is refused. Bytes that cannot be registered go through the pinned buffers of ``device.Bounce``.

Unregister before the mapping goes. When a process is killed the driver releases its pages, but a transfer under way
may land after the kill: the slot may go to a new writer only after the process is reaped (the launcher's fence).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, Protocol

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.records import PAGE

PIECE: Final = 1 << 30
SMALL_PIECE: Final = 256 << 20
_PORTABLE: Final = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""
_SUCCESS: Final = 0
"""A cudaError as a number: torch returns an enum, ctypes an int."""

logger = logging.getLogger("mainstay.memory")


class Runtime(Protocol):
    """The two functions of ``torch.cuda.cudart()`` that are needed. Each returns a cudaError; 0 is success."""

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> Any: ...  # noqa: N802 - CUDA's name

    def cudaHostUnregister(self, address: int) -> Any: ...  # noqa: N802


class Pinned:
    """The registered pieces of one mapping.

    Args:
        memory: uint8, mapped; whole pages of it are registered.
        runtime: ``torch.cuda.cudart()``.
    """

    def __init__(self, memory: Bytes, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pieces: list[tuple[int, int]] = []
        self._memory = memory
        """Held, so that the mapping cannot go before the registration."""
        start = -(-memory.ctypes.data // PAGE) * PAGE
        self._wanted = max(0, (memory.ctypes.data + len(memory)) // PAGE * PAGE - start)
        for address, nbytes in _cut(start, self._wanted, PIECE):
            if not self._register(address, nbytes) and not self._register_small(address, nbytes):
                break
        if self.nbytes < self._wanted:
            logger.error(
                "DEGRADED only %d of %d bytes of snapshot memory could be pinned: the rest is copied through a buffer, "
                "some three times slower; see ulimit -l",
                self.nbytes,
                self._wanted,
            )

    @property
    def nbytes(self) -> int:
        """Registered by now."""
        return sum(nbytes for _, nbytes in self._pieces)

    @property
    def complete(self) -> bool:
        """Whether all of the memory is registered."""
        return self.nbytes == self._wanted

    def covers(self, part: Bytes) -> bool:
        """Whether a GPU may copy straight into ``part``: it lies in registered pieces that follow one another."""
        at, end = part.ctypes.data, part.ctypes.data + len(part)
        for address, nbytes in self._pieces:
            if address <= at < address + nbytes:
                at = min(end, address + nbytes)
        return at == end

    def close(self) -> None:
        """Unregister everything. Twice is once."""
        pieces, self._pieces = self._pieces, []
        for address, _ in reversed(pieces):
            if int(self._runtime.cudaHostUnregister(address)) != _SUCCESS:
                logger.warning("a piece of snapshot memory at %#x could not be unregistered", address)

    def _register(self, address: int, nbytes: int) -> bool:
        if int(self._runtime.cudaHostRegister(address, nbytes, _PORTABLE)) != _SUCCESS:
            return False
        self._pieces.append((address, nbytes))
        return True

    def _register_small(self, address: int, nbytes: int) -> bool:
        """The same bytes in smaller pieces; what was registered before one failed stays."""
        return all(self._register(*piece) for piece in _cut(address, nbytes, SMALL_PIECE))


def _cut(start: int, nbytes: int, most: int) -> Iterator[tuple[int, int]]:
    for at in range(0, nbytes, most):
        yield start + at, min(most, nbytes - at)
