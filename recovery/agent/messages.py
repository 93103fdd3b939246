"""Every message of agents, ranks and launchers: one tagged union each way, checked while decoding, no pickle.

The first message on a connection is ``Hello``. ``Committed`` has no answer; everything else is answered by exactly one
``Reply``. After ``SlotHeader`` and ``StripeHeader`` exactly ``nbytes`` raw bytes follow, then a ``Tail`` that says
whether the bytes were still committed when the last of them left.
"""

from __future__ import annotations

import msgspec

from recovery.agent.errors import FailureKind


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base of everything on the wire; the tag is the class name."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of messages."""


class GroupMember(Record, frozen=True):
    """One node of a parity group. All members name the group in the same order; rank i of each protects one another."""

    node: str
    endpoint: str
    """``host:port`` of the node's agent."""
    ranks: tuple[int, ...]
    """Ranks of the node in local order."""


class SlotInfo(Record, frozen=True):
    """A committed slot on this node."""

    rank: int
    epoch: int
    generation: int
    nbytes: int
    verified: bool
    """The agent has digested it, and the writer has not touched it since."""


class ParityInfo(Record, frozen=True):
    """A parity row on this node: any one of ``ranks`` can be rebuilt for ``epoch`` if all other members live."""

    epoch: int
    ranks: tuple[int, ...]
    """One rank of each member, in group order."""
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
    from_rank: int
    endpoint: str


class Rebuild(Message, frozen=True):
    """Decode ``rank``'s slot from the parity and data of the other members."""

    rank: int
    epoch: int
    group: tuple[GroupMember, ...]


class LoadDisk(Message, frozen=True):
    rank: int
    epoch: int
    directory: str


class ConfigureParity(Message, frozen=True):
    """Join a parity group (or none: empty ``group``). Rows of the old group stay until new ones are complete."""

    group: tuple[GroupMember, ...]
    every: int


class Fence(Message, frozen=True):
    """Refuse every generation below ``generation`` from now on, in memory as on the wire."""

    generation: int


class DiscardAfter(Message, frozen=True):
    """Forget slots and parity of epochs after ``epoch``: the job went back to it."""

    epoch: int


class Drop(Message, frozen=True):
    """Remove this node's arenas of the job."""


class ReadHead(Message, frozen=True):
    """Agent to agent: what is known about ``rank``'s slot of ``epoch``."""

    rank: int
    epoch: int


class ReadSlot(Message, frozen=True):
    """Agent to agent: ``nbytes`` of a committed slot from ``offset``, cut at the slot's end."""

    rank: int
    epoch: int
    offset: int
    nbytes: int


class ReadRow(Message, frozen=True):
    """Agent to agent: does your parity row of ``epoch`` for ``ranks`` exist?"""

    ranks: tuple[int, ...]
    epoch: int


class Decode(Message, frozen=True):
    """Agent to agent: compute the stripe of ``rank`` that your parity row covers, from it and the survivors' data."""

    rank: int
    epoch: int
    ranks: tuple[int, ...]
    """One rank of each member, in the order in which the row was encoded."""
    endpoints: tuple[str, ...]
    """Where each of them is served; the lost one's is not used."""


Request = (
    Hello
    | Ping
    | OpenArena
    | Committed
    | GetInventory
    | Fetch
    | Rebuild
    | LoadDisk
    | ConfigureParity
    | Fence
    | DiscardAfter
    | Drop
    | ReadHead
    | ReadSlot
    | ReadRow
    | Decode
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


class Fetched(Message, frozen=True):
    """A slot came back into the arena, checked."""

    nbytes: int
    seconds: float
    digest: int
    """xxh3_64 of the slot."""


class Head(Message, frozen=True):
    """Answers ``ReadHead``: whether the slot is there and verified; if not, ``newest`` tells if it will still come."""

    present: bool
    newest: int
    """Newest committed epoch of the rank here, or -1."""
    slot_nbytes: int
    digest: int


class SlotHeader(Message, frozen=True):
    """``nbytes`` raw bytes follow, then a ``Tail``."""

    generation: int
    layout_digest: int
    slot_nbytes: int
    digest: int
    nbytes: int


class StripeHeader(Message, frozen=True):
    """``nbytes`` raw bytes of the lost slot, from ``offset``, follow; the rest is about the whole slot."""

    generation: int
    layout_digest: int
    slot_nbytes: int
    digest: int
    offset: int
    nbytes: int


class RowState(Message, frozen=True):
    present: bool
    digests: tuple[int, ...]
    """Of the members' slots that went into it."""


class Tail(Message, frozen=True):
    """After raw bytes: were they still the committed ones when the last left?"""

    ok: bool
    reason: str


Reply = Welcome | Done | Failure | ArenaInfo | Inventory | Fetched | Head | SlotHeader | StripeHeader | RowState | Tail
