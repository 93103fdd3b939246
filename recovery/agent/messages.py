"""Every message of agents, ranks and launchers: one tagged union each way, checked while decoding, no pickle.

The first message on a connection is ``Hello``. ``Committed`` has no answer; everything else is answered by exactly one
``Reply``. What agents ask each other stands in ``peer_messages``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from mainstay.recovery.agent.errors import FailureKind
from mainstay.recovery.agent.peer_messages import PeerQuestion, PeerReply, SlotRequest, WireMessage, WireStruct
from mainstay.recovery.checkpoint.listed_files import ParityFile, PartFile
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.checkpoint.upload_state import UploadProgress
from mainstay.recovery.memory.global_slices import GlobalSlice

NEWEST: Final = -1
"""As ``Fetch.epoch``."""


class GroupMember(WireStruct, frozen=True):
    """One rank of a protection group. All agents name the group in the same order; a member's place is its index."""

    node: str
    endpoint: str
    """``host:port`` of the node's agent."""
    rank: int


Group = tuple[GroupMember, ...]


class SlotInfo(WireStruct, frozen=True):
    """A committed slot on this node."""

    rank: int
    epoch: int
    generation: int
    nbytes: int
    verified: bool
    """The agent has digested it, and the writer has not touched it since."""


class ParityInfo(WireStruct, frozen=True):
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


class TransferRates(WireStruct, frozen=True):
    """Bytes per second as last measured by this agent, None where not measured yet. The planner prices with these."""

    digest: float | None = None
    net: float | None = None
    xor: float | None = None
    disk_write: float | None = None
    disk_read: float | None = None


class ScrubState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What scrubbing and drills have found since the agent started; the scrubber counts in it."""

    passes: int = 0
    nbytes: int = 0
    """Digested again."""
    found: int = 0
    """Damages: slots, rows, copies, records, headers, layouts, and drills that failed."""
    repaired: int = 0
    lost: int = 0
    """Damaged slots that nothing could repair; they are invalid now."""
    drills: int = 0
    drills_failed: int = 0
    last: str = ""
    """The newest finding, in words; empty is good."""
    flipped: int = 0
    """Of ``found``: bytes that were right once and are not any more."""


# Requests


class Hello(WireMessage, frozen=True):
    """First on every connection."""

    job: str
    generation: int


class OpenArena(WireMessage, frozen=True):
    rank: int
    layout: bytes
    """``Layout.to_json()``."""


class Committed(SlotRequest, frozen=True):
    """One-way: it was just committed, in slot ``slot`` of ``rank``'s arena."""

    generation: int
    slot: int


class GetInventory(WireMessage, frozen=True):
    pass


class Fetch(SlotRequest, frozen=True):
    """Pull ``from_rank``'s slot from the agent at ``endpoint`` into ``rank``'s arena here.

    ``NEWEST`` for ``epoch`` is whichever is newest there.
    """

    from_rank: int
    endpoint: str
    open: bool = False
    """Make the arena first, with the layout that the other agent has: the rank's process is still to come."""


class Rebuild(SlotRequest, frozen=True):
    """Decode ``rank``'s slot from the parity and data of the other members, as far as they still have them."""

    group: Group


class GatherParts(WireStruct, frozen=True):
    """A slot that is put together from parts of another shape; see ``checkpoint.reshape.GatherReader``."""

    parts: tuple[tuple[int, int], ...]
    slices: dict[str, GlobalSlice]
    stages: int
    replica: int
    """The first of the ranks that need the same."""


class LoadDisk(SlotRequest, frozen=True):
    """Read a part of ``directory/run`` into ``rank``'s arena here."""

    directory: str
    run: str
    from_rank: int | None = None
    """Whose part; None: its own."""
    generation: int = 0
    """Of the part; 0: the newest."""
    group: Group = ()
    """One rank of each node that reads the same, to divide it; empty: this node reads all."""
    open: bool = False
    """Make the arena first, as the part was laid out: the rank's process is still to come."""
    gather: GatherParts | None = None
    """None: the slot is the part, or replicas' shares of it."""
    holders: Group = ()
    """Whose disks give it where this node's does not: another node that has the part, or the parity group of the rank,
    in which members without a node have nothing."""


class ConfigureDisk(WireMessage, frozen=True):
    """Write for this run from now on, in this shape."""

    config: DiskConfig


class SaveCheckpoint(WireMessage, frozen=True):
    """Write ``epoch`` of every rank here that has it, now: the job ends."""

    epoch: int
    copies: tuple[int, ...] = ()
    """And of these ranks of lost nodes, whose copies are kept here."""


class ConfigureParity(WireMessage, frozen=True):
    """How the job is protected from now on; no groups: not at all. What old groups have stays until it is complete."""

    groups: tuple[Group, ...]
    """All of the job: an epoch is only released once every group has a newer one."""
    every: int
    scheme: str = "xor"
    """As ``mainstay.recovery.protection_scheme.parse`` reads it."""
    extra_copies: Group = ()
    """Ranks of other nodes of whose newest slots this agent keeps a copy as well, and where their agents are."""


class Fence(WireMessage, frozen=True):
    """Refuse every generation below ``generation`` from now on, in memory as on the wire."""

    generation: int


class DiscardAfterEpoch(WireMessage, frozen=True):
    """Forget slots and parity of epochs after ``epoch``: the job went back to it."""

    epoch: int


class Drop(WireMessage, frozen=True):
    """Remove this node's arenas of the job."""


PeerRequest = Hello | GetInventory | PeerQuestion
"""What other nodes may ask: nothing that changes snapshots of a rank that trains."""
Request = (
    PeerRequest
    | OpenArena
    | Committed
    | Fetch
    | Rebuild
    | LoadDisk
    | ConfigureDisk
    | SaveCheckpoint
    | ConfigureParity
    | Fence
    | DiscardAfterEpoch
    | Drop
)


# Replies


class Welcome(WireMessage, frozen=True):
    node: str
    generation: int
    """The lowest generation that is not fenced."""


class Done(WireMessage, frozen=True):
    pass


class AgentFailure(WireMessage, frozen=True):
    kind: FailureKind
    reason: str


class ArenaInfo(WireMessage, frozen=True):
    path: str
    slots: int
    slot_bytes: int


class Inventory(WireMessage, frozen=True):
    node: str
    slots: tuple[SlotInfo, ...]
    parity: tuple[ParityInfo, ...]
    disk: tuple[PartFile, ...]
    rates: TransferRates
    degraded: tuple[str, ...]
    """What does not work as it should, in words for an operator. Empty is good."""
    scrub: ScrubState | None = None
    """None where nothing is scrubbed."""
    disk_parity: tuple[ParityFile, ...] = ()
    upload: UploadProgress | None = None
    """None where nothing is uploaded."""


class Fetched(WireMessage, frozen=True):
    """A slot came back into the arena, checked."""

    nbytes: int
    seconds: float
    digest: int
    """xxh3_64 of the slot."""


Reply = Welcome | Done | AgentFailure | ArenaInfo | Inventory | Fetched | PeerReply

# Made while there is one thread: msgspec 0.22 crashes where several threads are the first to decode a type.
REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
PEER_REQUESTS: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(PeerRequest)
REPLIES: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)
