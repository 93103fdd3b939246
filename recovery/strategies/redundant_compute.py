"""Each worker also computes its successor's layers, and takes over when that one is lost."""

from __future__ import annotations

from recovery.outlook import GONE, Ability, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.iteration import REDUNDANT_FAILOVER
from recovery.strategies.way import rejoins, single_stages, waiting

REDUNDANT_SHARE = 0.803
"""Of the time, that redundant forwards and their communication take: 1 - 0.197, the useful share of Bamboo's runs in
the simulator behind Oobleck's Table 2."""


class RedundantCompute:
    """Bamboo (NSDI'23). Its price is paid all the time, so that it stands in ``standing_share``."""

    way = WayName.REDUNDANT_COMPUTE
    systems = "Bamboo"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Two neighbours lost may be of one pipeline, and then nobody holds the second one's layers."""
        if Ability.REDUNDANT not in outlook.able:
            return "The training program computes nothing redundantly."
        if outlook.shape.pp < 2:
            return "A pipeline of one stage has no neighbour to compute for."
        pp = outlook.shape.pp
        both = next((s for s in range(pp) if outlook.lost[s] and outlook.lost[(s + 1) % pp]), None)
        if both is not None:
            return f"Neighbouring stages {both} and {(both + 1) % pp} lost workers: no shadow may be left."
        return None

    def action(self, outlook: Outlook) -> Action:
        """A shadow runs two stages: its slot is twice as long, and sets the pace."""
        planned = outlook.fault not in GONE
        failover = 0.0 if planned else (REDUNDANT_FAILOVER - 1.0) * outlook.step_s
        shape = outlook.shape
        return waiting(
            outlook,
            Action(
                downtime_s=(0.0 if planned else outlook.detect_s + outlook.costs.fence_s) + failover,
                repeated_s=0.0,
                rate=(shape.micro_batches + shape.pp - 1) / (2.0 * shape.micro_batches + shape.pp - 1),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook),
                copies_at_risk=single_stages(outlook),
                standing_share=REDUNDANT_SHARE,
            ),
        )
