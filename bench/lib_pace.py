"""A lone rank that steps at a given pace."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import Entity


def pace_of(seconds: Floats) -> Samples:
    """A series of step times as the samples of a job of one rank, for replay."""
    steps = np.arange(len(seconds))
    return Samples(
        entities=(Entity(job="series", rank=0),),
        groups=("",),
        signals=("step_time_seconds",),
        t=1.7e9 + np.nancumsum(seconds),
        x=np.asarray(seconds, np.float64)[:, None, None],
        steps=steps,
    )
