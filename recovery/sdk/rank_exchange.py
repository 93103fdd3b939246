"""What every rank tells every other, of any length. As msgpack: nothing that comes from a network is unpickled."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
import torch
import torch.distributed as dist

T = TypeVar("T")

MAX_BYTES: Final = 64 * 1024 * 1024
"""That one rank may tell the others."""


def tell_all(mine: T, group: dist.ProcessGroup | None, device: torch.device | str) -> list[T]:
    """What every rank of ``group`` says, by rank in it.

    Args:
        mine: what msgspec can encode, of one type on all ranks.
        group: None: the default group.
        device: on which its backend works.

    Raises:
        ValueError: a rank tells too much; the same on every rank.
        RuntimeError: a peer is gone.
    """
    body = torch.frombuffer(bytearray(msgspec.msgpack.encode(mine)), dtype=torch.uint8).to(device)
    count = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(count)]
    dist.all_gather(sizes, torch.tensor([len(body)], device=device), group=group)
    most = max(int(size) for size in sizes)
    if most > MAX_BYTES:
        raise ValueError(f"a rank tells {most} bytes, more than {MAX_BYTES}")
    padded = torch.cat([body, body.new_zeros(most - len(body))])
    boxes = [torch.empty_like(padded) for _ in range(count)]
    dist.all_gather(boxes, padded, group=group)
    return [
        msgspec.msgpack.decode(box[: int(size)].cpu().numpy().tobytes(), type=type(mine))
        for box, size in zip(boxes, sizes, strict=True)
    ]
