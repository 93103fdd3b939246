"""The run: the loop over steps that a failure elsewhere does not end.

A step counts when all ranks of the generation have voted for it (just before ``optimizer.step``) and its block has
ended. A step that fails because a peer died is not counted: the block's error is swallowed, the generation is left, the
state is put back to the newest epoch that every rank can have, and ``steps`` yields that step again. Nothing of the
state may change between the end of a block and the next ``optimizer.step`` except what forward passes change (buffers,
random numbers), because that is when it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from recovery.sdk.mesh import Mesh

Report = Callable[[float | torch.Tensor | None], None]


class Run:
    """What ``attach`` returns. This one is for a script without a launcher: it counts steps and does nothing else."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    @property
    def protected(self) -> bool:
        """Whether a lost rank would be brought back."""
        return False

    def steps(self, total: int) -> Iterator[int]:
        """Step numbers from 0 (or from where a restored run stands) to ``total - 1``."""
        yield from range(total)

    def step(self) -> AbstractContextManager[Report]:
        """The block of one step: forward, backward, exchange of gradients, one ``optimizer.step``.

        ``with run.step() as report:`` gives a function that takes the loss, or None where it is not known.
        """
        return nullcontext(lambda loss: self.report(loss=loss))

    def report(self, *, loss: float | torch.Tensor | None = None) -> None:
        """Tell the dashboard the loss of the step under way. Costs next to nothing; call it where the loss is known."""


def build_run(
    mesh: Mesh, model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Mapping[str, Any] | None
) -> Run:
    """See ``recovery.sdk.attach``."""
    if mesh.link is None:
        return Run(mesh)
    from recovery.sdk.protected import ProtectedRun  # noqa: PLC0415 - a plain run needs no agent

    return ProtectedRun(mesh, mesh.link, model, optimizer, extra)
