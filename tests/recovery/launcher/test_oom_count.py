"""Deaths for want of memory: no more of them are explained than the kernel counted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mainstay.recovery.node.oom_count import OutOfMemoryCount


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/job.slice/run", "sys/fs/cgroup/job.slice/run/memory.events", "low 0\noom 9\noom_kill {}\n"),
        ("4:cpu,memory:/run\n0::/", "sys/fs/cgroup/memory/run/memory.oom_control", "under_oom 0\noom_kill {}\n"),
        ("0::/../outside", "sys/fs/cgroup/memory.events", "oom_kill {}\n"),
        ("nonsense", "proc/vmstat", "nr_free_pages 5\noom_kill {}\n"),
    ],
    ids=["version 2", "version 1", "in a container", "the machine's"],
)
def test_each_count_explains_one_death(tmp_path: Path, cgroup: str, file: str, text: str) -> None:
    write(tmp_path, "proc/self/cgroup", cgroup)
    path = write(tmp_path, file, text.format(5))
    count = OutOfMemoryCount(tmp_path)
    assert not count.explains(signal.SIGKILL)
    path.write_text(text.format(7))
    assert not count.explains(signal.SIGSEGV)
    assert not count.explains(None)
    assert [count.explains(signal.SIGKILL) for _ in range(3)] == [True, True, False]


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert not OutOfMemoryCount(tmp_path).explains(signal.SIGKILL)


def test_a_count_that_vanishes(tmp_path: Path) -> None:
    path = write(tmp_path, "proc/vmstat", "oom_kill 3\n")
    count = OutOfMemoryCount(tmp_path)
    path.unlink()
    assert not count.explains(signal.SIGKILL)
