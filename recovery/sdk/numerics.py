"""Numbers that tell whether what a rank computes is sane: the norm of its own gradients, a digest of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import torch
import xxhash
from torch.distributed.tensor import DTensor

from mainstay.probes.torch_private import foreach_norm
from mainstay.recovery.memory.dtensor import local

DIGEST_EVERY: Final = 50
"""Epochs between two digests of the parameters. One reads them all: 0.1 s a GB on a CPU, 1 ms a GB on a GPU, so less
than a thousandth of fifty steps that compute with the same parameters. All ranks make it at the same epochs."""
_LARGEST: Final = 3.4e38
"""Of float32, in which signals travel."""


def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """2-norm over all gradients that are there, a scalar on their device; None where there are none.

    Sharded gradients (FSDP) are averaged already and are left out. NaN or Inf anywhere makes it NaN or Inf.
    """
    gradients = [p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor)]
    gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return norm_of(gradients)


@torch.no_grad()
def norm_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """2-norm over ``tensors``, which may live on several devices and in several types."""
    if not tensors:
        return None
    if len(tensors) == 1:
        one: torch.Tensor = torch.linalg.vector_norm(
            tensors[0], dtype=torch.promote_types(tensors[0].dtype, torch.float32)
        )
        return one
    norms = foreach_norm(tensors)
    first = norms[0]
    if any(n.dtype != first.dtype or n.device != first.device for n in norms):
        norms = [n.to(first.device, torch.float32) for n in norms]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def is_sendable(value: float) -> bool:
    """Whether ``value`` can travel as a signal."""
    return math.isfinite(value) and abs(value) <= _LARGEST


def tensors_digest(tensors: Iterable[torch.Tensor]) -> int:
    """xxh3_64 of all tensors in order, of sharded ones what this rank holds: equal for equal bits."""
    found = xxhash.xxh3_64()
    for tensor in tensors:
        raw = local(tensor).detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(raw.numpy().data)
    return found.intdigest()


def whole_digest(tensors: Iterable[torch.Tensor]) -> int | None:
    """``tensors_digest``; None where any is sharded, so that no rank has it whole (nor would the digests be equal)."""
    found = list(tensors)
    return None if any(isinstance(tensor, DTensor) for tensor in found) else tensors_digest(found)


_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def device_digest(tensors: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """int64 scalar on the tensors' device: a sum of all words, each tensor's weighed by its place.

    Any one flipped bit changes it. It neither copies the parameters to the host nor waits for the device.
    """
    sums = [
        (2 * place + 1) * t.detach().contiguous().view(_INTEGERS[t.element_size()]).sum(dtype=torch.int64)
        for place, t in enumerate(map(local, tensors))
        if not t.is_complex()
    ]
    return torch.stack(sums).sum() if sums else None


def fold(digest: int) -> float:
    """24 bits of ``digest``: exact as float32."""
    digest &= 0xFFFFFFFFFFFFFFFF
    return float((digest ^ digest >> 24 ^ digest >> 48) & 0xFFFFFF)
