"""Checks this node when the coordinator asks: in a process forked for it, which cannot hold up the launcher."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.node.child_processes import ForkServerClient, ForkServerError
from mainstay.recovery.node.environment import spare_places
from mainstay.recovery.node.worker_output import OutputTail
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import CheckNode, FromLauncher, NodeChecked
from mainstay.recovery.protocol.node_check_messages import (
    DEVICE_SECONDS,
    GRACE_SECONDS,
    MAX_BYTES,
    PAIR_SECONDS,
    CheckOrder,
    decode_answer,
    encode,
)

PRELOAD: Final = "mainstay.recovery.node.node_check_process"
"""What the fork server imports once, or each check would."""
_ENVIRONMENT: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""cuBLAS repeats bit by bit only with a fixed workspace."""


class NodeChecker:
    """One a launcher.

    Args:
        send: tells the coordinator.
    """

    def __init__(
        self, options: RunOptions, fork_server: ForkServerClient, send: Callable[[FromLauncher], None]
    ) -> None:
        self._node, self._devices = options.node, options.nproc + spare_places(options)
        self._fork_server = fork_server
        self._send = send

    async def run(self, message: CheckNode) -> None:
        """Carry out one check and answer it, also if there is no result."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours:
            try:
                with theirs:
                    child = await self._fork_server.fork_worker("check", _ENVIRONMENT, OutputTail("check"), theirs)
            except ForkServerError:
                return  # the launcher watches the fork server itself
            try:
                await self._relay(ours, message)
            finally:
                await child.kill()

    async def _relay(self, line: socket.socket, message: CheckNode) -> None:
        loop, seconds = asyncio.get_running_loop(), DEVICE_SECONDS if message.pair is None else PAIR_SECONDS
        order = CheckOrder(node=self._node, devices=self._devices, seconds=seconds, pair=message.pair)
        devices: dict[str, DeviceCheck] = {}
        problem = "the process that checks the node ended"
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await loop.sock_sendall(line, encode(order))
                while body := await loop.sock_recv(line, MAX_BYTES):
                    part = decode_answer(body)
                    devices |= {one.device: one for one in part.devices}
                    if part.port or part.pair is not None:
                        self._send(NodeChecked(request=message.request, port=part.port, pair=part.pair))
                    if part.pair is not None:
                        return
        except TimeoutError:
            problem = f"the check has no result after {seconds + GRACE_SECONDS:g} s"
        except (OSError, *UNREADABLE) as error:
            problem = f"{problem}: {error}"
        self._send(NodeChecked(request=message.request, devices=tuple(devices.values()), problem=problem))
