"""A collective over all GPUs of two nodes (NCCL), or over one process a node without GPUs (gloo): one side of a pair.

The two sides agree over their connection on backend and ranks. The ranks of the listening side come first; their store
takes the port of the task. Bandwidth is nccl-tests' bus bandwidth (doc/PERFORMANCE.md) by the slowest rank of this
node. ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME`` hold as in a job.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from mainstay.probes.benchmarks.allreduce import time_all_reduce
from mainstay.probes.benchmarks.base import Clock
from mainstay.probes.benchmarks.collectives import OPERATIONS, time_operation
from mainstay.probes.benchmarks.pair_protocol import ALL_REDUCE_PAIR, PairTask, Role, bandwidth_name, latency_name
from mainstay.probes.benchmarks.rank_benchmark import slowest
from mainstay.probes.benchmarks.ranks import run_ranks
from mainstay.probes.benchmarks.tcp_echo import receive

_OFFER: Final = struct.Struct("!4sI")
"""Backend, and ranks of this side."""
_BUDGET_SECONDS: Final = 0.5
"""Of measuring one size."""


def missing() -> str:
    """Why this node cannot take part; empty if it can."""
    try:
        import torch  # noqa: F401 - before the two sides meet: it takes seconds
    except ImportError:
        return "torch is not installed"
    return ""


def measure(order: PairTask, connection: socket.socket, clock: Clock) -> dict[str, list[float]]:
    """Metric → one value a repetition.

    Raises:
        RuntimeError: the two nodes have no backend in common.
        OSError: the collective failed, or the connection.
    """
    import torch

    gpus = torch.cuda.device_count()
    backend, own = ("nccl", gpus) if gpus else ("gloo", 1)
    connection.sendall(_OFFER.pack(backend.encode(), own))
    theirs, other = _OFFER.unpack(receive(connection, _OFFER.size))
    if theirs.decode() != backend:
        raise RuntimeError(f"this node uses {backend}, but {order.peer} uses {theirs.decode()}")
    listens, world = order.role is Role.LISTEN, own + other
    first = 0 if listens else other
    store = (connection.getsockname() if listens else connection.getpeername())[0].removeprefix("::ffff:")
    meeting = f"tcp://[{store}]:{order.port}" if ":" in store else f"tcp://{store}:{order.port}"

    def work(rank: int) -> dict[str, Any]:
        where = f"cuda:{rank - first}" if gpus else "cpu"
        return {str(size): timed(size, where, rank) for size in order.sizes}

    def timed(size: int, where: str, rank: int) -> list[float]:
        if order.benchmark == ALL_REDUCE_PAIR:
            return time_all_reduce(size, where, _BUDGET_SECONDS, clock)
        return time_operation("all_to_all", size, where, rank, world, _BUDGET_SECONDS, clock)

    try:
        answers = run_ranks(world, backend, work, range(first, first + own), meeting)
    except RuntimeError as error:
        raise ConnectionError(str(error)) from None
    factor = OPERATIONS["all_to_all"](world) * (2 if order.benchmark == ALL_REDUCE_PAIR else 1)
    values: dict[str, list[float]] = {}
    for size in order.sizes:
        seconds = slowest(answers, str(size))
        values |= {latency_name(size): seconds, bandwidth_name(size): [factor * size / one for one in seconds]}
    return values
