"""Another job of the cluster gives up workers, where that costs all jobs together least."""

from __future__ import annotations

from recovery.outlook import Fault, Outlook
from recovery.plan import WayName
from recovery.pricing.allocation import cheapest_donor
from recovery.pricing.event import Action
from recovery.strategies.way import unheld


class BorrowWorkers:
    """Unicron: the plan of least cost over several jobs, here for the one that lost workers."""

    way = WayName.BORROW_WORKERS
    systems = "Unicron"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Somebody must have as many workers to give; the lost state must be held."""
        if outlook.fault in {Fault.ERROR, Fault.PROCESS}:
            return "No worker is lost, so that none is to be borrowed."
        if outlook.fault is Fault.NODE and (why := unheld(outlook)):
            return why
        if not outlook.pool.others:
            return "No other job shares this cluster."
        if _donor(outlook) is None:
            return f"No other job has {outlook.gone} workers to give up."
        return None

    def action(self, outlook: Outlook) -> Action:
        """A donor's loss counts as this job's: in its seconds, by the donor's rate against this job's own.

        Rates of tenants are in units of one healthy worker of this job, so that a value of 1 is one worker's second.
        """
        donor = _donor(outlook)
        assert donor is not None  # masked
        planned = outlook.fault is not Fault.NODE
        down = outlook.costs.regroup_s + outlook.warm_up_s if planned else outlook.down_s()
        return Action(
            downtime_s=down + outlook.costs.spawn_cold_s + outlook.move_s + donor / outlook.workers,
            repeated_s=0.0 if planned else outlook.step_s / 2.0,
        )


def _donor(outlook: Outlook) -> float | None:
    """The least loss of value, in seconds of one worker."""
    repair_s = sum(each.share * each.seconds for each in outlook.odds.repairs)
    found = cheapest_donor(outlook.pool.others, outlook.gone, repair_s)
    return None if found is None else found[1]
