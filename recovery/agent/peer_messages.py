"""What agents ask each other, and the base of every message: tagged, checked while decoding, no pickle.

After a ``TransferHeader`` exactly ``nbytes`` raw bytes follow, then a ``TransferTail``: whether the bytes were still
committed when the last of them left.
"""

from __future__ import annotations

from typing import Final

import msgspec


class WireMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag=True):
    """Base of everything on the wire; the tag is the class name."""


class WireStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts of messages."""


class DecodeSource(WireStruct, frozen=True):
    """A member of whose slot or parity row a decode is made."""

    place: int
    endpoint: str


class SlotRequest(WireMessage, frozen=True):
    """Base of what is about ``rank``'s slot of ``epoch``."""

    rank: int
    epoch: int


class ReadHead(SlotRequest, frozen=True):
    """What is known about the slot."""

    check: bool = False
    """Digest it again; a damaged one is not there."""


class ReadSlot(SlotRequest, frozen=True):
    """``nbytes`` of the committed slot from ``offset``, cut at its end."""

    offset: int
    nbytes: int


class RowRequest(WireMessage, frozen=True):
    """Base of what is about the parity rows (or copies) that a member of a group keeps for ``epoch``."""

    ranks: tuple[int, ...]
    """One of each member, in the order in which the rows were encoded."""
    place: int
    """Which member."""
    epoch: int


class ReadRow(RowRequest, frozen=True):
    """Do the rows (or copies) exist?"""

    check: bool = False
    """Digest them again; damaged ones are not there."""


class ReadParity(RowRequest, frozen=True):
    """The first ``nbytes`` of the row of codeword ``word``."""

    word: int
    nbytes: int


class ReadProtected(SlotRequest, frozen=True):
    """Has ``rank``'s group all that protects ``epoch``?"""

    generation: int = 0
    """Under which the asker's groups were configured: what belongs to earlier groups does not count."""


class ReadLayout(WireMessage, frozen=True):
    """How ``rank``'s slots are laid out, for whoever keeps a copy."""

    rank: int


class Decode(RowRequest, frozen=True):
    """Compute ``rank``'s stripe in codeword ``word`` from your row of it and the sources' blocks."""

    rank: int
    word: int
    sources: tuple[DecodeSource, ...]
    """Who gives the other blocks: one fewer than a codeword has data."""


class ParityMismatch(RowRequest, frozen=True):
    """A drill has shown that the rows are not those of the data: make them again."""


PENDING: Final = -1
"""As one of ``CheckpointTensors.states``: it is still being read."""
ABSENT: Final = -2
"""Likewise: it will not come from this node."""


class CheckpointStep(WireStruct, frozen=True):
    """The part of the model in a step that replicas read."""

    run: str
    epoch: int
    cut: tuple[int, ...]
    """As ``MeshShape.cut`` of the rank whose part is read."""


class ReadCheckpointTensors(WireMessage, frozen=True):
    """Tensors that this node reads from disk, for a node that reads others; see ``checkpoint_exchange``."""

    step: CheckpointStep
    tensors: tuple[tuple[str, int], ...]
    """Name, and digest of its ``Origin``."""


class LoadForRebuild(SlotRequest, frozen=True):
    """Read what this node's disk has of a rank in a step into memory, where a rebuild finds it; asked until it is."""

    run: str
    ranks: tuple[int, ...] = ()
    """Of the parity group whose rows the rank keeps; empty: its part alone."""


class LoadedForRebuild(WireMessage, frozen=True):
    """Answers ``LoadForRebuild``."""

    pending: bool
    """It is still being read."""
    problems: tuple[str, ...] = ()
    """What is missing or damaged, by file."""


class Ack(WireMessage, frozen=True):
    """Answers ``ParityMismatch``."""


class Head(WireMessage, frozen=True):
    """Answers ``ReadHead``: whether the slot is there and verified; if not, ``newest`` tells if it will still come."""

    present: bool
    newest: int
    """Newest committed epoch of the rank here, or -1."""
    slot_nbytes: int
    digest: int
    layout_digest: int = 0
    generation: int = 0


class TransferSeal(WireStruct, frozen=True):
    """How the raw bytes of a transfer are protected; see ``bulk``."""

    key: bytes
    encrypted: bool
    """Else only authenticated."""


class TransferHeader(WireMessage, frozen=True):
    """Base of what stands before raw bytes."""

    seal: TransferSeal


class SlotBytesHeader(TransferHeader, frozen=True):
    """Base of what stands before ``nbytes`` raw bytes of a slot; the rest is about the whole slot."""

    generation: int
    layout_digest: int
    slot_nbytes: int
    digest: int
    nbytes: int


class SlotHeader(SlotBytesHeader, frozen=True):
    """The bytes that ``ReadSlot`` asks for follow."""


class StripeHeader(SlotBytesHeader, frozen=True):
    """Bytes of the lost slot, from ``offset``, follow."""

    offset: int


class CheckpointTensors(TransferHeader, frozen=True):
    """Answers ``ReadCheckpointTensors``: the bytes of those tensors that are there follow, one after the other."""

    states: tuple[int, ...]
    """Of each tensor the digest of its bytes; or ``PENDING`` or ``ABSENT``."""
    nbytes: int


class RowState(WireMessage, frozen=True):
    present: bool
    digests: tuple[int, ...]
    """Of the members' slots that went into the rows; of copies: 0 for members of which none is kept here."""
    parity: int = 0
    """Rows a codeword; 0 for copies."""


class RowHeader(TransferHeader, frozen=True):
    """``nbytes`` raw bytes of a row follow, then a ``TransferTail``."""

    digests: tuple[int, ...]
    nbytes: int


class ProtectedState(WireMessage, frozen=True):
    """Answers ``ReadProtected``. Neither: it may still come."""

    complete: bool
    given_up: bool


class LayoutText(WireMessage, frozen=True):
    layout: bytes
    """``Layout.to_json()``."""


class TransferTail(WireMessage, frozen=True):
    """After raw bytes: were they still the committed ones when the last left?"""

    ok: bool
    reason: str
    tags: tuple[bytes, ...]
    """Of the bytes, one a segment."""


PeerQuestion = (
    ReadHead
    | ReadSlot
    | ReadRow
    | ReadParity
    | ReadProtected
    | ReadLayout
    | ReadCheckpointTensors
    | LoadForRebuild
    | Decode
    | ParityMismatch
)
PeerReply = (
    Head
    | SlotHeader
    | StripeHeader
    | CheckpointTensors
    | LoadedForRebuild
    | RowState
    | RowHeader
    | ProtectedState
    | LayoutText
    | Ack
    | TransferTail
)
