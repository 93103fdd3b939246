"""Ways to save a model and its optimizer each iteration, as ``bench.snapshot_overhead`` compares them.

Each saver has two moments: ``after`` the update, and ``before`` the next one, when all that must not change while it is
saved may change again. What blocks the trainer in either is what it costs, and so is what it takes from its cores.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState


class Saver(Protocol):
    def before(self) -> None:
        """The update may begin."""

    def after(self) -> None:
        """The update is done."""

    def flush(self) -> None:
        """Finish what is under way."""

    def close(self) -> None: ...


class Nothing:
    """No saving: what all others are compared with."""

    def before(self) -> None: ...

    def after(self) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Mainstay:
    """One snapshot each iteration beside the next forward and backward, into the arena of each agent.

    The agents digest it, as they do under ``mainstay run``; with two of them it is a copy twice over.
    """

    def __init__(self, agents: Sequence[AgentClient], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        state = TrainerState(model, optimizer)
        self.nbytes = state.layout.nbytes
        self._epoch = 0
        self._writers = [self._writer(agent, state) for agent in agents]

    def _writer(self, agent: AgentClient, state: TrainerState) -> SnapshotWriter:
        arena = Arena.attach(Path(agent.open_arena(0, state.layout).path))
        return SnapshotWriter(arena, state, on_committed=lambda e, g, s: agent.committed(0, e, g, s))

    def before(self) -> None:
        for writer in self._writers:
            writer.wait()

    def after(self) -> None:
        self._epoch += 1
        for writer in self._writers:
            writer.start(self._epoch, 1)

    def flush(self) -> None:
        self.before()

    def close(self) -> None:
        self.flush()
        for writer in self._writers:
            writer.close()


class SingleBuffer:
    """One buffer in shared memory, copied while training stands still: what is torn when the trainer dies in it."""

    def __init__(self, place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._source = TrainerState(model, optimizer)
        size = self._source.layout.nbytes
        self._out = np.memmap(place / "single", np.uint8, "w+", shape=(size,))
        self._out[:] = 0
        self._tensors = [p.detach() for p in model.parameters()]
        self._optimizer = optimizer

    def before(self) -> None: ...

    def after(self) -> None:
        at = 0
        states = [t for s in self._optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        for tensor in (*self._tensors, *states):
            flat = tensor.reshape(-1).view(torch.uint8).numpy()
            self._out[at : at + flat.nbytes] = flat
            at += flat.nbytes

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TorchSave:
    """``torch.save`` of both state dicts to a file, while training stands still."""

    def __init__(self, place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._file, self._model, self._optimizer = place / "state.pt", model, optimizer

    def before(self) -> None: ...

    def after(self) -> None:
        torch.save({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, self._file)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class DcpAsync:
    """``dcp.async_save``: staged while training stands still, written beside it; the next one waits for the last."""

    def __init__(self, place: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._place, self._model, self._optimizer = place / "dcp", model, optimizer
        self._last: Future[Any] | None = None

    def before(self) -> None: ...

    def after(self) -> None:
        self.flush()
        shutil.rmtree(self._place, ignore_errors=True)
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._last = dcp.async_save(state, checkpoint_id=self._place)  # type: ignore[assignment]

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()
            self._last = None

    def close(self) -> None:
        self.flush()
