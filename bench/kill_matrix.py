"""The kill matrix: SIGKILL at random points of running jobs, again and again, and each result compared to the bit.

Jobs of four nodes with one rank each on loopback, under every scheme, as a pipeline and as two replicas of one. What is
killed: a rank, an agent, both, all ranks, a node (its rank, its agent and its memory). When: anywhere, while a slot is
being written, while an epoch is being protected, while the strike before is being recovered from. At its end each job
loses as many whole launchers as its scheme promises to outlive, and continues without them.

Three counts must be as they are promised: no loss within the promise that is not recovered from in memory, no torn
snapshot among those that an agent accepted (every one is compared with what the same step of the same rank was before),
final parameters of every job equal to those of a run that nothing happened to.
``--nccl-like`` makes the jobs train over a backend that behaves as NCCL does (``bench.lib_nccl_like``).
Counts, no timing: the load of the machine changes how long it takes, not what it says.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.lib_job import EXAMPLES, Job, JobError, run_plain
from bench.lib_kill import ExtraCopy, Truth
from bench.report import RESULTS, Row, publish
from mainstay.recovery.protection_scheme import parse

SEED: Final = 20_261_122
NCCL_LIKE: Final = Path(__file__).with_name("lib_train_nccl_like.py")
NODES: Final = 4
SCHEMES: Final = ("xor", "rs:2", "copies:2")
SHAPES: Final = {"pp=4": (1, 4), "dp=2, pp=2": (2, 2)}
STEPS: Final = 120
LAST: Final = 8
"""Steps before the end in which nothing is killed: a recovery is verified by three."""
EVERY: Final = 3
KINDS: Final = {"rank": 0.4, "all ranks": 0.2, "node": 0.2, "agent": 0.1, "both": 0.1}
MOMENTS: Final = {"anywhere": 0.5, "mid-copy": 0.25, "mid-encode": 0.25}
AGAIN: Final = 0.55
"""Of strikes are followed by one more before they are recovered from."""
START_SECONDS: Final = 240.0
SETTLE_SECONDS: Final = 180.0
"""A recovery takes a second; a machine with eight times as much to do as cores, a hundred."""


@dataclass
class Tally:
    """What was done, and what came of it."""

    points: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, moment) -> strikes."""
    torn_left: int = 0
    """Strikes that left a slot half written."""
    recoveries: int = 0
    worst_lost: int = 0
    jobs: int = 0
    equal: int = 0
    unrecovered: list[str] = field(default_factory=list)
    from_disk: int = 0
    beyond: Counter[str] = field(default_factory=Counter)
    truth: Truth = field(default_factory=Truth)
    script: Path = EXAMPLES / "train.py"

    @property
    def total(self) -> int:
        return sum(self.points.values())


class Killer:
    """One job, from its start to the comparison of its parameters."""

    def __init__(self, place: Path, scheme: str, shape: str, seed: int, tally: Tally) -> None:
        self.scheme, self.shape, self.tally = parse(scheme), shape, tally
        self.chance = random.Random(seed)
        self.saved = place / "saved"
        options = [
            "--parity-interval",
            str(EVERY),
            "--standbys",
            "2",
            "--max-restarts",
            "100000",
            "--protection",
            scheme,
        ]
        self.job = Job(
            directory=place / "job", script=tally.script, arguments=[*arguments(shape), "--save", str(self.saved)],
            nodes=NODES, per_node=1, options=options,
        )  # fmt: skip
        self.extra_copy = ExtraCopy(self.job, tally.truth, shape)
        self.lost: set[str] = set()
        """Nodes whose memory is gone and not yet protected again."""
        self.since = 0
        self.recovery_seconds = 1.0

    def run(self, points: int, until: float) -> None:
        """Strike until the job nears its end, ``points`` are made, or the clock says ``until``; then let it end."""
        with self.job:
            if not self.extra_copy.until(lambda: self.extra_copy.protected(NODES) >= EVERY, START_SECONDS):
                raise JobError(f"{self.scheme}, {self.shape}: no step was ever protected\n{self.job.tail()}")
            while self._goes_on() and self.tally.total < points and time.monotonic() < until:
                if not self._round():
                    return
            self._part_for_good()
            self._compare()

    # Strikes

    def _round(self) -> bool:
        """One strike, perhaps more before it is recovered from; whether the job still lives."""
        begun = time.monotonic()
        before = len(self.extra_copy.events.read())
        rank = self.chance.randrange(NODES)
        self._strike(self._moment(rank), rank)
        while self.chance.random() < AGAIN:
            time.sleep(self.chance.uniform(0.0, self.recovery_seconds))
            moment = "anywhere" if self.extra_copy.settled() else "mid-rebuild"
            self._strike(moment, self.chance.randrange(NODES))
        if not self.extra_copy.until(self.extra_copy.settled, SETTLE_SECONDS) and not self._ended_well():
            return self._dead(before)
        self._recovered(before)
        if not self.lost:
            self.recovery_seconds = 0.8 * self.recovery_seconds + 0.2 * (time.monotonic() - begun)
        # The lost memory is protected again once an epoch after it is: until then its loss counts.
        self.extra_copy.until(lambda: not self._exposed(), self.chance.uniform(0.0, 2.0))
        self.extra_copy.check()
        return True

    def _ended_well(self) -> bool:
        """A round of many strikes can outlast the job: it recovers, makes its last steps, and is gone."""
        return self.extra_copy.ended() and not any(self.job.wait(60.0))

    def _goes_on(self) -> bool:
        return not self.extra_copy.ended() and self.extra_copy.newest() < STEPS - LAST

    def _exposed(self) -> set[str]:
        """Nodes that the promise still counts as lost."""
        if self.lost and self.extra_copy.protected(NODES) > self.since:
            self.lost.clear()
        return self.lost

    def _moment(self, rank: int) -> str:
        """Wait for one to strike in."""
        moment = self.chance.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        if moment == "mid-copy" and self.extra_copy.mid_copy(rank):
            return moment
        if moment == "mid-encode" and self.extra_copy.mid_encode(EVERY):
            return moment
        time.sleep(self.chance.uniform(0.0, 0.3))
        return "anywhere"

    def _strike(self, moment: str, rank: int) -> None:
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        node = self.extra_copy.nodes().get(rank, "")
        if kind in {"agent", "both", "node"} and not self.extra_copy.spare_agent(node):
            kind = "rank"
        if kind == "node" and not self._promised(node):
            kind = "both"
        hit = [rank] if moment == "mid-copy" else []  # it was killed as soon as it was seen to write
        kind = "both" if hit and kind == "agent" else kind
        if kind != "agent":
            hit += self.extra_copy.kill_ranks(list(range(NODES)) if kind == "all ranks" else [rank])
        agent = kind in {"agent", "both", "node"} and self.extra_copy.kill_agent(node)
        if kind == "node":
            self.extra_copy.wipe(node)
            self.lost.add(node)
            self.since = max(self.since, self.extra_copy.newest())
        if not hit and not agent:
            return  # between two processes: nothing was killed, so it is no point
        self.tally.points[kind, moment] += 1
        self.tally.torn_left += moment == "mid-copy" and rank in hit and self.extra_copy.left_half_written()

    def _promised(self, node: str) -> bool:
        """Whether the scheme promises to outlive the loss of ``node``'s memory as things are."""
        lost = self._exposed()
        whole = self.extra_copy.protected(NODES) > 0 if not lost else True
        return whole and len(lost | {node}) <= self.scheme.tolerance

    # What came of it

    def _recovered(self, before: int) -> None:
        for event in self.extra_copy.events.read()[before:]:
            if event["kind"] == "recovery_completed":
                self.tally.recoveries += 1
                self.tally.worst_lost = max(self.tally.worst_lost, int(event["data"]["steps_lost"] or 0))
            if event["kind"] == "recovery_planned" and event["data"]["plan"]["chosen"] == "disk_restart":
                self.tally.from_disk += 1

    def _dead(self, before: int) -> bool:
        words = [
            event["data"] for event in self.extra_copy.events.read()[before:] if event["kind"] == "recovery_failed"
        ]
        self.tally.unrecovered.append(f"{self.scheme}, {self.shape}, lost {sorted(self.lost)}: {words or 'no answer'}")
        print(self.tally.unrecovered[-1], self.job.tail(60), sep="\n", flush=True)
        return False

    def _part_for_good(self) -> None:
        """As many launchers as are promised, at once, and never back."""
        if not self.extra_copy.until(lambda: not self._exposed(), SETTLE_SECONDS):
            return
        before = len(self.extra_copy.events.read())
        count = max(1, self.scheme.tolerance)
        numbers = sorted(self.chance.sample(range(1, NODES), count))
        if self.extra_copy.ended() or not self.extra_copy.lose_for_good(numbers):
            return
        self.tally.points["node for good", "anywhere"] += count
        self.lost = {f"node-{number}" for number in numbers}
        if self.extra_copy.until(lambda: self._moved(before), SETTLE_SECONDS):
            self._recovered(before)
        else:
            self._dead(before)

    def _moved(self, before: int) -> bool:
        return any(
            event["kind"] in {"recovery_completed", "job_finished"} for event in self.extra_copy.events.read()[before:]
        )

    def _compare(self) -> None:
        self.tally.jobs += 1
        codes = self.job.wait(600.0)
        self.tally.equal += not any(codes) and equal(self.saved, reference(self.saved, self.shape))


def arguments(shape: str) -> list[str]:
    dp, pp = SHAPES[shape]
    words = {"steps": STEPS, "seed": 11, "width": 64, "batch": 1, "dp": dp, "pp": pp, "layers": 4}
    return [str(word) for name, value in words.items() for word in (f"--{name}", value)]


def reference(saved: Path, shape: str) -> Path:
    """Where the parameters of the undisturbed run lie; it is made when it is first asked for."""
    directory = saved.parent.parent / f"undisturbed {shape}"
    if not directory.exists():
        run_plain(directory, [*arguments(shape), "--save", str(directory / "saved")], ranks=NODES, seconds=900.0)
    return directory / "saved"


def equal(one: Path, other: Path) -> bool:
    names = [f"rank-{rank}.npz" for rank in range(NODES)]
    return all((one / n).is_file() and (one / n).read_bytes() == (other / n).read_bytes() for n in names)


def beyond(place: Path, scheme: str, tally: Tally, *, disk: bool) -> None:
    """One node more than is promised, at once: back to disk, or a clear end."""
    tolerance = parse(scheme).tolerance
    options = ["--parity-interval", str(EVERY), "--standbys", "3", "--protection", scheme]
    if disk:
        options += ["--checkpoint-interval", "5", "--checkpoint-dir", str(place / "checkpoints")]
    shape = "pp=4"
    words = [*arguments(shape), "--save", str(place / "saved")]
    with Job(
        directory=place / "job", script=tally.script, arguments=words, nodes=NODES, per_node=1, options=options
    ) as job:
        extra_copy = ExtraCopy(job, tally.truth, shape)
        started = extra_copy.until(lambda: extra_copy.protected(NODES) >= EVERY, START_SECONDS)
        if disk:
            written = place / "checkpoints"
            started = extra_copy.until(lambda: [*written.glob("*/step-*/manifest.json")], START_SECONDS) and started
        if not started:
            raise JobError(f"{scheme}: no step was ever protected\n{job.tail()}")
        nodes = [f"node-{number}" for number in range(1, tolerance + 2)]
        # The two of one group, where copies make groups of two: a loss of two that is in two groups is outlived.
        if scheme.startswith("copies"):
            nodes = [extra_copy.nodes()[member] for member in (0, 1)]
        before = len(extra_copy.events.read())
        extra_copy.kill_ranks([rank for rank, node in extra_copy.nodes().items() if node in nodes])
        for node in nodes:
            extra_copy.kill_agent(node)
            extra_copy.wipe(node)
        extra_copy.until(extra_copy.settled, SETTLE_SECONDS)
        tally.beyond[_outcome(extra_copy, before, place, shape)] += 1


def _outcome(extra_copy: ExtraCopy, before: int, place: Path, shape: str) -> str:
    events = extra_copy.events.read()[before:]
    chosen = {e["data"]["plan"]["chosen"] for e in events if e["kind"] == "recovery_planned"}
    if any(event["kind"] == "recovery_failed" for event in events):
        codes = extra_copy.job.wait(60.0)
        return "ended with the reason" if all(codes) else "ended as if well"
    if not any(event["kind"] == "recovery_completed" for event in events):
        return "neither back nor ended"
    extra_copy.job.wait(600.0)
    source = "from disk" if "disk_restart" in chosen else "from memory all the same"
    return f"back {source}" if equal(place / "saved", reference(place / "saved", shape)) else f"wrong bits {source}"


def measure(place: Path, tally: Tally, points: int, seed: int, seconds: float) -> None:
    """Job after job, until there are ``points`` or the time is over."""
    until = time.monotonic() + seconds
    number = 0
    while tally.total < points and time.monotonic() < until:
        scheme, shape = SCHEMES[number % len(SCHEMES)], list(SHAPES)[number // len(SCHEMES) % len(SHAPES)]
        _one(Killer(place / f"job-{number}", scheme, shape, seed + number, tally), points, until)
        number += 1
        print(f"{tally.total} points in {number} jobs, {tally.equal} of {tally.jobs} equal", flush=True)
    for scheme in SCHEMES:
        for disk in (True, False):
            if time.monotonic() < until:
                beyond(place / f"beyond-{scheme}-{disk}", scheme, tally, disk=disk)


def _one(killer: Killer, points: int, until: float) -> None:
    try:
        killer.run(points, until)
    except JobError as error:
        killer.tally.unrecovered.append(f"{killer.scheme}, {killer.shape}: {error}".splitlines()[0])
        print(error, flush=True)
    finally:
        shutil.rmtree(killer.job.directory, ignore_errors=True)


def rows(tally: Tally, seconds: float) -> list[Row]:
    kinds, moments = Counter[str](), Counter[str]()
    for (kind, moment), count in tally.points.items():
        kinds[kind] += count
        moments[moment] += count
    note = f"{_list(kinds)}; {_list(moments)}; {tally.torn_left} left a slot half written; {seconds:.0f} s"
    count = tally.total
    least = 500 if tally.script == NCCL_LIKE else 1000
    checked, jobs = tally.truth.checked, tally.jobs
    made = [
        Row(claim="kill points", figure=count, unit="", target=f">= {least}", holds=count >= least, kind="live",
            n=count, note=note),
        Row(claim="not recovered from in memory within the promise", figure=len(tally.unrecovered) + tally.from_disk,
            unit="", target="0", holds=count > 0 and not tally.unrecovered and not tally.from_disk, kind="live",
            n=count,
            note="; ".join(tally.unrecovered[:3])),
        Row(claim="torn snapshots accepted", figure=len(tally.truth.torn), unit="", target="0",
            holds=checked > 0 and not tally.truth.torn, kind="live", n=checked,
            note="; ".join(tally.truth.torn[:3]) or "n: accepted snapshots that were compared"),
        Row(claim="jobs whose final parameters are those of an undisturbed run, to the bit",
            figure=f"{tally.equal} of {jobs}", unit="", target="all", holds=0 < jobs == tally.equal,
            kind="live", n=jobs, note=f"{tally.recoveries} recoveries"),
        Row(claim="steps repeated by one recovery, worst", figure=tally.worst_lost, unit="steps",
            target="-", holds=None, kind="live", n=tally.recoveries, note=f"protected every {EVERY} steps"),
    ]  # fmt: skip
    bad = [what for what in tally.beyond if what.startswith(("wrong", "neither", "ended as"))]
    if tally.beyond:
        made.append(
            Row(claim="one node more than promised: back from disk or a clear end", figure=_list(tally.beyond), unit="",
                target="all", holds=not bad, kind="live", n=tally.beyond.total())
        )  # fmt: skip
    return made


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kill_matrix")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--nccl-like", action="store_true", help="over the backend that behaves as NCCL does")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin no job and make no point after so long")
    parser.add_argument("--quick", action="store_true", help="20 points")
    options = parser.parse_args(argv)
    points = min(20, options.points) if options.quick else options.points
    place, begun = Path(tempfile.mkdtemp(prefix="kill-matrix-")), time.monotonic()
    try:
        tally = Tally(script=NCCL_LIKE if options.nccl_like else EXAMPLES / "train.py")
        measure(place, tally, points, options.seed, options.seconds)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    name = "kill_matrix_nccl_like" if options.nccl_like else "kill_matrix"
    publish(name, rows(tally, time.monotonic() - begun), options.json or RESULTS / f"{name}.json")


if __name__ == "__main__":
    main()
