"""A slot put back into a live model."""

from __future__ import annotations

from mainstay.recovery.memory.state import Arrays, TrainerState


def load_state(state: TrainerState, arrays: Arrays) -> None:
    """Put ``arrays`` (``read_slot``) back into the live model, optimizer, generators and extras, in place."""
    state.load(arrays)
