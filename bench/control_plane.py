"""What coordinates may fail too: killed at rest and in a recovery, stopped, cut off; and failures within failures.

Each story is a job of its own, some seconds of training with a strike at a random moment. It must end with the
parameters of an undisturbed run, or stop and say why; and at no time may two generations have been alive: whoever
coordinated before has formed nothing after its successor did. A scenario that cannot run is a row with the reason.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.lib_job import Job, JobError, free_port, run_plain
from bench.lib_partition import HOST, Cut
from bench.report import RESULTS, Row, publish

SEED: Final = 31
NODES: Final = 3
STEPS: Final = 40
HANG_STEPS: Final = 400
"""Long enough that the watch has learned how long this job is quiet."""
HANG_AFTER: Final = 60
HANG_LEARNT_SECONDS: Final = 12.0
"""The watch learns from ten gaps how long this job is quiet, and receives one a second; until then 300 s are fine."""
HANG_PACE: Final = ("--faults", "sleep:rank=0,step=0,ms=20")
"""So that the job is still there then, on any machine."""
START_SECONDS: Final = 300.0
ARGUMENTS: Final = ("--seed", "5", "--width", "64", "--batch", "1", "--dp", str(NODES), "--pp", "1")
HANG_BOUND: Final = 1.0
"""Seconds from the watch's verdict to the first new step."""


@dataclass
class Outcome:
    """One run of a scenario."""

    how: str
    """``equal``, ``stopped``, or what went wrong."""
    seconds: float = 0.0
    """From the strike to the next committed step."""
    split: bool = False
    """Two coordinators formed generations side by side."""
    note: str = ""


@dataclass
class Teller:
    """Jobs of one size, and where their results are."""

    place: Path
    chance: random.Random
    number: int = 0
    _undisturbed: dict[int, Path] = field(default_factory=dict)

    def job(self, *options: str, steps: int = STEPS, pace: Sequence[str] = ()) -> Job:
        self.number += 1
        place = self.place / f"job-{self.number}"
        words = ["--steps", str(steps), *ARGUMENTS, *pace, "--save", str(place / "saved")]
        return Job(
            directory=place, arguments=words, nodes=NODES, per_node=1,
            options=["--standbys", "2", "--node-timeout", "4", *options],
        )  # fmt: skip

    def reference(self, steps: int) -> Path:
        """The undisturbed run's parameters, made when first asked for."""
        if steps not in self._undisturbed:
            saved = self.place / f"undisturbed-{steps}"
            words = ["--steps", str(steps), *ARGUMENTS, "--save", str(saved)]
            run_plain(self.place / f"plain-{steps}", words, ranks=NODES, seconds=600.0)
            self._undisturbed[steps] = saved
        return self._undisturbed[steps]

    def finish(self, job: Job, struck: float, steps: int = STEPS) -> Outcome:
        """Wait for the end and compare."""
        recovered = [event for event in job.events("recovery_completed") if event["time"] > struck]
        seconds = recovered[0]["time"] - struck if recovered else 0.0
        codes = job.wait(300.0)
        if any(codes):
            clear = any(e["data"].get("reason") for e in job.events("job_finished"))
            return Outcome("stopped" if clear else "ended without a word", seconds, split(job), job.tail(5))
        saved, other = Path(job.arguments[-1]), self.reference(steps)
        names = [path.name for path in other.iterdir()]
        same = all((saved / n).is_file() and (saved / n).read_bytes() == (other / n).read_bytes() for n in names)
        return Outcome("equal" if same and names else "wrong bits", seconds, split(job))


def split(job: Job) -> bool:
    """Whether a coordinator formed a generation after another one with a later one had begun."""
    formed = [
        (event["generation"], number, event["time"])
        for number in range(job.nodes)
        for event in job.events_of(number)
        if event["kind"] in {"job_started", "recovery_completed"}
    ]
    return any(g1 <= g2 and n1 != n2 and t1 > t2 for g1, n1, t1 in formed for g2, n2, t2 in formed)


def lose_coordinator(job: Job) -> float:
    now = time.time()
    job.launchers[0].kill()
    job.launchers[0].wait()
    job.launchers = job.launchers[1:]
    return now


def killed_at_rest(teller: Teller) -> Outcome:
    with teller.job() as job:
        job.wait_step(teller.chance.randrange(4, 14), START_SECONDS)
        struck = lose_coordinator(job)
        job.wait_recoveries(1, 120.0)
        return teller.finish(job, struck)


def killed_in_recovery(teller: Teller) -> Outcome:
    """The coordinator dies while it brings a rank of another node back."""
    with teller.job() as job:
        job.wait_step(teller.chance.randrange(4, 14), START_SECONDS)
        job.kill(teller.chance.randrange(1, NODES))
        job.until(lambda: job.events("process_exit"), 30.0, "the exit to be known")
        time.sleep(teller.chance.uniform(0.0, 0.4))
        struck = lose_coordinator(job)
        job.until(lambda: [e for e in job.events("recovery_completed") if e["time"] > struck], 120.0, "a recovery")
        return teller.finish(job, struck)


def stopped(teller: Teller) -> Outcome:
    """SIGSTOP of the launcher that coordinates; it wakes when the job has gone on without it."""
    with teller.job() as job:
        job.wait_step(teller.chance.randrange(4, 14), START_SECONDS)
        old, struck = job.launchers.pop(0), time.time()
        os.kill(old.pid, signal.SIGSTOP)
        try:
            job.wait_recoveries(1, 120.0)
        finally:
            os.kill(old.pid, signal.SIGCONT)
        old.wait(60.0)
        return teller.finish(job, struck)


def cut_off(teller: Teller) -> Outcome:
    """Nothing passes between node 0's launcher and the others, through a TCP proxy, and no process is notified."""
    job = teller.job()
    job.port, endpoint = free_port(), free_port()
    job.reach = dict.fromkeys(range(1, NODES), HOST)
    job.own = {0: ["--launcher-endpoint", f"{HOST}:{endpoint}"]}
    with Cut(job.port, endpoint) as network, job:
        job.wait_step(teller.chance.randrange(4, 14), START_SECONDS)
        network.cut()
        old, struck = job.launchers.pop(0), time.time()
        left = old.wait(120.0)
        job.wait_recoveries(1, 120.0)
        outcome = teller.finish(job, struck)
        outcome.note = f"the minority ended with {left}"
        outcome.split = outcome.split or left == 0
        return outcome


def failure_in_rebuild(teller: Teller) -> Outcome:
    """A node's memory is gone, and while its rank is rebuilt another rank dies."""
    with teller.job("--parity-interval", "3") as job:
        job.wait_step(teller.chance.randrange(10, 16), START_SECONDS)
        victim, second = teller.chance.sample(range(NODES), 2)
        for pid in [
            job.pids()[victim],
            *(p for p, words in job.children(victim).items() if "mainstay.recovery.agent" in words),
        ]:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        for arena in job.shm.rglob(f"*/job/node-{victim}/*.arena"):
            arena.unlink()
        job.until(lambda: job.events("recovery_planned"), 30.0, "a plan")
        time.sleep(teller.chance.uniform(0.0, 0.3))
        struck = job.kill(second)
        job.until(lambda: [e for e in job.events("recovery_completed") if e["time"] > struck], 120.0, "a recovery")
        return teller.finish(job, struck)


def hang(teller: Teller) -> Outcome:
    """SIGSTOP of a rank, with ``--on-hang recover``."""
    with teller.job("--on-hang", "recover", steps=HANG_STEPS, pace=HANG_PACE) as job:
        job.wait_step(1, START_SECONDS)
        time.sleep(HANG_LEARNT_SECONDS)
        job.wait_step(HANG_AFTER + teller.chance.randrange(10), 300.0)
        struck = job.kill(teller.chance.randrange(NODES), signal.SIGSTOP)
        recovered = job.wait_recoveries(1, 120.0)
        phases = recovered["data"]["seconds"]
        own = phases["total"] - phases["detect"]
        outcome = teller.finish(job, struck, HANG_STEPS)
        outcome.seconds = own
        outcome.note = f"found and confirmed {recovered['time'] - own - struck:.1f} s after the SIGSTOP"
        return outcome


STORIES: Final[dict[str, Callable[[Teller], Outcome]]] = {
    "coordinator killed at rest": killed_at_rest,
    "coordinator killed during a recovery": killed_in_recovery,
    "coordinator stopped and awake again": stopped,
    "network partition through a TCP proxy": cut_off,
    "second failure during a rebuild": failure_in_rebuild,
    "a rank hangs (SIGSTOP), --on-hang recover": hang,
}


def measure(place: Path, names: Sequence[str], runs: int, seed: int) -> Iterator[Row]:
    teller = Teller(place, random.Random(seed))
    for name in names:
        told: list[Outcome] = []
        for _ in range(runs):
            try:
                told.append(STORIES[name](teller))
            except JobError as error:
                told.append(Outcome(f"failed: {str(error).splitlines()[0]}"))
                print(error, flush=True)
            print(name, told[-1].how, f"{told[-1].seconds:.2f} s", flush=True)
        yield from _rows(name, told)


def _rows(name: str, told: list[Outcome]) -> Iterator[Row]:
    good = [outcome for outcome in told if outcome.how in {"equal", "stopped"}]
    seconds = [outcome.seconds for outcome in told if outcome.how == "equal"]
    ends = sorted({outcome.how for outcome in told})
    note = "; ".join(sorted({o.note.splitlines()[-1] for o in told if o.note}))
    took = f", median {statistics.median(seconds):.2f} s to the next step" if seconds else ""
    yield Row(
        claim=f"{name}: continues bit-equal, or stops with the reason", figure=f"{len(good)} of {len(told)}", unit="",
        target="all", holds=len(good) == len(told), kind="live", n=len(told), note=f"{', '.join(ends)}{took}; {note}",
    )  # fmt: skip
    both = sum(outcome.split for outcome in told)
    yield Row(
        claim=f"{name}: two generations alive", figure=both, unit="", target="0", holds=both == 0 and bool(good),
        kind="live", n=len(told),
    )  # fmt: skip
    if STORIES[name] is hang:
        worst = max(seconds, default=None)
        yield Row(
            claim="hang: from the watch's verdict to the next committed step, worst", figure=worst, unit="s",
            target=f"<= {HANG_BOUND:g}", holds=worst is not None and worst <= HANG_BOUND, kind="live", n=len(seconds),
            note=f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; {note}",
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.control_plane")
    parser.add_argument("--json", type=Path, default=RESULTS / "control_plane.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=5, help="of each story")
    parser.add_argument("--only", default="", help="stories whose names contain this")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--quick", action="store_true", help="each story once")
    options = parser.parse_args(argv)
    names = [name for name in STORIES if options.only in name]
    place = Path(tempfile.mkdtemp(prefix="control-plane-"))
    try:
        rows = list(measure(place, names, 1 if options.quick else options.runs, options.seed))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    publish("control_plane", rows, options.json)


if __name__ == "__main__":
    main()
