"""The server that launchers connect to: it reads a hello and messages, and reports a launcher lost when they stop."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING

from mainstay.recovery.launcher.coordinator_election import EXIT_LOST
from mainstay.recovery.launcher.coordinator_lease import LEASE
from mainstay.recovery.launcher.membership import NodeMember, misfit
from mainstay.recovery.launcher.messages import (
    FromLauncher,
    LauncherHeartbeat,
    LauncherHello,
    LauncherWelcome,
    NodeChecked,
    StopJob,
)
from mainstay.recovery.launcher.reporter import JOB_SECONDS
from mainstay.recovery.launcher.wire import MessageStream, WireError, coordinator_side

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator

log = logging.getLogger("mainstay.coordinator")


class CoordinatorServer:
    """One a coordinator. ``open`` listens until ``close``."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._accept, host, port)
        self._c.spawn(self._watch())
        self._c.spawn(self._wait_for_nodes())
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def _lease(self) -> float:
        return LEASE * self._c.options.node_seconds

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._c.spawn(self._listen(coordinator_side(reader, writer)))

    async def _listen(self, stream: MessageStream[FromLauncher]) -> None:
        """One launcher's connection, from its hello to its end."""
        node: NodeMember | None = None
        try:
            async with asyncio.timeout(10.0):
                hello = await stream.receive()
            node = self._admit(hello, stream)
            while node is not None and (message := await stream.receive()) is not None:
                node.heard_at = asyncio.get_running_loop().time()
                if isinstance(message, LauncherHeartbeat):
                    node.renew(message.sequence, self._lease)
                elif isinstance(message, NodeChecked):
                    self._c.admission.preflight.answer(message)
                else:
                    await self._c.handle_message(node, message)
        except (WireError, TimeoutError) as error:
            log.warning("a connection was closed: %s", error)
        finally:
            stream.close()
            if node is not None:
                self._c.lose_node(node, "its launcher's connection broke")

    def _admit(self, hello: FromLauncher | None, stream: MessageStream[FromLauncher]) -> NodeMember | None:
        if not isinstance(hello, LauncherHello) or not hmac.compare_digest(hello.token, self._c.options.token):
            return None
        successor = self._c.inheritance
        problem = successor.misfit(hello) if successor else misfit(hello, self._c.options, self._c.members)
        if problem:
            log.warning("node %s was turned away: %s", hello.node, problem)
            code = EXIT_LOST if successor else 2
            stream.send(StopJob(exit_code=code, reason=f"the coordinator turned this node away: {problem}"))
            return None
        now = asyncio.get_running_loop().time()
        node = NodeMember(hello, stream, now, hello.agent_endpoint, hello.standbys, leased_until=now + self._lease)
        self._c.members.nodes[hello.node] = node
        node.send(LauncherWelcome(world_size=self._c.options.world_size, run=self._c.disk.run))
        self._c.spawn(self._beat(node))
        if self._c.members.ranks and not self._c.inheriting:
            self._c.admission.rejoin(node)
        elif successor is None and self._c.members.complete:
            self._c.admission.open()
        return node

    async def _beat(self, node: NodeMember) -> None:
        while node.alive:
            node.beat(asyncio.get_running_loop().time())
            await asyncio.sleep(self._c.options.node_seconds / 10)

    async def _watch(self) -> None:
        """Silence is loss; and the job is reported every now and then."""
        while True:
            await asyncio.sleep(min(JOB_SECONDS, self._c.options.node_seconds / 10))
            if not await self._c.lease.check():
                continue  # it slept, or is cut off: what it has not heard says nothing of the others
            limit = asyncio.get_running_loop().time() - self._c.options.node_seconds
            for node in self._c.members.alive():
                if node.heard_at < limit and node.name != self._c.options.node:
                    self._c.lose_node(node, f"nothing heard for {self._c.options.node_seconds:g} s")
            self._c.migrations.run_once()
            self._c.disk.reshaping.run_once()
            self._c.report()

    async def _wait_for_nodes(self) -> None:
        await asyncio.sleep(self._c.options.join_seconds)
        if not self._c.members.complete and not self._c.members.ranks:
            here = ", ".join(self._c.members.nodes) or "none"
            self._c.fail(
                f"{self._c.options.nnodes} nodes were expected within {self._c.options.join_seconds:g} s, here: {here}"
            )
