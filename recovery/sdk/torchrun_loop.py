"""``mainstay.attach`` without a launcher of ours: DDP, FSDP2, HSDP and plain loops that torchrun starts.

The same loop as everywhere (``run.steps``, ``run.step``). A failure ends the process, torchrun starts all ranks again,
and ``steps`` continues behind the newest step that all of them hold in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from mainstay.recovery.memory import dtensor
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.sdk.mesh import Mesh
from mainstay.recovery.sdk.run import StepwiseRun
from mainstay.recovery.sdk.standalone import StandaloneSession


class StandaloneRun(StepwiseRun):
    """See ``TrainingRun``; saved in the node's standalone agent after every step."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        extra: Mapping[str, Any] | None = None,
        *,
        mesh: Mesh | None = None,
    ) -> None:
        super().__init__(mesh)
        self._session = StandaloneSession(
            group=None if mesh is None else mesh.world,
            replicas=replicas_of(model) if mesh is None else mesh.communicator.members["dp"],
        )
        self._session.register(TrainerState(model, optimizer, extra))
        optimizer.register_step_pre_hook(self._before_update)

    @property
    def protected(self) -> bool:
        return self._session.protected

    def steps(self, total: int) -> Iterator[int]:
        step = self._session.resume()
        while step < total:
            yield from self._offer(step)
            step += 1
        self._session.close()

    def leave(self, error: BaseException | None) -> bool:
        """The block ends. An error is the caller's: nothing is saved, and no rank recovers here."""
        if error is None:
            self._session.save(self._session.epoch + 1)
        return False

    def _before_update(self, *_: object) -> None:
        self._require_inside()
        self._session.settle()


def replicas_of(model: torch.nn.Module) -> list[int]:
    """Ranks that hold the same parameters as this one: all of DDP's group, HSDP's replicas; else none is known to."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return [int(rank) for rank in dist.get_process_group_ranks(model.process_group)]
    return dtensor.replicas([*model.parameters()])
