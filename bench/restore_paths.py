"""Whether the cost model is right: predicted and measured seconds of each recovery strategy, in live jobs.

Each story takes away so much that one way is left or is the cheapest: a rank (its own slot), a node of a job with
replicas (a peer's copy), a node of a pipeline (parity), two nodes at once (Reed-Solomon), all memory (disk). The
prediction is the one that the coordinator made for that recovery, out of what it had measured in this job until then;
the first of a job is made from defaults and is left out. Measured is what it prices: fence, decision and regrouping,
until every rank holds its state; the first step is the script's.

The chosen way against the best: over stories in which the plan had several feasible ways, the measured median of the
chosen one against the least measured median of those that were feasible. Ways are measured in the stories that force
them, in jobs of the same size.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.lib_job import Job, JobError
from bench.lib_kill import ExtraCopy, Truth
from bench.report import RESULTS, Row, publish

SEED: Final = 41
NODES: Final = 4
EVERY: Final = 3
WITHIN: Final = 0.25
EXCESS_COST: Final = 1.2
START_SECONDS: Final = 300.0


@dataclass(frozen=True)
class RestoreScenario:
    """What is taken away, and of which job."""

    name: str
    dp: int
    options: tuple[str, ...]
    lost: int
    """Nodes whose rank, agent and memory go at once; 0: a rank's process alone."""


STORIES: Final = (
    RestoreScenario("own slot", 1, ("--protection", "xor"), 0),
    RestoreScenario("peer copy", 2, ("--protection", "none"), 1),
    RestoreScenario("parity (xor)", 1, ("--protection", "xor"), 1),
    RestoreScenario("parity (rs:2), two lost", 1, ("--protection", "rs:2"), 2),
    RestoreScenario("a copy on another node (copies:2)", 1, ("--protection", "copies:2"), 1),
    RestoreScenario("disk", 1, ("--protection", "none"), NODES),
)


@dataclass(frozen=True)
class Sample:
    """One recovery."""

    strategy: str
    predicted: float
    measured: float
    feasible: frozenset[str]


def run_scenario(place: Path, story: RestoreScenario, runs: int, seed: int) -> list[Sample]:
    """One job, ``runs`` recoveries and one before them that teaches the planner."""
    chance = random.Random(seed)
    words = ["--steps", "100000", "--width", "128", "--batch", "1", "--dp", str(story.dp), "--pp",
             str(NODES // story.dp), "--layers", "4"]  # fmt: skip
    options = ["--parity-interval", str(EVERY), "--standbys", "1", "--max-restarts", "1000", *story.options]
    if story.lost == NODES:
        options += ["--checkpoint-interval", "5", "--checkpoint-dir", str(place / "disk")]
    with Job(directory=place, arguments=words, options=options, nodes=NODES, per_node=1) as job:
        extra_copy = ExtraCopy(job, Truth(), story.name)
        found = []
        for number in range(runs + 1):
            sample = _once(extra_copy, story, chance)
            found += [sample] if number else []
    return found


def _once(extra_copy: ExtraCopy, story: RestoreScenario, chance: random.Random) -> Sample:
    job, newest = extra_copy.job, max(0, extra_copy.newest())
    protected = "none" not in story.options and story.lost > 0
    ready = [
        extra_copy.until(lambda: extra_copy.newest() >= newest + 4, START_SECONDS),
        not protected or extra_copy.until(lambda: extra_copy.protected(NODES) > newest, START_SECONDS),
        story.lost < NODES or extra_copy.until(lambda: _on_disk(job, newest), START_SECONDS),
    ]
    if not all(ready):
        raise JobError(f"{story.name}: no step was protected\n{job.tail()}")
    before, nodes = len(extra_copy.events.read()), extra_copy.nodes()
    ranks = chance.sample(range(NODES), max(1, story.lost))
    # An agent that dies too often in a row is left alone by its launcher.
    extra_copy.until(lambda: all(extra_copy.spare_agent(nodes[rank]) for rank in ranks[: story.lost]), START_SECONDS)
    extra_copy.kill_ranks(ranks)
    for rank in ranks[: story.lost]:
        extra_copy.kill_agent(nodes[rank])
        extra_copy.wipe(nodes[rank])
    if not extra_copy.until(extra_copy.settled, START_SECONDS):
        raise JobError(f"{story.name}: not recovered\n{job.tail()}")
    events = extra_copy.events.read()[before:]
    plan = [event for event in events if event["kind"] == "recovery_planned"][-1]["data"]["plan"]
    seconds = [event for event in events if event["kind"] == "recovery_completed"][-1]["data"]["seconds"]
    chosen = next(a for a in plan["alternatives"] if a["strategy"] == plan["chosen"])
    return Sample(
        strategy=plan["chosen"], predicted=chosen["seconds"],
        measured=seconds["fence"] + seconds["decide"] + seconds["regroup"],
        feasible=frozenset(a["strategy"] for a in plan["alternatives"] if a["feasible"]),
    )  # fmt: skip


def _on_disk(job: Job, after: int) -> bool:
    steps = [int(path.parent.name.removeprefix("step-")) for path in job.directory.glob("disk/*/step-*/manifest.json")]
    return max(steps, default=-1) > after


def rows(told: dict[str, list[Sample]], failed: dict[str, str]) -> list[Row]:
    where = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    made = []
    for name, samples in told.items():
        ratios = [sample.measured / sample.predicted for sample in samples]
        middle = statistics.median(ratios)
        ways = ", ".join(sorted({sample.strategy for sample in samples}))
        made.append(
            Row(
                claim=f"measured / predicted seconds, {name}", figure=round(middle, 2), unit="x",
                target=f"{1 - WITHIN:g} to {1 + WITHIN:g}", holds=abs(middle - 1.0) <= WITHIN, kind="live",
                n=len(ratios), baseline=f"measured {statistics.median(s.measured for s in samples):.3f} s",
                note=f"from {min(ratios):.2f} to {max(ratios):.2f}; by {ways}; {where}",
            )
        )  # fmt: skip
    made += [
        Row(claim=f"measured / predicted seconds, {name}", figure=None, unit="x", target="runs", holds=None,
            kind="live", n=0, note=f"could not run: {why}")
        for name, why in failed.items()
    ]  # fmt: skip
    return [*made, *_excess_cost(told)]


def _excess_cost(told: dict[str, list[Sample]]) -> list[Row]:
    by_strategy: defaultdict[str, list[float]] = defaultdict(list)
    for samples in told.values():
        for sample in samples:
            by_strategy[sample.strategy].append(sample.measured)
    median = {name: statistics.median(seconds) for name, seconds in by_strategy.items()}
    choices = [s for samples in told.values() for s in samples if len(s.feasible & median.keys()) > 1]
    if not choices:
        return []
    worst = max(median[s.strategy] / min(median[name] for name in s.feasible & median.keys()) for s in choices)
    return [
        Row(
            claim="chosen way against the best feasible one, measured medians, worst", figure=round(worst, 2), unit="x",
            target=f"<= {EXCESS_COST:g}", holds=worst <= EXCESS_COST, kind="live", n=len(choices),
            note=", ".join(f"{name} {seconds:.3f} s" for name, seconds in sorted(median.items())),
        )
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.restore_paths")
    parser.add_argument("--json", type=Path, default=RESULTS / "restore_paths.json", metavar="FILE")
    parser.add_argument("--runs", type=int, default=6, help="recoveries of each story (an agent is killed in each)")
    parser.add_argument("--only", default="", help="stories whose names contain this")
    parser.add_argument("--quick", action="store_true", help="two recoveries of each")
    options = parser.parse_args(argv)
    place = Path(tempfile.mkdtemp(prefix="restore-paths-"))
    told: dict[str, list[Sample]] = {}
    failed: dict[str, str] = {}
    try:
        for number, story in enumerate(STORIES):
            if options.only not in story.name:
                continue
            try:
                told[story.name] = run_scenario(
                    place / f"job-{number}", story, 2 if options.quick else options.runs, SEED
                )
            except JobError as error:
                failed[story.name] = str(error).splitlines()[0]
                print(error, flush=True)
            print(f"{story.name}: {told.get(story.name)}", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    publish("restore_paths", rows(told, failed), options.json)


if __name__ == "__main__":
    main()
