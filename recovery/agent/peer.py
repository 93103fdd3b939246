"""One connection to another node's agent, for as long as one transfer takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from mainstay.recovery.agent.bulk import BulkReceiver
from mainstay.recovery.agent.client import converse
from mainstay.recovery.agent.errors import AgentGoneError, ProtocolError, TornError
from mainstay.recovery.agent.framing import parse_endpoint, receive
from mainstay.recovery.agent.messages import REPLIES, Hello, Welcome
from mainstay.recovery.agent.peer_messages import TransferHeader, TransferTail, WireMessage
from mainstay.recovery.job_tls import JobTls, refusal
from mainstay.recovery.memory.digest import Bytes

CONNECT_SECONDS: Final = 2.0
STALL_SECONDS: Final = 10.0
"""A peer that sends nothing for this long is taken for dead."""

M = TypeVar("M", bound=WireMessage)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What an agent shows to its peers. ``generation`` is that of the order which it carries out."""

    tls: JobTls
    job: str
    generation: int


@contextmanager
def open_peer(endpoint: str, credentials: Credentials) -> Iterator[Peer]:
    """Connect to the agent at ``endpoint``. Every error names it.

    Raises:
        AgentGoneError, ProtocolError, RefusedError: it does not answer, or not to these credentials.
        ValueError: ``endpoint`` is none.
    """
    host, port = parse_endpoint(endpoint)
    try:
        with closing(socket.create_connection((host, port), CONNECT_SECONDS)) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(STALL_SECONDS)
            secured = credentials.tls.client.wrap_socket(plain)  # takes the descriptor over
    except OSError as error:
        raise AgentGoneError(f"no agent answers at {endpoint}: {refusal(error)}") from error
    with closing(secured):
        converse(secured, Hello(job=credentials.job, generation=credentials.generation), Welcome)
        yield Peer(endpoint, secured)


class Peer:
    """The agent at ``endpoint``, over a connection that is up; see ``open_peer``."""

    def __init__(self, endpoint: str, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self._socket = sock

    def call(self, request: WireMessage, answer: type[M]) -> M:
        """Send ``request`` and read its answer; raw bytes may follow it."""
        reply = converse(self._socket, request, answer, self.endpoint)
        if isinstance(reply, TransferHeader):
            self._bulk = BulkReceiver(self._socket, reply.seal)
        return reply

    def receive_into(self, out: Bytes) -> None:
        """Fill ``out`` (uint8) with the raw bytes that follow; they count once ``finish`` has returned."""
        self._bulk.receive_into(out)

    def finish(self) -> None:
        """Read the ``TransferTail``.

        Raises:
            TornError: the bytes were overwritten while they were sent.
            CorruptError: they were changed on the way.
        """
        reply = receive(self._socket, REPLIES)
        if not isinstance(reply, TransferTail):
            raise ProtocolError(f"{self.endpoint} ended its bytes with {type(reply).__name__}")
        if not reply.ok:
            raise TornError(f"{self.endpoint}: {reply.reason}")
        self._bulk.finish(reply.tags)
