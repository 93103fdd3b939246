"""How the pieces of a state get into a slot at memory speed: straight from tensor to place, on idle cores.

Every copy releases the interpreter lock, so several threads copy at once where cores are free. Small tensors are not
gathered in a buffer first: as measured, the second touch costs more than what a larger copy gains.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import Layout, TensorSpec

COPY_ENVIRONMENT: Final = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x10000"}
"""For the environment in which a worker is started: how its C library copies large pieces.

From the threshold on it writes past the caches; by default that is three quarters of the shared cache, tensors are
smaller, and an ordinary store reads the line first: half as much traffic again, and the trainer's data thrown out of
its cache. From sixteen times the threshold on it copies four pages side by side instead of two, which keeps more of
the memory busy: a fifth faster for tensors of 2 MiB. 64 KiB puts both where tensors are. Ignored where glibc is not.
"""
CHUNK: Final = 16 * 1024 * 1024
"""Bytes that a thread takes at a time: a few milliseconds, so that all end together."""
MOST_THREADS: Final = 4
"""As many as keep a socket's memory busy; more only take cores from the trainer."""


class Copier(Protocol):
    """State that cannot be seen as host bytes: it knows how to put itself there."""

    def copy_into(self, out: Bytes) -> None:
        """Write exactly ``len(out)`` bytes."""

    def part(self, start: int, stop: int) -> Piece:
        """Bytes ``start`` to ``stop`` of it alone."""


class Zeros:
    """State that does not exist yet: its place is cleared."""

    def copy_into(self, out: Bytes) -> None:
        out.fill(0)

    def part(self, start: int, stop: int) -> Piece:
        del start, stop
        return self


Piece = Bytes | Copier
"""Host bytes (uint8, 1-D, C order), or something that puts itself in place."""


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Pieces beside their places."""

    shared: deque[tuple[Bytes, Bytes]] = field(default_factory=deque)
    """(place, bytes), at most ``CHUNK`` long: any thread takes the next."""
    copiers: list[tuple[Bytes, Copier]] = field(default_factory=list)

    def add_piece(self, place: Bytes, piece: Piece) -> None:
        if isinstance(piece, np.ndarray):
            self.shared.extend(_chunks(place, piece))
        elif len(place):
            self.copiers.append((place, piece))


class CopyPlan:
    """What was worked out for one slot: where each piece goes. Most pieces are those of the last time.

    To work it out again for hundreds of tensors takes the interpreter from the trainer for a millisecond or two of each
    step, on any thread.
    """

    def __init__(self, layout: Layout, out: Bytes) -> None:
        self._layout = layout
        self._out = out
        self._known: dict[str, tuple[Piece, CopyBatch]] = {}

    def work(self, pieces: Mapping[str, Piece]) -> CopyBatch:
        """All there is to copy now.

        Raises:
            ValueError: a piece is missing or has another size than its place; names it.
        """
        whole = CopyBatch()
        for spec in self._layout.tensors:
            piece, known = pieces.get(spec.name), self._known.get(spec.name)
            if known is None or known[0] is not piece:
                piece = _fitting(spec, piece)
                known = self._known[spec.name] = (piece, CopyBatch())
                known[1].add_piece(self._out[spec.offset : spec.offset + spec.nbytes], piece)
            whole.shared.extend(known[1].shared)
            whole.copiers.extend(known[1].copiers)
        return whole


class SlotCopier:
    """Copies on ``threads`` threads, the caller's included. Keep one: it keeps its threads."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "mainstay-copy") if threads > 1 else None

    def carry_out(self, work: CopyBatch) -> None:
        """Put every piece in its place, once. Arrays are shared out; copiers are the caller's work."""
        shared, copiers = work.shared, work.copiers
        helpers = min(self.threads, len(shared)) - 1
        pending = [self._pool.submit(_drain, shared) for _ in range(helpers)] if self._pool else []
        try:
            for place, piece in copiers:
                piece.copy_into(place)
            _drain(shared)
        finally:  # no thread writes to the slot any more when this returns or raises
            wait(pending)
        for future in pending:
            future.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def idle_threads() -> int:
    """How many threads may copy while the trainer computes: a quarter of this rank's share of the cores, at least 1.

    The ranks of a node (torchrun's ``LOCAL_WORLD_SIZE``) share its cores; on a node with GPUs most of them idle, and
    where a CPU trains there are few a rank.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = len(os.sched_getaffinity(0)) // (int(ranks) if ranks.isdigit() and int(ranks) else 1)
    return max(1, min(MOST_THREADS, share // 4))


def _fitting(spec: TensorSpec, piece: Piece | None) -> Piece:
    if piece is None:
        raise ValueError(f"tensor {spec.name!r} is gone from the state")
    if isinstance(piece, np.ndarray) and piece.nbytes != spec.nbytes:
        raise ValueError(f"tensor {spec.name!r} has {piece.nbytes} bytes, its place has {spec.nbytes}")
    return piece


def _chunks(target: Bytes, source: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
    for at in range(0, len(target), CHUNK):
        yield target[at : at + CHUNK], source[at : at + CHUNK]


def _drain(shared: deque[tuple[Bytes, Bytes]]) -> None:
    while True:
        try:
            target, source = shared.popleft()
        except IndexError:
            return
        # Bytes on both sides: numpy copies memory and releases the interpreter lock meanwhile.
        np.copyto(target, source)


def cut(piece: Piece, start: int, stop: int) -> Piece:
    """Bytes ``start`` to ``stop`` of ``piece``, without a copy."""
    return piece[start:stop] if isinstance(piece, np.ndarray) else piece.part(start, stop)
