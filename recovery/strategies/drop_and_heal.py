"""Pipelines that lost a worker are left out and the others take their work; they heal from a peer later."""

from __future__ import annotations

from recovery.outlook import GONE, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.iteration import dropped_rate
from recovery.strategies.way import rejoins, single_pipeline, unheld, waiting


class DropAndHeal:
    """torchft: the quorum shrinks by a replica group and grows again. As many pipelines go as workers, at worst."""

    way = WayName.DROP_AND_HEAL
    systems = "torchft"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """A whole pipeline must remain."""
        if why := unheld(outlook):
            return why
        if outlook.hit >= outlook.shape.dp:
            return f"{outlook.hit} of {outlook.shape.dp} pipelines may have lost a worker, so that none is whole."
        return None

    def action(self, outlook: Outlook) -> Action:
        """The batch is kept; the smaller world needs no state moved until a worker is back."""
        planned = outlook.fault not in GONE
        return waiting(
            outlook,
            Action(
                downtime_s=outlook.costs.regroup_s + outlook.warm_up_s if planned else outlook.down_s(),
                repeated_s=0.0 if planned else outlook.step_s / 2.0,
                rate=dropped_rate(outlook.shape, outlook.hit),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook),
                copies_at_risk=single_pipeline(outlook, outlook.hit),
            ),
        )
