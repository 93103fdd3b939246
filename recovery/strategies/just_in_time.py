"""Healthy replicas save their state when a failure has happened, not before; then the job starts from that."""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.strategies.way import nothing_lost, placeless, unheld


class JustInTime:
    """Just-in-time checkpointing (EuroSys'24): save + restart + half a step, and no steady overhead."""

    way = WayName.JUST_IN_TIME
    systems = "just-in-time checkpointing"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Without a live replica of every lost stage there is nobody to save."""
        return nothing_lost(outlook) or unheld(outlook) or placeless(outlook)

    def action(self, outlook: Outlook) -> Action:
        """One replica a stage writes at the same time as the others; all read."""
        more = outlook.read_s + outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s
        return Action(downtime_s=outlook.down_s(more), repeated_s=outlook.step_s / 2.0)
