"""Whether data-parallel peers hold the same: asked once, before a sharded save leaves any byte to another rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.shard import ShardedState
from mainstay.recovery.sdk.numerics import whole_digest


def require_equal(
    state: ShardedState, parameters: Iterable[torch.Tensor], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Compare tensors' names and shapes, and the parameters' bits, with all ranks of ``group``.

    Raises:
        ValueError: they differ; the same on every rank.
        RuntimeError: a peer is gone.
    """
    words = [state.shared.digest, whole_digest(parameters) or 0]
    word = digest(b"".join(w.to_bytes(8, "little") for w in words)) >> 2  # its negative fits 64 bits too
    least_and_most = torch.tensor([word, -word], dtype=torch.int64, device=device)
    dist.all_reduce(least_and_most, dist.ReduceOp.MIN, group=group)
    least, most = int(least_and_most[0]), -int(least_and_most[1])
    if least != most:
        raise ValueError(
            "--shard-snapshots lets each data-parallel rank save a part of what all hold, but these do not hold the "
            "same parameters and optimizer tensors: leave the option out"
        )
