"""Real agent processes for the tests of the agent: started, killed and started again by their own process ids.

They are forks of a process that has imported the agent, which costs half a second of a core; the launchers of the
scenarios start their agents from nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bench.lib_source import ArraySource
from mainstay.recovery.agent.client import AgentClient
from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.snapshot import SnapshotWriter
from tests.fork_server.processes import Launched, Warm, warm_process

TOKEN = "correct-horse-battery-staple"
JOB = "job-1"
DEADLINE = 60.0


def eventually(what: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Poll until ``what()`` is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@dataclass
class Agent:
    node: str
    home: Path
    shm: Path
    options: list[str]
    warm: Warm
    process: Launched | None = None
    endpoint: str = ""
    clients: list[AgentClient] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        (found,) = self.shm.glob(f"mainstay-*/{JOB}/{self.node}")
        return found

    @property
    def socket(self) -> Path:
        return self.home / f"{self.node}.sock"

    def start(self) -> Agent:
        command = ["-m", "mainstay.recovery.agent", "--job", JOB, "--node", self.node]
        command += ["--socket", str(self.socket), "--token-file", str(self.home / "token")]
        command += ["--shm-dir", str(self.shm), "--owner-pid", str(os.getpid()), *self.options]
        with self.log.open("wb") as log:
            self.process = Launched(self.warm.path, command, os.environ, log.fileno())
        eventually(lambda: self._ready() or self.process.poll() is not None)
        assert self._ready(), self.kill()
        self.endpoint = json.loads(self._ready())["endpoint"]
        return self

    @property
    def log(self) -> Path:
        return self.home / f"{self.node}.log"

    def _ready(self) -> str:
        """The line that says where it serves, once it is whole."""
        lines = self.log.read_text().splitlines(keepends=True)
        return next((line for line in lines if line.startswith("{") and line.endswith("\n")), "")

    def client(self, generation: int = 1) -> AgentClient:
        client = AgentClient(self.socket, job=JOB, generation=generation)
        self.clients.append(client)
        return client

    def kill(self, number: int = signal.SIGKILL) -> str:
        """End the process; what it wrote."""
        if self.process is None:
            return ""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.process.wait(60.0)
        self.process = None
        return self.log.read_text()

    def lose(self) -> None:
        """The whole node dies: process and memory."""
        directory = self.directory
        self.kill()
        shutil.rmtree(directory)

    def member(self, rank: int) -> GroupMember:
        return GroupMember(node=self.node, endpoint=self.endpoint, rank=rank)


@pytest.fixture(scope="session")
def warm_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with warm_process(tmp_path_factory.mktemp("agent"), "mainstay.recovery.agent.server") as process:
        yield process


@contextlib.contextmanager
def start_agents(warm: Warm) -> Iterator[Callable[..., Agent]]:
    """Start an agent by node name and further options; all end with the context, and their memory is removed."""
    home = Path(tempfile.mkdtemp(prefix="mainstay-agent-"))
    shm = Path(tempfile.mkdtemp(prefix="mainstay-test-", dir="/dev/shm"))
    (home / "token").write_text(TOKEN)
    started: list[Agent] = []

    def start(node: str = "node-0", *options: str) -> Agent:
        agent = Agent(node, home, shm, list(options), warm).start()
        started.append(agent)
        return agent

    yield start
    for agent in started:
        for client in agent.clients:
            client.close()
        agent.kill()
    shutil.rmtree(home)
    shutil.rmtree(shm)


@pytest.fixture
def agents(warm_agent: Warm) -> Iterator[Callable[..., Agent]]:
    """See ``start_agents``."""
    with start_agents(warm_agent) as start:
        yield start


@dataclass
class Rank:
    """A trainer without a model: random bytes that are a function of (rank, epoch)."""

    rank: int
    client: AgentClient
    sizes: tuple[int, ...] = (70_001, 30_000)
    generation: int = 1

    def __post_init__(self) -> None:
        self.arrays = {f"t{i}": np.zeros(n, np.uint8) for i, n in enumerate(self.sizes)}
        self.source = ArraySource(self.arrays)
        self.info = self.client.open_arena(self.rank, self.source.layout)
        self.arena = Arena.attach(Path(self.info.path))
        self.writer = SnapshotWriter(self.arena, self.source, on_committed=self._tell)

    def _tell(self, epoch: int, generation: int, slot: int) -> None:
        self.client.committed(self.rank, epoch, generation, slot)

    @property
    def layout(self) -> Layout:
        return self.source.layout

    def step(self, epoch: int) -> None:
        for name, value in contents(self.rank, epoch, self.sizes).items():
            self.arrays[name][:] = value
        self.writer.start(epoch, self.generation)
        self.writer.wait()

    def close(self) -> None:
        self.writer.close()


def contents(rank: int, epoch: int, sizes: tuple[int, ...]) -> dict[str, np.ndarray]:
    random = np.random.default_rng([rank, epoch])
    return {f"t{i}": random.integers(0, 256, n, np.uint8) for i, n in enumerate(sizes)}


@contextlib.contextmanager
def open_ranks() -> Iterator[Callable[..., Rank]]:
    """Make a trainer by rank, agent, and further fields."""
    made: list[Rank] = []

    def make(rank: int, agent: Agent, **options: object) -> Rank:
        made.append(Rank(rank, agent.client(), **options))
        return made[-1]

    yield make
    for rank in made:
        rank.close()


@pytest.fixture
def ranks() -> Iterator[Callable[..., Rank]]:
    """See ``open_ranks``."""
    with open_ranks() as make:
        yield make


@pytest.fixture(name="contents")
def _contents() -> Callable[..., dict[str, np.ndarray]]:
    return contents


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., None]:
    return eventually
