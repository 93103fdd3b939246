"""Real faults injected around real benchmarks on this machine: what the verdicts find, and what they point to.

``python -m bench.validation_faults [--json FILE] [--quick] [--seed N] [--log FILE] [--rejudge FILE]``: 13 minutes.
The product's benchmarks at small sizes, on one core, each in its own process. Criteria are learned from clean runs of
eight sessions, as ``mainstay criteria fit`` learns them: 40 s apart, each with a new fork server, so with other pages
of memory, and with the load of the machine by then. Then clean and faulty runs in one random order, so that what else
happens on the machine hits both, in sessions of their own, each as ``mainstay validate --remeasure 3`` makes it: what
is too slow is measured again. The log keeps every run as measured: given again, an interrupted bench continues where it
stopped, and ``--rejudge`` judges a log by the limits of today without a run. Ctrl-C or SIGTERM ends it early with the
rows of what was measured; so does the end of its time, 14 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from bench import lib_inject
from bench.lib_fault_score import AGAIN, CLEAN, LEARN, TIMEOUT_SECONDS, Run, learned, rows, suite
from bench.lib_inject import FAULTS, Fault
from bench.report import RESULTS, publish
from mainstay.detectors.validation.remeasurement import confirm_failures
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.allreduce import AllReduce
from mainstay.probes.benchmarks.base import Benchmark, Device
from mainstay.probes.benchmarks.burn import Burn
from mainstay.probes.benchmarks.deterministic import Deterministic
from mainstay.probes.benchmarks.disk import Disk
from mainstay.probes.benchmarks.gemm import Gemm
from mainstay.probes.benchmarks.launch import Launch
from mainstay.probes.benchmarks.memory import Memory
from mainstay.probes.benchmarks.result import BenchmarkResult
from mainstay.probes.benchmarks.runner import ForkServerPool, run_benchmarks

LEARNED = (8, 5)
"""Sessions that are learned from, and clean runs of each: forty runs, as many as one session had before. The limits
hang on the number of sessions: Student's t is 7 with eight of them, 13 with five."""
LEARNED_QUICK = (5, 4)
PAUSE_SECONDS = 40.0
"""Between sessions that are learned from: other load has changed by then, and eight fit into the time."""
MOST_SECONDS = 840.0
"""It ends then, with the rows of what was measured: a part of a bench may take a quarter of an hour."""
JUDGED = 22
"""Judged runs that share a session: five sessions that no criterion has seen."""
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

Plan = list[tuple[str, str]]
"""Label and session of each run, in their order."""


def order(seed: int, clean: int, strong: int, weak: int, faults: Sequence[Fault]) -> list[str]:
    """Labels of the runs to judge in the order in which they are made."""
    labels = [CLEAN] * clean
    for fault in faults:
        labels += [fault.name] * (weak if fault.weak else strong)
    random.Random(seed).shuffle(labels)
    return labels


def planned(sessions: int, each: int, labels: Sequence[str]) -> Plan:
    """Sessions of clean runs to learn from, then the labeled ones in sessions of their own."""
    learning = [(LEARN, f"learned-{i // each}") for i in range(sessions * each)]
    return learning + [(label, f"judged-{i // JUDGED}") for i, label in enumerate(labels)]


def measure(plan: Plan, log: Path, pause: float = PAUSE_SECONDS) -> Iterator[Run]:
    """The runs of a plan; those that the log holds are not made again.

    Args:
        plan: what to run.
        log: where runs are kept.
        pause: seconds between sessions that are learned from.
    """
    runs = read(log) if log.exists() else []
    left = list(plan)
    for run in runs:
        with contextlib.suppress(ValueError):
            left.remove((run.label, run.session))
    yield from runs
    if not left:
        return
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as file:
        told = Path(folder, "fault")
        os.environ[lib_inject.FILE] = str(told)
        for i, (session, part) in enumerate(groupby(left, key=lambda one: one[1])):
            labels = [label for label, _ in part]
            if i and labels[0] == LEARN:
                time.sleep(pause)
            for run in _session(session, labels, told, runs):
                runs.append(run)
                file.write(msgspec.json.encode(run) + b"\n")
                file.flush()
                yield run


def read(log: Path) -> list[Run]:
    """The runs of a log; a last line that was cut off is left out."""
    lines = log.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Run) for line in lines]


def _session(session: str, labels: Sequence[str], told: Path, before: Sequence[Run]) -> Iterator[Run]:
    """Runs with a fork server of their own; ``told`` is the file that names the fault of the moment."""
    told.write_text(CLEAN)
    with ForkServerPool(lib_inject.COMMAND) as home:
        _results(SUITE, home)  # warms caches and the fork server
        criteria = None if labels[0] == LEARN else learned(before)
        for label in labels:
            told.write_text(label)
            yield _run(label, session, home, criteria)


def _results(benchmarks: Sequence[Benchmark], home: ForkServerPool) -> tuple[BenchmarkResult, ...]:
    return tuple(run_benchmarks([(one, (_CPU,)) for one in benchmarks], TIMEOUT_SECONDS, home))


def _run(label: str, session: str, home: ForkServerPool, criteria: Criteria | None) -> Run:
    """One run; with criteria, what failed is measured again under the same fault."""
    fault = FAULTS.get(label)
    more: list[tuple[BenchmarkResult, ...]] = []
    with contextlib.ExitStack() as around:
        if fault is not None and fault.busy:
            around.enter_context(lib_inject.taking(fault.busy))
        if fault is not None and fault.hogs:
            around.enter_context(lib_inject.streaming(fault.hogs))
        first = _results(SUITE, home)

        def again(names: Sequence[str]) -> Any:
            more.append(_results([one for one in SUITE if one.name in names], home))
            return suite(more[-1])

        if criteria is not None:
            confirm_failures(suite(first), criteria, again, AGAIN)
    return Run(label, first, tuple(more), session, os.getloadavg()[0], time.time())


def settle() -> str:
    """One core and, where allowed, a real-time priority: other work on this machine is not the fault injected."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(lib_inject.PRIORITY))
    except PermissionError:
        return "one core, shared with all else that runs"
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
    parser.add_argument("--rejudge", type=Path, default=None, metavar="FILE", help="a log; nothing is run")
    given = parser.parse_args(argv)
    if given.rejudge is not None:
        publish("validation_faults", rows(read(given.rejudge), f"judged again: {given.rejudge.name}"), given.json)
        return
    faults, lacking = _possible()
    labels = order(given.seed, *((16, 2, 1) if given.quick else (40, 4, 2)), faults)
    plan = planned(*(LEARNED_QUICK if given.quick else LEARNED), labels)
    log = given.log or Path(tempfile.mkdtemp(prefix="mainstay-faults-"), "runs.jsonl")
    print(f"{len(plan)} runs, kept in {log}", flush=True)
    where = settle()
    runs, note = _made(plan, log, PAUSE_SECONDS / 3 if given.quick else PAUSE_SECONDS)
    if not runs:
        print("ended before the first run: no rows")
        return
    publish("validation_faults", rows(runs, f"{where}{lacking}; seed {given.seed}{note}"), given.json)


def _made(plan: Plan, log: Path, pause: float) -> tuple[list[Run], str]:
    """What was measured until the end or until a user interrupted it, and a note on that."""
    runs: list[Run] = []
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for run in measure(plan, log, pause):
            runs.append(run)
            if time.monotonic() - begun > MOST_SECONDS:
                raise KeyboardInterrupt  # noqa: TRY301 - as if a user had interrupted it
            if len(runs) % 20 == 0:
                print(json.dumps({"runs": len(runs), "seconds": round(time.monotonic() - begun)}), flush=True)
    except KeyboardInterrupt:
        return runs, f"; ended early, after {len(runs)} of {len(plan)} runs"
    return runs, ""


if __name__ == "__main__":
    main()
