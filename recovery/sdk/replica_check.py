"""Whether data-parallel peers hold the same: asked before a sharded save leaves any byte to another rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.global_slices import encode
from mainstay.recovery.memory.shard import RestorableState
from mainstay.recovery.sdk.numerics import device_digest, tensors_digest


def optimizer_digest(state: RestorableState, optimizer: torch.optim.Optimizer) -> int:
    """Of the optimizer's tensors, and of the names, shapes, and places of all: equal where replicas are.

    ZeRO-1 in a script and experts that were made alike show here, where parameters are equal still.
    """
    kept = [optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"]]
    tensors = [value for of in kept for _, value in sorted(of.items()) if isinstance(value, torch.Tensor)]
    sums = {device: device_digest(t for t in tensors if t.device == device) for device in {t.device for t in tensors}}
    words = [state.layout.digest, digest(encode(state.slices)), *(int(s) for s in sums.values() if s is not None)]
    return _digest_of(words)


def _digest_of(words: Iterable[int]) -> int:
    return digest(b"".join((word & (1 << 64) - 1).to_bytes(8, "little") for word in sorted(words)))


def require_equal(
    optimizer: int, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compare the digest of the optimizer, and the parameters' bits, with all ranks of ``group``.

    Raises:
        ValueError: they differ; the same on every rank.
        RuntimeError: a peer is gone.
    """
    word = _digest_of([optimizer, tensors_digest(parameters)]) >> 2  # its negative fits 64 bits too
    least_and_most = torch.tensor([word, -word], dtype=torch.int64, device=device)
    dist.all_reduce(least_and_most, dist.ReduceOp.MIN, group=group)
    least, most = int(least_and_most[0]), -int(least_and_most[1])
    if least != most:
        raise ValueError(
            "--shard-snapshots lets each data-parallel rank save a part of what all hold, but these do not hold the "
            "same parameters and optimizer tensors: leave the option out"
        )
