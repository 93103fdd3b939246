"""How safe a job's memory is, as its coordinator tells it: part of the job's protection."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from mainstay.service.common.schemas import Bytes, JsonNumber, Lenient, Name, Text, UnixSeconds
from mainstay.service.events.schemas import MAX_RANK

_Step = Annotated[int, Field(ge=0, lt=2**53), JsonNumber]
_Rank = Annotated[int, Field(ge=0, lt=MAX_RANK), JsonNumber]
_Ranks = Annotated[list[_Rank], Field(max_length=MAX_RANK)]
_Count = Annotated[int, Field(ge=0, lt=2**53), JsonNumber]
_Probability = Annotated[float, Field(ge=0.0, le=1.0), JsonNumber]
MAX_LINES = 64


class WarnedNode(Lenient):
    """A node with a warning, and the protection of its ranks."""

    node: Name
    reason: Text
    factor: Annotated[float, Field(gt=0.0, le=1e6), JsonNumber]
    """It is taken to fail so many times as often as others."""
    since: UnixSeconds
    ranks: _Ranks
    copies_wanted: _Ranks
    """Ranks whose newest slot goes to another node as well; those that are missing have a replica on a good node."""
    copies: _Ranks
    """Those of which such a copy is in place now."""


class CorruptSteps(Lenient):
    """A node that computed wrong results, and the newest step before that; null if no step is known to be correct."""

    node: Name
    since: UnixSeconds
    reason: Text
    clean: _Step | None
    corrupt: Annotated[bool, Strict()]
    """The steps that the job stands on are."""


class CorruptedNode(Lenient):
    """The results of scrubbing the snapshot memory of one node."""

    node: Name
    found: _Count
    flipped: _Count
    """Of these: bytes that were right once and changed by themselves."""
    repaired: _Count
    lost: _Count
    """Damage beyond repair: never restored from."""
    last: Text
    """The newest, in words."""


class Scrubbing(Lenient):
    """The results of scrubbing snapshot memory since the start of each agent or of the coordinator."""

    passes: _Count
    """That every agent has made since it started."""
    bytes: Bytes
    drills: _Count
    """Restore drills: a rank decoded from what the others keep, and compared."""
    drills_failed: _Count
    found: _Count
    flipped: _Count
    repaired: _Count
    lost: _Count
    nodes: Annotated[list[CorruptedNode], Field(max_length=MAX_LINES)]


class Durability(Lenient):
    """The durability at one time. A null probability means unknown."""

    time: UnixSeconds
    survival_hour: _Probability | None
    """The next hour costs nothing that memory cannot give back; a lower bound unless ``exact``."""
    survival_hour_with_disk: _Probability | None
    """The same, going back to disk counted as survival; the disk itself is taken to be safe."""
    exact: Annotated[bool, Strict()]
    description: Text
    """What may die now."""
    min_fatal_nodes: Annotated[int, Field(ge=1, le=MAX_RANK), JsonNumber] | None
    """Fewest nodes whose loss at once memory does not outlive."""
    fatal: Annotated[list[Annotated[list[Name], Field(max_length=MAX_RANK)]], Field(max_length=MAX_LINES)]
    """Such sets of nodes, the first of them."""
    newest: _Step | None
    """The newest step of which all ranks have a verified snapshot."""
    parity_epoch: _Step | None
    """The newest step that is protected over the nodes."""
    disk_epoch: _Step | None
    degraded: Annotated[list[Text], Field(max_length=MAX_LINES)]
    suspects: Annotated[list[WarnedNode], Field(max_length=MAX_RANK)]
    corrupt_steps: Annotated[list[CorruptSteps], Field(max_length=MAX_RANK)]
    scrub: Scrubbing | None = None
    """Null where no agent scrubs, or the coordinator does not report it."""
