"""The order to measure with a peer, on the wire."""

from __future__ import annotations

from typing import Literal

from mainstay.probes.benchmarks.pair_protocol import Role
from mainstay.service.common.schemas import Output


class PairTaskRead(Output):
    """A task to measure with a peer; see ``mainstay.probes.benchmarks.pair_protocol``."""

    id: str
    kind: Literal["pair"]
    validation_id: str
    benchmark: str
    role: Role
    peer: str
    address: str
    port: int
    sizes: list[int]
    nic: str
    gpu: str
    seconds: float
    deadline_at: float
