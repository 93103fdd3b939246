"""What a call to a snapshot agent may raise.

AgentError(RuntimeError)
├── AgentGoneError           no agent answers at the socket, the connection broke, or the time-out passed
├── ProtocolError            the other side does not speak this protocol (or the token is wrong: it just closes)
└── RefusedError             the agent answered no; ``kind`` says why in one word
    ├── StaleGenerationError     this generation has been fenced
    ├── NoSuchSlotError          neither slot, parity nor file of that rank and epoch
    ├── NoMemoryError            /dev/shm (or the disk) is too small; names the bytes
    ├── CorruptError             a checksum does not hold
    ├── TornError                the slot was overwritten while it was read
    └── PeerError                another agent could not be reached or refused
"""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Why an agent refuses; travels in ``messages.Failure``."""

    STALE_GENERATION = "stale_generation"
    NO_SUCH_SLOT = "no_such_slot"
    NO_MEMORY = "no_memory"
    CORRUPT = "corrupt"
    DAMAGED = "damaged"
    TORN = "torn"
    PEER = "peer"
    BAD_REQUEST = "bad_request"
    INTERNAL = "internal"


class AgentError(RuntimeError):
    """Something about the snapshot agent failed; the message names which agent and what."""

    kind = FailureKind.PEER
    """As what an agent passes it on to who asked."""


class AgentGoneError(AgentError):
    pass


class ProtocolError(AgentError):
    pass


class RefusedError(AgentError):
    """The agent said no."""

    kind = FailureKind.INTERNAL

    def __init__(self, reason: str, kind: FailureKind | None = None) -> None:
        super().__init__(reason)
        self.kind = kind or type(self).kind


class StaleGenerationError(RefusedError):
    kind = FailureKind.STALE_GENERATION


class NoSuchSlotError(RefusedError):
    kind = FailureKind.NO_SUCH_SLOT


class NoMemoryError(RefusedError):
    kind = FailureKind.NO_MEMORY


class CorruptError(RefusedError):
    kind = FailureKind.CORRUPT


class TornError(RefusedError):
    kind = FailureKind.TORN


class PeerError(RefusedError):
    kind = FailureKind.PEER


_BY_KIND = {cls.kind: cls for cls in RefusedError.__subclasses__()} | {FailureKind.DAMAGED: CorruptError}


def refusal(kind: FailureKind, reason: str) -> RefusedError:
    """The exception that stands for a ``messages.Failure``."""
    return _BY_KIND.get(kind, RefusedError)(reason, kind)
