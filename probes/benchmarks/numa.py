"""The memory nodes of a machine, from sysfs: which processors are near which memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/devices/system/node")


def processors_by_node(root: Path = ROOT) -> dict[int, frozenset[int]]:
    """Memory node -> processors beside it that this process may use, nodes without any left out.

    A kernel without NUMA support has one node with every processor.
    """
    allowed = os.sched_getaffinity(0)
    found: dict[int, frozenset[int]] = {}
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        near = frozenset(listed((folder / "cpulist").read_text())) & allowed
        if near:
            found[int(folder.name[4:])] = near
    return found or {0: frozenset(allowed)}


def listed(text: str) -> Iterator[int]:
    """Processors of a kernel list: ``0-3,8,10-11``.

    Raises:
        ValueError: the text is no such list; it is named.
    """
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{text.strip()!r} is no list of processors")
        first = int(match.group(1))
        yield from range(first, int(match.group(2) or first) + 1)


@contextmanager
def beside(processors: frozenset[int]) -> Iterator[None]:
    """Run on these processors only: memory touched first here lies on their node."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
