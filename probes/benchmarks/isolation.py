"""Run one order at a time in a process that may hang, crash or be killed without harm to the caller.

Invariant: ``call`` returns within the time-out, or from an interrupt, plus ``GRACE_SECONDS``, for any behavior of the
benchmark; a process that even SIGKILL does not end (a driver call stuck in the kernel) is abandoned, and the next task
gets a new fork server.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mainstay.probes.benchmarks.cancellation import CancelSignal

GRACE_SECONDS = 4.0
"""From SIGKILL until a process is given up: the kernel needs well under a second to end one that can be ended."""
STARTUP_SECONDS = 120.0
"""For importing torch from a cold network file system; warm it takes two to three seconds."""

COMMAND = (sys.executable, "-P", "-m", "mainstay.probes.benchmarks.fork_server")
_ROOT = Path(__file__).parents[3]


class BenchmarkForkServerError(RuntimeError):
    """No process could be started that has torch; the message says what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What became of an order: an answer, or the reason why there is none."""

    answer: Any = None
    reason: str | None = None
    timed_out: bool = False
    interrupted: bool = False
    seconds: float = 0.0


class BenchmarkForkServer:
    """A context manager around the fork server process, which starts when the first task needs it.

    Args:
        command: of the fork server process.
        interrupt: ends the order in progress, and every later one before it begins.
    """

    def __init__(self, command: Sequence[str] = COMMAND, interrupt: CancelSignal | None = None) -> None:
        self._command = command
        self._interrupt = interrupt
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._buffer = b""
        self._child: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._errors.close()

    def call(self, order: dict[str, Any], timeout: float) -> CallOutcome:
        """Give one order and wait for its answer, at most ``timeout`` seconds.

        Raises:
            BenchmarkForkServerError: torch is missing or does not import.
        """
        if self._process is None and not self._interrupt:
            self._start()
        if self._process is None or self._interrupt:
            return CallOutcome(reason=self._asked(), interrupted=True)
        self._child, answer = None, None
        begun, said = time.monotonic(), os.fstat(self._errors.fileno()).st_size
        with contextlib.suppress(BrokenPipeError):  # it died between two tasks: the wait below reports it
            self._write(order)
        while message := self._receive(begun + timeout, self._interrupt):
            self._child = message.get("pid", self._child)
            answer = message.get("result", answer)
            if "exit" in message:
                reason = None if answer is not None else self._last_words(message["exit"], said)
                return CallOutcome(answer=answer, reason=reason, seconds=time.monotonic() - begun)
        if self._process is not None and self._process.poll() is None:
            return self._give_up(timeout, begun)
        self._end()
        return CallOutcome(reason=self._last_words(None, said), seconds=time.monotonic() - begun)

    def _start(self) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS repeats bit by bit only with a fixed workspace
            "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would not survive the fork
        }
        self._buffer = b""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        if self._receive(time.monotonic() + STARTUP_SECONDS, self._interrupt) is None:
            self._end()
            if self._interrupt:
                return
            raise BenchmarkForkServerError(self._last_words(None, 0))

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def _asked(self) -> str:
        return self._interrupt.reason if self._interrupt is not None else ""

    def _receive(self, deadline: float, interrupt: CancelSignal | None = None) -> dict[str, Any] | None:
        """The next message, or None when the deadline passes, the fork server is gone or ``interrupt`` is set."""
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        watched: list[Any] = [out] if interrupt is None else [out, interrupt]
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                with contextlib.suppress(json.JSONDecodeError):  # an empty line, or half of a killed child's
                    message: dict[str, Any] = json.loads(line)
                    return message
                continue
            left = deadline - time.monotonic()
            ready = select.select(watched, [], [], left)[0] if left > 0 else ()
            if out not in ready:
                return None
            piece = os.read(out, 1 << 16)
            if not piece:
                self._process.wait()
                return None
            self._buffer += piece

    def _give_up(self, timeout: float, begun: float) -> CallOutcome:
        """The task overran: end the child, and the fork server with it if the child cannot be ended."""
        self._kill_child()
        deadline = time.monotonic() + GRACE_SECONDS / 2
        while message := self._receive(deadline):
            if "exit" in message:
                break
            if "pid" in message:  # it was only just born
                self._child = message["pid"]
                self._kill_child()
        else:
            self._end()
        seconds = time.monotonic() - begun
        if self._interrupt:
            return CallOutcome(reason=self._asked(), interrupted=True, seconds=seconds)
        return CallOutcome(reason=f"still running after {timeout:g} s: killed", timed_out=True, seconds=seconds)

    def _kill_child(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)

    def _end(self) -> None:
        """Close standard input (the fork server then ends its child), then kill the fork server."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):  # half an order was still in the buffer
                assert pipe is not None
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS / 4)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: abandoned
                process.wait(GRACE_SECONDS / 4)

    def _last_words(self, code: int | None, since: int) -> str:
        """How a process that gave no answer ended, with the last line it wrote to standard error."""
        # pread: children write at the offset that they share with us, so it must not move
        text = os.pread(self._errors.fileno(), 1 << 20, since).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        how = "its process died"
        if code is not None and code < 0:
            how = f"its process was killed by {signal.Signals(-code).name}"
        elif code is not None:
            how = f"its process ended with exit code {code}"
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how
