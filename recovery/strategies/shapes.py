"""The job of cost inputs as ``pricing.layouts`` sees it, for strategies that change its shape."""

from __future__ import annotations

from mainstay.recovery.cost_inputs import CostInputs
from mainstay.recovery.cost_model.layouts import LayoutModel


def model_of(cost_inputs: CostInputs) -> LayoutModel:
    """Layers such that today's fullest stage takes today's slot."""
    deepest = -(-cost_inputs.layers // cost_inputs.shape.pp)
    return LayoutModel(
        layers=cost_inputs.layers,
        layer_s=cost_inputs.stage.slot_s / deepest,
        batch=cost_inputs.batch,
        least=cost_inputs.pool.least_stages,
    )
