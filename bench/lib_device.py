"""How fast a device writes and reads at best: ``fio``, or ``dd`` where that is not installed. Past the page cache."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

BLOCK = 8 * 1024 * 1024


def tool() -> str:
    """What measures here."""
    return "fio" if shutil.which("fio") else "dd"


def write_rate(directory: Path, nbytes: int, files: int = 1) -> float:
    """Bytes per second of sequential writes of ``nbytes`` with ``O_DIRECT`` and an fsync; ``dd`` writes one file."""
    path = directory / "device-test"
    path.mkdir()
    try:
        return _fio(path, nbytes, files) if tool() == "fio" else dd_rate(path / "file", nbytes)
    finally:
        shutil.rmtree(path)


def _fio(directory: Path, nbytes: int, files: int) -> float:
    command = [
        "fio", "--name=write", f"--directory={directory}", "--rw=write", f"--bs={BLOCK}", f"--size={nbytes // files}",
        f"--numjobs={files}", "--group_reporting", "--direct=1", "--ioengine=io_uring", "--iodepth=4", "--end_fsync=1",
        "--fallocate=none", "--output-format=json",
    ]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(told)["jobs"][0]["write"]["bw_bytes"])


def dd_rate(path: Path, nbytes: int, environment: dict[str, str] | None = None, *, nice: int = 0) -> float:
    """The same by ``dd``, in ``environment``; ``nice`` behind others."""
    command = [
        "nice",
        f"-n{nice}",
        "dd",
        "if=/dev/zero",
        f"of={path}",
        f"bs={BLOCK}",
        f"count={nbytes // BLOCK}",
        "oflag=direct",
    ]
    begun = time.perf_counter()
    first = ["nice", f"-n{nice}"] if nice else []
    subprocess.run([*first, *command, "conv=fsync"], capture_output=True, check=True, env=environment)
    return nbytes / (time.perf_counter() - begun)


def forget_cached(directory: Path) -> None:
    """Have the page cache give up the files below ``directory``, so that reads come from the device."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


@contextlib.contextmanager
def limited_reads(directory: Path, rate: int) -> Iterator[bool]:
    """Let this process, and what it starts meanwhile, read ``rate`` bytes a second from the device of ``directory``.

    As storage that several nodes share. Yields whether the kernel and this user's rights allow it.
    """
    device = directory.stat().st_dev
    name, number = f"mainstay-bench-{os.getpid()}", f"{os.major(device)}:{os.minor(device)}"
    blkio = Path("/sys/fs/cgroup/blkio")
    root, file, limit = blkio, "blkio.throttle.read_bps_device", f"{number} {rate}"
    if not blkio.exists():
        root, file, limit = Path("/sys/fs/cgroup"), "io.max", f"{number} rbps={rate}"
    group = root / name
    try:
        group.mkdir()
        (group / file).write_text(limit)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        until = time.monotonic() + 30.0
        while group.exists():  # children are still ending
            with contextlib.suppress(OSError):
                group.rmdir()
            if time.monotonic() > until:
                raise TimeoutError(f"processes stay in {group}")
            time.sleep(0.05)
