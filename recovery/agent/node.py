"""What one agent has, in one hand: its arenas, its parity rows, its measurements, and what it shows to its peers."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from mainstay.recovery.agent.bulk import BulkSender
from mainstay.recovery.agent.framing import send
from mainstay.recovery.agent.parity_store import ParityStore
from mainstay.recovery.agent.peer import Credentials, Peer, open_peer
from mainstay.recovery.agent.peer_messages import TransferHeader, TransferTail
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.agent.transfer_rates import TransferRateMeter
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.upload_state import UploadRequest
from mainstay.recovery.job_tls import JobTls


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    job: str
    node: str
    tls: JobTls
    directory: Path
    parity_every: int = 0
    disk_every: int = 0
    disk_keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    """Two steps at least: the newest, and one for when that is not complete on every rank."""
    checkpoint_dir: Path | None = None
    upload: UploadRequest | None = None
    scrub_rate: float = 200e6
    """Bytes a second that scrubbing digests at most: one part in a hundred of what a core could; 0: no limit."""
    scrub_pause: float = 30.0
    """Seconds between two passes; 0: no scrubbing."""
    encrypts: bool = True
    """See ``AgentConnection``."""
    drill_seconds: float = 300.0
    """Seconds between two drills; 0: none."""

    @property
    def slots(self) -> int:
        """Two keep a crash harmless; a third one carries what parity or the disk still needs."""
        return 3 if self.parity_every or self.disk_every else 2


@dataclass(frozen=True, slots=True)
class AgentNode:
    settings: AgentSettings
    store: ArenaStore
    rows: ParityStore
    meter: TransferRateMeter = field(default_factory=TransferRateMeter)

    def peer(self, endpoint: str, generation: int) -> AbstractContextManager[Peer]:
        """A connection to another agent on behalf of ``generation``, or of the lowest one alive if that is later."""
        alive = max(generation, self.store.config.fence)
        return open_peer(endpoint, Credentials(self.settings.tls, self.settings.job, alive))


@dataclass(slots=True)
class AgentConnection:
    """Who asks: one connection."""

    sock: socket.socket
    generation: int
    encrypts: bool
    """Whether snapshots are encrypted on their way; else they are authenticated."""
    streaming: bool = False
    """Raw bytes are under way: an error can only be told by closing the connection."""

    def open_bulk(self) -> BulkSender:
        """Return what sends the raw bytes of one transfer."""
        return BulkSender(self.sock, encrypted=self.encrypts)

    def begin_transfer(self, header: TransferHeader) -> None:
        """Send what stands before the raw bytes."""
        self.streaming = True
        send(self.sock, header)

    def end_transfer(self, bulk: BulkSender, problem: str) -> None:
        """Send what follows them: with a ``problem`` they are worthless."""
        send(self.sock, TransferTail(ok=not problem, reason=problem, tags=bulk.tags()))
        self.streaming = False
