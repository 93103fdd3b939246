"""Generated training runs with every fault and trap of the catalog, through every detector: simulated."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import Row
from mainstay.detectors.base import Samples
from mainstay.detectors.finding import ADVICE, Finding, FindingKind
from mainstay.detectors.generator.catalog import CASES, FAULTS, SIZES, TRAPS, fits, generate
from mainstay.detectors.generator.truth import Truth
from mainstay.detectors.generator.world import JOB, START, World
from mainstay.detectors.recording.replay import replay
from mainstay.probes.core_types import NIC_PREFIX, Severity

SEED = 7000
"""Of the first run that is reported; the tests use small numbers."""
_WORKERS = 2
TRAP_SEEDS = (16, 4, 2)
"""Runs of each trap by size: 506 in all; most of them small, as a run of 256 ranks costs three times as much."""
PACE = {"seconds": 2.5, "steps": 96}
"""Shorter than by default, to cost less; the fault lasts 80 s or more, as some detectors wait for a minute."""
_NATURES: tuple[dict[str, Any], ...] = ({}, {"last_stage": 1.6}, {"lengths": 0.1}, {})
"""Healthy runs take turns: balanced, a slow last stage, sequences of varying length."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the findings compare with the truth."""

    seconds: float | None
    """From the first moment at which it could be seen to the last of the first right findings; None: missed."""
    steps: int | None
    """The same in steps begun."""
    right: frozenset[int]
    """Ranks that were rightly named."""
    wrong: tuple[Finding, ...]
    """Findings that blame the innocent, or see what is not there."""
    findings: int
    """Active findings above information that are no advice."""
    advice: tuple[Finding, ...]
    """Advice after the fault began that the fault explains."""


def outcome(world: World, truth: Truth, found: list[Finding]) -> Outcome:
    """Judge the findings. Advice and information blame no rank."""
    ends = world.times()[1]
    parts = truth.parts or (truth,)
    active = [f for f in found if f.active]
    told = [f for f in active if f.kind not in ADVICE and f.severity is not Severity.INFO]
    hits = [[f for f in told if f.kind in p.kinds and f.time >= _begin(p, ends) and _about(world, p, f)] for p in parts]
    wrong = tuple(f for f in told if not any(_fits(world, p, f, _begin(p, ends)) for p in parts))
    named = frozenset(f.entity.rank for mine in hits for f in mine if f.entity.rank is not None)
    advice = tuple(f for f in active if f.kind in ADVICE - _true_advice(world, truth) and f.time >= _begin(truth, ends))
    rest: dict[str, Any] = {
        "right": named,
        "wrong": wrong,
        "findings": len(told),
        "advice": () if truth.healthy else advice,
    }
    if not all(hits):
        return Outcome(seconds=None, steps=None, **rest)
    last = max(min(f.time for f in mine) for mine in hits)
    steps = int(np.searchsorted(ends, last, side="left")) - truth.step + 1
    return Outcome(seconds=last - _begin(truth, ends), steps=steps, **rest)


def _begin(truth: Truth, ends: np.ndarray) -> float:
    return float(ends[truth.step - 1]) if truth.step else START


def _true_advice(world: World, truth: Truth) -> frozenset[FindingKind]:
    """Advice that holds in this run with and without its fault."""
    stage = {FindingKind.STAGE_IMBALANCE} if world.last_stage > 1.1 else set()
    return truth.also | stage | ({FindingKind.SEQUENCE_IMBALANCE} if world.lengths else set())


def _about(world: World, truth: Truth, finding: Finding) -> bool:
    entity = finding.entity
    if entity.rank is not None:
        return entity.rank in truth.ranks or entity.peer in truth.ranks
    rows = world.mesh.rows(sorted(truth.ranks))
    if entity.node is not None:
        shared = entity.device in {None, "host"} or str(entity.device).startswith(NIC_PREFIX)
        places = {(world.mesh.nodes[row], world.mesh.devices[row]) for row in rows}
        return any(node == entity.node and (shared or entity.device == device) for node, device in places)
    return truth.job_wide


def _fits(world: World, truth: Truth, finding: Finding, begun: float) -> bool:
    """Right; or a consequence, of the job or of the right ranks."""
    entity = finding.entity
    of_job = finding.kind in truth.also and entity.rank is None and entity.node is None
    known = finding.kind in truth.kinds | truth.also
    return finding.time >= begun and (of_job or (known and _about(world, truth, finding)))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run to be judged."""

    name: str
    ranks: int
    seed: int
    damaged: bool
    shape: dict[str, Any]


def cases(trap_seeds: tuple[int, ...] = TRAP_SEEDS) -> list[Case]:
    """Every fault once in every size that can have it, every trap with several seeds; half of the runs are damaged.

    In a random order that is fixed, faults and traps by turns, so that the first of them stand for all.
    """
    made: list[Case] = []
    for size, (shape, traps) in enumerate(zip(SIZES, trap_seeds, strict=True)):
        ranks = shape["dp"] * shape["pp"] * shape["tp"]
        small = World(steps=1, **shape)
        for number, name in enumerate(name for name in CASES if fits(name, small)):
            made += [
                Case(name=name, ranks=ranks, seed=SEED + 100 * number + run, damaged=(size + number + run) % 2 == 1,
                     shape=shape | PACE | (_NATURES[run // 2 % 4] if name in TRAPS else {}))
                for run in range(1 if name in FAULTS else traps)
            ]  # fmt: skip
    faults, others = ([one for one in made if (one.name in FAULTS) == wanted] for wanted in (True, False))
    for each in (faults, others):
        random.Random(SEED).shuffle(each)
    return [one for pair in zip_longest(faults, others) for one in pair if one is not None]


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of a run, as it is kept."""

    name: str
    ranks: int
    seed: int
    damaged: bool
    seconds: float | None
    """To the right finding; None: missed, or nothing is wrong."""
    kind_named: bool
    """Whether the right kind was reported, about whomever."""
    findings: int
    wrong: list[str]
    advice: list[str]
    days: float
    rule: bool
    """Whether the fixed rule blames a rank: one of the right ones, where there is a fault."""


def play(case: Case) -> Played:
    world, truth = generate(case.name, case.seed, damaged=case.damaged, **case.shape)
    recording = world.recording()
    found = replay(recording)
    result = outcome(world, truth, found)
    kinds = truth.kinds.union(*(part.kinds for part in truth.parts))
    named = fixed_rule(next(recording.steps(JOB)))
    return Played(
        name=case.name, ranks=case.ranks, seed=case.seed, damaged=case.damaged, seconds=result.seconds,
        kind_named=any(f.active and f.kind in kinds for f in found), findings=result.findings,
        wrong=[f"{f.kind} {f.entity.key}" for f in result.wrong], advice=[str(f.kind) for f in result.advice],
        days=float(world.times()[0].sum()) / 86_400.0, rule=bool(named if truth.healthy else named & truth.ranks),
    )  # fmt: skip


def fixed_rule(steps: Samples) -> set[int]:
    """Ranks that compute 5 % longer than the median rank in five steps in a row: what a dashboard alert would do."""
    compute = steps.x[:, steps.signals.index("compute_time_seconds")]
    slow = compute > 1.05 * np.nanmedian(compute, axis=1, keepdims=True)
    runs = np.lib.stride_tricks.sliding_window_view(slow, 5, axis=0).all(axis=2)
    return {int(row) for row in np.flatnonzero(runs.any(axis=0))}


def play_all(chosen: list[Case], log: Path | None = None, minutes: float = float("inf")) -> list[Played]:
    """Runs in the given order, as many as begin within the time; those in the log are not played again."""
    lines = log.read_text().splitlines() if log is not None and log.exists() else []
    played = [Played(**json.loads(line)) for line in lines]
    known = {(one.name, one.ranks, one.seed) for one in played}
    waiting = (case for case in chosen if (case.name, case.ranks, case.seed) not in known)
    running, end = set[Future[Played]](), time.monotonic() + 60.0 * minutes
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        while True:
            if time.monotonic() < end:
                running |= {pool.submit(play, case) for case in islice(waiting, 2 * _WORKERS - len(running))}
            if not running:
                return played
            done, running = wait(running, return_when=FIRST_COMPLETED)
            ended = [one.result() for one in done]
            played += ended
            if log is not None:
                with log.open("a") as file:
                    file.writelines(json.dumps(asdict(one)) + "\n" for one in ended)


def rows(played: list[Played]) -> Iterator[Row]:
    """All faults, all traps; then a row for each fault."""
    faulty = [one for one in played if one.name in FAULTS]
    quiet = [one for one in played if one.name in TRAPS]
    found = sum(one.seconds is not None for one in faulty)
    wrong, told = sum(len(one.wrong) for one in faulty), sum(one.findings for one in faulty)
    blamed, advice = sum(bool(one.wrong) for one in quiet), sum(len(one.advice) for one in faulty)
    share, wrongly = found / max(len(faulty), 1), wrong / max(told, 1)
    planned = sum(case.name in FAULTS for case in cases())
    note = f"of {planned} planned runs of faults, {len(cases()) - planned} of traps" if len(faulty) < planned else ""
    yield _row("faults found, right kind and culprit", share, ">= 0.98", holds=share >= 0.98, n=len(faulty), note=note)
    yield _row("findings about the innocent", wrongly, "<= 0.005", holds=wrongly <= 0.005, n=told, note=_named(faulty))
    rule = f"5 % slower than the median rank in five steps: {sum(one.rule for one in quiet)}"
    note = _named(quiet)
    yield _row("healthy traps blamed", blamed, "0", holds=not blamed, n=len(quiet), note=note, baseline=rule)
    note = "; ".join(sorted({f"{one.name}: {kind}" for one in faulty for kind in one.advice}))
    yield _row("advice that a fault explains", advice, "0", holds=not advice, n=len(faulty), note=note)
    for name in dict.fromkeys(one.name for one in faulty):
        yield _fault(name, [one for one in faulty if one.name == name])


def _named(played: list[Played]) -> str:
    """Wrong findings by case, without whom they are about, and in how many runs."""
    told = Counter(f"{one.name}: {kind}" for one in played for kind in {text.split(" ")[0] for text in one.wrong})
    return "; ".join(f"{what} in {count}" for what, count in sorted(told.items()))


def _row(claim: str, figure: float, target: str, *, holds: bool, n: int, note: str = "", baseline: str = "") -> Row:
    return Row(
        claim=f"generated runs of 16, 64, and 256 ranks: {claim}", figure=figure, unit="", target=target, holds=holds,
        kind="simulated", n=n, note=note, baseline=baseline,
    )  # fmt: skip


def _fault(name: str, played: list[Played]) -> Row:
    found = [one.seconds for one in played if one.seconds is not None]
    wrong = sum(len(one.wrong) for one in played)
    missed = [f"{one.ranks} ranks{', damaged' if one.damaged else ''}" for one in played if one.seconds is None]
    slowest = f"slowest {max(found):.0f} s" if found else ""
    note = "; ".join(filter(None, (slowest, f"missed: {', '.join(missed)}" if missed else "", _named(played))))
    return Row(
        claim=f"generated runs: {name.replace('_', ' ')}", unit="", target="all, 0", kind="simulated",
        figure=f"{len(found)} of {len(played)} found, {wrong} wrong blame", n=len(played), note=note,
        holds=len(found) == len(played) and not wrong,
    )  # fmt: skip
