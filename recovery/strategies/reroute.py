"""Micro-batches of a lost worker go to its peers of the same stage and hide in the pipeline's bubbles.

No parameters move. Coupled, the work stands in the way of others'; with gradients of weights that wait for bubbles it
hides in part; where stages begin the next step without waiting for one another, up to D (P - 1) / (M + P - 1) losses a
stage cost nothing.
"""

from __future__ import annotations

from recovery.outlook import GONE, Ability, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.iteration import rerouted
from recovery.strategies.way import rejoins, single_stages, unheld, waiting

_NEEDS = {
    WayName.REROUTE_COUPLED: frozenset({Ability.REROUTE}),
    WayName.REROUTE_DECOUPLED: frozenset({Ability.REROUTE, Ability.DECOUPLED}),
    WayName.REROUTE_STAGGERED: frozenset({Ability.REROUTE, Ability.DECOUPLED, Ability.STAGGERED}),
}


class Reroute:
    """SlipStream, ReCycle (SOSP'24), by what hides the work."""

    systems = "SlipStream, ReCycle"
    executed_as = None

    def __init__(self, way: WayName) -> None:
        self.way = way

    def mask(self, outlook: Outlook) -> str | None:
        """Every lost stage needs a live peer, and the program must be able to."""
        lacks = sorted(_NEEDS[self.way] - outlook.able)
        if lacks:
            return f"The training program cannot do this: it lacks {', '.join(lacks)}."
        return unheld(outlook)

    def action(self, outlook: Outlook) -> Action:
        """Half a step is repeated; the worker that comes back takes its state from a peer."""
        planned = outlook.fault not in GONE
        return waiting(
            outlook,
            Action(
                downtime_s=outlook.costs.regroup_s + outlook.warm_up_s if planned else outlook.down_s(),
                repeated_s=0.0 if planned else outlook.step_s / 2.0,
                rate=min(1.0, outlook.step_s / self._step_s(outlook)),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook),
                copies_at_risk=single_stages(outlook),
            ),
        )

    def _step_s(self, outlook: Outlook) -> float:
        ways = rerouted(outlook.shape, outlook.stage, outlook.lost)
        assert ways is not None  # masked
        if self.way is WayName.REROUTE_COUPLED:
            return ways.coupled_s
        return ways.decoupled_s if self.way is WayName.REROUTE_DECOUPLED else ways.staggered_s
