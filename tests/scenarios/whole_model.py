"""The parameters of a whole model, out of what the stages of ``docs/examples/anyshape.py`` wrote at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def parameters(directory: Path) -> dict[str, bytes]:
    """Name in the model -> bits; replicas must agree."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()):
        with np.load(path) as stage:
            for name in stage.files:
                assert found.setdefault(name, stage[name].tobytes()) == stage[name].tobytes(), (path, name)
    return found
