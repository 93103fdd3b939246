"""Writers of checkpoints that are killed by SIGKILL at random moments, on disks that fill, fail, or turn read-only.

Two nodes write a step side by side, each in a process of its own, whole states, shares, and differences in turn. After
each fault a reader looks: every step that claims to be whole must verify to the last byte and hold the bytes that were
in memory, and no step that was whole before may be gone that retention keeps. Then the same writers try again.
``--stride N``: of the calls that fail in turn (``bench.lib_device_faults``) only each N-th.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from bench.lib_checkpoint_job import RANKS, Counts, Job
from bench.lib_cluster import small_disk
from bench.lib_device_faults import (
    READER_FAULTS,
    UPLOADER_FAULTS,
    WRITER_FAULTS,
    Fault,
    read_under,
    upload_under,
    write_under,
)
from bench.report import RESULTS, Row, publish
from tests.recovery.checkpoint.faulty_disk import COMPILER, Calls, FaultyDisk

WARM_UP = 5
FEW, TWO_BLOCKS = 99, 9_000
"""Rows of a part that takes one write, and of one that takes two."""


def usual_seconds(job: Job) -> float:
    """That both writers take for a step that nothing disturbs."""
    found = []
    for _ in range(WARM_UP):
        job.step()
        begun = time.monotonic()
        children = [job.start(rank) for rank in range(RANKS)]
        for child in children:
            os.waitpid(child, 0)
        found.append(time.monotonic() - begun)
    return sorted(found)[WARM_UP // 2]


def kill_once(job: Job, chance: random.Random, longest: float, counts: Counts) -> None:
    """A step whose writers are killed within ``longest`` seconds, one or both; then it is written to its end."""
    job.step()
    before = job.whole()
    children = [job.start(rank) for rank in range(RANKS)]
    for child in children[: chance.choice((1, RANKS))]:
        time.sleep(chance.random() * longest / RANKS)
        os.kill(child, signal.SIGKILL)
    ended = [os.waitpid(child, 0)[1] for child in children]
    counts.points += 1
    counts.struck += any(os.WIFSIGNALED(status) for status in ended)
    counts.note("SIGKILL", None, job, before)
    for rank in range(RANKS):
        problem = job.write(rank)
        if problem:
            counts.lost.append(f"step {job.epoch} could not be written after the kill: {problem}")
    if job.whole()[:1] != [job.epoch]:
        counts.lost.append(f"step {job.epoch} is not whole after both wrote it")


def strike_once(job: Job, strike: Callable[[], None], repair: Callable[[], None], counts: Counts) -> None:
    """A step that is written while the disk refuses; then the disk is well again."""
    job.step()
    before = job.whole()
    strike()
    told = [job.write(rank) for rank in range(RANKS)]
    counts.points += 1
    counts.struck += any(told)
    for problem in told:
        counts.note(f"step {job.epoch}", problem, job, before)
    repair()
    for rank in range(RANKS):
        job.write(rank)
    if job.whole()[:1] != [job.epoch]:
        counts.lost.append(f"step {job.epoch} is not whole on a disk that is well again")


def disks(job: Job, disk: Path, points: int) -> Counts:
    """A disk that is full, or read-only."""
    counts, filler = Counts(), disk / "filler"

    def fill() -> None:
        free = os.statvfs(disk)
        left = free.f_bavail * free.f_frsize
        filler.write_bytes(bytes(max(0, left - (counts.points % 40) * 16_384)))

    def mount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)

    for point in range(points):
        if point % 4:
            strike_once(job, fill, lambda: filler.unlink(missing_ok=True), counts)
        else:
            strike_once(job, lambda: mount("ro"), lambda: mount("rw"), counts)
    return counts


def calls(memory: Path, stride: int) -> dict[str, Counts]:
    """Each call of a writer, a reader, and an uploader fails in turn; also each write of a part that takes several."""
    found = {}

    def sweep(name: str, under: Callable[..., Counts], size: int, faults: Sequence[Fault], stride: int) -> None:
        home = memory / name
        (home / "disk").mkdir(parents=True)  # in memory too: what fails is not the device
        job, disk = Job(home, home / "disk", rows=size), FaultyDisk(home / "disk", home / "lib")
        found[name] = under(job, disk, faults, stride)

    sweep("writes", write_under, FEW, WRITER_FAULTS, stride)
    sweep("large", write_under, TWO_BLOCKS, [replace(one, calls=Calls.WRITE) for one in WRITER_FAULTS[:4]], 1)
    sweep("reads", read_under, FEW, READER_FAULTS, stride)
    sweep("uploads", upload_under, FEW, UPLOADER_FAULTS, stride)
    return found


def run(points: int, stride: int, seed: int = 0) -> dict[str, Counts]:
    """Kills; for root, disks that refuse; with a C compiler, calls that fail."""
    chance, found = random.Random(seed), {"kills": Counts()}
    with ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstay-bench-", dir="/dev/shm")))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mainstay-bench-")))
        for name in ("kills", "disks"):
            (memory / name).mkdir()
        job = Job(memory / "kills", disk, encodes=True)
        longest = usual_seconds(job)
        for _ in range(points):
            kill_once(job, chance, longest, found["kills"])
        if os.geteuid() == 0 and shutil.which("mount"):
            small = disk / "small"
            stack.enter_context(small_disk(small, 8))
            found["disks"] = disks(Job(memory / "disks", small), small, max(4, points // 5))
        if COMPILER is not None:
            found |= calls(memory, stride)
    return found


def rows(found: dict[str, Counts]) -> list[Row]:
    words = {
        "kills": "SIGKILL of writers at random moments",
        "disks": "writes to a full or read-only disk",
        "writes": "each call of a writer fails in turn, in 7 ways",
        "large": "each write of large parts fails in turn, in 4 ways",
        "reads": "each call of a reader fails in turn, in 2 ways",
        "uploads": "each call of an uploader fails in turn, in 5 ways",
    }
    made = []
    for name, counts in found.items():
        kinds = Counter(false=len(counts.false_whole), lost=len(counts.lost), silent=len(counts.silent))
        made.append(
            Row(
                claim=f"{words[name]}: steps that falsely claim to be whole, or are lost",
                figure=kinds["false"] + kinds["lost"] + kinds["silent"], unit="", target="0",
                holds=counts.struck > 0 and not any(kinds.values()), kind="live", n=counts.points,
                note=f"{counts.struck} hit a process at work; " + "; ".join(
                    [*counts.false_whole, *counts.lost, *counts.silent][:3]),
            )
        )  # fmt: skip
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_faults")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpoint_faults.json", metavar="FILE")
    parser.add_argument("--points", type=int, default=1000, help="kills; a fifth as many disk faults")
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="of calls that fail in turn each N-th")
    chosen = parser.parse_args()
    publish("checkpoint_faults", rows(run(chosen.points, chosen.stride)), chosen.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
