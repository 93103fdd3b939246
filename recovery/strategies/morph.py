"""The job is restarted from a checkpoint at the (dp, pp) that is fastest on the workers that are left."""

from __future__ import annotations

from recovery.outlook import Ability, Fault, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.layouts import best_layout, layout_s
from recovery.strategies.shapes import model_of
from recovery.strategies.way import waiting


class Morph:
    """Varuna (EuroSys'22): job morphing by restart; with notice it saves just before."""

    way = WayName.MORPH
    systems = "Varuna"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """A checkpoint and enough workers."""
        if Ability.RESHAPE not in outlook.able:
            return "The training program cannot go on at another (dp, pp)."
        if outlook.held.disk_s is None and outlook.fault is not Fault.NOTICE:
            return "No checkpoint is on disk."
        if best_layout(model_of(outlook), outlook.left) is None:
            return f"{outlook.left} workers cannot hold the model."
        return None

    def action(self, outlook: Outlook) -> Action:
        """Restart, read, and as slow as fewer workers are; a later growth is a restart again."""
        model = model_of(outlook)
        found = best_layout(model, outlook.left)
        assert found is not None  # masked
        restart = outlook.restart_s + outlook.costs.spawn_cold_s + outlook.read_s
        noticed = outlook.fault is Fault.NOTICE
        return waiting(
            outlook,
            Action(
                downtime_s=outlook.down_s(restart) + (outlook.read_s if noticed else 0.0),
                repeated_s=0.0 if noticed else outlook.held.disk_s or 0.0,
                rate=min(1.0, outlook.step_s / layout_s(model, found)),
                rejoin_probability=1.0,
                rejoin_s=restart + outlook.read_s + outlook.costs.regroup_s + outlook.warm_up_s,
            ),
        )
