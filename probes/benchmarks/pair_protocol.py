"""The pair benchmark on the wire: the task for two nodes, and what each answers.

A node gets the order by long poll (``GET /v1/nodes/{name}/tasks``, kind ``pair``), with its peer at the same moment,
and answers with ``POST /v1/fault-localizations/tasks/{id}/results``. Invariant: ``timeout`` means that this side did
its part and the transfer did not end (no peer came, the connection broke, the deadline passed): that is evidence
against the pair. A side that could not do its part answers ``unsupported`` or ``error``: that is no evidence.
"""

from __future__ import annotations

import math
import statistics
from enum import StrEnum
from typing import Final, Literal

import msgspec

from mainstay.probes.benchmarks.result import BenchmarkResult, Better, Metric

PAIR: Final = "pair"
"""The order's kind, and the benchmark's name."""
SIZES: Final = (512, 65_536, 4 << 20)
"""Message sizes that are measured unless an order says otherwise, bytes. A switch that drops only packets of more than
1 KB passes every probe of 64 bytes (Alibaba Aegis), and one that loses few shows in neither size alone."""
ALL_REDUCE_PAIR: Final = "all_reduce_pair"
TOOL_SIZES: Final = {"perftest_pair": (2, 8 << 20)} | dict.fromkeys(
    (ALL_REDUCE_PAIR, "all_to_all_pair"), (64 << 10, 16 << 20, 256 << 20)
)
"""What a pair may measure instead of TCP → its message sizes, bytes."""
_PREFIX: Final = "bandwidth_"


def bandwidth_name(size: int) -> str:
    return f"{_PREFIX}{size}"


def latency_name(size: int) -> str:
    return f"latency_{size}"


class Role(StrEnum):
    LISTEN = "listen"
    CONNECT = "connect"


class PairTask(msgspec.Struct, frozen=True, kw_only=True):
    """One side's entry of ``GET /v1/nodes/{name}/tasks``."""

    id: str
    kind: Literal["pair"]
    validation_id: str
    """The fault localization's side; the same as ``id``: the node posts the result under it."""
    benchmark: str
    """``pair`` (TCP), or one of ``TOOL_SIZES``."""
    role: Role
    """Who listens does so on its own ``address`` and ``port``; who connects tries until the deadline."""
    peer: str
    """The other node's name."""
    address: str
    """Host name or address at which the listening side is reached."""
    port: int
    sizes: tuple[int, ...]
    nic: str = ""
    """The network interface to use; empty: whichever leads to the address."""
    gpu: str = ""
    """The GPU whose memory the data comes from and goes to; empty: the host's."""
    seconds: float
    """How long the transfer may take once both are there."""
    deadline_at: float
    """Unix seconds: an answer after that counts for nothing."""


class PairReport(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``POST /v1/fault-localizations/tasks/{id}/results``."""

    started_at: float
    finished_at: float
    result: BenchmarkResult


def metrics(sizes: tuple[int, ...] = SIZES) -> tuple[Metric, ...]:
    """For each size: bytes received and sent per second, and the seconds of a round trip that they follow from."""
    rates = (Metric(name=bandwidth_name(size), unit="B/s", better=Better.HIGHER) for size in sizes)
    trips = (Metric(name=latency_name(size), unit="s", better=Better.LOWER) for size in sizes)
    return (*rates, *trips)


def bandwidths(result: BenchmarkResult) -> dict[int, float]:
    """Message size in bytes → B/s, the median of the repetitions; sizes that were not measured are absent."""
    found: dict[int, float] = {}
    for metric in result.metrics:
        size = metric.name.removeprefix(_PREFIX)
        if size != metric.name and size.isdecimal() and metric.values:
            found[int(size)] = statistics.median(metric.values)
    return found


def scatters(result: BenchmarkResult) -> dict[int, float]:
    """Message size in bytes → robust standard deviation of the log of three or more repetitions."""
    found: dict[int, float] = {}
    for metric in result.metrics:
        size = metric.name.removeprefix(_PREFIX)
        values = [math.log(value) for value in metric.values if value > 0]
        if size != metric.name and size.isdecimal() and len(values) >= 3:
            middle = statistics.median(values)
            found[int(size)] = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return found
