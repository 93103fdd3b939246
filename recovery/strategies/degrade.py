"""Slow workers stay and get less: their pipelines fewer micro-batches, or they themselves fewer layers."""

from __future__ import annotations

from recovery.outlook import Fault, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.layouts import Mix, mix_s
from recovery.strategies.shapes import model_of
from recovery.strategies.way import waiting


class Degrade:
    """ResiHP, ElasWave: micro-batches dealt by speed, layers split anew; whichever is faster."""

    way = WayName.DEGRADE
    systems = "ResiHP, ElasWave"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """For slow workers alone."""
        if outlook.fault is not Fault.SLOW:
            return "Nobody is slow: there is no less to give to somebody."
        return None

    def action(self, outlook: Outlook) -> Action:
        """The deal changes at the end of a step. New layers move state besides, and pay it for the rate alone."""
        dealt, split = degraded_s(outlook)
        moved = split < dealt
        return waiting(
            outlook,
            Action(
                downtime_s=outlook.costs.regroup_s + outlook.warm_up_s + (outlook.move_s if moved else 0.0),
                repeated_s=0.0,
                rate=min(1.0, outlook.step_s / min(dealt, split)),
                rejoin_probability=1.0,
                rejoin_s=outlook.costs.regroup_s + (outlook.move_s if moved else 0.0),
            ),
        )


def degraded_s(outlook: Outlook) -> tuple[float, float]:
    """Seconds of a step with micro-batches dealt by speed, and with layers split anew.

    Dealt: each slow worker drags a pipeline of its own, at worst. Split: in those pipelines the slow stage gets the
    layers that balance it (minimax), so that a pipeline of P stages with total speed P - 1 + v runs at that share.
    """
    dp, pp = outlook.shape.dp, outlook.shape.pp
    slow, slot = outlook.hit, outlook.stage.slot_s
    healthy: Mix = ((dp - slow, pp, slot),) if dp > slow else ()
    dealt = mix_s(model_of(outlook), (*healthy, (slow, pp, slot / outlook.speed)))
    split = mix_s(model_of(outlook), (*healthy, (slow, pp, split_slot_s(outlook))))
    return dealt, split


def split_slot_s(outlook: Outlook) -> float:
    """The slowest slot of a pipeline with one slow stage after the best split of whole layers."""
    model, pp = model_of(outlook), outlook.shape.pp
    if pp == 1:
        return outlook.stage.slot_s / outlook.speed
    least = min(
        (
            max(few * model.layer_s / outlook.speed, -(-(model.layers - few) // (pp - 1)) * model.layer_s)
            for few in range(1, -(-model.layers // pp) + 1)
        ),
    )
    return max(least, outlook.stage.slot_s)
