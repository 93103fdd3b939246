"""States come back from the redundancy in memory that costs least for its safety."""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.redundancy import Scheme, torn_rate
from recovery.strategies.way import nothing_lost, placeless


class LeastRedundancy:
    """Chen et al. (ICCD 2023): copies or a code, chosen by cost; GEMINI's replicas are its schemes of one block."""

    way = WayName.LEAST_REDUNDANCY
    systems = "Chen et al., GEMINI"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """A scheme must fit into memory and bear what was lost."""
        if why := nothing_lost(outlook) or placeless(outlook):
            return why
        if not outlook.pool.schemes:
            return "No scheme of redundancy is offered."
        if _fitting(outlook):
            return None
        return f"No scheme fits into the memory that there is and bears {outlook.gone} losses in one group."

    def action(self, outlook: Outlook) -> Action:
        """That of the least cost by failure, all the time between failures counted."""
        between_s = 1.0 / outlook.job_rate if outlook.job_rate else 0.0

        def cost_s(action: Action) -> float:
            return action.downtime_s + action.repeated_s + action.standing_share * between_s

        return min((_action(outlook, scheme) for scheme in _fitting(outlook)), key=cost_s)


def _fitting(outlook: Outlook) -> list[Scheme]:
    """Those that fit into memory and the job, and bear what was lost, as though it were all of one group."""
    return [
        scheme
        for scheme in outlook.pool.schemes
        if scheme.memory * outlook.state_bytes <= outlook.pool.room_bytes
        and scheme.data + scheme.extra <= outlook.workers
        and scheme.extra >= outlook.gone
    ]


def _action(outlook: Outlook, scheme: Scheme) -> Action:
    """A block is decoded from ``data`` others. Standing: its saves, and the restarts from disk it cannot prevent."""
    fetched_s = outlook.state_bytes * scheme.data / outlook.costs.net_Bps
    decoded_s = outlook.state_bytes * scheme.data / outlook.costs.xor_Bps if scheme.data > 1 else 0.0
    repair_s = sum(each.share * each.seconds for each in outlook.odds.repairs)
    restart_s = outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s + (outlook.held.disk_s or 0.0)
    torn = torn_rate(scheme, workers=outlook.workers, worker_rate=outlook.odds.worker_rate, window_s=repair_s)
    return Action(
        downtime_s=outlook.down_s(outlook.spawn_s + fetched_s + decoded_s + outlook.load_s),
        repeated_s=scheme.every_s / 2.0,
        standing_share=min(1.0, scheme.share + torn * restart_s),
    )
