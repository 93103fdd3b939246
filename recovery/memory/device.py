"""Tensors that host memory does not simply show: strided ones, and ones on a GPU (side stream, pinned bounce buffer).

A GPU tensor is read on a stream of its own that first waits for the event which ``Bounce.mark`` recorded after the
optimizer's step; the trainer's stream never waits for the copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from recovery.memory.digest import Bytes

BOUNCE_BYTES: Final = 32 * 1024 * 1024
"""Large enough to hide the start of a transfer, small enough to be pinned at once."""


@dataclass(frozen=True, slots=True)
class StridedCopier:
    """A CPU tensor that is not contiguous."""

    tensor: torch.Tensor

    def copy_into(self, out: Bytes) -> None:
        torch.from_numpy(out).view(self.tensor.dtype).reshape(self.tensor.shape).copy_(self.tensor)


class Bounce:
    """The side stream and two pinned buffers of one process; made when the first GPU tensor is copied."""

    def __init__(self) -> None:
        self._streams: dict[int, Any] = {}
        self._buffers: list[torch.Tensor] = []

    def mark(self) -> object:
        """An event after everything that the trainer has queued so far, or None without a GPU in use."""
        cuda: Any = torch.cuda  # some of its functions carry no types
        if not (cuda.is_available() and cuda.is_initialized()):
            return None
        event: object = cuda.current_stream().record_event()
        return event

    def read(self, source: torch.Tensor, ready: Any, out: Bytes) -> None:
        """Copy ``source`` (uint8, 1-D, on a GPU) to ``out``: one half is filled while the other is emptied."""
        stream = self._stream(source.device.index)
        halves = self._halves()
        pending: list[tuple[Any, torch.Tensor, int]] = []
        with torch.cuda.stream(stream):
            if ready is not None:
                stream.wait_event(ready)
            for turn, start in enumerate(range(0, len(out), BOUNCE_BYTES)):
                count = min(BOUNCE_BYTES, len(out) - start)
                half = halves[turn % 2][:count]
                half.copy_(source[start : start + count], non_blocking=True)
                pending.append((stream.record_event(), half, start))
                if len(pending) > 1:
                    _drain(pending.pop(0), out)
        for item in pending:
            _drain(item, out)

    def _stream(self, device: int) -> Any:
        if device not in self._streams:
            cuda: Any = torch.cuda
            self._streams[device] = cuda.Stream(device)
        return self._streams[device]

    def _halves(self) -> list[torch.Tensor]:
        if not self._buffers:
            self._buffers = [torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        return self._buffers


def _drain(item: tuple[Any, torch.Tensor, int], out: Bytes) -> None:
    event, half, start = item
    event.synchronize()
    np.copyto(out[start : start + len(half)], half.numpy())


@dataclass(frozen=True, slots=True)
class DeviceCopier:
    """A GPU tensor and the event after which it holds what is to be saved."""

    tensor: torch.Tensor
    bounce: Bounce
    ready: object

    def copy_into(self, out: Bytes) -> None:
        self.bounce.read(self.tensor.contiguous().reshape(-1).view(torch.uint8), self.ready, out)
