"""The order to measure with a peer, on the wire."""

from __future__ import annotations

from mainstay.probes.benchmarks.pair_protocol import PairTask
from mainstay.service.common.schemas import Output, fields_of


@fields_of(PairTask)
class PairTaskRead(Output):
    """A task to measure with a peer; see ``mainstay.probes.benchmarks.pair_protocol``."""
