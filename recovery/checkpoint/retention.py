"""Which steps of a run stay, and which may go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Final

import msgspec

from mainstay.recovery.memory.records import NO_EPOCH

PENDING_UPLOADS: Final = 4
"""Complete steps that wait for their upload and are kept locally, and as many that are on their way: beyond that, the
oldest one is given up."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run is kept beside pinned steps, and what those that are kept refer to."""

    last: Annotated[int, msgspec.Meta(ge=1)] = 2
    """The newest complete steps."""
    every_hours: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    """The first complete step of each period of so many hours (of Unix time); 0: none."""
    pending: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The newest complete steps that are not uploaded yet; 0: there is no upload."""


class CompleteStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy asks of a complete step."""

    epoch: int
    time: float
    """Unix seconds; 0: not known."""
    bases: frozenset[int] = frozenset()
    """Epochs of all steps without which this one cannot be read."""
    pinned: bool = False
    uploaded: bool = False
    uploading: bool = False


def steps_to_keep(steps: Sequence[CompleteStep], policy: RetentionPolicy) -> set[int]:
    """Epochs of ``steps`` (all complete ones of a run) that ``policy`` keeps, and all that these refer to."""
    ordered = sorted(steps, key=lambda step: step.epoch)
    keep = {step.epoch for step in ordered[-policy.last :]}
    keep.update(step.epoch for step in ordered if step.pinned)
    keep.update([step.epoch for step in ordered if step.uploading][-PENDING_UPLOADS:])
    if policy.every_hours:
        first: dict[int, int] = {}
        for step in (step for step in ordered if step.time):
            first.setdefault(int(step.time // (policy.every_hours * 3600.0)), step.epoch)
        keep.update(first.values())
    if policy.pending:
        keep.update([step.epoch for step in ordered if not step.uploaded][-policy.pending :])
    return keep.union(*(step.bases for step in ordered if step.epoch in keep))


def next_common(now: tuple[int, int], common: Collection[int], reached: int, after: int, every: int) -> tuple[int, int]:
    """Steps that each node's own disk keeps, so that all nodes have one together at any time; ``NO_EPOCH``: none.

    The second is chosen before it is written and is kept from then on. Only when all have it does the first one go.

    Args:
        now: as nodes know them.
        common: epochs that all nodes have.
        reached: each node has this one or a later one.
        after: the newest step of the job.
        every: epochs between checkpoints; 0: there are none.
    """
    kept, awaited = now
    if awaited in common:
        kept = awaited
    elif kept == NO_EPOCH:
        kept = min(common, default=NO_EPOCH)
    if every and awaited <= max(kept, reached):  # all have it, or a node was too slow for it
        awaited = (after // every + 1) * every
    return kept, awaited


def is_due(state: CompleteStep, states: Sequence[CompleteStep], every: int) -> bool:
    """Whether ``every`` epochs lie between the step and the last one that is there, or is on its way."""
    others = (other for other in states if other is not state and (other.uploaded or other.uploading))
    return not every or state.pinned or all(state.epoch - other.epoch >= every for other in others)
