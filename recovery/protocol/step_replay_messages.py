"""The messages of a replay between coordinator and ranks: see ``controller.workflows.step_replay``."""

from __future__ import annotations

import msgspec

PER_STEP = 2
"""Numbers of a step: digest of the gradients just before the update, digest of the parameters behind it."""


class StepReplayRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of a ``Regroup``: form a group of this name only, and make some steps again without committing any."""

    group: str
    place: int
    """This rank's number in the group: its index within a replica."""
    steps: int
    roles: tuple[int, ...]
    """One a repeat, each from the restored state: the data-parallel index that the group plays."""


class StepReplayRepeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One repeat as one rank computed it."""

    role: int
    digests: tuple[int, ...]
    """``PER_STEP`` xxh3_64 a step."""
