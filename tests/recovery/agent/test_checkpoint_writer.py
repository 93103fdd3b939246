"""The disk level of one agent, and a job that goes back while it is written. In one process, but for who writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.lib_source import ArraySource
from mainstay.recovery.agent.arena_files import commit_checked
from mainstay.recovery.agent.checkpoint_writer import CheckpointWriter, WriterGoneError, WriterProcess
from mainstay.recovery.agent.errors import CorruptError, NoSuchSlotError
from mainstay.recovery.agent.messages import ConfigureDisk, LoadDisk, SaveCheckpoint
from mainstay.recovery.agent.node import AgentNode, AgentSettings
from mainstay.recovery.agent.parity_store import ParityStore
from mainstay.recovery.agent.store import ArenaStore
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import MANIFEST, DiskConfig
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.writer import Writer, WriteRequest, WriteResult
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.records import Word
from mainstay.recovery.memory.snapshot import SnapshotWriter

RUN = "run-1"


def config(generation: int = 1, returns: tuple[tuple[int, int], ...] = (), every: int = 10) -> DiskConfig:
    return DiskConfig(run=RUN, generation=generation, every=every, dp=1, pp=1, tp=1, returns=returns)


class Bench:
    """The store of one node with one rank, and what writes its files."""

    def __init__(self, root: Path) -> None:
        self.files = root / "checkpoints"
        memory = root / "memory"
        memory.mkdir()
        tls = job_tls("secret", "job", Authority.SNAPSHOTS)
        settings = AgentSettings(
            job="job", node="node", tls=tls, directory=memory, disk_every=10, disk_keep=RetentionPolicy(last=4)
        )
        self.store = ArenaStore(memory, slots=settings.slots, disk_every=settings.disk_every)
        self.array = np.zeros(5000, np.uint8)
        source = ArraySource({"t": self.array})
        self.store.open(0, source.layout)
        self.arena = self.store.arena(0)
        self.snapshots = SnapshotWriter(self.arena, source)
        self.writer = CheckpointWriter(AgentNode(settings, self.store, ParityStore(memory)), self.files)
        self.writer.configure(ConfigureDisk(config=config()))

    def step(self, epoch: int, generation: int, value: int) -> None:
        self.array[:] = value
        self.snapshots.start(epoch, generation)
        self.snapshots.wait()

    def go_back(self, epoch: int, generation: int) -> None:
        self.store.fence(generation)
        self.store.discard_after(epoch)

    def listed(self) -> list[tuple[int, int]]:
        """(epoch, generation) of each part."""
        return sorted((entry.epoch, entry.generation) for entry in self.writer.listed())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Orders are carried out here, so that a test can step between."""
    writer = Writer()
    monkeypatch.setattr(WriterProcess, "submit", lambda _, order: writer.carry_out(order))
    made = Bench(tmp_path)
    yield made
    made.snapshots.close()


def test_a_file_tells_the_generation_in_which_its_step_was_made(bench: Bench) -> None:
    bench.step(10, 1, 5)
    bench.writer.run_once()
    bench.step(20, 1, 6)
    bench.writer.run_once()
    bench.go_back(10, 2)
    assert bench.listed() == [(10, 1), (20, 1)]
    bench.writer.configure(ConfigureDisk(config=config(2, ((10, 2),))))
    assert bench.listed() == [(10, 1)]
    bench.step(20, 2, 6)  # the same bits, of another history all the same
    bench.writer.run_once()
    assert bench.listed() == [(10, 1), (20, 2)]


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_job_that_goes_back_while_a_file_is_written_has_its_epochs_written_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    bench.step(10, 1, 5)
    bench.writer.run_once()
    submit: Callable[..., WriteResult] = WriterProcess.submit

    def interrupted(writer_process: WriterProcess, order: WriteRequest) -> WriteResult:
        if when == "before":
            bench.go_back(10, 2)
        outcome = submit(writer_process, order)
        if when == "behind":
            bench.go_back(10, 2)
        return outcome

    bench.step(20, 1, 6)
    with monkeypatch.context() as patch:
        patch.setattr(WriterProcess, "submit", interrupted)
        bench.writer.run_once()
    assert bench.arena.word(Word.DISK_FLOOR) == 10  # what is behind is still to be written, and its slots are pinned
    bench.writer.configure(ConfigureDisk(config=config(2, ((10, 2),))))
    bench.step(20, 2, 7)
    bench.writer.run_once()
    assert bench.listed() == [(10, 1), (20, 2)]
    (tensor,) = RunDirectory(bench.files / RUN).part(20, 0, 2).tensors
    assert np.fromfile(bench.files / RUN / "step-00000020" / "__0_2.distcp", np.uint8)[tensor.at] == 7


def test_the_run_is_remembered_by_the_next_agent_and_forgotten_with_the_memory(bench: Bench) -> None:
    again = CheckpointWriter(bench.writer._node, bench.files)
    assert again.config == config()
    told = msgspec.structs.replace(config(), common=(5, 10))
    again.configure(ConfigureDisk(config=told))
    again.configure(ConfigureDisk(config=config()))
    assert again.config == told, "a new coordinator does not know yet what all disks have"
    again.forget()
    assert CheckpointWriter(bench.writer._node, bench.files).config is None


def test_the_last_save_writes_what_is_no_disk_epoch(bench: Bench) -> None:
    bench.step(13, 1, 9)
    bench.writer.save(SaveCheckpoint(epoch=13))
    assert bench.listed() == [(13, 1)]
    assert RunDirectory(bench.files / RUN).manifest(13).epoch == 13
    (bench.files / RUN / "step-00000014").write_text("in the way")
    bench.step(14, 1, 9)
    with pytest.raises(NoSuchSlotError, match="epoch 14 was not written"):
        bench.writer.save(SaveCheckpoint(epoch=14))


def test_a_step_whose_manifest_the_disk_refuses_is_completed_later_or_said_not_to_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstacles = [bench.files / RUN / f"step-000000{epoch}" / MANIFEST for epoch in (13, 14)]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if seconds:
            shutil.rmtree(obstacles[0], ignore_errors=True)

    monkeypatch.setattr(time, "sleep", pause)
    for epoch, obstacle in zip((13, 14), obstacles, strict=True):
        obstacle.mkdir(parents=True)
        bench.step(epoch, 1, 9)
    bench.writer.save(SaveCheckpoint(epoch=13))
    assert RunDirectory(bench.files / RUN).manifest(13).epoch == 13
    assert len(pauses) == 2
    with pytest.raises(NoSuchSlotError, match=r"step 14 is not complete, although parts of it are written.*directory"):
        bench.writer.save(SaveCheckpoint(epoch=14))
    assert len(pauses) == 5
    obstacles[1].rmdir()
    bench.writer.save(SaveCheckpoint(epoch=14))
    assert not bench.store.degraded


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"run": "../up"}, "run"), ({"dp": 0}, "dp=0"), ({"every": -1}, "0 for never"), ({"dp": 1 << 40}, "cannot be")],
)
def test_orders_that_make_no_sense_are_refused(bench: Bench, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        bench.writer.configure(ConfigureDisk(config=msgspec.structs.replace(config(), **changes)))
    assert bench.writer.config == config()


def test_a_slow_disk_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.writer.late() == ""
    monkeypatch.setattr("mainstay.recovery.agent.checkpoint_writer.SLOW_SECONDS", 0.0)
    bench.writer._writer_process.busy_since = 0.0
    assert "has been under way for" in bench.writer.late()


# Real agents


def test_the_disk_level_round_trip(agents, ranks, contents, eventually, tmp_path):
    disk = tmp_path / "checkpoints"
    agent = agents("a", "--checkpoint-interval", "3", "--checkpoint-dir", str(disk))
    rank = ranks(0, agent)
    client = agent.client()
    client.configure_disk(config(every=3))
    for epoch in range(1, 11):
        rank.step(epoch)
        if epoch % 3 == 0:
            eventually(lambda epoch=epoch: epoch in [d.epoch for d in client.inventory().disk])
    eventually(lambda: [d.epoch for d in client.inventory().disk] == [9, 6])  # two are kept
    agent.lose()
    agent.start()
    back = ranks(0, agent)
    done = agent.client().load(LoadDisk(rank=0, epoch=9, directory=str(disk), run=RUN))
    assert done.nbytes == back.layout.nbytes
    views = back.arena.layout.views(back.arena.slot_bytes(back.arena.find(9).slot))
    assert all(views[name].tobytes() == value.tobytes() for name, value in contents(0, 9, back.sizes).items())
    assert agent.client().inventory().rates.disk_read > 0
    other = ranks(4, agent)
    # As in another shape of the job.
    agent.client().load(LoadDisk(rank=4, epoch=9, directory=str(disk), run=RUN, from_rank=0, generation=1))
    assert other.arena.find(9).digest == done.digest


def test_a_damaged_or_foreign_file_is_refused(agents, ranks, eventually, tmp_path):
    agent = agents("a", "--checkpoint-interval", "1", "--checkpoint-dir", str(tmp_path))
    rank = ranks(0, agent)
    client = agent.client()
    client.configure_disk(config(every=1))
    rank.step(1)
    step = tmp_path / RUN / "step-00000001"
    eventually((step / "manifest.json").exists)
    path = step / "__0_1.distcp"
    whole = path.read_bytes()
    for body in (whole[:-90_000], whole[: len(whole) // 2] + b"!" + whole[len(whole) // 2 + 1 :], b""):
        path.write_bytes(body)
        with pytest.raises(CorruptError, match=r"__0_1\.distcp"):
            client.load(LoadDisk(rank=0, epoch=1, directory=str(tmp_path), run=RUN))
    path.write_bytes(whole)
    for epoch, run in ((2, RUN), (1, "run-2")):
        with pytest.raises(NoSuchSlotError, match="does not hold rank 0"):
            client.load(LoadDisk(rank=0, epoch=epoch, directory=str(tmp_path), run=run))
    (step / "rank-5.g1.json").write_bytes((step / "rank-0.g1.json").read_bytes())
    (step / "__5_1.distcp").write_bytes(whole)
    ranks(5, agent)
    with pytest.raises(CorruptError, match="holds rank 0"):
        client.load(LoadDisk(rank=5, epoch=1, directory=str(tmp_path), run=RUN))


def test_a_disk_that_refuses_is_reported_and_training_goes_on(agents, ranks, eventually, tmp_path):
    (tmp_path / RUN).write_text("in the way")
    agent = agents("a", "--checkpoint-interval", "1", "--checkpoint-dir", str(tmp_path))
    agent.client().configure_disk(config(every=1))
    rank = ranks(0, agent)
    for epoch in range(1, 6):
        rank.step(epoch)
    eventually(lambda: any("disk level of rank 0" in words for words in agent.client().inventory().degraded))
    assert rank.arena.newest().epoch == 5


def children(pid: int) -> set[int]:
    """Of all threads of a process; a thread that answers a client may end meanwhile."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {int(child) for child in (task / "children").read_text().split()}
    return found


def test_a_writer_that_is_killed_is_started_again(agents, ranks, eventually, tmp_path):
    agent = agents("a", "--checkpoint-interval", "1", "--checkpoint-dir", str(tmp_path))
    client = agent.client()
    client.configure_disk(config(every=1))
    rank = ranks(0, agent)
    for epoch in (1, 2):
        rank.step(epoch)
        eventually(lambda epoch=epoch: epoch in {d.epoch for d in client.inventory().disk})
        eventually(lambda: len(children(agent.process.pid)) == 1)
        for pid in children(agent.process.pid):
            os.kill(pid, 9)
    assert not [words for words in client.inventory().degraded if "disk" in words]


def test_a_writer_that_ends_before_it_has_read_its_order_is_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = [sys.executable, "-c", "import os, time; os.close(0); print(flush=True); time.sleep(60)"]
    start, processes = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def start_deaf(_command: list[str], **options: int) -> subprocess.Popen[bytes]:
        processes.append(process := start(deaf, **options))
        assert process.stdout is not None
        process.stdout.readline()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_deaf)
    writer = WriterProcess()
    for _ in range(2):
        with pytest.raises(WriterGoneError, match="Broken pipe"):
            writer.submit(WriteRequest(directory="", job="job", config=config(), keep=RetentionPolicy()))
    assert [process.wait(30) for process in processes] == [-signal.SIGKILL] * 2


def test_the_copy_of_a_lost_rank_is_written_when_asked(bench: Bench) -> None:
    source = ArraySource({"t": np.full(5000, 3, np.uint8)})
    bench.writer.configure(ConfigureDisk(config=DiskConfig(run=RUN, generation=1, every=10, dp=2, pp=1, tp=1)))
    arena, slot = bench.store.copies.begin_copy(1, source.layout)
    arena.slot_bytes(slot)[:5000] = 3
    arena.slot_bytes(slot)[5000:] = 0
    commit_checked(arena, slot, 13, 1, digest(arena.slot_bytes(slot)[: source.layout.nbytes]))
    bench.step(13, 1, 9)
    bench.writer.save(SaveCheckpoint(epoch=13, copies=(1, 7)))
    assert [(part.rank, part.nbytes) for part in RunDirectory(bench.files / RUN).manifest(13).parts] == [
        (0, 5056),
        (1, 5056),
    ]


def test_a_directory_that_hangs_holds_up_no_inventory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.step(10, 1, 5)
    bench.writer.run_once()
    assert bench.listed() == [(10, 1)]
    answer = threading.Event()
    monkeypatch.setattr("mainstay.recovery.agent.checkpoint_writer.LIST_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "steps", lambda _: answer.wait(30.0) and [])
        assert bench.listed() == [(10, 1)]  # what was last seen
        assert "does not answer" in bench.store.degraded["checkpoint directory"]
        assert bench.listed() == [(10, 1)]
        answer.set()
        assert bench.writer._looking is not None
        bench.writer._looking.join(20.0)
    monkeypatch.setattr("mainstay.recovery.agent.checkpoint_writer.LIST_SECONDS", 20.0)
    assert bench.listed() == [(10, 1)]
    assert "checkpoint directory" not in bench.store.degraded


def test_a_directory_that_cannot_be_made_is_said_once_and_over_when_it_can(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.files.write_text("in the way")
    for _ in range(3):
        bench.writer.run_once()
    assert caplog.text.count("DEGRADED disk level: ") == 1
    assert "disk level" in bench.store.degraded
    bench.files.unlink()
    bench.writer.run_once()
    assert "disk level" not in bench.store.degraded


def test_one_more_step_is_written_on_request_and_kept_until_then(bench: Bench) -> None:
    bench.writer.configure(ConfigureDisk(config=msgspec.structs.replace(config(), once=7)))
    for epoch in (6, 7, 8, 9):
        bench.step(epoch, 1, epoch)
    assert [record.epoch for record in bench.arena.records() if record.epoch == 7], "its slot is not overwritten"
    bench.writer.run_once()
    assert bench.listed() == [(7, 1)]
    bench.step(10, 1, 10)
    bench.step(11, 1, 11)
    assert 7 not in [record.epoch for record in bench.arena.records()]
    bench.writer.run_once()
    assert bench.listed() == [(7, 1), (10, 1)], "the interval is as it was"


def test_an_arena_that_is_made_later_knows_of_it(bench: Bench) -> None:
    bench.writer.configure(ConfigureDisk(config=msgspec.structs.replace(config(), once=7)))
    bench.store.open(1, ArraySource({"t": np.zeros(10, np.uint8)}).layout)
    assert bench.store.arena(1).word(Word.DISK_ONCE) == 7


def test_the_end_of_the_agent_is_no_failure_of_the_disk(bench: Bench) -> None:
    """A job that has nothing left to do ends before its run has begun on disk."""
    bench.writer._writer_process.stop()
    bench.writer._begin(config())
    assert bench.store.degraded == {}


def test_only_slots_that_were_there_are_said_to_be_gone(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that resumes in another shape changes its layout before it has a slot."""
    for value in (1, 2):
        bench.store.open(0, ArraySource({"t": np.zeros(value, np.uint8)}).layout)
    assert "another layout" not in caplog.text
    bench.store.open(0, ArraySource({"t": bench.array}).layout)
    bench.snapshots = SnapshotWriter(bench.store.arena(0), ArraySource({"t": bench.array}))
    bench.step(1, 1, 1)
    bench.store.open(0, ArraySource({"t": np.zeros(3, np.uint8)}).layout)
    assert "another layout" in caplog.text
