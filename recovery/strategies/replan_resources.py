"""The job goes on with as many workers as are worth having by what it has seen of its own steps."""

from __future__ import annotations

from recovery.outlook import GONE, Ability, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.resources import Fit, enough, fit, worth_having
from recovery.strategies.way import rejoins, unheld, waiting


class ReplanResources:
    """DLRover-RM (VLDB 2024): a fitted model of performance, and shards of data that are queued again."""

    way = WayName.REPLAN_RESOURCES
    systems = "DLRover-RM"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """It learns from steps with three numbers of workers at least."""
        if Ability.RESHAPE not in outlook.able:
            return "The training program cannot go on with another number of workers."
        if why := unheld(outlook):
            return why
        if not enough(outlook.pool.samples):
            return "Steps were seen with fewer than three numbers of workers, which says nothing about a fourth."
        return None if outlook.left >= outlook.pool.least_stages else f"{outlook.left} workers cannot hold the model."

    def action(self, outlook: Outlook) -> Action:
        """The job shrinks to what is left and worth having, or takes spares that are."""
        fitted = fit(outlook.pool.samples)
        assert fitted is not None  # masked
        planned = outlook.fault not in GONE
        down = outlook.costs.regroup_s + outlook.warm_up_s if planned else outlook.down_s()
        there = outlook.left + outlook.pool.standbys
        return waiting(
            outlook,
            Action(
                downtime_s=down + outlook.move_s,
                repeated_s=0.0 if planned else outlook.step_s / 2.0,
                rate=_rate(outlook, fitted, min(there, worth_having(fitted, outlook.workers))),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook),
            ),
        )


def _rate(outlook: Outlook, fitted: Fit, workers: int) -> float:
    """Against the healthy step, both by the fit; no faster than all workers are."""
    return min(1.0, fitted.step_s(outlook.workers) / fitted.step_s(max(1, workers)))
