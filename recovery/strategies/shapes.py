"""The job of an outlook as ``pricing.layouts`` sees it, for strategies that change its shape."""

from __future__ import annotations

from recovery.outlook import Outlook
from recovery.pricing.layouts import Model


def model_of(outlook: Outlook) -> Model:
    """Layers such that today's fullest stage takes today's slot."""
    deepest = -(-outlook.layers // outlook.shape.pp)
    return Model(
        layers=outlook.layers,
        layer_s=outlook.stage.slot_s / deepest,
        batch=outlook.batch,
        least=outlook.pool.least_stages,
    )
