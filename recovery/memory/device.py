"""Tensors that host memory does not simply show: strided ones, and ones on a GPU (side stream, pinned bounce buffer).

A GPU tensor is read on a stream of its own that first waits for the event which ``Bounce.mark`` recorded after the
optimizer's step; the trainer's stream never waits for the copy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.pacing import Pacer
from mainstay.recovery.memory.pinning import Pinned

BOUNCE_BYTES: Final = 32 * 1024 * 1024
"""Large enough to hide the start of a transfer, small enough to be pinned at once."""


@dataclass(frozen=True, slots=True)
class StridedCopier:
    """A CPU tensor that is not contiguous. For a part of it, it is made so when it is copied, not before."""

    tensor: torch.Tensor
    start: int = 0
    """The first of the tensor's bytes."""

    def copy_into(self, out: Bytes) -> None:
        if len(out) == self.tensor.nbytes:
            torch.from_numpy(out).view(self.tensor.dtype).reshape(self.tensor.shape).copy_(self.tensor)
        else:
            flat = self.tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            np.copyto(out, flat[self.start : self.start + len(out)])

    def part(self, start: int, _: int) -> StridedCopier:
        """As many bytes as ``copy_into`` is given room for."""
        return replace(self, start=self.start + start)


class Bounce:
    """The side stream and two pinned buffers of one process; made when the first GPU tensor is copied."""

    def __init__(self) -> None:
        self._streams: dict[int, Any] = {}
        self._buffers: list[torch.Tensor] = []
        self.pacer: Pacer | None = None
        """When chunks may go; None: at once."""
        self.pinned: Pinned | None = None
        """Arena memory that a GPU may write itself; everything else goes through the buffers."""

    def mark(self) -> object:
        """An event after everything that the trainer has queued so far, or None without a GPU in use."""
        cuda: Any = torch.cuda  # some of its functions carry no types
        if not (cuda.is_available() and cuda.is_initialized()):
            return None
        event: object = cuda.current_stream().record_event()
        return event

    def read(self, tensor: torch.Tensor, ready: Any, out: Bytes, first: int = 0) -> None:
        """Copy a GPU tensor's bytes, from ``first``, to ``out``: a chunk comes while the one before is put in place.

        A strided tensor is made contiguous on the same stream, after ``ready``: on another one the chunks could be
        read before that copy is made.
        """
        stream = self._stream(tensor.device.index)
        straight = self.pinned is not None and self.pinned.covers(out)
        pending: list[_Chunk] = []
        with torch.cuda.stream(stream):
            if ready is not None:
                stream.wait_event(ready)
            source = tensor.contiguous().reshape(-1).view(torch.uint8)[first : first + len(out)]
            for turn, start in enumerate(range(0, len(out), BOUNCE_BYTES)):
                if self.pacer is not None:
                    self.pacer.wait()
                place = out[start : start + BOUNCE_BYTES]
                target = torch.from_numpy(place) if straight else self._halves()[turn % 2][: len(place)]
                begun = time.perf_counter()
                target.copy_(source[start : start + len(place)], non_blocking=True)
                pending.append(_Chunk(stream.record_event(), target, place, straight, begun))
                if len(pending) > 1:
                    self._drain(pending.pop(0))
        for chunk in pending:
            self._drain(chunk)

    def _drain(self, chunk: _Chunk) -> None:
        chunk.event.synchronize()
        if self.pacer is not None:
            self.pacer.copied(len(chunk.place), time.perf_counter() - chunk.begun)
        if not chunk.straight:
            np.copyto(chunk.place, chunk.target.numpy())

    def _stream(self, device: int) -> Any:
        if device not in self._streams:
            cuda: Any = torch.cuda
            self._streams[device] = cuda.Stream(device)
        return self._streams[device]

    def _halves(self) -> list[torch.Tensor]:
        if not self._buffers:
            self._buffers = [torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        return self._buffers


@dataclass(frozen=True, slots=True)
class _Chunk:
    """On its way from the GPU."""

    event: Any
    target: torch.Tensor
    """Where the GPU writes it."""
    place: Bytes
    """Where it belongs."""
    straight: bool
    """The two are the same."""
    begun: float


@dataclass(frozen=True, slots=True)
class DeviceCopier:
    """A GPU tensor and the event after which it holds what is to be saved."""

    tensor: torch.Tensor
    bounce: Bounce
    ready: object
    start: int = 0
    """The first of the tensor's bytes."""

    def copy_into(self, out: Bytes) -> None:
        self.bounce.read(self.tensor, self.ready, out, self.start)

    def part(self, start: int, _: int) -> DeviceCopier:
        """As many bytes as ``copy_into`` is given room for."""
        return replace(self, start=self.start + start)
