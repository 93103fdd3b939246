"""Each node has a disk of its own; what a lost disk had comes back from the disks of the others, without a command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.lib_job import Job, free_port
from mainstay.recovery.checkpoint.catalog import RunDirectory, runs
from mainstay.recovery.checkpoint.manifest import DiskConfig, data_name
from tests.fork_server.processes import Warm
from tests.scenarios.pace import FEW, finish, paced
from tests.scenarios.same_bits import assert_same_bits

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("training")]

NODES = 3
ARGUMENTS = ["--steps", "40", "--seed", "7", "--width", "32", "--batch", "1", *FEW, "--dp", "1", "--pp", "3"]
ARGUMENTS += ["--layers", "3"]
"""No rank has a replica."""
OPTIONS = ["--nnodes", "3:4", "--standbys", "0", "--node-timeout", "8", "--protection", "xor", "--checkpoint-parity"]
OPTIONS += ["--parity-interval", "5", "--checkpoint-interval", "5", "--checkpoint-keep", "20"]


@pytest.fixture(scope="module")
def undisturbed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Final parameters of the plain script: no launcher, no snapshots, no fault."""
    return warm.undisturbed(tmp_path_factory.mktemp("plain"), ARGUMENTS, NODES)


class Site:
    """Three nodes of one rank each, and a fourth that may join."""

    def __init__(self, warm: Warm, home: Path, ms: int = 250, **changes: Any) -> None:
        self.disks = [home / f"disk-{number}" for number in range(NODES + 1)]
        self.saved = home / "saved"
        what: dict[str, Any] = {
            "directory": home / "job",
            "arguments": [*ARGUMENTS, *paced(home / "job", ms), "--save", str(self.saved)],
            "options": OPTIONS,
            "own": {number: ["--checkpoint-dir", str(disk)] for number, disk in enumerate(self.disks)},
        }
        self.job = warm.job(nodes=NODES, per_node=1, port=free_port(), **what | changes)

    def run(self, number: int) -> RunDirectory:
        (found,) = runs(self.disks[number])
        return found

    def protected(self) -> list[int]:
        """Steps of which every node has its part and its parity, in order."""
        return [epoch for epoch in self.common() if all(any(self.run(node).parity(epoch)) for node in range(NODES))]

    def common(self) -> list[int]:
        """Steps of which every node has its part, in order."""
        found = [run for disk in self.disks[:NODES] if disk.is_dir() for run in runs(disk)]
        steps = [{epoch for epoch in run.steps() if run.parts(epoch)} for run in found]
        return sorted(set.intersection(*steps)) if len(steps) == NODES else []

    def join(self, number: int) -> None:
        self.job.launchers.append(self.job.start_again(number))
        self.job.nodes = NODES + 1
        name = f"node-{number}"
        self.job.until(lambda: self.job.state()["topology"]["standbys"].get(name), 90.0, f"spare node {number}")

    def lose(self, number: int) -> None:
        """The node with its memory and its disk."""
        doomed, launcher = self.job.children(number), self.job.launchers.pop(number)
        launcher.kill()
        launcher.wait()
        gone(doomed)
        self._lose_memory(number)
        shutil.rmtree(self.disks[number])

    def lose_memory(self, number: int) -> None:
        """SIGKILL the rank and the agent of a node, whose launcher starts others; the disk stays."""
        doomed = {
            pid
            for pid, command in self.job.children(number).items()
            if "mainstay.recovery.agent" in command or pid == self.job.pids()[number]
        }
        for pid in doomed:
            os.kill(pid, signal.SIGSTOP)
        self._lose_memory(number)
        for pid in doomed:
            os.kill(pid, signal.SIGKILL)
        gone(doomed)

    def _lose_memory(self, number: int) -> None:
        for directory in self.job.shm.glob(f"*/job/node-{number}"):
            shutil.rmtree(directory, ignore_errors=True)


def sent_common(job: Job) -> tuple[int, ...]:
    """The step that all disks have and keep, and the next one, as the coordinator told the agent of node 0."""
    files = [*job.shm.glob("*/job/node-0/disk.json")]
    return (msgspec.json.decode(files[0].read_bytes(), type=DiskConfig).common if files else ()) or (-1,)


def gone(pids: object) -> None:
    deadline = time.monotonic() + 60.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "processes did not end"
        time.sleep(0.02)


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes(raw)


def kill(job: Job) -> None:
    """All launchers and what they started."""
    doomed = [pid for number in range(NODES) for pid in job.children(number)]
    for launcher in job.launchers:
        launcher.kill()
    for launcher in job.launchers:
        launcher.wait()
    gone(doomed)


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_the_part_of_a_lost_disk_comes_back_on_another_node(
    warm: Warm, tmp_path: Path, undisturbed: Path, *, damaged: bool
) -> None:
    """Two of three memories are lost, so that XOR in memory is not enough; of the disks only one.

    Where a file of another disk is damaged too, the step before is what all have.
    """
    site = Site(warm, tmp_path)
    with site.job as job:
        job.until(lambda: len(site.protected()) >= 2, 120.0, "parity on all disks")
        site.join(3)
        site.lose_memory(1)
        before, newest = site.protected()[-2:]
        part = site.run(2).step(before if damaged else newest) / data_name(2, 1)
        expected, name = part.read_bytes(), site.run(1).step(newest) / data_name(1, 1)
        if damaged:
            damage(name)
        site.lose(2)
        job.wait_recoveries(1, 120.0)
        assert finish(job) == [0] * NODES, job.tail()
    (done,) = job.events("recovery_completed")
    assert done["data"]["epoch"] == (before if damaged else newest)
    assert_same_bits(site.saved, undisturbed, NODES)
    again = site.run(3).step(done["data"]["epoch"])  # the next loss of a disk is borne too
    assert [path.read_bytes() for path in again.glob("__2_*.distcp")] == [expected], list(again.iterdir())
    assert any(site.run(3).parity(done["data"]["epoch"]))
    failed = [event["data"]["detail"] for event in job.events("action_finished") if not event["data"]["ok"]]
    assert any(f"node node-1: {name}: tensor" in detail for detail in failed) == damaged, failed


def test_resume_takes_the_step_that_all_disks_give_together(warm: Warm, tmp_path: Path, undisturbed: Path) -> None:
    """All memory and the disk of the coordinator's node are lost; two other nodes have changed places."""
    site = Site(warm, tmp_path)
    with site.job as job:
        job.until(lambda: len(site.protected()) >= 2, 120.0, "parity on all disks")
        kill(job)
    newest = site.protected()[-1]
    run = site.run(1).id
    shutil.rmtree(site.disks[0])
    own = {number: ["--checkpoint-dir", str(site.disks[disk])] for number, disk in enumerate([0, 2, 1])}
    again = Site(warm, tmp_path / "again", 0, options=[*OPTIONS, "--resume", "latest"], own=own)
    with again.job as job:
        assert job.wait() == [0] * NODES, job.tail()
    print(job.tail(100))
    assert f"resuming after step {newest} of run {run}, from the disks of all nodes" in job.log(0).read_text()
    assert_same_bits(again.saved, undisturbed, NODES)


def test_a_disk_that_hangs_leaves_a_step_that_all_have(warm: Warm, tmp_path: Path, undisturbed: Path) -> None:
    """The others keep one step; it is not one that the slow disk will never have."""
    options = ["--nnodes", "3", "--protection", "none", "--checkpoint-interval", "1", "--checkpoint-keep", "1"]
    site = Site(warm, tmp_path, options=options)
    with site.job as job:
        job.until(lambda: sent_common(job)[0] in site.common(), 120.0, "a step that all nodes know all have")
        (writer,) = (
            pid for pid, command in job.children(1).items() if "mainstay.recovery.checkpoint.writer" in command
        )
        os.kill(writer, signal.SIGSTOP)
        first = site.run(0).steps()[-1]
        job.until(lambda: site.run(0).steps()[-1] > first + 8, 120.0, "steps that one node cannot write")
        kill(job)
    newest = max(site.common())
    own = {number: ["--checkpoint-dir", str(disk)] for number, disk in enumerate(site.disks)}
    again = Site(warm, tmp_path / "again", 0, options=[*options, "--resume", "latest"], own=own)
    with again.job as job:
        assert job.wait() == [0] * NODES, job.tail()
    (resumed,) = re.findall(r"resuming after step (\d+) of run", job.log(0).read_text())
    assert int(resumed) >= newest, "the agent may have started another writer before it ended"
    assert_same_bits(again.saved, undisturbed, NODES)
