"""Failures of real jobs, one recovery strategy per scenario: predicted and measured cost, and the fate of the samples.

Every story is a job of its own with canonical sums, so that its parameters must end as those of a run without failures,
to the bit, and with a journal of what each rank computed, so that every sample can be counted. The first failure of a
job teaches the coordinator its constants and is left out.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from bench.lib_job import ANY_SHAPE, EXAMPLES, Job, JobError, Json, run_plain
from bench.lib_journal import Account, account
from bench.lib_kill import ExtraCopy, Truth

LAYERS: Final = 4
DEADLINE: Final = 120.0
TINY: Final = ("--width", "64", "--batch", "2", "--seed", "11", "--layers", str(LAYERS))
TRAIN, ANY = EXAMPLES / "train.py", ANY_SHAPE


@dataclass(frozen=True, slots=True)
class Sample:
    """One failure, or one planned change."""

    way: str
    """As which the job named it."""
    measured: float
    """Seconds from SIGKILL (or what stands for it) to the next step that all ranks have committed."""
    predicted: float | None
    """None: it has no prediction."""
    off: Mapping[str, float] = field(default_factory=dict)
    """Phase -> seconds measured less those predicted, where the coordinator told both."""


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """What a story said."""

    samples: tuple[Sample, ...]
    journal: Account
    equal: bool
    """Whether the parameters ended as without failures."""
    basis: str
    """Who predicted, and what was timed from where to where."""


def outcome_of(
    place: Place,
    directory: Path,
    words: Sequence[str],
    samples: Sequence[Sample],
    basis: str,
    *,
    steps: int,
    script: Path = TRAIN,
    journals: Sequence[Path] = (),
    layers: int = LAYERS,
    pp: int = 2,
) -> ScenarioOutcome:
    """A story whose job, or last job, has ended: its journals counted, its parameters compared."""
    counted = account(journals or [directory / "journal"], steps=steps, layers=layers)
    equal = parameters(directory / "saved", script) == place.undisturbed(script, words, pp=pp)
    return ScenarioOutcome(tuple(samples), counted, equal, basis)


@dataclass
class Place:
    """Where stories put their files, and what runs without failures end with, each made once."""

    directory: Path
    seed: int
    runs: int
    """Failures of each story that count."""
    _plain: dict[tuple[str, ...], dict[str, bytes]] = field(default_factory=dict)

    def undisturbed(self, script: Path, words: Sequence[str], dp: int = 2, pp: int = 2) -> dict[str, bytes]:
        """Parameters at the end of a run without failures, of the same model and data."""
        key = (script.name, *words)
        if key not in self._plain:
            directory = self.directory / f"plain-{len(self._plain)}"
            words = [*words, "--save", str(directory / "saved")]
            if script == TRAIN:
                run_plain(directory, words, dp * pp, seconds=600.0)
            else:
                shape = ["--dp", str(dp), "--pp", str(pp)]
                with Job(
                    directory=directory, script=script, arguments=words, nodes=1, per_node=dp * pp, options=shape
                ) as job:
                    ended(job)
            self._plain[key] = parameters(directory / "saved", script)
        return self._plain[key]


def parameters(directory: Path, script: Path) -> dict[str, bytes]:
    """Name -> bits. Of a model of any shape the names are the whole model's, and replicas must agree.

    Raises:
        JobError: they do not.
    """
    found: dict[str, bytes] = {}
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as arrays:
            for name in arrays.files:
                key = name if script == ANY else f"{path.name}/{name}"
                bits = arrays[name].tobytes()
                if found.setdefault(key, bits) != bits:
                    raise JobError(f"{path}: {name} is not what a replica holds")
    return found


def ended(job: Job) -> None:
    codes = job.wait(600.0)
    if any(codes):
        raise JobError(f"the job ended with {codes}\n{job.tail()}")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A scenario in which processes are killed again and again while the job runs, and the job continues."""

    name: str
    options: tuple[str, ...]
    take: Callable[[ExtraCopy, random.Random], None]
    """Takes away what the story is about."""
    ready: Callable[[ExtraCopy, int], bool] = lambda extra_copy, newest: True  # noqa: ARG005
    """Whether the next failure may come, when ``newest`` was the step after the last one."""
    nodes: int = 2
    steps: int = 220
    pace_ms: int = 10
    """Sleep of rank 0 in each forward: so that the job does not end before the last failure."""

    def run_scenario(self, place: Place) -> ScenarioOutcome:
        """Run the job from its beginning to its end.

        Raises:
            JobError: it did not come back, or ended before all failures had come.
        """
        directory = place.directory / slug(self.name)
        words = ["--steps", str(self.steps), *TINY, "--canonical"]
        more = ["--faults", f"sleep:rank=0,step=0,ms={self.pace_ms}", "--journal", str(directory / "journal"),
                "--save", str(directory / "saved")]  # fmt: skip
        options = ["--max-restarts", "1000", *self.options]
        options = [word.replace("DIR", str(directory / "checkpoints")) for word in options]
        chance = random.Random(place.seed)
        made = Job(directory=directory / "job", arguments=[*words, *more], options=options, nodes=self.nodes,
                   per_node=4 // self.nodes)  # fmt: skip
        with made as job:
            extra_copy = ExtraCopy(job, Truth(), self.name)
            samples = [self._once(extra_copy, chance) for _ in range(place.runs + 1)]
            ended(job)
        basis = "predicted by the coordinator; SIGKILL to the next step that all have committed"
        return outcome_of(place, directory, words, samples[1:], basis, steps=self.steps)

    def _once(self, extra_copy: ExtraCopy, chance: random.Random) -> Sample:
        newest = extra_copy.newest()
        job = extra_copy.job
        job.until(
            lambda: extra_copy.newest() >= newest + 6 and quiet(job) and self.ready(extra_copy, newest),
            DEADLINE,
            self.name,
        )
        if extra_copy.newest() > self.steps - 30:
            raise JobError(f"{self.name}: too few steps are left for another failure; it has {self.steps}")
        before = len(job.events("recovery_completed"))
        killed = time.time()
        self.take(extra_copy, chance)
        recovered = job.wait_recoveries(before + 1, DEADLINE)
        job.until(lambda: extra_copy.settled() and quiet(job), DEADLINE, "all ranks to be back")
        return sample(job, recovered, recovered["time"] - killed)


def quiet(job: Job) -> bool:
    """Whether all ranks take part and the newest recovery was verified."""
    events = job.events("recovery_completed", "recovery_verified")
    ranks = job.state().get("topology", {}).get("ranks", [])
    calm = not events or events[-1]["kind"] == "recovery_verified"
    return calm and bool(ranks) and all(rank["state"] == "running" for rank in ranks)


def sample(job: Job, recovered: Json, measured: float) -> Sample:
    """What the coordinator chose and predicted for this recovery."""
    plans = [
        event for event in job.events("recovery_planned") if event["data"]["recovery"] == recovered["data"]["recovery"]
    ]
    outcome = recovered["data"].get("outcome", {})
    chosen = plans[-1]["data"]["plan"]["chosen"] if plans else "none"
    off = _off(recovered["data"]["seconds"], outcome["parts"]) if outcome else {}
    return Sample(outcome.get("strategy") or chosen, measured, outcome.get("predicted_s"), off)


def _off(took: Mapping[str, float], said: Mapping[str, float]) -> dict[str, float]:
    """Phases as both know them: the planner prices deciding with regrouping, and the first step in two parts."""
    return {
        "detect": took["detect"] - said["detect"],
        "fence": took["fence"] - said["fence"],
        "regroup": took["decide"] + took["regroup"] - said["regroup"],
        "first step": took["first_step"] - said["warm_up"] - said["step"],
    }


# What is taken away


def one_rank(extra_copy: ExtraCopy, chance: random.Random) -> None:
    extra_copy.kill_ranks([chance.randrange(4)])


def a_rank_with_its_memory(extra_copy: ExtraCopy, chance: random.Random) -> None:
    """Its process, its node's agent and all that this held: in a job of one rank a node."""
    rank = chance.randrange(4)
    node = extra_copy.nodes()[rank]
    extra_copy.kill_ranks([rank])
    extra_copy.kill_agent(node)
    extra_copy.wipe(node)


def all_memory(extra_copy: ExtraCopy, chance: random.Random) -> None:
    del chance
    extra_copy.kill_ranks(list(range(4)))
    for node in sorted(set(extra_copy.nodes().values())):
        extra_copy.kill_agent(node)
        extra_copy.wipe(node)


# When the next one may come


def standbys(extra_copy: ExtraCopy, newest: int) -> bool:
    """A warm one on every node, and agents that their launcher would start once more."""
    del newest
    there = extra_copy.job.state()["topology"]["standbys"]
    return all(there.get(node, 0) for node in extra_copy.nodes().values()) and agents(extra_copy, 0)


def agents(extra_copy: ExtraCopy, newest: int) -> bool:
    del newest
    return all(extra_copy.spare_agent(node) for node in extra_copy.nodes().values())


def on_disk(extra_copy: ExtraCopy, newest: int) -> bool:
    """A step that is newer than the last failure."""
    paths = extra_copy.job.directory.parent.glob("checkpoints/*/step-*/manifest.json")
    steps = [int(path.parent.name.removeprefix("step-")) for path in paths]
    return max(steps, default=-1) > newest and agents(extra_copy, newest)


KILLS: Final = (
    Kill(name="restart from disk", options=("--protection", "none", "--standbys", "1", "--checkpoint-interval", "5",
         "--checkpoint-dir", "DIR"), take=all_memory, ready=on_disk, pace_ms=60),
    Kill(name="restore from memory", options=("--parity-interval", "5", "--standbys", "1"), take=one_rank,
         ready=standbys),
    Kill(name="swap to a standby", options=("--protection", "none", "--standbys", "1"), take=a_rank_with_its_memory,
         ready=standbys, nodes=4),
    Kill(name="drop and heal", options=("--parity-interval", "5", "--standbys", "0", "--on-loss", "drop"),
         take=one_rank),
    Kill(name="re-route micro-batches", options=("--parity-interval", "5", "--standbys", "0", "--on-loss", "reroute"),
         take=one_rank),
)  # fmt: skip


# Stories of another kind


def in_process(place: Place) -> ScenarioOutcome:
    """Ranks raise what their script calls transient, one after the other; their processes stay."""
    directory = place.directory / "in-process"
    count = place.runs + 1
    steps = 25 * count + 15
    faults = ";".join(f"raise:rank={(3 * n + 2) % 4},step={15 + 25 * n}" for n in range(count))
    words = ["--steps", str(steps), *TINY, "--canonical"]
    more = ["--faults", faults, "--journal", str(directory / "journal"), "--save", str(directory / "saved")]
    with Job(directory=directory / "job", arguments=[*words, *more], options=["--standbys", "0"]) as job:
        job.wait_step(2)
        before = job.pids()
        job.wait_recoveries(count, 600.0)
        if job.pids() != before:
            raise JobError(f"in-process restart: a rank has another process than before\n{job.tail()}")
        ended(job)
        said = "".join(job.log(number).read_text() for number in range(2))
    at = sorted(float(found) for found in re.findall(r"fault raise in step \d+ at ([\d.]+)", said))
    samples = [sample(job, event, event["time"] - raised)
               for event, raised in zip(job.events("recovery_completed"), at, strict=True)]  # fmt: skip
    basis = "predicted by the coordinator; raised to the next step that all have committed; every process stayed"
    return outcome_of(place, directory, words, samples[1:], basis, steps=steps)


def slug(name: str) -> str:
    return name.replace(" ", "-")
