"""The names that a stage's tensors have in the whole model.

A pipeline stage that is a module of its own calls its first block ``blocks.0``, whichever block of the model that is.
``attach(..., names={"blocks.0": "blocks.2"})`` says which: slots then hold model-wide names, and a mark.
By such names a step that was saved with two stages is read with four, and by tools that know the whole model alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

MARK: Final = "mainstay.modelwide"
"""A tensor of one byte in slots whose names are the model's. In the slot, so that it is in every copy and part too."""
MODEL: Final = ("param.", "buffer.", "optim.")
"""How the names of tensors that are the model's begin; all others are a rank's own."""
MARK_SPEC: Final = ("uint8", (1,))
MARK_VALUE: Final[npt.NDArray[np.uint8]] = np.ones(1, np.uint8)


class ModelNames:
    """Local name -> name in the whole model, by the prefixes that the script gave."""

    def __init__(self, prefixes: Mapping[str, str], local: Iterable[str]) -> None:
        """Check the names.

        Args:
            prefixes: module here -> module in the model; the longest that fits counts, what has none keeps its name.
            local: every parameter and buffer here.

        Raises:
            ValueError: a prefix fits nothing, or two tensors would have one name; names them.
        """
        known = list(local)
        for prefix in prefixes:
            if not any(_fits(prefix, name) for name in known):
                raise ValueError(f"names: no parameter or buffer of this model begins with {prefix!r}")
        self._longest = sorted(prefixes.items(), key=lambda pair: -len(pair[0]))
        taken: dict[str, str] = {}
        for name in known:
            other = taken.setdefault(self.model_name(name), name)
            if other != name:
                raise ValueError(f"names: {other!r} and {name!r} would both be {self.model_name(name)!r} in the model")

    def model_name(self, name: str) -> str:
        """What the model calls the tensor that is ``name`` here."""
        for prefix, whole in self._longest:
            if _fits(prefix, name):
                return whole + name[len(prefix) :]
        return name


def _fits(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
