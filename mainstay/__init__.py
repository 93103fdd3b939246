"""Mainstay keeps large training runs going. A training script needs the names of this module only.

The SDK is imported on first use, so ``import mainstay`` costs nothing where only a command runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_SDK = {
    "GradientAccumulator", "LayerGradientAccumulator", "ResumableSampler", "ResumableStream", "RetryStep",
    "attach", "init", "watch",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a name of the training SDK, ``mainstay.recovery.sdk``."""
    if name in _SDK:
        return getattr(import_module("mainstay.recovery.sdk"), name)
    raise AttributeError(f"module 'mainstay' has no attribute {name!r}")
