"""Micro-batches of a lost worker go to its peers of the same stage and hide in the pipeline's bubbles.

No parameters move. Coupled, the work stands in the way of others'; with gradients of weights that wait for bubbles it
hides in part; where stages begin the next step without waiting for one another, up to D (P - 1) / (M + P - 1) losses a
stage cost nothing.
"""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs, ProgramCapability
from mainstay.recovery.cost_model.failure_cost import RecoveryAction
from mainstay.recovery.cost_model.iteration import rerouted
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, rejoins, single_stages, unheld

_NEEDS = {
    RecoveryStrategyName.REROUTE_COUPLED: frozenset({ProgramCapability.REROUTE}),
    RecoveryStrategyName.REROUTE_DECOUPLED: frozenset({ProgramCapability.REROUTE, ProgramCapability.DECOUPLED}),
    RecoveryStrategyName.REROUTE_STAGGERED: frozenset(
        {ProgramCapability.REROUTE, ProgramCapability.DECOUPLED, ProgramCapability.STAGGERED}
    ),
}


class Reroute(RecoveryStrategy):
    """SlipStream, ReCycle (SOSP'24), by what hides the work."""

    awaits_return = True

    def __init__(self, way: RecoveryStrategyName) -> None:
        self.way = way

    def infeasible_reason(self, cost_inputs: CostInputs) -> str | None:
        """Every lost stage needs a live peer, and the program must be able to."""
        lacks = sorted(_NEEDS[self.way] - cost_inputs.able)
        if lacks:
            return f"The training program cannot do this: it lacks {', '.join(lacks)}."
        return unheld(cost_inputs)

    def recovery_action(self, cost_inputs: CostInputs) -> RecoveryAction:
        """Half a step is repeated; the worker that comes back takes its state from a peer."""
        return RecoveryAction(
            downtime_s=cost_inputs.stop_s,
            repeated_s=cost_inputs.cut_s,
            rate=min(1.0, cost_inputs.step_s / self._step_s(cost_inputs)),
            rejoin_s=rejoins(cost_inputs),
            copies_at_risk=single_stages(cost_inputs),
        )

    def _step_s(self, cost_inputs: CostInputs) -> float:
        ways = rerouted(cost_inputs.shape, cost_inputs.slot_s, cost_inputs.lost)
        assert ways is not None  # masked
        if self.way is RecoveryStrategyName.REROUTE_COUPLED:
            return ways.coupled_s
        return ways.decoupled_s if self.way is RecoveryStrategyName.REROUTE_DECOUPLED else ways.staggered_s
