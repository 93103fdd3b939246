"""What a rank measures of itself in each step. Costs microseconds.

Compute time is the training thread's own processor time on CPU (waiting for peers costs none), and the time between two
CUDA events, block begun and update begun, on GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
import xxhash

from recovery.launcher.messages import StepRecord


class StepMeter:
    """One at a time: ``begin``, then ``end`` when the step has committed."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self.loss: float | torch.Tensor | None = None
        self.blocked = 0.0
        self._last_commit: float | None = None
        self._begun = 0.0
        self._cpu = 0.0
        parameter = next(model.parameters(), None)
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if parameter is not None and parameter.is_cuda:
            self._events = (_event(), _event())

    def restart(self) -> None:
        """The next step does not follow a commit: time without training is not step time."""
        self._last_commit = None

    def begin(self) -> None:
        self.loss, self.blocked = None, 0.0
        self._begun = time.perf_counter()
        self._cpu = time.thread_time()
        if self._events:
            self._events[0].record()

    def end(self, generation: int, epoch: int, *, digests: bool) -> StepRecord:
        """The record of the step that just became ``epoch``; with ``digests`` of the model as it is now."""
        now = time.perf_counter()
        since = self._begun if self._last_commit is None else self._last_commit
        self._last_commit = now
        return StepRecord(
            generation=generation,
            epoch=epoch,
            step_time=now - since,
            compute_time=self._compute_seconds(),
            snapshot_blocked=self.blocked,
            end_ns=time.time_ns(),
            loss=_number(self.loss),
            digest=tensors_digest(self._model.parameters()) if digests else None,
            buffers=tensors_digest(self._model.buffers()) if digests else None,
        )

    def _compute_seconds(self) -> float:
        if self._events is None:
            return time.thread_time() - self._cpu
        self._events[1].record()
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000.0


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _number(loss: float | torch.Tensor | None) -> float | None:
    if loss is None:
        return None
    value = float(loss.detach()) if isinstance(loss, torch.Tensor) else float(loss)
    return None if math.isnan(value) else value


def tensors_digest(tensors: Iterable[torch.Tensor]) -> int:
    """xxh3_64 of all tensors in order: equal for equal bits."""
    found = xxhash.xxh3_64()
    for tensor in tensors:
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(raw.numpy().data)
    return found.intdigest()
