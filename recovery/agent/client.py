"""How ranks and launchers talk to their node's agent: blocking calls over its Unix socket, safe from any thread.

Every call has a time-out; an agent that was restarted meanwhile is connected to again. Errors: see ``agent.errors``
(``AgentError`` > ``AgentGoneError``, ``ProtocolError``, ``RefusedError`` and its kinds).
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from mainstay.recovery.agent.errors import AgentError, AgentGoneError, ProtocolError, refusal
from mainstay.recovery.agent.framing import receive, send
from mainstay.recovery.agent.messages import (
    REPLIES,
    AgentFailure,
    ArenaInfo,
    Committed,
    ConfigureDisk,
    ConfigureParity,
    DiscardAfterEpoch,
    Done,
    Drop,
    Fence,
    Fetch,
    Fetched,
    GetInventory,
    Group,
    Hello,
    Inventory,
    LoadDisk,
    OpenArena,
    Rebuild,
    SaveCheckpoint,
    Welcome,
)
from mainstay.recovery.agent.peer_messages import WireMessage
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.memory.layout import Layout

CALL_SECONDS: Final = 10.0
"""For calls that move no bytes."""
TRANSFER_SECONDS: Final = 600.0
"""For calls that bring a slot back, and for the first touch of an arena's pages."""
_MAX_IDLE: Final = 4

logger = logging.getLogger("mainstay.agent")
R = TypeVar("R", bound=WireMessage)


class AgentClient:
    """One process's way to its agent. ``generation`` may be raised as the job regroups; ``fence`` raises it itself."""

    def __init__(self, path: Path | str, *, job: str, generation: int, timeout: float = CALL_SECONDS) -> None:
        self.path = Path(path)
        self.generation = generation
        self._job = job
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[tuple[socket.socket, int]] = []

    def open_arena(self, rank: int, layout: Layout) -> ArenaInfo:
        """Make (or find again) the arena of ``rank``. The same layout keeps what is in it; another one replaces it.

        Raises:
            NoMemoryError: /dev/shm is too small; names the bytes.
        """
        return self._call(OpenArena(rank=rank, layout=layout.to_json()), ArenaInfo, TRANSFER_SECONDS)

    def committed(self, rank: int, epoch: int, generation: int, slot: int) -> None:
        """Tell the agent of a fresh slot. One-way and never fatal: the agent also finds it on its own."""
        try:
            with self._connection() as sock:
                send(sock, Committed(rank=rank, epoch=epoch, generation=generation, slot=slot))
        except AgentError as error:
            logger.warning("the agent did not hear of rank %d epoch %d: %s", rank, epoch, error)

    def inventory(self) -> Inventory:
        """What this node holds. Freshly copied slots are verified first, so that ``verified`` is up to date."""
        return self._call(GetInventory(), Inventory, TRANSFER_SECONDS)

    def fetch(self, rank: int, epoch: int, from_rank: int, endpoint: str, *, open_first: bool = False) -> Fetched:
        """Pull a slot from a peer agent (``host:port``) into the arena of local ``rank``, which must be open.

        Args:
            rank: whose arena.
            epoch: which step; ``messages.NEWEST``: whichever is newest there.
            from_rank: whose slot.
            endpoint: of the agent that has it.
            open_first: make the arena, with the layout of the one there.

        Raises:
            NoSuchSlotError, CorruptError, TornError, PeerError, StaleGenerationError.
        """
        order = Fetch(rank=rank, epoch=epoch, from_rank=from_rank, endpoint=endpoint, open=open_first)
        return self._call(order, Fetched, TRANSFER_SECONDS)

    def rebuild(self, rank: int, epoch: int, group: Group) -> Fetched:
        """Decode the slot of ``rank`` from the group's parity into its arena here, which must be open.

        Args:
            rank: the lost rank, which is named in ``group``.
            epoch: one that the survivors' inventories list as parity.
            group: the members in the order in which parity was configured; as many as the scheme tolerates may be gone.

        Raises:
            NoSuchSlotError, CorruptError, TornError, PeerError, StaleGenerationError.
        """
        return self._call(Rebuild(rank=rank, epoch=epoch, group=group), Fetched, TRANSFER_SECONDS)

    def load(self, request: LoadDisk) -> Fetched:
        """Read a part of a step into the arena of a rank, unless it was read before.

        Raises:
            NoSuchSlotError, CorruptError.
        """
        return self._call(request, Fetched, TRANSFER_SECONDS)

    def configure_disk(self, config: DiskConfig) -> None:
        """Write for this run, in this shape, from now on."""
        self._call(ConfigureDisk(config=config), Done)

    def save_disk(self, epoch: int, copies: tuple[int, ...] = ()) -> None:
        """Have every rank's slot of ``epoch`` written now, and the ``copies`` of lost ranks' kept here: the job ends.

        Raises:
            NoSuchSlotError: one could not be written; says why.
        """
        self._call(SaveCheckpoint(epoch=epoch, copies=copies), Done, TRANSFER_SECONDS)

    def configure_parity(
        self, groups: tuple[Group, ...], every: int, scheme: str = "xor", extra_copies: Group = ()
    ) -> None:
        """Protect epochs divisible by ``every`` within each of the job's groups; no groups end it.

        Args:
            groups: of the whole job; this node's ranks may stand in several of them.
            every: at least 1 with a group.
            scheme: as ``mainstay.recovery.protection_scheme.parse`` reads it.
            extra_copies: ranks of other nodes of whose newest slots copies are also kept here.
        """
        self._call(ConfigureParity(groups=groups, every=every, scheme=scheme, extra_copies=extra_copies), Done)

    def fence(self, generation: int) -> None:
        """Refuse all generations below ``generation``, on the wire and in the arenas; this client moves to it."""
        self.generation = max(self.generation, generation)
        self._call(Fence(generation=generation), Done)

    def discard_after(self, epoch: int) -> None:
        """Forget this node's slots and parity of epochs after ``epoch``. Only while no rank of the node writes."""
        self._call(DiscardAfterEpoch(epoch=epoch), Done)

    def drop(self) -> None:
        """Remove the job's arenas on this node."""
        self._call(Drop(), Done)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for sock, _ in idle:
            sock.close()

    # Connections

    def _call(self, request: WireMessage, answer: type[R], timeout: float | None = None) -> R:
        with self._connection() as sock:
            sock.settimeout(max(timeout or 0, self._timeout))
            return converse(sock, request, answer)

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """A connection of this call's own; kept for the next call unless it failed."""
        hello = Hello(job=self._job, generation=self.generation)
        sock = self._take() or greet(self.path, hello, self._timeout)[0]
        try:
            sock.settimeout(self._timeout)
            yield sock
        except BaseException:  # boundary: a connection in an unknown state is never used again
            sock.close()
            raise
        self._keep(sock)

    def _take(self) -> socket.socket | None:
        """An idle connection of the present generation whose other side has not closed it."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                sock, generation = self._idle.pop()
            if generation == self.generation and _quiet(sock):
                return sock
            sock.close()

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append((sock, self.generation))
                return
        sock.close()


def greet(path: Path | str, hello: Hello, timeout: float) -> tuple[socket.socket, Welcome]:
    """Connect to the agent at a Unix socket; whoever asked closes the connection.

    Raises:
        AgentGoneError, ProtocolError, RefusedError: see ``converse``.
    """
    with ExitStack() as stack:
        sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.settimeout(timeout)
        try:
            sock.connect(str(path))
        except OSError as error:
            raise AgentGoneError(f"no agent answers at {path}: {error}") from error
        welcome = converse(sock, hello, Welcome)
        stack.pop_all()  # it stays open
    return sock, welcome


def converse(sock: socket.socket, request: WireMessage, answer: type[R], endpoint: str = "") -> R:
    """Send ``request`` and read its answer; raw bytes may follow it. ``endpoint`` is named in errors.

    Raises:
        AgentGoneError: closed without a word, as an agent does after ``Hello`` when the token is wrong.
        RefusedError: what the agent says, for instance that the generation was fenced.
    """
    send(sock, request)
    reply = receive(sock, REPLIES)
    if isinstance(reply, AgentFailure):
        raise refusal(reply.kind, f"{endpoint}: {reply.reason}" if endpoint else reply.reason)
    if not isinstance(reply, answer):
        who = endpoint or "the agent"
        raise ProtocolError(f"{who} answered {type(request).__name__} with {type(reply).__name__}")
    return reply


def _quiet(sock: socket.socket) -> bool:
    """Whether an idle connection still stands: nothing to read, not closed."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return not poller.poll(0)
