"""Agents of one process: real arenas, real sockets on loopback, real threads, without the cost of starting programs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from bench.lib_slots import read_slot
from bench.lib_source import ArraySource
from mainstay.recovery import placement
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.errors import RefusedError
from mainstay.recovery.agent.messages import Group, GroupMember
from mainstay.recovery.agent.node import AgentSettings
from mainstay.recovery.agent.server import AgentServer, listen_tcp, listen_unix
from mainstay.recovery.agent.service import AgentService
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.records import Word
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.protection_scheme import ProtectionScheme

TLS = job_tls("bench", "bench", Authority.SNAPSHOTS)

DEAD = "127.0.0.1:1"
"""Nothing listens there: a lost node as the others see it."""
_PATIENCE_SECONDS = 60.0


class LocalAgent:
    """One node's agent, with its sockets, and the arenas of the ranks that are opened on it."""

    def __init__(self, root: Path, name: str) -> None:
        directory = root / name
        directory.mkdir()
        (root / "sockets").mkdir(exist_ok=True)
        self.service = AgentService(
            AgentSettings(job="bench", node=name, tls=TLS, directory=directory, parity_every=1, scrub_pause=0)
        )
        server, self._listeners = (
            AgentServer(self.service),
            [listen_unix(root / "sockets" / name), listen_tcp("127.0.0.1:0")],
        )
        for listener in self._listeners:
            server.listen(listener)
        host, port = self._listeners[1].getsockname()[:2]
        self.endpoint = f"{host}:{port}"
        self.client = AgentClient(root / "sockets" / name, job="bench", generation=1)
        self.service.start()

    def close(self) -> None:
        self.client.close()
        for listener in self._listeners:
            listener.close()
        self.service.stop()


class Cluster:
    """``nodes`` agents of one rank each and one more, the newcomer, that lost slots are brought back to.

    Every rank holds bytes that are a function of (rank, epoch); their sizes differ.
    """

    def __init__(self, nodes: int, scheme: ProtectionScheme, *, size: int = 20_000) -> None:
        self.scheme = scheme
        self._root = Path(tempfile.mkdtemp(prefix="mainstay-bench-", dir="/dev/shm"))
        self.agents = [LocalAgent(self._root, f"n{number}") for number in range(nodes)]
        self.newcomer = LocalAgent(self._root, "newcomer")
        self.arrays = {rank: {"state": np.zeros(size + 64 * rank, np.uint8)} for rank in range(nodes)}
        self.arenas: dict[int, Arena] = {}
        self._writers = {rank: self._writer(rank) for rank in range(nodes)}
        hosts = [placement.PlacementHost(f"n{rank}", (rank,)) for rank in range(nodes)]
        self.groups = self.groups_without(placement.place_groups(hosts, scheme).groups, ())
        for agent in self.agents:
            agent.client.configure_parity(self.groups, 1, str(scheme))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for writer in self._writers.values():
            writer.close()
        for agent in (*self.agents, self.newcomer):
            agent.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def _writer(self, rank: int) -> SnapshotWriter:
        source, client = ArraySource(self.arrays[rank]), self.agents[rank].client
        self.arenas[rank] = Arena.attach(Path(client.open_arena(rank, source.layout).path))

        def committed(epoch: int, generation: int, slot: int) -> None:
            client.committed(rank, epoch, generation, slot)

        return SnapshotWriter(self.arenas[rank], source, on_committed=committed)

    def groups_without(self, groups: Sequence[Sequence[int]], lost: Sequence[int]) -> tuple[Group, ...]:
        """The groups that a newcomer receives after ``lost`` nodes are gone."""
        return tuple(
            tuple(
                GroupMember(node=f"n{r}", endpoint=DEAD if r in lost else self.agents[r].endpoint, rank=r)
                for r in group
            )
            for group in groups
        )

    def step(self, epoch: int) -> None:
        """All ranks save ``epoch``; returns once it is protected."""
        for rank, writer in self._writers.items():
            self.arrays[rank]["state"][:] = contents(rank, epoch, len(self.arrays[rank]["state"]))
            writer.start(epoch, 1)
            writer.wait()
        until(lambda: all(a.word(Word.PARITY_EPOCH) == epoch for a in self.arenas.values()), f"parity of epoch {epoch}")

    def bring_back(self, rank: int, epoch: int, lost: Sequence[int]) -> bool:
        """Whether the slot of ``rank`` comes back, bit-equal, to the newcomer while all nodes in ``lost`` are gone.

        Raises:
            AssertionError: it came back wrong: worse than not at all.
        """
        client, layout = self.newcomer.client, ArraySource(self.arrays[rank]).layout
        arena = Arena.attach(Path(client.open_arena(rank, layout).path))
        groups = self.groups_without([[m.rank for m in group] for group in self.groups], lost)
        (group,) = [group for group in groups if any(member.rank == rank for member in group)]
        try:
            self._order(rank, epoch, group, lost)
        except RefusedError:
            return False
        found = read_slot(arena, epoch)["state"]
        assert np.array_equal(found, contents(rank, epoch, len(found))), f"rank {rank} came back wrong without {lost}"
        client.discard_after(0)
        arena.close()
        return True

    def _order(self, rank: int, epoch: int, group: Group, lost: Sequence[int]) -> None:
        if self.scheme.copies == 1:
            self.newcomer.client.rebuild(rank, epoch, group)
            return
        places = [member.rank for member in group]
        kept = placement.holders(self.scheme, len(places), places.index(rank))
        alive = next((at for at in kept if places[at] not in lost), kept[0])
        self.newcomer.client.fetch(rank, epoch, rank, group[alive].endpoint)


def contents(rank: int, epoch: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """uint8 [size], random but the same each time."""
    return np.random.default_rng([rank, epoch]).integers(0, 256, size, np.uint8)


def until(what: Callable[[], object], name: str, seconds: float = _PATIENCE_SECONDS) -> None:
    """Poll until ``what()`` is true.

    Raises:
        TimeoutError: names what did not come.
    """
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not come within {seconds:g} s")
        time.sleep(0.002)
