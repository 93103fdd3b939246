"""A launcher's line to the coordinator: found, introduced to, listened to; and to the next one, when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from mainstay.recovery.controller.coordinator_lease import LEASE
from mainstay.recovery.job_tls import refusal
from mainstay.recovery.membership.coordinator_election import CoordinatorElection, CoordinatorLoss, Endpoint
from mainstay.recovery.node.rank_report_cache import RankReportCache
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import (
    CoordinatorHeartbeat,
    FromLauncher,
    LauncherHeartbeat,
    LauncherHello,
    ReplicateState,
    StopJob,
    ToLauncher,
)
from mainstay.recovery.protocol.secure_streams import open_stream
from mainstay.recovery.protocol.wire import MessageStream, WireError, to_launcher

log = logging.getLogger("mainstay.launcher")

_RETRY_SECONDS: Final = 0.1


@dataclass(eq=False)
class CoordinatorClient:
    """One a launcher. ``serve`` returns when the job is over for this node."""

    _options: RunOptions
    _coordinator: Endpoint
    """Host and port of the first one."""
    _election: CoordinatorElection
    """Finds the next ones."""
    _: KW_ONLY
    at_home: Callable[[], bool]
    """Whether the coordinator is in this process, where no silence can mean anything."""
    hello: Callable[[str], LauncherHello]
    """Returns what this node currently reports; its argument is this launcher's election endpoint."""
    book: RankReportCache
    """The reports that a coordinator receives when it takes over."""
    obey: Callable[[ToLauncher], Awaitable[None]]
    """Carries an order out."""
    suspend: Callable[[], Awaitable[None]]
    """Called when there is no coordinator: nothing here may train until another one allows it."""
    done: Callable[[asyncio.Task[None]], None]
    """Hears of every task that ends."""

    def __post_init__(self) -> None:
        self._election_endpoint = ""
        self._stream: MessageStream[ToLauncher] | None = None
        self._stop: asyncio.Future[StopJob] = asyncio.get_running_loop().create_future()
        self._heard_at = 0.0
        self._leased_until = 0.0
        self._answers: dict[int, float] = {}
        """Beat -> when this launcher answered it."""

    async def serve(self) -> StopJob:
        """Follow the coordinator, and whoever comes after it, until one says stop or there is none."""
        following = asyncio.create_task(self._follow_all())
        following.add_done_callback(self.done)  # a node that hears no orders would hold up the whole job
        try:
            return await self._stop
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following

    def stop(self, exit_code: int, reason: str) -> None:
        """End this node's part of the job."""
        if not self._stop.done():
            self._stop.set_result(StopJob(exit_code=exit_code, reason=reason))

    def send(self, message: FromLauncher) -> None:
        """Say something to the coordinator, if there is one."""
        if self._stream is not None:
            self._stream.send(message)

    def close(self) -> None:
        self._leave()
        self._election.close()

    async def _follow_all(self) -> None:
        """One coordinator after the other."""
        patience, again = self._options.join_seconds, False
        while not self._stop.done():
            try:
                lost = await self._follow(patience, again=again)
            except ConnectionError as error:
                lost = CoordinatorLoss(str(error), self._heard_at)
            self._leave()
            if self._stop.done():
                return
            log.warning("%s", lost.reason)
            await self.suspend()
            found = await self._election.next(lost)
            if isinstance(found, StopJob):
                self.stop(found.exit_code, found.reason)
                return
            self._coordinator = found
            patience, again = self._options.node_seconds, True

    def _leave(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    async def _follow(self, patience: float, *, again: bool) -> CoordinatorLoss:
        """Do what one coordinator says, until it is lost."""
        self._stream = stream = await self._connect(patience, again=again)
        self._heard_at = now = asyncio.get_running_loop().time()
        self._leased_until = now + LEASE * self._options.node_seconds
        self._answers.clear()
        orders: asyncio.Queue[ToLauncher] = asyncio.Queue()
        receiving = asyncio.create_task(self._receive(stream, orders))
        obeying = asyncio.create_task(self._carry_out(orders))
        try:
            reason = await self._watch(receiving, obeying)
        finally:
            for task in (receiving, obeying):
                task.cancel()
            await asyncio.gather(receiving, obeying, return_exceptions=True)
        return CoordinatorLoss(reason, self._heard_at)

    async def _carry_out(self, orders: asyncio.Queue[ToLauncher]) -> str:
        """One order after the other; some take seconds, and beats are answered meanwhile."""
        while True:
            await self.obey(await orders.get())

    async def _watch(self, receiving: asyncio.Task[str], obeying: asyncio.Task[str]) -> str:
        """Why the coordinator counts as lost; raises what an order raised."""
        while True:
            await asyncio.wait(
                {receiving, obeying}, timeout=self._options.node_seconds / 20, return_when=asyncio.FIRST_COMPLETED
            )
            if obeying.done():
                return obeying.result()
            if receiving.done():
                return receiving.result()
            if self._election.deposed:
                return "another launcher was elected"
            if not self.at_home() and asyncio.get_running_loop().time() > self._leased_until:
                silence = asyncio.get_running_loop().time() - self._heard_at
                return f"nothing heard from the coordinator for {silence:.1f} s"

    async def _receive(self, stream: MessageStream[ToLauncher], orders: asyncio.Queue[ToLauncher]) -> str:
        while True:
            try:
                message = await stream.receive()
            except WireError as error:
                return f"the coordinator sent what cannot be read: {error}"
            if message is None:
                return "the coordinator has closed the connection: it ended, or refused this node"
            self._heard_at = asyncio.get_running_loop().time()
            if isinstance(message, CoordinatorHeartbeat):
                self._answer(stream, message)
            elif isinstance(message, ReplicateState):
                self._election.load_state(message)
            elif isinstance(message, StopJob):
                await self.obey(message)  # before all other work
            else:
                orders.put_nowait(message)

    def _answer(self, stream: MessageStream[ToLauncher], message: CoordinatorHeartbeat) -> None:
        """Say that this launcher lives; it may continue for as long as the coordinator counts on that."""
        answered = self._answers.get(message.heard)
        if answered is not None:
            self._leased_until = max(self._leased_until, answered + LEASE * self._options.node_seconds)
            self._answers = {beat: at for beat, at in self._answers.items() if beat > message.heard}
        self._answers[message.sequence] = self._heard_at
        stream.send(LauncherHeartbeat(sequence=message.sequence))

    async def _connect(self, patience: float, *, again: bool) -> MessageStream[ToLauncher]:
        """Find the coordinator, however late it comes within ``patience``, and introduce this node.

        Raises:
            ConnectionError: it is not there.
        """
        host, port = self._coordinator
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                reader, writer = await open_stream(host, port, self._options.control_tls)
                break
            except ssl.SSLCertVerificationError as error:
                raise ConnectionError(f"{host}:{port} is refused: {refusal(error)}") from error
            except OSError as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise ConnectionError(f"no coordinator answers at {host}:{port}: {error}") from error
                await asyncio.sleep(_RETRY_SECONDS)
        if not self._election_endpoint:
            self._election_endpoint = await self._election.open(writer.get_extra_info("sockname")[0])
        stream = MessageStream(reader, writer, to_launcher)
        stream.send(self.hello(self._election_endpoint))
        if again:
            stream.send(self.book.reports())
        return stream
