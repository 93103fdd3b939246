"""Every message of agents, ranks and launchers: one tagged union each way, checked while decoding, no pickle.

The first message on a connection is ``Hello``. ``Committed`` has no answer; everything else is answered by exactly one
``Reply``. What agents ask each other stands in ``peer_messages``.
"""

from __future__ import annotations

from typing import Final

from recovery.agent.errors import FailureKind
from recovery.agent.peer_messages import (
    Decode,
    Doubt,
    Head,
    LayoutText,
    Message,
    Noted,
    ProtectedState,
    ReadHead,
    ReadLayout,
    ReadParity,
    ReadProtected,
    ReadRow,
    ReadSlot,
    Record,
    RowHeader,
    RowState,
    SlotHeader,
    StripeHeader,
    Tail,
)
from recovery.disk.manifest import DiskConfig

NEWEST: Final = -1
"""As ``Fetch.epoch``."""


class GroupMember(Record, frozen=True):
    """One rank of a protection group. All agents name the group in the same order; a member's place is its index."""

    node: str
    endpoint: str
    """``host:port`` of the node's agent."""
    rank: int


Group = tuple[GroupMember, ...]


class SlotInfo(Record, frozen=True):
    """A committed slot on this node."""

    rank: int
    epoch: int
    generation: int
    nbytes: int
    verified: bool
    """The agent has digested it, and the writer has not touched it since."""


class ParityInfo(Record, frozen=True):
    """A member's parity rows on this node: any ``parity`` of ``ranks`` can be rebuilt for ``epoch`` from the others."""

    epoch: int
    ranks: tuple[int, ...]
    """One rank of each member, in group order."""
    place: int
    """Whose rows they are."""
    parity: int
    nbytes: int
    complete: bool
    """Every member is known to hold its row."""


class DiskInfo(Record, frozen=True):
    rank: int
    epoch: int
    nbytes: int
    generation: int
    """In which the slot was committed: tells a future that was given up from the steps made again."""


class Rates(Record, frozen=True):
    """Bytes per second as last measured by this agent, None where not measured yet. The planner prices with these."""

    digest: float | None = None
    net: float | None = None
    xor: float | None = None
    disk_write: float | None = None
    disk_read: float | None = None


class ScrubState(Record, frozen=True):
    """What scrubbing and drills have found since the agent started."""

    passes: int
    nbytes: int
    """Digested again."""
    found: int
    """Damages: slots, rows, copies, records, headers, layouts, and drills that failed."""
    mended: int
    lost: int
    """Damaged slots that nothing could mend; they are invalid now."""
    drills: int
    drills_failed: int
    last: str
    """The newest finding, in words; empty is good."""
    flipped: int = 0
    """Of ``found``: bytes that were right once and are not any more."""


# Requests


class Hello(Message, frozen=True):
    """First on every connection. A wrong token closes it without a word."""

    token: str
    job: str
    generation: int
    role: str
    """``rank``, ``launcher`` or ``agent``; for the log only."""


class Ping(Message, frozen=True):
    pass


class OpenArena(Message, frozen=True):
    rank: int
    layout: bytes
    """``Layout.to_json()``."""


class Committed(Message, frozen=True):
    """One-way: slot ``slot`` of ``rank`` was just committed."""

    rank: int
    epoch: int
    generation: int
    slot: int


class GetInventory(Message, frozen=True):
    pass


class Fetch(Message, frozen=True):
    """Pull ``from_rank``'s slot from the agent at ``endpoint`` into ``rank``'s arena here."""

    rank: int
    epoch: int
    """``NEWEST``: whichever is newest there."""
    from_rank: int
    endpoint: str
    open: bool = False
    """Make the arena first, with the layout that the other agent has: the rank's process is still to come."""


class Rebuild(Message, frozen=True):
    """Decode ``rank``'s slot from the parity and data of the other members, as far as they still have them."""

    rank: int
    epoch: int
    group: Group


class LoadDisk(Message, frozen=True):
    """Read a part of ``directory/run`` into ``rank``'s arena here."""

    rank: int
    epoch: int
    directory: str
    run: str
    from_rank: int | None = None
    """Whose part; None: its own."""
    generation: int = 0
    """Of the part; 0: the newest."""


class ConfigureDisk(Message, frozen=True):
    """Write for this run from now on, in this shape."""

    config: DiskConfig


class SaveDisk(Message, frozen=True):
    """Write ``epoch`` of every rank here that has it, now: the job ends."""

    epoch: int
    copies: tuple[int, ...] = ()
    """And of these ranks of lost nodes, whose copies are kept here."""


class ConfigureParity(Message, frozen=True):
    """How the job is protected from now on; no groups: not at all. What old groups have stays until it is complete."""

    groups: tuple[Group, ...]
    """All of the job: an epoch is only let go once every group has a newer one."""
    every: int
    scheme: str = "xor"
    """As ``recovery.scheme.parse`` reads it."""
    wards: Group = ()
    """Ranks of other nodes of whose newest slots this agent keeps a copy as well, and where their agents are."""


class Fence(Message, frozen=True):
    """Refuse every generation below ``generation`` from now on, in memory as on the wire."""

    generation: int


class DiscardAfter(Message, frozen=True):
    """Forget slots and parity of epochs after ``epoch``: the job went back to it."""

    epoch: int


class Drop(Message, frozen=True):
    """Remove this node's arenas of the job."""


Request = (
    Hello
    | Ping
    | OpenArena
    | Committed
    | GetInventory
    | Fetch
    | Rebuild
    | LoadDisk
    | ConfigureDisk
    | SaveDisk
    | ConfigureParity
    | Fence
    | DiscardAfter
    | Drop
    | ReadHead
    | ReadSlot
    | ReadRow
    | ReadParity
    | ReadProtected
    | ReadLayout
    | Decode
    | Doubt
)


# Replies


class Welcome(Message, frozen=True):
    node: str
    generation: int
    """The lowest generation that is not fenced."""


class Done(Message, frozen=True):
    pass


class Failure(Message, frozen=True):
    kind: FailureKind
    reason: str


class ArenaInfo(Message, frozen=True):
    path: str
    slots: int
    slot_bytes: int


class Inventory(Message, frozen=True):
    node: str
    slots: tuple[SlotInfo, ...]
    parity: tuple[ParityInfo, ...]
    disk: tuple[DiskInfo, ...]
    rates: Rates
    degraded: tuple[str, ...]
    """What does not work as it should, in words for a human. Empty is good."""
    scrub: ScrubState | None = None
    """None where nothing is scrubbed."""


class Fetched(Message, frozen=True):
    """A slot came back into the arena, checked."""

    nbytes: int
    seconds: float
    digest: int
    """xxh3_64 of the slot."""


Reply = (
    Welcome
    | Done
    | Failure
    | ArenaInfo
    | Inventory
    | Fetched
    | Head
    | SlotHeader
    | StripeHeader
    | RowState
    | RowHeader
    | ProtectedState
    | LayoutText
    | Noted
    | Tail
)
