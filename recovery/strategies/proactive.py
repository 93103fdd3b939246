"""Before workers go, the job moves to the (dp, pp) that trains most on those that stay."""

from __future__ import annotations

from recovery.outlook import Ability, Fault, Outlook
from recovery.plan import WayName
from recovery.pricing.event import Action
from recovery.pricing.layouts import Model, best_layout, layout_s, layouts
from recovery.pricing.liveput import Layout
from recovery.strategies.shapes import model_of
from recovery.strategies.way import rejoins, waiting, waiting_s


class Proactive:
    """Parcae's liveput (NSDI'24), LiveR: a planned change while all state is still there."""

    way = WayName.PROACTIVE
    systems = "Parcae, LiveR"
    executed_as = None

    def mask(self, outlook: Outlook) -> str | None:
        """Without notice there is nothing to move from."""
        if outlook.fault is not Fault.NOTICE:
            return "Nothing was announced: a planned change needs the workers that go."
        if Ability.RESHAPE not in outlook.able:
            return "The training program cannot go on at another (dp, pp)."
        if best_layout(model_of(outlook), outlook.left) is None:
            return f"{outlook.left} workers cannot hold the model."
        return None

    def action(self, outlook: Outlook) -> Action:
        """The layout of most liveput: throughput until workers are back, less what it costs to come and to go back.

        ``pricing.liveput`` does the same over many intervals whose nodes are known or predicted.
        """
        model = model_of(outlook)
        wait = waiting_s(outlook)

        def lost_s(action: Action) -> float:
            return action.downtime_s + (1.0 - action.rate) * wait + action.rejoin_s

        actions = (_moved(outlook, model, layout) for layout in layouts(model, outlook.left))
        return waiting(outlook, min(actions, key=lost_s))


def _moved(outlook: Outlook, model: Model, layout: Layout) -> Action:
    """State streams beside training while there is notice; what does not fit in stands still. So does the way back."""
    move_s = outlook.move_s if layout[1] != outlook.shape.pp else 0.0
    hidden = min(move_s, outlook.odds.notice_s)
    return Action(
        downtime_s=outlook.costs.regroup_s + outlook.warm_up_s + move_s - hidden,
        repeated_s=0.0,
        rate=min(1.0, outlook.step_s / layout_s(model, layout)),
        rejoin_probability=1.0,
        rejoin_s=rejoins(outlook),
    )
