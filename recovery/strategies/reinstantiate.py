"""All workers that are left form pipelines anew, of unlike depth, from templates planned ahead; no restart."""

from __future__ import annotations

from recovery.outlook import GONE, Ability, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.layouts import best_mix, mixable
from recovery.strategies.shapes import model_of
from recovery.strategies.way import rejoins, unheld, waiting


class Reinstantiate:
    """Oobleck (SOSP'23): heterogeneous pipelines; layers that are missing are copied from a surviving replica."""

    way = WayName.REINSTANTIATE
    systems = "Oobleck"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Two replicas at least must remain (f + 1 with f = 1), or the next loss is the last."""
        if Ability.TEMPLATES not in outlook.able:
            return "The training program cannot train pipelines of unlike depth together."
        if why := unheld(outlook):
            return why
        least = 2 * outlook.pool.least_stages
        if outlook.left < least:
            return f"{outlook.left} workers are left, and two replicas of the model need {least}."
        return None if mixable(model_of(outlook), outlook.left) else "The batch cannot keep any mix of pipelines busy."

    def action(self, outlook: Outlook) -> Action:
        """At most one worker's state moves into each worker, all at once; or all write, start anew and read."""
        found = best_mix(model_of(outlook), outlook.left)
        assert found is not None  # masked
        planned = outlook.fault not in GONE
        down = outlook.costs.regroup_s + outlook.warm_up_s if planned else outlook.down_s()
        through_s = 2.0 * outlook.read_s + outlook.costs.spawn_cold_s
        move_s = through_s if outlook.through_disk else outlook.move_s
        return waiting(
            outlook,
            Action(
                downtime_s=down + move_s,
                repeated_s=0.0 if planned else outlook.step_s / 2.0,
                rate=min(1.0, outlook.step_s / found[0]),
                rejoin_probability=1.0,
                rejoin_s=rejoins(outlook) - outlook.move_s + move_s,
            ),
        )
