"""The process that failed lives on: its training loop is entered again, without start, import or set-up."""

from __future__ import annotations

from recovery.outlook import Ability, Fault, Outlook
from recovery.plan import StrategyName, WayName
from recovery.pricing.event import Action
from recovery.strategies.way import unheld


class InProcess:
    """In-process restart (Unicron; NVRx): the same processes regroup, state comes from a peer or their own slot.

    A running job's planner calls it a local slot of which nobody has failed (``recovery.launcher.retries``).
    """

    way = WayName.IN_PROCESS
    systems = "Unicron, NVRx"
    executed_as = StrategyName.LOCAL_SLOT

    def mask(self, outlook: Outlook) -> str | None:
        """For errors and hangs alone: a process that is gone cannot be entered again."""
        if outlook.fault is not Fault.ERROR:
            return "The process is gone or was never in error, so that there is nothing to enter again."
        if Ability.IN_PROCESS not in outlook.able:
            return "The training program cannot enter its loop again within a process."
        return None if outlook.held.local_s is not None else unheld(outlook)

    def action(self, outlook: Outlook) -> Action:
        """From the nearest source: its own slot if there is one, else a peer."""
        if outlook.held.local_s is not None:
            return Action(downtime_s=outlook.down_s(outlook.load_s), repeated_s=outlook.held.local_s)
        return Action(downtime_s=outlook.down_s(outlook.move_s), repeated_s=outlook.step_s / 2.0)
