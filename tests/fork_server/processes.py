"""The tests' side of the warm process: its ``python``, jobs whose launchers are forks of it, and plain runs."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import lib_job
from bench.lib_job import Job
from mainstay.recovery.node.child_processes import _quiet_single_thread
from mainstay.service.demo.processes import Children
from mainstay.service.demo.stack import Stack
from tests.fork_server import client

ROOT = Path(__file__).resolve().parents[2]


class Launched:
    """As much of ``subprocess.Popen`` as a job's launchers need, for a child of the warm process."""

    def __init__(self, path: str, words: Sequence[str], environment: Mapping[str, str], log: int) -> None:
        with Path(os.devnull).open() as nothing:
            self._line, self.pid = client.start_process(path, words, environment, (nothing.fileno(), log, log))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(client.receive_message(self._line)["code"])
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmJob(Job):
    """A job whose launchers and ranks begin with everything imported."""

    path: str

    def _begin(self, words: Sequence[str], environment: Mapping[str, str], log: int) -> Any:
        return Launched(self.path, words, environment, log)


@dataclass(frozen=True)
class Warm:
    """A warm process."""

    path: str
    """Its socket."""
    python: Path
    """An interpreter in name, that runs scripts and modules as forks of it."""

    def job(self, **what: Any) -> Job:
        """Like ``Job``; not started yet."""
        made = WarmJob(**what)
        made.path = self.path
        return made

    def run_plain(self, directory: Path, arguments: Sequence[str], ranks: int = 4) -> None:
        """Like ``bench.lib_job.run_plain``."""
        lib_job.run_plain(directory, arguments, ranks, python=str(self.python))

    def undisturbed(self, directory: Path, arguments: Sequence[str], ranks: int = 4) -> Path:
        """Where the plain script (no launcher, no snapshots, no fault) wrote its final parameters."""
        self.run_plain(directory, [*arguments, "--save", str(directory / "saved")], ranks)
        return directory / "saved"


class WarmChildren(Children):
    """A stack's processes: they begin with everything imported."""

    services: Warm
    launchers: Warm

    def _begin(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: int) -> Any:
        if list(command[:2]) != [sys.executable, "-m"]:
            return super()._begin(name, command, environment, log)
        warm = self.launchers if name.startswith("run-") else self.services
        return Launched(warm.path, command[1:], environment, log)


def warm_stack(services: Warm, launchers: Warm, *what: Any) -> Stack:
    """Like ``Stack``; services and node daemons are forks of one process, launchers and ranks of another."""
    stack = Stack(*what)
    children = WarmChildren(stack.children.log_dir)
    children.services, children.launchers = services, launchers
    stack.children = children
    return stack


@contextmanager
def warm_process(directory: Path, *modules: str) -> Iterator[Warm]:
    """A process that has imported ``modules``, as long as the context lasts."""
    path, python = directory / "socket", directory / "python"
    line = [sys.executable, "-IS", str(Path(client.__file__).resolve()), str(path)]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, "-m", "tests.fork_server.server", str(path), *modules]
    # transformers imports datasets where that is installed, and with it Arrow, whose allocator has a thread of its own.
    single = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    environment = {**os.environ, **_quiet_single_thread(), **single}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"warm\n", "the warm process did not start"
        yield Warm(str(path), python)
    finally:
        process.stdin.close()
        process.wait(60.0)
        process.stdout.close()
