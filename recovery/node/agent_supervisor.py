"""The launcher's snapshot agent: started, watched, started again when it dies, asked in threads of its own.

The agent's memory outlives it (files under /dev/shm), so a new agent finds what the old one held. Training never waits
for the agent; a recovery waits for it only as long as it needs what the agent knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import AgentError, AgentGoneError
from mainstay.recovery.agent.messages import Inventory
from mainstay.recovery.agent.shm_lifecycle import default_root, node_directory, remove_node_files
from mainstay.recovery.checkpoint.manifest import DiskConfig
from mainstay.recovery.node.child_processes import start
from mainstay.recovery.node.process_control import ChildProcess
from mainstay.recovery.node.worker_output import OutputPump, OutputTail
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.messages import Prefetch, PrefetchCheckpoint, PrefetchResult

log = logging.getLogger("mainstay.launcher")
_START_SECONDS: Final = 20.0
_ASK_AGAIN_SECONDS: Final = 0.02
_NO_WAY_SECONDS: Final = 2.0
_MAX_DEATHS: Final = 5
"""An agent that dies this often in a row without having served for a while is left alone: the job is unprotected."""
_SERVED_SECONDS: Final = 30.0

R = TypeVar("R")


class AgentSupervisor:
    """One node's agent. ``endpoint`` is where other nodes' agents reach it, empty while it is down."""

    def __init__(self, options: RunOptions, directory: Path, pump: OutputPump, changed: Callable[[str], None]) -> None:
        self.socket = directory / "agent.sock"
        self.endpoint = ""
        self.problem = ""
        self._options = options
        self._directory = directory
        self._pump = pump
        self._changed = changed
        self._child: ChildProcess | None = None
        self._disk: DiskConfig | None = None
        self._stopping = False
        self._up = asyncio.Event()
        # One order at a time, in order: a fence must be done before the inventory that follows it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mainstay-agent")
        self.client = AgentClient(self.socket, job=options.job, generation=0, timeout=_START_SECONDS)
        self._holder = asyncio.create_task(self._keep())

    async def wait_up(self, seconds: float = _START_SECONDS) -> bool:
        """Whether the agent serves, after at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._up.wait()
        return bool(self.endpoint)

    async def fence(self, generation: int) -> Inventory:
        """Revoke what is older than ``generation``, then say what is held.

        Raises:
            AgentError: it does not answer, or refuses.
        """

        def work() -> Inventory:
            self.client.fence(generation)
            if self._disk is not None:  # a new agent whose memory is gone knows no run, and would list nothing on disk
                self.client.configure_disk(self._disk)
            return self.client.inventory()

        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while await self.wait_up():
            try:
                return await self._call(work)
            except AgentGoneError:  # it died just now; what it held may still be there, so ask the next one
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        raise AgentError(self.problem or "the agent did not come up in time")

    async def request(self, work: Callable[[AgentClient], object]) -> str:
        """Have the agent do something; why it did not, or nothing."""
        return await _problem(self._call(lambda: work(self.client)))

    async def configure_disk(self, config: DiskConfig) -> str:
        """See ``AgentClient.configure_disk``. Remembered for an agent that forgets it with its memory."""
        self._disk = config
        return await self.request(lambda agent: agent.configure_disk(config))

    async def prefetch(self, order: Prefetch) -> PrefetchResult:
        """Fetch the slot of a rank that may come to live here; says what became of it.

        Not in the thread of orders: ranks may train meanwhile, and a fence must not wait for it.
        """
        rank, epoch = order.rank, order.epoch
        try:
            got = await asyncio.to_thread(self.client.fetch, rank, epoch, rank, order.endpoint, open_first=True)
        except AgentError as error:
            return PrefetchResult(rank=rank, epoch=epoch, problem=str(error)[:500] or type(error).__name__)
        return PrefetchResult(rank=rank, epoch=epoch, nbytes=got.nbytes, seconds=got.seconds)

    async def prefetch_checkpoint(self, order: PrefetchCheckpoint) -> str:
        """Read what a rank will restore, beside the start of its process; why that failed, or nothing."""
        request = order.order.disk_request(order.rank, open_first=True)
        return await _problem(asyncio.to_thread(self.client.load, request))

    async def stop(self) -> None:
        """End the agent."""
        self._stopping = True
        self._holder.cancel()
        if self._child is not None and self._child.alive:
            await self._child.stop(3.0)
        self.client.close()
        await self._forget()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _forget(self) -> None:
        directory = node_directory(default_root(), self._options.job, self._options.node)
        try:
            await self._call(lambda: remove_node_files(directory))
        except (RuntimeError, OSError) as error:
            log.warning("%s", error)

    async def _call(self, work: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _keep(self) -> None:
        await self._forget()  # a job of the same name that ran before: its snapshots and fences are not ours
        deaths = 0
        while deaths < _MAX_DEATHS:
            begun = asyncio.get_running_loop().time()
            await self._serve()
            served = asyncio.get_running_loop().time() - begun
            deaths = 1 if served > _SERVED_SECONDS else deaths + 1
            await asyncio.sleep(0.05 * deaths)
        log.error("DEGRADED node %s: the snapshot agent keeps dying and is not started again", self._options.node)

    async def _serve(self) -> None:
        """Start one agent, say where it listens, return when it has ended."""
        listen = await self._own_address()
        read_fd, write_fd = os.pipe()
        try:
            tail = OutputTail("agent")
            self._child = start(self._arguments(listen), tail, self._pump, stdout=write_fd)
        finally:
            os.close(write_fd)
        ready = asyncio.create_task(_first_line(read_fd))
        first: set[asyncio.Future[Any]] = {ready, self._child.exit}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED, timeout=_START_SECONDS)
        line = ready.result() if ready.done() else ""
        if line:
            self.endpoint = json.loads(line)["endpoint"]
            self._up.set()
            self._changed(self.endpoint)
        else:
            self._child.signal(9)
        late = ready.cancel() and not self._child.exit.done()
        status = await asyncio.shield(self._child.exit)
        self._up.clear()
        self.endpoint = ""
        why = f"did not start within {_START_SECONDS:.0f} s" if late else f"ended ({status})"
        self.problem = f"the snapshot agent {why}: {' '.join(list(tail.lines)[-2:])}"
        if not self._stopping:
            log.error("node %s: %s", self._options.node, self.problem)

    async def _own_address(self) -> str:
        while True:
            try:
                return await _address_towards(self._options.host)
            except OSError as error:
                self.problem = f"this host finds no way to {self._options.host}: {error}"
                log.warning("node %s: the snapshot agent waits: %s", self._options.node, self.problem)
            await asyncio.sleep(_NO_WAY_SECONDS)

    def _arguments(self, listen: str) -> list[str]:
        options = self._options
        token = self._directory / "agent-token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(options.token)
        flags: dict[str, object] = {
            "--job": options.job,
            "--node": options.node,
            "--socket": self.socket,
            "--listen": f"{listen}:0",
            "--token-file": token,
            "--parity-interval": options.parity_every if options.max_nodes > 1 and options.protection.tolerance else 0,
            "--checkpoint-interval": options.disk_every,
            "--checkpoint-keep": options.disk_keep,
            "--checkpoint-keep-hours": options.checkpoint_keep_hours,
            "--snapshot-encryption": "on" if options.encrypts_snapshots else "off",
            "--owner-pid": os.getpid(),
        }
        if options.checkpoint_dir is not None:
            flags["--checkpoint-dir"] = options.checkpoint_dir
        if options.checkpoint_upload is not None:
            flags |= {"--checkpoint-upload": options.checkpoint_upload, "--checkpoint-upload-rate": options.upload_rate}
        return ["-m", "mainstay.recovery.agent", *(str(part) for pair in flags.items() for part in pair)]


async def _problem(work: Awaitable[object]) -> str:
    """Why ``work`` of the agent failed; empty: it did not."""
    try:
        await work
    except AgentError as error:
        return str(error) or type(error).__name__
    return ""


async def _address_towards(host: str) -> str:
    """The address that this host has on its way to ``host``; other nodes reach the agent there, and at no other one.

    Raises:
        OSError: there is no way, or no such host.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    family, kind, *_, target = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # a datagram socket: this chooses a route and sends nothing
        return str(probe.getsockname()[0])


async def _first_line(read_fd: int) -> str:
    """The first line that arrives on ``read_fd``; empty at its end. Closes it."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
    )
    try:
        return (await reader.readline()).decode()
    finally:
        transport.close()
