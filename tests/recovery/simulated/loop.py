"""An event loop in simulated time with a simulated network: the same seed gives the same run, to the last message.

Every callback belongs to the process whose context it was scheduled in. A stopped process runs nothing until it
continues, a killed one nothing ever again, as SIGSTOP and SIGKILL have it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

CONNECT_SECONDS: Final = 20.0
"""That a connection attempt waits for a host that does not answer."""
TURNS: Final = 20_000
"""Of the loop in one moment; more are a loop that never waits."""
DELAY_SECONDS: Final = 0.0002
"""The least time of a message; the most is drawn for each run."""


class ProcessState(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    KILLED = "killed"


@dataclass(eq=False)
class SimulatedProcess:
    """Who runs a callback."""

    host: str
    """Its address."""
    pid: int
    state: ProcessState = ProcessState.RUNNING
    held: list[asyncio.Handle] = field(default_factory=list)
    """Due while it is stopped, or since it was killed."""
    context: contextvars.Context = field(default_factory=contextvars.Context)

    def __post_init__(self) -> None:
        self.context.run(PROCESS.set, self)


PROCESS: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("PROCESS", default=None)


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time advances when nothing is left to do now."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 0.0
        self.closing = False
        """All that was held runs to its end, and the network is gone."""
        self._timers = self._turns = 0
        self.network = Network(self, random.Random(seed))

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        """A heap is not stable: of two that are due at one moment, the first to be asked for is the first."""
        self._timers += 1
        return super().call_at(when + self._timers * 1e-10, callback, *args, context=context)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            assert scheduled, "nothing is left that could happen"
            self.now, self._turns = max(self.now, scheduled[0].when()), 0
        self._turns += 1
        assert self._turns < TURNS or self.closing, "a process never waits"
        while scheduled and scheduled[0].when() <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = handle._context.get(PROCESS)
            if handle.cancelled():
                continue
            if process is None or process.state is ProcessState.RUNNING or self.closing:
                handle._run()
            else:
                process.held.append(handle)

    def resume(self, process: SimulatedProcess) -> None:
        """SIGCONT: what was due meanwhile is done now."""
        process.state = ProcessState.RUNNING
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()

    def _write_to_self(self) -> None:
        """No selector has to wake."""

    def add_signal_handler(self, *_: Any) -> None:
        """Signals are sent otherwise here."""

    def run_in_executor(self, _: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """At once: another thread would make the run another one."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever asked gets it, as from a pool
            done.set_exception(error)
        return done

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:  # type: ignore[override]
        return self.network.listen(protocol_factory, host, port)

    async def start_tls(self, transport: Any, protocol: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """The network of the simulation is trusted."""
        transport.set_protocol(protocol)
        transport.resume_reading()
        return transport


class Network:
    """Hosts by address. Messages of a connection stay in order; a cut keeps them back, as retransmission does."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.slowest = 0.02
        """Seconds of the slowest message."""
        self.delivered = 0
        self.down: set[str] = set()
        """Hosts without power."""
        self._groups: dict[str, int] = {}
        """Host -> side of the cut that it is on."""
        self._listeners: dict[tuple[str, int], SimulatedServer] = {}
        self._connections: list[SimulatedTransport] = []
        self._next_port = 20_000

    def reaches(self, one: str, other: str) -> bool:
        """Whether a packet of ``one`` comes to ``other`` now."""
        alive = one not in self.down and other not in self.down
        return alive and self._groups.get(one, 0) == self._groups.get(other, 0)

    def cut(self, groups: dict[str, int]) -> None:
        """Only hosts of the same number reach each other from now on; an empty table ends the cut."""
        self._groups = groups
        for connection in list(self._connections):
            connection.retransmit()

    def power_off(self, host: str) -> None:
        """Nothing comes from ``host`` any more, not even the end of a connection."""
        self.down.add(host)

    def delay(self) -> float:
        return DELAY_SECONDS + self.slowest * self.rng.random() ** 4

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> SimulatedServer:
        """Raises OSError: another process listens there."""
        process = PROCESS.get()
        assert process is not None
        self._next_port += 1
        server = SimulatedServer(self, factory, process, host, port or self._next_port)
        if (host, server.port) in self._listeners:
            raise OSError(98, f"{host}:{port} is taken")
        self._listeners[host, server.port] = server
        return server

    def close_listener(self, server: SimulatedServer) -> None:
        self._listeners.pop((server.host, server.port), None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        process = PROCESS.get()
        assert process is not None
        deadline = self.loop.now + (0.0 if self.loop.closing else CONNECT_SECONDS)
        await asyncio.sleep(2 * self.delay())
        while not self.reaches(process.host, host):
            if self.loop.now > deadline:
                raise TimeoutError(f"{host} does not answer")
            await asyncio.sleep(0.5)
        server = self._listeners.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"no process listens at {host}:{port}")
        here = SimulatedTransport(self, process, (host, port))
        there = SimulatedTransport(self, server.process, (process.host, 1))
        here.peer, there.peer = there, here
        self._connections += [here, there]
        self.loop.call_soon(there.open, server.factory(), context=server.process.context)
        protocol = factory()
        here.open(protocol)
        return here, protocol

    def end(self, process: SimulatedProcess) -> None:
        """``process`` is gone: its kernel closes what it had open."""
        for server in [s for s in self._listeners.values() if s.process is process]:
            self.close_listener(server)
        for connection in [c for c in self._connections if c.process is process]:
            connection.close()

    def reset(self, connection_number: int) -> None:
        """Break one connection on both sides."""
        living = [c for c in self._connections if not c.closing]
        if living:
            connection = living[connection_number % len(living)]
            assert connection.peer is not None
            connection.peer.finish()
            connection.finish()

    def forget(self, connection: SimulatedTransport) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class SimulatedServer:
    """What ``asyncio.start_server`` gives."""

    def __init__(
        self, network: Network, factory: Callable[[], Any], process: SimulatedProcess, host: str, port: int
    ) -> None:
        self.factory = factory
        self.process = process
        self.host, self.port = host, port
        self.sockets = [self]
        self._network = network

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self._network.close_listener(self)


class SimulatedTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, network: Network, process: SimulatedProcess, peer_name: tuple[str, int]) -> None:
        super().__init__({"sockname": (process.host, 1), "peername": peer_name})
        self.network = network
        self.process = process
        self.peer: SimulatedTransport | None = None
        self.closing = False
        self._protocol: Any = None
        self._last_due = 0.0
        self._paused = False
        self._early: list[bytes | None] = []
        self._unsent: list[bytes | None] = []

    def open(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        if not self._paused:
            self.resume_reading()

    def write(self, data: Any) -> None:
        if not self.closing:
            self._send(bytes(data))

    def close(self) -> None:
        if not self.closing:
            self._send(None)
            self.finish()

    def finish(self) -> None:
        """This side is closed; its peer hears of it only where ``close`` was called."""
        if not self.closing:
            self.closing = True
            if not self._unsent:
                self.network.forget(self)
            if self._protocol is not None:
                loop, context = self.network.loop, self.process.context
                loop.call_soon(self._protocol.connection_lost, None, context=context)

    def retransmit(self) -> None:
        """Send what a cut kept back, as far as it is over."""
        kept, self._unsent = self._unsent, []
        for data in kept:
            self._send(data)
        if self.closing and not self._unsent:
            self.network.forget(self)

    def _send(self, data: bytes | None) -> None:
        peer, network = self.peer, self.network
        assert peer is not None
        if network.loop.closing:
            return
        if self._unsent or not network.reaches(self.process.host, peer.process.host):
            self._unsent.append(data)
            return
        self._last_due = max(self._last_due, network.loop.now + network.delay())
        network.loop.call_at(self._last_due, peer._arrive, data, context=peer.process.context)

    def _arrive(self, data: bytes | None) -> None:
        self.network.delivered += 1
        if self._protocol is None or self._paused:
            self._early.append(data)
        elif not self.closing:
            self._protocol.eof_received() if data is None else self._protocol.data_received(data)

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.close()

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        early, self._early = self._early, []
        for data in early:
            self._arrive(data)
