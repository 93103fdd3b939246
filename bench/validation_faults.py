"""Real faults injected around real benchmarks on this machine: what the verdicts find, and what they point to.

``python -m bench.validation_faults [--json FILE] [--quick] [--seed N] [--log FILE]``: six minutes. The product's
benchmarks at small sizes, on one core, each in its own process. Criteria are learned from clean runs as ``mainstay
criteria fit`` learns them; then clean and faulty runs in one random order, so that what else happens on the machine
hits both, each as ``mainstay validate --again 3`` makes it: what is too slow is measured again. Every run is kept in
the log: given again, an interrupted bench goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import lib_inject
from bench.lib_inject import FAULTS, Fault
from bench.report import RESULTS, Row, publish
from detectors.blame import blame
from detectors.confirm import confirmed
from detectors.criteria import Criteria, judge, learn, samples_of, worst
from detectors.validator import BestLimits
from probes.benchmarks.allreduce import AllReduce
from probes.benchmarks.base import Benchmark, Device
from probes.benchmarks.burn import Burn
from probes.benchmarks.defects import Defect
from probes.benchmarks.deterministic import Deterministic
from probes.benchmarks.disk import Disk
from probes.benchmarks.gemm import Gemm
from probes.benchmarks.launch import Launch
from probes.benchmarks.memory import Memory
from probes.benchmarks.result import BenchmarkResult, State, SuiteResult
from probes.benchmarks.runner import Home, run_benchmarks
from probes.words import Verdict

TIMEOUT_SECONDS = 5.0
"""Hard limit for one benchmark; the slowest takes half a second of an idle core."""
COHORT = "bench"
CLEAN = "clean"
LEARN = "learn"
"""A clean run that criteria are learned from, and nothing else."""
AGAIN = 3
"""As in ``mainstay validate --again``: this machine is not idle."""
_BUDGET = 0.06
_CPU = Device(kind="cpu", model="one core", count=1)
SUITE: tuple[Benchmark, ...] = (
    Deterministic(Deterministic.Config(width=64, steps=2, repeats=4)),
    Gemm(Gemm.Config(size=256, narrow_size=64, threads=1, budget_seconds=_BUDGET)),
    Memory(Memory.Config(mebibytes=32, threads=1, budget_seconds=_BUDGET)),
    Launch(Launch.Config(budget_seconds=_BUDGET)),
    AllReduce(AllReduce.Config(budget_seconds=_BUDGET)),
    Disk(Disk.Config(mebibytes=4, repeats=9, fsyncs=9)),
    Burn(Burn.Config(size=256, seconds=0.6, threads=1)),
)


class Run(msgspec.Struct, frozen=True):
    """One run of the suite, as a line of the log."""

    label: str
    """``learn``, ``clean`` or the fault's name."""
    first: tuple[BenchmarkResult, ...]
    """As measured once."""
    results: tuple[BenchmarkResult, ...]
    """With failures confirmed."""
    load: float
    """Of the machine when it ended: runnable processes."""


@dataclass(frozen=True)
class Judged:
    run: Run
    verdict: Verdict
    blamed: tuple[Defect, ...]
    reason: str

    @property
    def positive(self) -> bool:
        """Neither PASS nor WARN: what could not be measured is never healthy."""
        return self.verdict in (Verdict.FAIL, Verdict.UNKNOWN)

    @property
    def right(self) -> bool:
        """A class that is right, among two at most."""
        return len(self.blamed) <= 2 and bool(FAULTS[self.run.label].truth & set(self.blamed))


@dataclass
class Score:
    """Of the runs of some faults."""

    runs: list[Judged] = field(default_factory=list)

    @property
    def found(self) -> list[Judged]:
        return [one for one in self.runs if one.positive]

    def words(self) -> str:
        said = Counter(" or ".join(one.blamed) or "nothing" for one in self.found)
        return ", ".join(f"{name} {count}" for name, count in said.most_common())


def order(seed: int, clean: int, strong: int, weak: int, faults: Sequence[Fault]) -> list[str]:
    """Labels of the runs to judge in the order in which they are made."""
    labels = [CLEAN] * clean
    for fault in faults:
        labels += [fault.name] * (weak if fault.weak else strong)
    random.Random(seed).shuffle(labels)
    return labels


def measure(learning: int, labels: Sequence[str], log: Path) -> Iterator[Run]:
    """``learning`` clean runs, then the labelled ones; those that the log holds are not made again."""
    runs = [msgspec.json.decode(line, type=Run) for line in log.read_bytes().splitlines()] if log.exists() else []
    left = [LEARN] * learning + list(labels)
    for run in runs:
        if run.label in left:
            left.remove(run.label)
    yield from runs
    if not left:
        return
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as file:
        told = Path(folder, "fault")
        os.environ[lib_inject.FILE] = str(told)
        told.write_text(CLEAN)
        with Home(lib_inject.COMMAND) as home:
            _results(SUITE, home)  # warms caches and the nursery
            criteria: Criteria | None = None
            for label in left:
                told.write_text(label)
                if label != LEARN and criteria is None:
                    criteria = learned([run for run in runs if run.label == LEARN])
                runs.append(_run(label, home, criteria))
                file.write(msgspec.json.encode(runs[-1]) + b"\n")
                file.flush()
                yield runs[-1]


def _results(suite: Sequence[Benchmark], home: Home) -> tuple[BenchmarkResult, ...]:
    return tuple(run_benchmarks([(one, (_CPU,)) for one in suite], TIMEOUT_SECONDS, home))


def _run(label: str, home: Home, criteria: Criteria | None) -> Run:
    """One run; with criteria, what failed is measured again under the same fault."""
    fault = FAULTS.get(label)
    with contextlib.ExitStack() as around:
        if fault is not None and fault.busy:
            around.enter_context(lib_inject.taking(fault.busy))
        if fault is not None and fault.hogs:
            around.enter_context(lib_inject.streaming(fault.hogs))
        first = final = _results(SUITE, home)
        if criteria is not None:
            final = confirmed(
                _suite(first), criteria, lambda names: _suite(_results(_named(names), home)), AGAIN
            ).benchmarks
    return Run(label, first, final, os.getloadavg()[0])


def _named(names: Sequence[str]) -> list[Benchmark]:
    return [one for one in SUITE if one.name in names]


def _suite(results: tuple[BenchmarkResult, ...]) -> SuiteResult:
    return SuiteResult(
        suite="bench", started_at=0.0, finished_at=0.0, host="here", device=_CPU.model, cohort=COHORT, software="",
        benchmarks=results,
    )  # fmt: skip


def learned(runs: Sequence[Run]) -> Criteria:
    """As ``mainstay criteria fit`` learns them."""
    samples = (s for run in runs for s in samples_of(run.first, cohort=COHORT, machine="here"))
    return learn(samples, estimator=BestLimits)


def judged(run: Run, criteria: Criteria, *, once: bool = False) -> Judged:
    """The verdict on a run by the metrics that are gates here; ``once``: without what was measured again.

    A metric that was measured and has no criterion, because it does not repeat on this machine, is left out: with it no
    run would ever pass.
    """
    results = run.first if once else run.results
    said = judge(results, criteria.criteria, cohort=COHORT, refused=criteria.refused)
    kept = [v for v in said.verdicts if v.criterion is not None or v.value is None]
    verdict = worst(v.verdict for v in kept)
    reason = next((f"{v.benchmark} {v.metric}: {v.reason}" for v in kept if v.verdict is verdict), "")
    return Judged(run, verdict, blame(kept, results), reason)


def rows(runs: Sequence[Run], note: str) -> list[Row]:
    """The claims, from any number of runs."""
    criteria = learned([run for run in runs if run.label == LEARN])
    made = [judged(run, criteria) for run in runs if run.label != LEARN]
    clean = [one for one in made if one.run.label == CLEAN]
    faults = {name: Score([one for one in made if one.run.label == name]) for name in FAULTS}
    strong = Score([one for name, score in faults.items() if not FAULTS[name].weak for one in score.runs])
    false = [one for one in clean if one.positive]
    hasty = sum(judged(one.run, criteria, once=True).positive for one in clean)
    loads = sorted(run.load for run in runs)
    about = (
        f"{note}; {sum(bool(s.runs) for n, s in faults.items() if not FAULTS[n].weak)} classes;"
        f" load {loads[0]:.1f} to {loads[-1]:.1f}, median {loads[len(loads) // 2]:.1f};"
        f" {len(criteria.criteria)} metrics are gates here, {len(criteria.refused)} are not"
    )
    found = len(strong.found)
    why = "; ".join(one.reason for one in false)
    rights = [one for one in strong.found if one.right]
    alone = sum(len(one.blamed) == 1 for one in rights)
    missed = Counter(one.run.label for one in strong.runs if not one.positive)
    lost = ", ".join(f"{name} {count}" for name, count in missed.items()) or "none"
    once = found / max(1, found + hasty)
    baseline = f"measured once: {once:.3f}, {hasty} of {len(clean)} clean runs did not pass"
    return [
        _row("precision", found, found + len(false), 0.98,
             f"{about}. Clean runs not passed: {len(false)} of {len(clean)}{': ' + why if why else ''}", baseline),
        _row("recall", found, len(strong.runs), 0.95, f"missed: {lost}"),
        _row("right class, of what was found", len(rights), found, 0.85,
             f"two classes at most, one of them right; {alone} with one class alone"),
        *_hangs(runs),
        *(_per_fault(FAULTS[name], score) for name, score in faults.items() if score.runs),
    ]  # fmt: skip


def _row(claim: str, good: int, n: int, least: float, note: str, baseline: str = "") -> Row:  # noqa: PLR0917 - a table's columns
    figure = good / max(1, n)
    return Row(
        claim=f"injected faults: {claim}", figure=round(figure, 4), unit="", target=f">= {least}", kind="live", n=n,
        holds=figure >= least, note=note, baseline=baseline,
    )  # fmt: skip


def _hangs(runs: Sequence[Run]) -> Iterator[Row]:
    ends = [r.seconds for run in runs if run.label == "hang" for r in run.first if r.state is State.TIMEOUT]
    if ends:
        late = max(ends) - TIMEOUT_SECONDS
        yield Row(claim="injected faults: a hang ends after its time-out, most", figure=round(late, 3), unit="s",
                  target="<= 5", holds=late <= 5.0, kind="live", n=len(ends),
                  note=f"time-out {TIMEOUT_SECONDS:g} s; deaf to SIGTERM")  # fmt: skip


def _per_fault(fault: Fault, score: Score) -> Row:
    found = len(score.found)
    right = sum(one.right for one in score.found)
    kind = "weak fault" if fault.weak else "fault"
    return Row(
        claim=f"{kind} {fault.name}: found", figure=found / len(score.runs), unit="", target="", holds=None,
        kind="live", n=len(score.runs),
        note=f"{fault.about}; truth {' or '.join(sorted(fault.truth))}; right class {right} of {found};"
        f" points to: {score.words()}",
    )  # fmt: skip


def settle() -> str:
    """One core and, where allowed, a real-time priority: other work on this machine is not the fault injected."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(lib_inject.PRIORITY))
    except PermissionError:
        return "one core, shared with whatever else runs"
    return "one core, before other processes of this machine (real-time priority)"


def _possible() -> tuple[list[Fault], str]:
    """Faults that can be injected here, and a word on those that cannot."""
    pid = os.fork()
    if pid == 0:
        try:
            lib_inject.narrow_network("500mbit")
        except (OSError, RuntimeError):
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        return list(FAULTS.values()), ""
    return [fault for fault in FAULTS.values() if fault.name != "narrow_link"], "; no network namespace here"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.validation_faults")
    parser.add_argument("--json", type=Path, default=RESULTS / "validation_faults.json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a third of the runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(argv)
    faults, lacking = _possible()
    learning = 20 if given.quick else 40
    labels = order(given.seed, *((16, 2, 1) if given.quick else (40, 4, 2)), faults)
    log = given.log or Path(tempfile.mkdtemp(prefix="mainstay-faults-"), "runs.jsonl")
    print(f"{learning + len(labels)} runs, kept in {log}", flush=True)
    note = settle() + lacking
    runs: list[Run] = []
    begun = time.monotonic()
    try:
        for run in measure(learning, labels, log):
            runs.append(run)
            if len(runs) % 20 == 0:
                print(json.dumps({"runs": len(runs), "seconds": round(time.monotonic() - begun)}), flush=True)
    except KeyboardInterrupt:
        note += f"; ended early, after {len(runs)} of {learning + len(labels)} runs"
    publish("validation_faults", rows(runs, note), given.json)


if __name__ == "__main__":
    main()
