"""Checks this node when the coordinator asks: in a process forked for it, which cannot hold up the launcher."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from mainstay.detectors.localize.preflight import DeviceCheck
from mainstay.probes.benchmarks.pair_protocol import PairTask
from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.launcher.child_processes import ForkServerClient, ForkServerError
from mainstay.recovery.launcher.environment import spare_places
from mainstay.recovery.launcher.messages import CheckNode, FromLauncher, NodeChecked
from mainstay.recovery.launcher.options import RunOptions
from mainstay.recovery.launcher.worker_messages import WorkerMessage
from mainstay.recovery.launcher.worker_output import OutputTail

DEVICE_SECONDS: Final = 30.0
"""For all devices together: healthy GPUs take 2 to 3 s, and tens of seconds to set up without persistence mode."""
PAIR_SECONDS: Final = 5.0
"""For one transfer: a healthy one takes 1 s (``probes.benchmarks.pair.BUDGET_SECONDS`` on each side)."""
GRACE_SECONDS: Final = 1.0
"""Then the process is ended: it did not end by its own deadline."""
PRELOAD: Final = "mainstay.recovery.launcher.node_check_process"
"""What the fork server imports once, or each check would."""
_ENVIRONMENT: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""cuBLAS repeats bit by bit only with a fixed workspace."""


MAX_BYTES: Final = 256 * 1024


class CheckOrder(WorkerMessage, frozen=True):
    """Launcher to the process that checks: what to do."""

    request: int
    node: str
    devices: int
    """GPUs to check: those that ranks of the job may get."""
    seconds: float
    """Of a pair, from now on."""
    pair: PairTask | None = None


encode = msgspec.msgpack.encode
decode_order = msgspec.msgpack.Decoder(CheckOrder).decode
_decode_answer = msgspec.msgpack.Decoder(NodeChecked).decode


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
        self.pids: set[int] = set()

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
            self.pids.add(child.pid)
            try:
                await self._relay(ours, message)
            finally:
                await child.kill()
                self.pids.discard(child.pid)

    async def _relay(self, line: socket.socket, message: CheckNode) -> None:
        seconds = DEVICE_SECONDS if message.pair is None else PAIR_SECONDS
        order = CheckOrder(
            request=message.request, node=self._node, devices=self._devices, seconds=seconds, pair=message.pair
        )
        devices: dict[str, DeviceCheck] = {}
        problem = "the process that checks the node ended"
        try:
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                await asyncio.get_running_loop().sock_sendall(line, encode(order))
                while body := await asyncio.get_running_loop().sock_recv(line, MAX_BYTES):
                    answer = _decode_answer(body)
                    devices |= {one.device: one for one in answer.devices}
                    if not answer.devices:
                        self._send(answer)
                    if answer.pair is not None:
                        return
        except TimeoutError:
            problem = f"the check has no result after {seconds + GRACE_SECONDS:g} s"
        except (OSError, *UNREADABLE) as error:
            problem = f"{problem}: {error}"
        answer = NodeChecked(
            request=message.request, devices=tuple(devices.values()), problem="" if devices else problem
        )
        self._send(answer)
