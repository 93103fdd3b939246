"""Gradients of one step, averaged over pipelines that are cut unlike one another: tensor by tensor, by its name.

Where all pipelines are cut alike, a rank adds up with its data-parallel group (``reduction``). With 3 + 2 stages a rank
shares some tensors with one rank of the other pipeline and some with the next. So each rank sends to every rank of the
other pipelines what both hold, and adds up what comes. Oobleck (SOSP'23) reduces layer by layer for the same reason.

What is added is in one order everywhere: that of the replicas, or in the canonical way that of the micro-batches. All
ranks that hold a tensor then hold the same bits of it; and in the canonical way the bits are those of any other cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import torch
import torch.distributed as dist

from mainstay.recovery.sdk.rank_exchange import tell_all


class PartitionedMesh(Protocol):
    """What is to be known of the ranks; ``mainstay.Mesh`` has it and more."""

    dp_rank: int

    @property
    def generation(self) -> int: ...

    @property
    def world(self) -> dist.ProcessGroup: ...

    def assignment(self, total: int) -> Mapping[int, tuple[int, ...]]: ...


class _Names(msgspec.Struct, frozen=True):
    """What a rank reports about itself."""

    replica: int
    tensors: dict[str, int]
    """Name in the whole model -> elements."""


class LayerGradientAccumulator:
    """Of one rank's model: ``add`` after the backward pass of each micro-batch, ``reduce`` before the update.

    Args:
        mesh: of the job; pipelines may be cut alike or not.
        parameters: name in the whole model -> parameter, whose ``grad`` is averaged in place.
        total: micro-batches of all replicas in one step.
        canonical: whether to add up in the order of micro-batches; costs as many times the traffic.

    Raises:
        ValueError: there is no parameter, or they differ in dtype.
    """

    def __init__(
        self, mesh: PartitionedMesh, parameters: Mapping[str, torch.Tensor], total: int, *, canonical: bool = False
    ) -> None:
        self._mesh, self._total, self._canonical = mesh, total, canonical
        self._parameters = {name: p for name, p in parameters.items() if p.requires_grad}
        kinds = {p.dtype for p in self._parameters.values()}
        if len(kinds) != 1:
            raise ValueError(f"gradients of one dtype are added up, these have {sorted(map(str, kinds)) or 'none'}")
        self._kept: dict[int, dict[str, torch.Tensor]] = {}
        self._shared: tuple[int, dict[int, dict[int, list[str]]]] | None = None
        """Generation -> replica -> rank there, as torch numbers it -> tensors that it has too, by name."""

    def reset(self) -> None:
        """A step begins, perhaps for the second time: nothing of it is there."""
        self._kept.clear()
        for parameter in self._parameters.values():
            parameter.grad = None

    def accumulate(self, micro_batch: int) -> None:
        """The backward pass of ``micro_batch`` has just ended on this rank.

        Raises:
            ValueError: it was added before.
        """
        if micro_batch in self._kept:
            raise ValueError(f"micro-batch {micro_batch} was computed twice in one step")
        gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._parameters.items()}
        if self._canonical or not self._kept:
            self._kept[micro_batch] = gradients
        else:  # they stand together under the first one's number
            first = next(iter(self._kept.values()))
            for name, gradient in gradients.items():
                first[name] += gradient
            self._kept[micro_batch] = first
        for parameter in self._parameters.values():
            parameter.grad = None

    def all_reduce(self) -> None:
        """Put the average of all micro-batches into every ``grad``.

        Raises:
            ValueError: this rank has not added all that it is assigned, or ranks disagree about a tensor.
            RuntimeError: a peer is gone.
        """
        assignment = self._mesh.assignment(self._total)
        mine = assignment[self._mesh.dp_rank]
        if sorted(self._kept) != list(mine):
            raise ValueError(f"this rank was assigned micro-batches {list(mine)} and has computed {sorted(self._kept)}")
        rows = self._rows(assignment)
        came = self._exchange(rows, {number: self._kept[number] for number in rows[self._mesh.dp_rank]})
        for name, parameter in self._parameters.items():
            summed = torch.zeros_like(parameter)
            for number in sorted(came):
                summed += came[number][name].view_as(parameter)
            parameter.grad = summed / self._total
        self._kept.clear()

    def _rows(self, assignment: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Replica -> numbers of the sums that it sends: one, or one a micro-batch."""
        return {replica: ids if self._canonical else ids[:1] for replica, ids in assignment.items()}

    def _exchange(
        self, rows: Mapping[int, tuple[int, ...]], own: dict[int, dict[str, torch.Tensor]]
    ) -> dict[int, dict[str, torch.Tensor]]:
        """Number -> every tensor of this rank's model. Both ends of a pair go through it in one order."""
        came = {number: dict(tensors) for number, tensors in own.items()}
        boxes: list[tuple[int, list[str], torch.Tensor]] = []
        calls: list[dist.P2POp] = []
        for replica, ranks in self._peers().items():
            for rank, names in ranks.items():
                flats = [torch.cat([tensors[name].flatten() for name in names]) for tensors in own.values()]
                calls += [dist.P2POp(dist.isend, flat, rank) for flat in flats]
                new = [(number, names, torch.empty_like(flats[0])) for number in rows[replica]]
                calls += [dist.P2POp(dist.irecv, box, rank) for _, _, box in new]
                boxes += new
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
        for number, names, box in boxes:
            parts = torch.split(box, [self._parameters[name].numel() for name in names])
            came.setdefault(number, {}).update(zip(names, parts, strict=True))
        return came

    # Who holds what

    def _peers(self) -> dict[int, dict[int, list[str]]]:
        """Learned once a generation: all ranks come here for the first time in it together."""
        if self._shared is None or self._shared[0] != self._mesh.generation:
            self._shared = self._mesh.generation, self._learn()
        return self._shared[1]

    def _learn(self) -> dict[int, dict[int, list[str]]]:
        sizes = {name: parameter.numel() for name, parameter in self._parameters.items()}
        device = next(iter(self._parameters.values())).device
        told = tell_all(_Names(self._mesh.dp_rank, sizes), self._mesh.world, device)
        _require_one_model(told)
        found: dict[int, dict[int, list[str]]] = {}
        for rank, names in enumerate(told):
            both = [name for name in sorted(sizes) if name in names.tensors]
            if both and names.replica != self._mesh.dp_rank:
                found.setdefault(names.replica, {})[rank] = both
        return found


def _require_one_model(told: Sequence[_Names]) -> None:
    """All ranks come to the same here: no rank waits for one that has given up.

    Raises:
        ValueError: pipelines are not cut out of one model; names the first tensor that shows it.
    """
    models: dict[int, dict[str, int]] = {}
    for names in told:
        model = models.setdefault(names.replica, {})
        several = sorted(model.keys() & names.tensors.keys())
        if several:
            raise ValueError(f"{several[0]!r} is in several stages of one pipeline: tied tensors are not added up here")
        model.update(names.tensors)
    first = min(models)
    for replica, model in sorted(models.items()):
        apart = sorted(dict(model.items() ^ models[first].items()))
        if apart:
            sizes = [f"{models[r].get(apart[0], 0)} elements in replica {r}" for r in (first, replica)]
            raise ValueError(f"{apart[0]!r} is not the same in all pipelines: {', '.join(sizes)}")
