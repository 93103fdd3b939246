"""What the threads of a rank are doing, by ``py-spy`` where it is installed: a launcher asks it about its own ranks.

py-spy reads the other process's memory and runs without pausing it (``--nonblocking``): a rank that is asked for
comparison must not lose a step, a stopped one cannot be paused again, and a dump that is cut short leaves nothing
paused. What hangs does not move while it is read; a torn reading is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.node.process_control import ChildProcess
from mainstay.recovery.protocol.messages import DEBUGGED, DUMP_SECONDS, Stacks, ThreadStack

_TRIES: Final = 2
_THREADS: Final = 32
_FRAMES: Final = 48
"""Of a thread, innermost: deeper than that is the framework's start-up."""
_TEXT: Final = 160
"""Longest frame: with the two bounds above an answer stays under a quarter of what a message may have."""
_OUTPUT_BYTES: Final = 4 * 1024 * 1024
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel, not to be interrupted",
    "T": "stopped",
    "t": DEBUGGED,
    "Z": "ended",
}


class _Frame(msgspec.Struct):
    name: str
    short_filename: str | None = None
    filename: str = ""
    line: int = 0


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


_threads = msgspec.json.Decoder(list[_Thread])


class StackDumper:
    """Runs one py-spy at a time. Belongs to the running event loop."""

    def __init__(self, program: str | None = None) -> None:
        self._program = program if program is not None else find_py_spy()
        self._one = asyncio.Lock()

    async def dump(self, request: int, rank: int, pid: int) -> Stacks:
        """Stacks of one process, or why there are none. Never raises for what the process or py-spy does."""
        async with self._one:
            stacks, problem = await self._stacks(pid)
        tool = "py-spy" if self._program else ""
        return Stacks(
            request=request, rank=rank, pid=pid, tool=tool, stacks=stacks, problem=problem, state=process_state(pid)
        )

    async def _stacks(self, pid: int) -> tuple[tuple[ThreadStack, ...], str]:
        if not self._program:
            return (), "py-spy is not installed: pip install py-spy"
        problem = ""
        for _ in range(_TRIES):
            output, problem = await self._run(self._program, pid)
            if not problem:
                with contextlib.suppress(*UNREADABLE):
                    return _texts(_threads.decode(output), pid), ""
                problem = "py-spy's answer cannot be read"
        return (), problem

    async def _run(self, program: str, pid: int) -> tuple[bytes, str]:
        """What it printed, and what went wrong."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            command = [program, "dump", "--pid", str(pid), "--json", "--nonblocking"]
            try:
                child = ChildProcess.start(command, stdout=out, stderr=err)
            except OSError as error:
                return b"", f"{program} cannot be started: {error}"
            if not await child.wait(DUMP_SECONDS):
                await child.kill()
                return b"", f"py-spy did not answer within {DUMP_SECONDS:g} s"
            status = child.exit.result()
            if status.code == 0:
                return os.pread(out.fileno(), _OUTPUT_BYTES, 0), ""
            said = os.pread(err.fileno(), _OUTPUT_BYTES, 0).decode("utf-8", "replace")
            return b"", why_refused(said) or f"py-spy ended with {status}"


def find_py_spy() -> str:
    """Path of the program: beside this interpreter, where ``pip`` puts it, or on the path; empty when it is nowhere."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def why_refused(said: str) -> str:
    """The cause within py-spy's complaint, in a line; with the way out where the kernel refuses.

    >>> why_refused("Error: Failed to suspend process Caused by: Permission denied (os error 13)")
    'py-spy: Permission denied (os error 13): allow ptrace (kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE)'
    """
    told = " ".join(said.split("Stack backtrace", maxsplit=1)[0].split())
    if not told:
        return ""
    cause = re.split(r"Caused by: |Error: | \d+: ", told)[-1].strip()
    refused = "permission denied" in said.lower() or "not permitted" in said.lower()
    return f"py-spy: {cause}{': allow ptrace (kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE)' if refused else ''}"[:500]


def process_state(pid: int) -> str:
    """What the kernel says of a process, in words; empty when it is gone."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""
    return _STATES.get(letter, letter)


def _texts(threads: list[_Thread], pid: int) -> tuple[ThreadStack, ...]:
    """The training thread (the process's first) in front."""
    ordered = sorted(threads, key=lambda thread: thread.os_thread_id != pid)
    return tuple(
        ThreadStack(
            thread=_thread_name(thread, pid), frames=tuple(_frame(frame)[:_TEXT] for frame in thread.frames[:_FRAMES])
        )
        for thread in ordered[:_THREADS]
    )


def _thread_name(thread: _Thread, pid: int) -> str:
    name = "main" if thread.os_thread_id == pid else thread.thread_name or f"thread {thread.os_thread_id}"
    told = [word for word, holds in (("holds the GIL", thread.owns_gil), ("running", thread.active)) if holds]
    return f"{name[:_TEXT]} ({', '.join(told)})" if told else name[:_TEXT]


def _frame(frame: _Frame) -> str:
    return f"{frame.name} ({frame.short_filename or frame.filename}:{frame.line})"
