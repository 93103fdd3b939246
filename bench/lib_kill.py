"""A job that is killed again and again: its arenas watched from outside, its processes and memory taken away.

Nothing here needs the job's cooperation. What is there is read from the arenas' own records, as any reader would; what
is killed gets SIGKILL; memory that is lost is unlinked before the next agent can find it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from bench.lib_job import Job, Json
from mainstay.recovery.memory.arena import RANK_ARENA, Arena
from mainstay.recovery.memory.errors import ArenaError
from mainstay.recovery.memory.records import NO_EPOCH, SlotState, Word
from mainstay.recovery.memory.state import BLOB

AGENT_DEATHS: Final = 4
"""In a row, on one node: after five the launcher stops restarts (``mainstay.recovery.node.agent_supervisor``)."""
AGENT_SERVED_SECONDS: Final = 35.0
"""After so long a life the count of deaths restarts: the launcher's 30 s and the time of a start."""
_PROCESS_BOUND: Final = ("rng.", BLOB)
"""What each process draws for itself (numpy's and Python's generators): it may differ between equal snapshots."""


class Events:
    """The job's events, read as they are appended."""

    def __init__(self, file: Path) -> None:
        self._file, self._at = file, 0
        self.all: list[Json] = []

    def read(self) -> list[Json]:
        """All so far."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._at)
                fresh = file.read()
        except FileNotFoundError:
            return self.all
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._at += len(whole)
        self.all += [json.loads(line) for line in whole.splitlines()]
        return self.all

    def last(self, kind: str) -> Json | None:
        return next((event for event in reversed(self.read()) if event["kind"] == kind), None)


@dataclass
class Truth:
    """What a snapshot of (shape, rank, epoch) is: the first one seen says it, all others must be equal.

    Training is a function of the seed, so a snapshot that differs was torn, or restored from one that was.
    """

    digests: dict[tuple[str, int, int], int] = field(default_factory=dict)
    checked: int = 0
    torn: list[str] = field(default_factory=list)

    def check(self, shape: str, arena: Arena) -> None:
        """Compare every slot that the agent has accepted."""
        for record in arena.records():
            if record.state is not SlotState.VERIFIED:
                continue
            hasher = xxhash.xxh3_64()
            try:
                with arena.reading(record) as data:
                    for spec in arena.layout.tensors:
                        if not spec.name.startswith(_PROCESS_BOUND):
                            hasher.update(data[spec.offset : spec.offset + spec.nbytes].data)
            except ArenaError:
                continue  # overwritten while it was read: no reader would take it
            found = hasher.intdigest()
            key = (shape, arena.header.rank, record.epoch)
            self.checked += 1
            if self.digests.setdefault(key, found) != found:
                self.torn.append(f"{shape} rank {key[1]} epoch {key[2]}: {found:016x}, not {self.digests[key]:016x}")


@dataclass
class ExtraCopy:
    """A running job, one rank a node at the start, and what may be done to it."""

    job: Job
    truth: Truth
    shape: str
    events: Events = field(init=False)
    killed: set[int] = field(default_factory=set)
    """Process ids of ranks."""
    writing: tuple[int, int, int] = (0, 0, -1)
    """Rank, slot and sequence that ``mid_copy`` saw last."""
    _arenas: dict[Path, tuple[int, Arena]] = field(default_factory=dict)
    _agents: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Node -> when its agent died last, and how often in a row."""

    def __post_init__(self) -> None:
        self.events = Events(self.job.directory / "node-0" / "events.jsonl")

    # Seeing

    def arenas(self) -> dict[int, Arena]:
        """Rank -> its arena, as it lies in memory now."""
        found: dict[int, Arena] = {}
        for path in self.job.shm.glob("*/*/*/rank-*.arena"):
            try:
                inode = path.stat().st_ino
                known = self._arenas.get(path)
                if known is None or known[0] != inode:
                    known = self._arenas[path] = (inode, Arena.attach(path))
            except (OSError, ArenaError):
                continue
            if known[1].header.kind == RANK_ARENA:
                found[known[1].header.rank] = known[1]
        return found

    def newest(self) -> int:
        """The newest epoch that every rank has committed; -1 while one has none."""
        newest = [record.epoch if record else NO_EPOCH for a in self.arenas().values() for record in [a.newest()]]
        return min(newest, default=NO_EPOCH)

    def protected(self, ranks: int) -> int:
        """The newest epoch whose parity or copies every rank's node knows to be whole; -1: none."""
        arenas = self.arenas()
        return min((a.word(Word.PARITY_EPOCH) for a in arenas.values()), default=-1) if len(arenas) == ranks else -1

    def check(self) -> None:
        """Look at every snapshot that was accepted."""
        for arena in self.arenas().values():
            self.truth.check(self.shape, arena)

    def ended(self) -> bool:
        return any(launcher.poll() is not None for launcher in self.job.launchers)

    def settled(self) -> bool:
        """Whether every rank runs, none of them one that was killed, after the newest recovery."""
        state = self.job.state()
        ranks = state.get("topology", {}).get("ranks", [])
        if state.get("state") != "running" or any(r["pid"] is None or r["pid"] in self.killed for r in ranks):
            return False
        exits = [e for e in self.events.read() if e["kind"] == "process_exit" and e["data"]["pid"] in self.killed]
        recovered = self.events.last("recovery_completed")
        needed = max((e["generation"] for e in exits), default=0)
        return not self.killed or (recovered is not None and recovered["generation"] > needed)

    def until(self, happened: Callable[[], Any], seconds: float, pause: float = 0.005) -> bool:
        """Whether it did, in time and before the job ended."""
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline or self.ended():
                return bool(happened())
            time.sleep(pause)
        return True

    # Moments

    def mid_copy(self, rank: int, seconds: float = 2.0) -> bool:
        """Wait until ``rank`` is writing a slot, and kill it at once; whether that happened."""
        arena, pid = self.arenas().get(rank), self._pid(rank)
        if arena is None or pid is None:
            return False
        before = arena.records()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            now = arena.records()
            for was, record in zip(before, now, strict=True):
                if was.committed and not record.committed:
                    os.kill(pid, signal.SIGKILL)
                    self.killed.add(pid)
                    self.writing = (rank, record.slot, record.sequence)
                    return True
            before = now
        return False

    def mid_encode(self, every: int, seconds: float = 2.0) -> bool:
        """Wait until an epoch is committed that is to be protected and is not yet; whether one is."""

        def encoding() -> bool:
            return any(
                record.committed and record.epoch % every == 0 and record.epoch > arena.word(Word.PARITY_EPOCH)
                for arena in self.arenas().values()
                for record in arena.records()
            )

        return self.until(encoding, seconds, pause=0.0005)

    def left_half_written(self) -> bool:
        """Whether the slot that ``mid_copy`` saw being written will never be whole: whoever wrote it is dead."""
        rank, slot, sequence = self.writing
        arena = self.arenas().get(rank)
        if arena is None:
            return False
        record = arena.record(slot)
        return record.state is SlotState.INVALID and record.sequence == sequence

    # Killing

    def kill_ranks(self, ranks: list[int]) -> list[int]:
        """SIGKILL; those that had a process to lose."""
        doomed = {rank: pid for rank in ranks if (pid := self._pid(rank)) is not None}
        for pid in doomed.values():
            os.kill(pid, signal.SIGKILL)
        self.killed.update(doomed.values())
        return list(doomed)

    def _pid(self, rank: int) -> int | None:
        """Of the rank's process, if it is a launcher's child and was not killed yet: no stranger's."""
        pid = self.job.pids().get(rank)
        ours = pid is not None and pid not in self.killed and _parent(pid) in {p.pid for p in self.job.launchers}
        return pid if ours else None

    def nodes(self) -> dict[int, str]:
        """Rank -> where it runs."""
        return {rank["rank"]: rank["node"] for rank in self.job.state()["topology"]["ranks"]}

    def spare_agent(self, node: str) -> bool:
        """Whether the launcher of ``node`` would start another agent after one more death."""
        died, deaths = self._agents.get(node, (0.0, 0))
        return deaths < AGENT_DEATHS or time.monotonic() - died > AGENT_SERVED_SECONDS

    def kill_agent(self, node: str) -> bool:
        """SIGKILL to the agent of ``node``; whether there was one."""
        for file in self.job.shm.glob(f"*/*/{node}/owner.json"):
            try:
                pid = int(json.loads(file.read_text())["agent"])
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except (OSError, ValueError):
                continue
            if "mainstay.recovery.agent" in command and f"\0{node}\0" in command:
                os.kill(pid, signal.SIGKILL)
                died, deaths = self._agents.get(node, (0.0, 0))
                now = time.monotonic()
                self._agents[node] = (now, 1 if now - died > AGENT_SERVED_SECONDS else deaths + 1)
                return True
        return False

    def wipe(self, node: str) -> None:
        """The memory of ``node``: arenas, rows, copies, and what the agent knew of them."""
        for directory in self.job.shm.glob(f"*/*/{node}"):
            for file in directory.iterdir():
                if file.name != "agent.lock":
                    file.unlink(missing_ok=True)

    def lose_for_good(self, numbers: list[int]) -> bool:
        """SIGKILL the launchers: their processes and their memory go. Whether all of these ended."""
        doomed = {pid for number in numbers for pid in self.job.children(number)}
        gone = [self.job.launchers[number] for number in numbers]
        for launcher in gone:
            launcher.kill()
        for launcher in gone:
            launcher.wait()
        for number in numbers:
            self.wipe(f"node-{number}")
        self.job.launchers = [launcher for launcher in self.job.launchers if launcher not in gone]
        return self.until(lambda: not [p for p in doomed if Path(f"/proc/{p}").exists()], 30.0)


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
