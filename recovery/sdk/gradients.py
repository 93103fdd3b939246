"""This rank's own gradients in one step: their norm, and whether they are finite, seen before replicas average them.

A norm that is not finite is a numeric anomaly. In a step without a norm a cheaper check looks for one,
because an anomaly must be seen in the step in which it appears: a step later all replicas have it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from mainstay.recovery.sdk.call_tracker import CallTracker
from mainstay.recovery.sdk.numerics import gradient_norm, norm_of

_GLANCES: Final = 64
"""Most parameters that are looked at in a step without a norm, where nothing is exchanged."""


class Exchange(Enum):
    """Who averages gradients over replicas, so where they are last seen as the rank's own."""

    SCRIPT = "script"  # before its first collective among replicas, or before the update if there is one replica
    BUCKETS = "buckets"  # DDP: gradients are copied to buckets, and stay as they are until the backward pass has ended
    VIEWS = "views"  # DDP whose gradients are views of its buckets: they are averaged in place, and no hook reports it
    SHARDED = "sharded"  # FSDP2: the input of each reduce-scatter


def exchange_of(model: torch.nn.Module) -> Exchange:
    if isinstance(model, DistributedDataParallel):
        return Exchange.VIEWS if model.gradient_as_bucket_view else Exchange.BUCKETS
    return Exchange.SHARDED if any(isinstance(m, FSDPModule) for m in model.modules()) else Exchange.SCRIPT


class Gradients:
    """Of one model. ``begin`` a step, then the moments as they come, then ``norm`` and ``summed``."""

    def __init__(self, model: torch.nn.Module, traffic: CallTracker, replicas: int) -> None:
        self._model, self._traffic, self._replicas = model, traffic, replicas
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.on_device = any(p.is_cuda for p in self._parameters)
        self._size = sum(p.numel() for p in self._parameters)
        vectors = [p for p in self._parameters if p.dim() == 1]
        # What is sick in a layer's output makes its norms' and biases' gradients sick, and those of all layers before.
        self._few = vectors[:_GLANCES] or self._parameters[:1]
        self.exchange = exchange_of(model)
        self.seconds = 0.0
        """Spent on norms in this step."""
        self._due = self._inside = False
        self._norms: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []

    # A step

    def begin_step(self, *, due: bool) -> None:
        """``due``: whether this step has a norm."""
        self.drop()
        self._due, self._inside = due, True
        if self.exchange is Exchange.SHARDED:
            self._traffic.on_reduce_scatter = self._scattered

    def drop(self) -> None:
        self._norms, self._sums, self.seconds, self._inside = [], [], 0.0, False
        self._traffic.on_exchange = self._traffic.on_reduce_scatter = None

    def norm(self) -> torch.Tensor | None:
        """Scalar on the gradients' device; None where none was taken."""
        return norm_of(self._norms) if len(self._norms) > 1 else next(iter(self._norms), None)

    def summed(self) -> torch.Tensor | None:
        """Scalar that is finite where what was looked at instead of a norm is; None where nothing was."""
        if len(self._sums) > 1:
            return torch.stack([s.float() for s in self._sums]).sum()
        return next(iter(self._sums), None)

    # Moments

    def before_hidden_exchange(self) -> None:
        """The last gradient is there, and DDP has not put the averages in their place."""
        if self._inside and self.exchange is Exchange.BUCKETS and self._model.require_backward_grad_sync:
            self._look()

    def after_backward(self) -> None:
        """Gradients are there, or will be before any rank exchanges them. Until then they are this rank's own."""
        if self._inside and self.exchange is Exchange.SCRIPT and self._replicas > 1:
            self._traffic.on_exchange = self._exchanging

    def before_update(self) -> None:
        """Before ``optimizer.step``, before any vote."""
        self._traffic.on_exchange = None
        if self._inside and self.exchange is Exchange.SCRIPT and self._replicas == 1:
            self._look()

    def _look(self) -> None:
        if self._due:
            self._norms = self._timed(gradient_norm, self._parameters)
        else:
            self._sums = _known(gradient_norm(self._few))

    def _timed(self, measure: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        begun = time.perf_counter()
        norm = _known(measure(tensors))
        self.seconds += time.perf_counter() - begun
        return norm

    def _exchanging(self, tensors: Sequence[Any]) -> bool:
        """One tensor of as many numbers as there are gradients is the gradients.

        Its norm is taken in every step: it costs what any look at it costs, which is to read it once.
        """
        flat = _floating(tensors)
        if len(flat) == 1 and flat[0].numel() == self._size:
            self._norms = _known(norm_of(flat))
            return False
        if self._due:
            self._norms = self._timed(gradient_norm, self._parameters)
            return False
        self._sums += [t.sum() for t in flat]
        return True

    def _scattered(self, flat: Any) -> None:
        """FSDP is about to average ``flat``: this rank's own gradients of some layers."""
        tensors = _floating(flat if isinstance(flat, list) else [flat])
        if self._due:
            self._norms += self._timed(norm_of, tensors)
        else:
            self._sums += [t.sum() for t in tensors]


def _known(norm: torch.Tensor | None) -> list[torch.Tensor]:
    return [] if norm is None else [norm]


def _floating(tensors: Sequence[Any]) -> list[torch.Tensor]:
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
