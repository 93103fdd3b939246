"""The door of a launcher: where other launchers ask it, one question a connection, answered at once.

Not the coordinator's reception: this one is open in every launcher, and is what decides who the coordinator is.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from recovery.launcher.legacy import Testament
from recovery.launcher.wire import Stream, WireError
from recovery.launcher.worker_messages import Message

_ASK_SECONDS: Final = 2.0
"""A launcher that lives answers in milliseconds; one whose machine is gone must not hold up those who go on."""


class Question(Message, frozen=True):
    token: str
    job: str
    term: int


class Inquiry(Question, frozen=True):
    """Do you coordinate?"""


class Candidacy(Question, frozen=True):
    """May I coordinate, in this term? Granted once a term."""

    node: str


class Announcement(Question, frozen=True):
    """A quorum has granted this term to ``node``; its reception is at ``endpoint``."""

    node: str
    endpoint: str


class Answer(Message, frozen=True):
    """To any question."""

    term: int
    """The newest that this launcher knows of, or has promised."""
    coordinates: bool
    granted: bool = False
    generation: int = 0
    testament: Testament | None = None
    """With a vote: the newest testament wins, whoever holds it."""
    reason: str = ""
    coordinator: str = ""
    """``host:port`` of the elected coordinator that it follows, or is; empty: none, or still the first one."""


class Reached(StrEnum):
    """How asking went when there is no answer."""

    REFUSED = "refused"
    """The machine answers, and nobody listens there: that launcher has ended, for good."""
    SILENT = "silent"
    """Dead, stopped, or cut off: nobody can tell."""


_questions: msgspec.msgpack.Decoder[Inquiry | Candidacy | Announcement] = msgspec.msgpack.Decoder(
    Inquiry | Candidacy | Announcement
)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


async def ask(door: str, question: Question, seconds: float = _ASK_SECONDS) -> Answer | Reached:
    """Put one question to the launcher at ``door``; never raises for what the other side does."""
    host, _, port = door.rpartition(":")
    if not port.isdigit():
        return Reached.SILENT
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return Reached.REFUSED
    except (OSError, TimeoutError):
        return Reached.SILENT
    stream = Stream(reader, writer, _answers)
    stream.send(question)
    try:
        async with asyncio.timeout(seconds):
            return await stream.receive() or Reached.SILENT
    except (WireError, TimeoutError):
        return Reached.SILENT
    finally:
        stream.close()


class Door:
    """One a launcher. ``answer`` is called with each question that shows the job's token."""

    def __init__(self, token: str, job: str, answer: Callable[[Question], Answer]) -> None:
        self._token = token
        self._job = job
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port.

        Raises:
            OSError: this node cannot listen there.
        """
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream(reader, writer, _questions)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                question = await stream.receive()
            if question is not None and self._trusts(question):
                stream.send(self._answer(question))
                await stream.drain()
        except (WireError, TimeoutError):
            return  # whoever it was has to ask again
        finally:
            stream.close()

    def _trusts(self, question: Question) -> bool:
        return hmac.compare_digest(question.token, self._token) and question.job == self._job
