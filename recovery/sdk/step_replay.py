"""A rank's part in a replay: the same steps again and again from one state, with digests of what comes out.

The script does not notice: ``run.steps`` yields the steps, the mesh says which replica to be, and the update is made.
Nothing is voted for, committed, saved or reported, and the state is put back before each repeat.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from mainstay.recovery.protocol.step_replay_messages import StepReplayRepeat
from mainstay.recovery.protocol.worker_messages import Regroup, Replayed, RestoreOrder
from mainstay.recovery.recovery_plan import RestoreSource
from mainstay.recovery.sdk.numerics import tensors_digest


class StepReplay:
    """The repeats of one order. ``role`` is what to play now; ``over`` when all are done.

    Args:
        order: with a step replay request and the epoch to restore.
        model: whose gradients and parameters are compared.
    """

    def __init__(self, order: Regroup, model: torch.nn.Module) -> None:
        assert order.replay_request is not None
        assert order.restore is not None
        self._order, self._what = order, order.replay_request
        self._model = model
        self.restore = RestoreOrder(epoch=order.restore.epoch, source=RestoreSource.LOCAL_SLOT)
        """Where each further repeat begins: the slot that the first restore left here."""
        self._runs: list[StepReplayRepeat] = []
        self._digests: list[int] = []
        self._gradients: int | None = None
        self._made = 0
        self._begun = time.perf_counter()

    @property
    def role(self) -> int:
        return self._what.roles[len(self._runs)]

    @property
    def over(self) -> bool:
        return len(self._runs) >= len(self._what.roles)

    def before_update(self) -> None:
        """Gradients are what the update will see."""
        self._gradients = _digest(p.grad for p in self._model.parameters())

    def after_step(self) -> bool:
        """The block of a step has ended; whether it was the last one of a repeat."""
        gradients = self._gradients
        if gradients is None:  # no update, as when a scaler skips it
            gradients = _digest(p.grad for p in self._model.parameters())
        self._digests += [gradients, _digest(self._model.parameters())]
        self._gradients, self._made = None, self._made + 1
        if self._made < self._what.steps:
            return False
        self._runs.append(StepReplayRepeat(role=self.role, digests=tuple(self._digests)))
        self._digests, self._made = [], 0
        return True

    def build_report(self, reason: str = "") -> Replayed:
        """The report to the coordinator; with ``reason``: why it broke off."""
        return Replayed(
            generation=self._order.generation,
            seconds=time.perf_counter() - self._begun,
            runs=() if reason else tuple(self._runs),
            reason=reason[:500],
        )


def _digest(tensors: Iterable[torch.Tensor | None]) -> int:
    known = [t for t in tensors if t is not None]
    return tensors_digest(t.coalesce().values() if t.is_sparse else t for t in known)
