"""A job that steps at a given pace, and published step times and losses of Megatron runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mainstay.detectors.base import Floats, Samples
from mainstay.detectors.finding import Entity

CURVES = ("bert_h100", "gpt3_15b_a100lts", "gpt3_15b_h100", "mixtral8x7b_h100_dev")


def curve(name: str, key: str) -> Floats:
    """What was logged of a run, from the folder that ``MAINSTAY_TEST_DATA`` names."""
    given = os.environ.get("MAINSTAY_TEST_DATA")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    with np.load(folder / "step-times" / f"{name}.npz") as data:
        values = data[key].astype(np.float64)
    return np.asarray(values[np.isfinite(values)], np.float64)


def spacing(name: str) -> float:
    """Steps between two logged step times."""
    steps, seconds = curve(name, "iteration_time__step"), curve(name, "iteration_time")
    return float(steps[-1] - steps[0]) / max(len(seconds) - 1, 1)


def pace_of(seconds: Floats, signals: Mapping[str, Floats] | None = None) -> Samples:
    """A series of step times [T] as the samples of a job, for replay: of ``signals`` [T, R], else of a lone rank."""
    told = {"step_time_seconds": np.asarray(seconds, np.float64)[:, None]} if signals is None else signals
    x = np.stack([*told.values()], axis=1)
    return Samples(
        entities=tuple(Entity(job="series", rank=rank) for rank in range(x.shape[2])),
        groups=("",) * x.shape[2],
        signals=tuple(told),
        t=1.7e9 + np.nancumsum(seconds),
        x=x,
        steps=np.arange(len(seconds)),
    )
