"""The order to measure with a peer, on the wire."""

from __future__ import annotations

from typing import Literal

from probes.benchmarks.pairing import Role
from service.kit.schemas import Output


class PairOrderRead(Output):
    """An order to measure with a peer; see ``probes.benchmarks.pairing``."""

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
