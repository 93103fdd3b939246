"""Stages are pools: micro-batches find a live worker by themselves, and workers move to the pool that lacks most."""

from __future__ import annotations

from recovery.outlook import GONE, Ability, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.strategies.way import rejoins, single_stages, unheld, waiting


class PoolRebalance:
    """SWARM (ICML'23): stochastic wiring; a peer that fails is banned and its micro-batch sent again."""

    way = WayName.POOL_REBALANCE
    systems = "SWARM"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Every pool needs a worker."""
        if Ability.POOL not in outlook.able:
            return "The training program wires its pipelines fast."
        return unheld(outlook)

    def action(self, outlook: Outlook) -> Action:
        """Nothing stands still but what waited for the lost micro-batch; the smallest pool sets the pace.

        Pools are evened out beside training: a worker that moves downloads its new stage's state, and where that makes
        no pool larger nobody moves.
        """
        dp, pp = outlook.shape.dp, outlook.shape.pp
        worst = dp - max(outlook.lost)
        even = outlook.left // pp
        return waiting(
            outlook,
            Action(
                downtime_s=(outlook.detect_s if outlook.fault in GONE else 0.0) + outlook.stage.slot_s,
                repeated_s=outlook.move_s * (1.0 - worst / dp) if even > worst else 0.0,
                rate=min(1.0, max(even, worst) / dp),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook) - outlook.costs.regroup_s,
                copies_at_risk=single_stages(outlook),
            ),
        )
