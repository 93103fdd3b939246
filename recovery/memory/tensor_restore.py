"""Bits of a slot back into live tensors, on as many cores as keep the memory busy: no rank trains meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from mainstay.recovery.memory.slot_copy import MOST_THREADS

Array = npt.NDArray[np.generic]

_WORTH_THREADS = 32 << 20
"""Bytes from which threads are worth starting: some ten milliseconds of one core."""


def restore_tensor(tensor: torch.Tensor, array: Array) -> None:
    """Copy bits into ``tensor`` in place, for any dtype, device and strides."""
    bits = torch.from_numpy(array.reshape(-1).view(np.uint8)).view(tensor.dtype).reshape(tensor.shape)
    tensor.copy_(bits)


def restore_tensors(pairs: Iterable[tuple[torch.Tensor, Array]]) -> None:
    """The same for many tensors that carry no gradient; those of the host side by side.

    Half of what a new process needs is the kernel's zeroing of its pages, which cores share as well.
    """
    host, other = list[tuple[torch.Tensor, Array]](), list[tuple[torch.Tensor, Array]]()
    for pair in pairs:
        (host if pair[0].device.type == "cpu" else other).append(pair)
    many = sum(array.nbytes for _, array in host) >= _WORTH_THREADS
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0))) if many else 1
    with ThreadPoolExecutor(threads, thread_name_prefix="mainstay-restore") as pool:
        copies = [pool.submit(restore_tensor, *pair) for pair in sorted(host, key=lambda pair: -pair[1].nbytes)]
        for tensor, array in other:
            restore_tensor(tensor, array)
        for copy in copies:
            copy.result()
