"""The election server of a launcher: where other launchers ask it, one question a connection, answered at once.

Not the coordinator server: this one is open in every launcher, and is what decides who the coordinator is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from mainstay.recovery.job_tls import JobTls
from mainstay.recovery.protocol.coordinator_state import CoordinatorState
from mainstay.recovery.protocol.secure_streams import open_stream, serve_streams
from mainstay.recovery.protocol.wire import MessageStream, WireError, decoder_of
from mainstay.recovery.protocol.worker_messages import WorkerMessage

_ASK_SECONDS: Final = 2.0
"""A launcher that lives answers in milliseconds; one whose machine is gone must not hold up those who continue."""


class ElectionRequest(WorkerMessage, frozen=True):
    job: str
    term: int


class CoordinatorQuery(ElectionRequest, frozen=True):
    """Do you coordinate?"""


class VoteRequest(ElectionRequest, frozen=True):
    """May I coordinate, in this term? Granted once a term."""

    node: str


class CoordinatorAnnouncement(ElectionRequest, frozen=True):
    """A quorum has granted this term to ``node``; its coordinator server is at ``endpoint``."""

    node: str
    endpoint: str


class ElectionReply(WorkerMessage, frozen=True):
    """To any question."""

    term: int
    """The newest that this launcher knows of, or has promised."""
    coordinates: bool
    granted: bool = False
    generation: int = 0
    coordinator_state: CoordinatorState | None = None
    """With a vote: the newest coordinator state wins, whoever holds it."""
    reason: str = ""
    coordinator: str = ""
    """``host:port`` of the elected coordinator that it follows, or is; empty: none, or still the first one."""


class RequestStatus(StrEnum):
    """How asking went when there is no answer."""

    REFUSED = "refused"
    """The host answers, and no process listens there: that launcher has ended, for good."""
    SILENT = "silent"
    """Dead, stopped, or cut off: it is unknown which."""


_questions = decoder_of(ElectionRequest)
_answers = msgspec.msgpack.Decoder(ElectionReply)


async def send_election_request(
    election_endpoint: str, question: ElectionRequest, tls: JobTls, seconds: float = _ASK_SECONDS
) -> ElectionReply | RequestStatus:
    """Put one question to the launcher at ``election_endpoint``; never raises for what the other side does."""
    host, _, port = election_endpoint.rpartition(":")
    if not port.isdigit():
        return RequestStatus.SILENT
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await open_stream(host, int(port), tls)
    except ConnectionRefusedError:
        return RequestStatus.REFUSED
    except (OSError, TimeoutError):
        return RequestStatus.SILENT
    stream = MessageStream(reader, writer, _answers)
    stream.send(question)
    try:
        async with asyncio.timeout(seconds):
            return await stream.receive() or RequestStatus.SILENT
    except (WireError, TimeoutError):
        return RequestStatus.SILENT
    finally:
        stream.close()


Answer = Callable[[ElectionRequest], ElectionReply]


async def serve_elections(host: str, port: int, tls: JobTls, job: str, answer: Answer) -> asyncio.Server:
    """Listen; ``answer`` is called with each question of a launcher of ``job``.

    Raises:
        OSError: this node cannot listen there.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = MessageStream(reader, writer, _questions)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                question = await stream.receive()
            if question is not None and question.job == job:
                stream.send(answer(question))
                await stream.drain()
        except (WireError, TimeoutError):
            return  # whoever it was has to ask again
        finally:
            stream.close()

    return await serve_streams(serve, host, port, tls)
