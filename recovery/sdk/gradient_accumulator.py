"""Gradients of one step, averaged over all its micro-batches, whoever computed them.

The ordinary way: every rank adds up its own, one all-reduce adds up the replicas', and the sum is divided by the number
of micro-batches of all. So a replica that computes more of them weighs more.

The canonical way: the gradients of each micro-batch are kept apart, and every replica adds up all of them in the order
of their ids. Floating-point sums then do not depend on who computed what: a run that loses replicas, or assigns work
again, ends with the same bits as one that does not. It is there to verify, not to be fast: a step moves as many times
the gradients as it has micro-batches, and a rank holds those of each of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist


class AssignedMesh(Protocol):
    """What is to be known of the ranks; ``mainstay.Mesh`` has it and more."""

    dp_rank: int

    @property
    def dp(self) -> dist.ProcessGroup: ...

    def assignment(self, total: int) -> Mapping[int, tuple[int, ...]]: ...


class GradientAccumulator:
    """Of one model: ``add`` after the backward pass of each micro-batch, ``reduce`` before the update.

    Args:
        mesh: of the job.
        parameters: whose ``grad`` is averaged, in place.
        total: micro-batches of all replicas in one step.
        canonical: whether to add up in the order of ids.
    """

    def __init__(
        self, mesh: AssignedMesh, parameters: Iterable[torch.Tensor], total: int, *, canonical: bool = False
    ) -> None:
        self._mesh, self._total, self._canonical = mesh, total, canonical
        self._parameters = [p for p in parameters if p.requires_grad]
        self._kept: dict[int, torch.Tensor] = {}
        self._added: list[int] = []

    @property
    def added(self) -> tuple[int, ...]:
        """Ids of the micro-batches that this rank has added in this step, in that order."""
        return tuple(self._added)

    def reset(self) -> None:
        """A step begins, perhaps for the second time: nothing of it is there."""
        self._kept.clear()
        self._added.clear()
        for parameter in self._parameters:
            parameter.grad = None

    def accumulate(self, micro_batch: int) -> None:
        """The backward pass of ``micro_batch`` has just ended on this rank.

        Raises:
            ValueError: it was added before.
        """
        if micro_batch in self._added:
            raise ValueError(f"micro-batch {micro_batch} was computed twice in one step")
        self._added.append(micro_batch)
        if self._canonical:
            self._kept[micro_batch] = self._flat(micro_batch)
            for parameter in self._parameters:
                parameter.grad = None

    def all_reduce(self, *, alone: bool = False) -> None:
        """Put the average of all micro-batches into every ``grad``.

        Args:
            alone: leave out the exchange with other replicas.

        Raises:
            ValueError: this rank has not added all that it is assigned, or a replica sent another micro-batch's.
            RuntimeError: a peer is gone.
        """
        if self._canonical:
            self._reduce_in_order(alone=alone)
            return
        flat = self._flat(None)
        if not alone:
            dist.all_reduce(flat, group=self._mesh.dp)
        self._spread(flat / self._total)

    def _reduce_in_order(self, *, alone: bool) -> None:
        assignment = self._mesh.assignment(self._total)
        mine = assignment[self._mesh.dp_rank]
        if sorted(self._kept) != list(mine):
            raise ValueError(f"this rank was assigned micro-batches {list(mine)} and has computed {sorted(self._kept)}")
        zero = torch.zeros_like(self._kept[mine[0]])
        # Whoever looks at gradients before they are exchanged sees this rank's own, as always.
        self._spread(functools.reduce(torch.add, (self._kept[number] for number in mine), zero)[:-1])
        ranks = dist.get_process_group_ranks(self._mesh.dp)
        owner = {number: place for place, replica in enumerate(assignment) for number in assignment[replica]}
        summed, box = zero.clone(), zero
        for number in sorted(mine if alone else owner):
            part = self._kept.get(number, box)
            if not alone and len(assignment) > 1:
                dist.broadcast(part, ranks[owner[number]], group=self._mesh.dp)
            if int(part[-1]) != number:
                raise ValueError(f"gradients of micro-batch {number} were due and those of {int(part[-1])} came")
            summed += part
        self._kept.clear()
        self._spread(summed[:-1] / self._total)

    def _flat(self, micro_batch: int | None) -> torch.Tensor:
        """All gradients one after the other, then the id where there is one: float32 holds those below 2**24."""
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in self._parameters]
        if micro_batch is None:
            return torch.cat(parts)
        parts = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
        return torch.cat([*parts, parts[0].new_tensor([micro_batch])])

    def _spread(self, flat: torch.Tensor) -> None:
        """Into every ``grad``, each of its own type."""
        sizes = [p.numel() for p in self._parameters]
        for parameter, part in zip(self._parameters, torch.split(flat, sizes), strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part.view_as(parameter))
