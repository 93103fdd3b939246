"""A protected training job on this machine, as benches and scenario tests drive it: start, follow, kill, wait.

Each launcher plays one node. Everything is seen from outside: the events file, the job file, process ids.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

import mainstay.recovery
from mainstay.probes.ids import uuid7
from mainstay.recovery.job_request import (
    OPEN,
    JobRequest,
    JobRequestResult,
    RequestKind,
    read_result,
    write_request,
)

EXAMPLES = Path(mainstay.recovery.__path__[0]) / "examples"
ANY_SHAPE = Path(__file__).parents[1] / "docs" / "examples" / "anyshape.py"
"""The script that trains to the same bits at any (dp, pp)."""
Json = dict[str, Any]


class JobError(RuntimeError):
    """The job did not do what was waited for; the message carries the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class Job:
    """``nodes`` launchers of ``per_node`` ranks each, running ``script`` with ``arguments``.

    Leaving the context ends them and removes what a killed one left in shared memory.
    """

    directory: Path
    script: Path = EXAMPLES / "train.py"
    arguments: Sequence[str] = ()
    nodes: int = 2
    per_node: int = 2
    options: Sequence[str] = ()
    name: str = "job"
    environment: dict[str, str] = field(default_factory=dict)
    port: int = 0
    """The coordinator's; 0: a free one."""
    reach: dict[int, str] = field(default_factory=dict)
    """Node -> host at which it finds the coordinator, where that is not 127.0.0.1."""
    own: dict[int, Sequence[str]] = field(default_factory=dict)
    """Node -> options of its own."""
    launchers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in self.directory.glob("node-*/job.json"):
            old.unlink()  # of an earlier run in the same place
        port = self.port or free_port()
        for number in range(self.nodes):
            self.launchers.append(self._start(number, port))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        alive = [launcher for launcher in self.launchers if launcher.poll() is None]
        for launcher in alive:
            launcher.send_signal(signal.SIGTERM)
        for launcher in alive:
            try:
                launcher.wait(15.0)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        shutil.rmtree(self.shm, ignore_errors=True)

    def _start(self, number: int, port: int) -> subprocess.Popen[bytes]:
        flags = {
            "--nnodes": self.nodes, "--node-rank": number, "--nproc-per-node": self.per_node, "--job-id": self.name,
            "--rdzv-endpoint": f"{self.reach.get(number, '127.0.0.1')}:{port}", "--node-name": f"node-{number}",
            "--state-dir": self.directory / f"node-{number}",
        }  # fmt: skip
        words = [str(part) for pair in flags.items() for part in pair]
        words += [*self.options, *self.own.get(number, ()), str(self.script), *map(str, self.arguments)]
        environment = {
            **os.environ,
            "MAINSTAY_JOB_TOKEN": "bench-or-test",
            "MAINSTAY_SHM_DIR": str(self.shm),
            **self.environment,
        }
        with self.log(number).open("wb") as log:
            return self._begin(["-m", "mainstay", "run", *words], environment, log.fileno())

    def start_again(self, number: int) -> subprocess.Popen[bytes]:
        """A launcher for a node that joins, or whose launcher was killed; ``port`` must have been given."""
        return self._start(number, self.port)

    def _begin(self, words: Sequence[str], environment: Mapping[str, str], log: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )

    # Seeing

    @property
    def shm(self) -> Path:
        """Where this job's arenas are: a directory of its own under /dev/shm, so that tests see what is left."""
        return Path("/dev/shm") / f"mainstay-{self.directory.name}-{os.getpid()}"  # noqa: S108 - a memory file system

    def log(self, number: int) -> Path:
        return self.directory / f"node-{number}.log"

    def tail(self, lines: int = 25) -> str:
        """The end of every launcher's log."""
        texts = [(n, self.log(n).read_text(errors="replace").splitlines()) for n in range(self.nodes)]
        return "\n".join(f"--- node-{n}\n" + "\n".join(text[-lines:]) for n, text in texts)

    def state(self) -> Json:
        """The newest job report, whoever coordinates; empty before there is one."""
        reports = [path for path in self.directory.glob("node-*/job.json") if path.stat().st_size]
        if not reports:
            return {}
        found: Json = json.loads(max(reports, key=lambda path: path.stat().st_mtime_ns).read_text())
        return found

    def events(self, *kinds: str) -> list[Json]:
        """Events so far, in the order in which they were told, term by term; of all kinds, or of the given ones."""
        found = [event for number in range(self.nodes) for event in self.events_of(number)]
        return [event for event in sorted(found, key=lambda e: e["id"]) if not kinds or event["kind"] in kinds]

    def events_of(self, number: int) -> list[Json]:
        """Events that node ``number`` told while it coordinated."""
        try:
            lines = (self.directory / f"node-{number}" / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def pids(self) -> dict[int, int | None]:
        """Rank -> process id."""
        return {rank["rank"]: rank["pid"] for rank in self.state()["topology"]["ranks"]}

    def step(self) -> int:
        return int(self.state().get("last_step") or 0)

    # Waiting and doing

    def until(self, happened: Callable[[], Any], seconds: float, what: str) -> Any:
        """Poll until ``happened`` gives something true, and return that.

        Raises:
            JobError: not in time, or a launcher ended meanwhile.
        """
        deadline = time.monotonic() + seconds
        while not (found := happened()):
            ended = [launcher.returncode for launcher in self.launchers if launcher.poll() is not None]
            if ended and not (found := happened()):
                raise JobError(f"waiting for {what}: a launcher ended with {ended[0]}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise JobError(f"{what} did not come within {seconds:g} s\n{self.tail()}")
            time.sleep(0.02)
        return found

    def wait_step(self, step: int, seconds: float = 120.0) -> None:
        self.until(lambda: self.step() >= step, seconds, f"step {step}")

    def wait_recoveries(self, count: int, seconds: float = 60.0) -> Json:
        """The ``count``-th ``recovery_completed`` event."""
        found: list[Json] = self.until(
            lambda: len(events := self.events("recovery_completed")) >= count and events, seconds, f"recovery {count}"
        )
        return found[count - 1]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a signal to a rank's process; the Unix time of it."""
        self.until(lambda: self.pids()[rank], 30.0, f"a process of rank {rank}")
        pid = self.pids()[rank]
        assert pid is not None
        now = time.time()
        os.kill(pid, number)
        return now

    def request(self, kind: RequestKind, seconds: float = 120.0, **about: Any) -> JobRequestResult:
        """Ask the job, and wait for the end of it."""
        asked = JobRequest(id=uuid7(), kind=kind, created_at=time.time(), **about)
        directory = self.directory / "node-0"
        write_request(directory, asked)

        def ended() -> JobRequestResult | None:
            result = read_result(directory, asked.id)
            return result if result is not None and result.state not in OPEN else None

        result: JobRequestResult = self.until(ended, seconds, f"the end of {kind} of {asked.subject}")
        return result

    def kill_all(self, seconds: float = 60.0) -> None:
        """Kill every launcher, and wait for what they started: an agent may complete one more step before it ends.

        Raises:
            JobError: a process still lives after ``seconds``.
        """
        below = [each for one in self.launchers for each in psutil.Process(one.pid).children(recursive=True)]
        for launcher in self.launchers:
            launcher.kill()
        for launcher in self.launchers:
            launcher.wait()
        _, alive = psutil.wait_procs(below, timeout=seconds)
        if any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in alive):
            raise JobError(f"processes of the job did not end within {seconds:g} s: {alive}")

    def children(self, number: int) -> dict[int, str]:
        """Process id -> command line of everything that launcher ``number`` started and that still lives."""
        return descendants(self.launchers[number].pid)

    def wait(self, seconds: float = 180.0) -> list[int]:
        """Exit codes of all launchers.

        Raises:
            JobError: one is still running after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        for launcher in self.launchers:
            try:
                launcher.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise JobError(f"the job did not end within {seconds:g} s\n{self.tail()}") from error
        return [int(launcher.returncode) for launcher in self.launchers]


def descendants(pid: int) -> dict[int, str]:
    """Every living process below ``pid``."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            try:
                found[child] = (Path("/proc") / str(child) / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
            waiting.append(child)
    return found


def start_plain(
    directory: Path, arguments: Sequence[str], ranks: int = 4, python: str = sys.executable
) -> list[subprocess.Popen[bytes]]:
    """The plain example on ``ranks`` processes, with the environment that torchrun would give it."""
    directory.mkdir(parents=True, exist_ok=True)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    command = [python, str(EXAMPLES / "train_plain.py"), *arguments]
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        with (directory / f"plain-{rank}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    return processes


def run_plain(
    directory: Path, arguments: Sequence[str], ranks: int = 4, seconds: float = 180.0, python: str = sys.executable
) -> None:
    """The plain example from its beginning to its end.

    Raises:
        JobError: a rank failed, or they took too long.
    """
    for _ in range(3):  # another process may take the port before rank 0, which has torch to import first
        codes = _end_of(start_plain(directory, arguments, ranks, python), seconds)
        said = (directory / "plain-0.log").read_text(errors="replace")[-2000:]
        if not any(codes):
            return
        if "EADDRINUSE" not in said:
            break
    raise JobError(f"the plain run ended with {codes}: {said}")


def _end_of(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int]:
    """Exit codes, when all have ended or one has failed: the others would wait for it for ever."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            if any(codes) or None not in codes:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
    return [process.wait() for process in processes]
