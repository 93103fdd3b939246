"""The demo's child processes: each with a log of its own, each ended by its own id, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class ChildFailedError(RuntimeError):
    """A child process ended when it should not have; the message carries the end of its log."""


def mainstay_command(*arguments: str) -> list[str]:
    """Return the ``mainstay`` command of this interpreter, independent of PATH."""
    return [sys.executable, "-m", "mainstay", *arguments]


@dataclass(slots=True)
class Children:
    """Processes started for the demo, in the order in which they were started."""

    log_dir: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Start ``command`` in a session of its own and return its process id."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        with (self.log_dir / f"{name}.log").open("ab") as log:
            child = self._begin(name, command, {**os.environ, **(env or {})}, log.fileno())
        self.running[name] = child
        return child.pid

    def _begin(
        self, _: str, command: Sequence[str], environment: Mapping[str, str], log: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip

    def tail(self, name: str, lines: int = 12) -> str:
        """The last lines of a child's log."""
        path = self.log_dir / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def exit_code(self, name: str) -> int | None:
        return self.running[name].poll()

    def wait(self, name: str, seconds: float) -> int:
        """Exit code of ``name``.

        Raises:
            ChildFailedError: still running after ``seconds``.
        """
        try:
            return self.running[name].wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ChildFailedError(f"{name} did not end within {seconds:.0f} s:\n{self.tail(name)}") from error

    def stop_all(self, patience: float = 10.0) -> None:
        """SIGTERM in reverse order of starting, SIGKILL for whoever does not listen."""
        alive = [child for child in reversed(self.running.values()) if child.poll() is None]
        for child in alive:
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        for child in alive:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
