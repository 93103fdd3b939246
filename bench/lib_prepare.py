"""Decisions for every single failure, made ahead."""

from __future__ import annotations

from collections.abc import Iterable

from mainstay.recovery.cost_inputs import CostInputs, FaultKind
from mainstay.recovery.strategy_choice import ExecutionCapabilities, PreparedDecisions, choose_strategy, single


def prepare(
    cost_inputs: CostInputs,
    faults: Iterable[FaultKind] = (FaultKind.ERROR, FaultKind.PROCESS, FaultKind.NODE),
    *,
    means: ExecutionCapabilities | None = None,
) -> PreparedDecisions:
    """Decisions for every single failure, made when the topology changes; predicted losses are left out.

    A failure of worker (d, s) is then looked up as (kind, s).
    """
    return {
        (fault, stage): choose_strategy(single(cost_inputs, fault, stage), means=means)
        for fault in faults
        for stage in range(cost_inputs.shape.pp)
    }
