"""Whether the kernel has ended processes for want of memory: its own count, of this control group where it has one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path


class OutOfMemoryCount:
    """Explains at most as many deaths as the kernel counted."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next((file for file in _candidates(root) if _count(file) is not None), None)
        self._seen = self._now()
        self._unexplained = 0

    def explains(self, signal_number: int | None) -> bool:
        """Whether a process that just ended by this signal may be one of those counted since the last one that was."""
        if signal_number != signal.SIGKILL:
            return False
        now = self._now()
        self._unexplained += max(0, now - self._seen)
        self._seen = now
        if not self._unexplained:
            return False
        self._unexplained -= 1
        return True

    def _now(self) -> int:
        return (_count(self._file) or 0) if self._file is not None else 0


def _candidates(root: Path) -> Iterator[Path]:
    """The group's own count first (version 2, version 1, seen from within a container), then the machine's."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    groups = root / "sys/fs/cgroup"
    for line in lines:
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if not kinds:
            yield groups / path.strip("/") / "memory.events"
        elif "memory" in kinds.split(","):
            yield groups / "memory" / path.strip("/") / "memory.oom_control"
    yield groups / "memory.events"
    yield groups / "memory/memory.oom_control"
    yield root / "proc/vmstat"


def _count(file: Path) -> int | None:
    """The value of ``oom_kill`` among lines of ``name value``; None when the file does not tell."""
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return None
    counts = [int(line[1]) for line in words if len(line) == 2 and line[0] == "oom_kill" and line[1].isdigit()]
    return counts[0] if counts else None
