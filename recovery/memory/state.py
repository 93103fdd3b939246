"""A trainer's state under stable names: parameters, buffers, optimizer state, random numbers, and a blob of scalars.

What ``collect_state`` names, ``TrainerState.load`` puts back in place, bit for bit. An optimizer that creates its state
at its first step keeps that manner: a snapshot of one that has not stepped restores to one that has not stepped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from recovery.memory.layout import Layout
from recovery.memory.snapshot import Piece


class Stateful(Protocol):
    """Anything like a scheduler or a sampler: plain data (numbers, text, bytes, lists, dicts) out and in."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


Extra = Mapping[str, Any]
"""name -> Stateful, or a plain dict that is filled in place on restore."""


class TrainerState:
    """A ``Source`` over a live model and optimizer: hand it to ``SnapshotWriter``."""

    @property
    def layout(self) -> Layout:
        raise NotImplementedError

    def freeze(self) -> Mapping[str, Piece]:
        raise NotImplementedError

    def load(self, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
        raise NotImplementedError


def collect_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, extra: Extra | None = None
) -> TrainerState:
    raise NotImplementedError


def load_state(state: TrainerState, arrays: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Put a slot's tensors (``read_slot``) back into the live model, optimizer, generators and extras, in place."""
    state.load(arrays)
