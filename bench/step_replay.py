"""Bisection by replay: how often a fickle device is found, whom else it costs, and what a live hunt takes.

Simulated: jobs of D replicas of P ranks (pipeline stages or tensor shards), one device of which computes other bits
with some chance a step; 200 jobs each, every rank in turn. Live: four ranks on this machine, gloo, a bit of the
mantissa flipped in one rank's gradients. ``python -m bench.step_replay [--json FILE]``
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.lib_job import Job, run_plain
from bench.lib_replay_bisection import halving
from bench.lib_replays import STEPS, plan_of, play
from bench.report import Row, publish, target_file
from mainstay.detectors.job.replay_analysis import ReplayOutcome, analyze_replays

JOBS = 200
SHAPES = ((4, 1), (16, 1), (4, 4), (16, 8), (2, 4))
CHANCES = (1.0, 0.5, 0.16)
"""A step. The last shows in every other replay of four steps, which is what the plan reckons with."""
BYTEROBUST = "ByteRobust evicts about 8 machines for 1-2 faulty ones (as published)"
SMALL = ("--seed", "5", "--width", "64", "--layers", "2", "--batch", "2")


@dataclass(slots=True)
class Tally:
    """Of all jobs of one kind."""

    found: int = 0
    named: int = 0
    healthy: int = 0


def simulate(dp: int, places: int, chance: float) -> Tally:
    plan, tally = plan_of(dp, places), Tally()
    for seed in range(JOBS):
        culprit = seed % (dp * places)
        result = analyze_replays(play(plan, {culprit: chance}, seed))
        ranks = {odd.rank for odd in result.culprits}
        tally.found += culprit in ranks
        tally.named += len(ranks)
        tally.healthy += len(ranks - {culprit})
    return tally


def simulated() -> list[Row]:
    rows = []
    for dp, places in SHAPES:
        plan = plan_of(dp, places)
        names = [str(rank) for rank in range(dp * places)]
        halves = halving(names, shows=0.5)
        tallies = {chance: simulate(dp, places, chance) for chance in CHANCES}
        found = [tally.found / JOBS for tally in tallies.values()]
        mean = sum(tally.named for tally in tallies.values()) / max(1, sum(t.found for t in tallies.values()))
        rows.append(
            Row(
                claim=f"{dp} x {places}: a faulty device is found, chance a step {', '.join(map(str, CHANCES))}",
                figure=", ".join(f"{share:.1%}" for share in found),
                unit="of jobs",
                target=">= 97 % each",
                holds=min(found) >= 0.97,
                kind="simulated",
                n=JOBS * len(CHANCES),
                baseline=f"rounds one after another {plan.repeats * len(plan.cuts)}, halving {halves.rounds}",
            )
        )
        rows.append(
            Row(
                claim=f"{dp} x {places}: ranks that are replaced for one faulty device",
                figure=mean,
                unit="ranks",
                target="<= 1.3",
                holds=mean <= 1.3,
                kind="simulated",
                n=JOBS * len(CHANCES),
                baseline=BYTEROBUST,
            )
        )
    return [*rows, _healthy()]


def _healthy() -> Row:
    blamed = sum(analyze_replays(play(plan_of(dp, p), {})).outcome is not ReplayOutcome.CLEAN for dp, p in SHAPES)
    return Row(
        claim="healthy jobs in which any rank is blamed",
        figure=blamed,
        unit="jobs",
        target="0",
        holds=blamed == 0,
        kind="simulated",
        n=len(SHAPES),
        note="By construction: equal bits cannot differ. What breaks it is a script that is not deterministic.",
    )


def live(directory: Path) -> list[Row]:
    """A digest that differs, and a timetable; each against the clean run."""
    digest = _hunt(
        directory / "digest", ("--steps", "110", "--dp", "4", "--pp", "1"), "flip_update:rank=2,step=60,p=0.4",
        ("--on-numeric-anomaly", "replay", "--checkpoint-interval", "25"), 2,
    )  # fmt: skip
    table = _hunt(
        directory / "table", ("--steps", "45", "--dp", "2", "--pp", "2"), "flip:rank=1,step=25,p=0.5",
        ("--step-replay-every", "20", "--checkpoint-interval", "10"), 1,
    )  # fmt: skip
    return [*digest, *table]


def _hunt(directory: Path, shape: tuple[str, ...], fault: str, options: tuple[str, ...], culprit: int) -> list[Row]:
    words = (*shape, *SMALL)
    run_plain(directory / "plain", [*words, "--save", str(directory / "plain" / "saved")])
    options = (*options, "--checkpoint-dir", str(directory / "disk"))
    arguments = [*words, "--save", str(directory / "saved"), "--faults", fault]
    with Job(directory=directory / "job", arguments=arguments, nodes=1, per_node=4, options=options) as job:
        job.wait(300.0)
    replays = [event["data"] for event in job.events("step_replay_finished")]
    found = [data for data in replays if data["outcome"] == "found"]
    named = [[entry["rank"] for entry in data["culprits"]] for data in found]
    same = all(
        (directory / "saved" / path.name).read_bytes() == path.read_bytes()
        for path in (directory / "plain" / "saved").iterdir()
    )
    name = f"live, {fault.partition(':')[0]}, {shape[3]} x {shape[5]}"
    seconds = max((data["seconds"] for data in found), default=float("nan"))
    repeats = sum(entry["replays"] for data in found for entry in data["culprits"])
    return [
        Row(
            claim=f"{name}: ranks named, and whether it was they",
            figure=str(named),
            unit="",
            target=f"[[{culprit}]]",
            holds=named == [[culprit]],
            kind="live",
            note=found[0]["sentence"] if found else "",
        ),
        Row(
            claim=f"{name}: final parameters are the clean run's to the bit",
            figure=str(same),
            unit="",
            target="True",
            holds=same,
            kind="live",
        ),
        Row(
            claim=f"{name}: from the fence to the culprit's name",
            figure=seconds,
            unit="s",
            target="none",
            holds=None,
            kind="live",
            baseline=f"{repeats} repeats of {STEPS} steps each",
        ),
    ]


def main() -> None:
    """Measure and publish."""
    file = target_file("step_replay")
    with tempfile.TemporaryDirectory(prefix="mainstay-hunt-") as directory:
        publish("step_replay", [*simulated(), *live(Path(directory))], file)


if __name__ == "__main__":
    main()
