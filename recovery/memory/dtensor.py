"""This rank's own part of a distributed tensor, and a distributed tensor made of one.

FSDP2, HSDP and tensor parallelism hand out ``DTensor``; a slot keeps what lies on this rank. Known by its methods, so
that a process that has none does not import ``torch.distributed.tensor`` (a quarter of a second).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from mainstay.probes.torch_private import shard_offsets
from mainstay.recovery.memory.global_slices import GlobalSlice

Wrap = Callable[[torch.Tensor], torch.Tensor]


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a ``DTensor``."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a ``DTensor`` on this rank, any other tensor as it is. Shares its memory; carries no gradient."""
    if not is_distributed(tensor):
        return tensor
    whole: Any = tensor.detach()
    part: torch.Tensor = whole.to_local()
    return part


def global_slice(tensor: torch.Tensor) -> GlobalSlice | None:
    """Where this rank's part of a ``DTensor`` lies; None for a tensor that is whole here, or only a partial sum."""
    if not is_distributed(tensor):
        return None
    whole: Any = tensor
    shape = tuple(whole.shape)
    if any(placement.is_partial() for placement in whole.placements) or tuple(local(tensor).shape) == shape:
        return None
    return GlobalSlice(shape, shard_offsets(whole.shape, whole.device_mesh, whole.placements))


def wrapper_of(tensor: torch.Tensor) -> Wrap:
    """What makes of a local part a tensor that is distributed as ``tensor`` is."""
    if not is_distributed(tensor):
        return lambda part: part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - loaded already where there are any

    whole: Any = tensor
    mesh, placements, shape, stride = whole.device_mesh, whole.placements, whole.shape, whole.stride()
    return lambda part: DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def replicas(tensors: list[torch.Tensor]) -> list[int]:
    """Global ranks that hold the same parts of all of ``tensors`` as this one does, this one left out.

    Of a ``DTensor`` those at the same place along its sharded mesh dimensions (HSDP). An ordinary tensor says nothing;
    with no ``DTensor`` at all the answer is empty.
    """
    holders = [_holders(tensor) for tensor in tensors if is_distributed(tensor)]
    same = set.intersection(*holders) if holders else set[int]()
    mine = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    return sorted(same - {mine})


def is_cut_among(tensors: Iterable[torch.Tensor], ranks: Collection[int]) -> bool:
    """Whether some of ``ranks`` (global) hold other parts of a ``DTensor`` than this one, as with FSDP2 and HSDP."""
    cut: list[Any] = [tensor for tensor in tensors if is_distributed(tensor)]
    return any({*ranks} & {*tensor.device_mesh.mesh.flatten().tolist()} > _holders(tensor) & {*ranks} for tensor in cut)


def _holders(tensor: Any) -> set[int]:
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return set()
    place = tuple(
        slice(None) if placement.is_replicate() else index
        for placement, index in zip(tensor.placements, coordinate, strict=True)
    )
    return {int(rank) for rank in mesh.mesh[place].flatten().tolist()}
