"""The server that launchers connect to: it reads a hello and messages, and reports a launcher lost when they stop."""

from __future__ import annotations

import asyncio
from typing import Final

from mainstay.recovery.controller.coordinator_lease import LEASE, CoordinatorLease
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.state.events import NodeForgotten, NodeJoined
from mainstay.recovery.membership.coordinator_election import EXIT_LOST
from mainstay.recovery.membership.members import NodeMember, surplus_nodes
from mainstay.recovery.protocol.messages import FromLauncher, LauncherHeartbeat, LauncherHello, LauncherWelcome, StopJob
from mainstay.recovery.protocol.secure_streams import serve_streams
from mainstay.recovery.protocol.wire import MessageStream, WireError, from_launcher
from mainstay.recovery.telemetry.reporter import JOB_SECONDS

FORGET: Final = 5.0
"""Times ``--node-timeout``: a launcher that finds no coordinator has given up after three, and a question takes 2 s."""


class CoordinatorServer:
    """One a coordinator. ``open`` listens until ``close``."""

    def __init__(self, job: Job, lease: CoordinatorLease) -> None:
        self._job = job
        self._lease = lease
        self._lease_seconds = LEASE * job.options.node_seconds
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen for launchers; returns the port.

        Raises:
            OSError: the port is taken.
        """
        self._server = await serve_streams(self._accept, host, port, self._job.options.control_tls)
        self._job.spawn(self._watch())
        self._job.spawn(self._wait_for_nodes())
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._job.spawn(self._listen(MessageStream(reader, writer, from_launcher)))

    async def _listen(self, stream: MessageStream[FromLauncher]) -> None:
        """One launcher's connection, from its hello to its end."""
        node: NodeMember | None = None
        try:
            async with asyncio.timeout(10.0):
                hello = await stream.receive()
            connection = LauncherConnection(stream, asyncio.get_running_loop().time())
            node = self._admit(hello, connection)
            while node is not None and (message := await stream.receive()) is not None:
                connection.heard_at = asyncio.get_running_loop().time()
                if isinstance(message, LauncherHeartbeat):
                    connection.renew(message.sequence, self._lease_seconds)
                else:
                    await self._job.control.handle_message(node, message)
        except (WireError, TimeoutError) as error:
            log.warning("a connection was closed: %s", error)
        finally:
            stream.close()
            if node is not None:
                self._job.control.lose_node(node, "its launcher's connection broke")

    def _admit(self, hello: FromLauncher | None, connection: LauncherConnection) -> NodeMember | None:
        if not isinstance(hello, LauncherHello):
            return None
        job = self._job
        if job.state.over and not job.state.saving:
            # Elected, and resigned before its own launcher came: the others find the next coordinator themselves.
            if hello.node == job.options.node:
                connection.send(StopJob(exit_code=EXIT_LOST, reason="the coordinator of this node has ended"))
            return None
        problem = self._job.control.misfit(hello)
        if problem:
            log.warning("node %s was turned away: %s", hello.node, problem)
            code = EXIT_LOST if self._job.term > 1 else 2
            connection.send(StopJob(exit_code=code, reason=f"the coordinator turned this node away: {problem}"))
            return None
        connection.leased_until = connection.heard_at + self._lease_seconds
        job.connections[hello.node] = connection
        job.apply(NodeJoined(hello=hello))
        node = job.members.nodes[hello.node]
        job.send(node, LauncherWelcome(world_size=job.options.world_size, run=job.state.run))
        job.spawn(self._beat(node, connection))
        self._job.control.joined(node)
        return node

    async def _beat(self, node: NodeMember, connection: LauncherConnection) -> None:
        while node.alive:
            connection.beat(asyncio.get_running_loop().time())
            await asyncio.sleep(self._job.options.node_seconds / 10)

    async def _watch(self) -> None:
        """Silence is loss; and the job is reported every now and then."""
        while True:
            await asyncio.sleep(min(JOB_SECONDS, self._job.options.node_seconds / 10))
            if not await self._lease.check():
                continue  # it slept, or is cut off: what it has not heard says nothing of the others
            limit = asyncio.get_running_loop().time() - self._job.options.node_seconds
            for node in self._job.members.alive():
                silent = self._job.connections[node.name].heard_at < limit
                if silent and node.name != self._job.options.node:
                    self._job.control.lose_node(node, f"nothing heard for {self._job.options.node_seconds:g} s")
            self._forget_lost_nodes(limit - (FORGET - 1.0) * self._job.options.node_seconds)
            self._job.control.run_once()

    def _forget_lost_nodes(self, heard_before: float) -> None:
        job = self._job
        heard_at = {name: connection.heard_at for name, connection in job.connections.items()}
        for name in surplus_nodes(job.members, heard_at, heard_before):
            job.apply(NodeForgotten(node=name))
            del job.connections[name]

    async def _wait_for_nodes(self) -> None:
        await asyncio.sleep(self._job.options.join_seconds)
        if not self._job.members.complete and not self._job.members.ranks:
            options, here = self._job.options, ", ".join(self._job.members.nodes) or "none"
            self._job.control.fail(
                f"{options.nnodes} nodes were expected within {options.join_seconds:g} s, here: {here}"
            )
