"""What injected faults gave: judged by criteria of sessions, counted, and judged again by other limits from the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.lib_inject import FAULTS, Fault
from bench.report import Row
from mainstay.detectors.validation.criteria import judge, worst
from mainstay.detectors.validation.criterion_learning import learn_criteria, samples_of
from mainstay.detectors.validation.defect_attribution import attribute_defects
from mainstay.detectors.validation.remeasurement import confirm_failures
from mainstay.detectors.validation.validator import BestLimits
from mainstay.detectors.validation.verdict import Criteria
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, SuiteResult
from mainstay.probes.core_types import Verdict

TIMEOUT_SECONDS = 5.0
"""Hard limit for one benchmark; the slowest takes half a second of an idle core."""
COHORT = "bench"
CLEAN = "clean"
LEARN = "learn"
"""A clean run that criteria are learned from, and nothing else."""
AGAIN = 3
"""As in ``mainstay validate --remeasure``: this machine is not idle."""


class Run(msgspec.Struct, frozen=True):
    """One run of the suite, as a line of the log: raw measurements, no verdict."""

    label: str
    """``learn``, ``clean`` or the fault's name."""
    first: tuple[BenchmarkResult, ...]
    again: tuple[tuple[BenchmarkResult, ...], ...] = ()
    """What was measured again, benchmarks that failed by the limits of the day; at most ``AGAIN`` times."""
    session: str = ""
    """Runs of one session have a fork server and a stretch of time in common."""
    load: float = 0.0
    """Of the machine when it ended: runnable processes."""
    time: float = 0.0
    """Unix seconds when it ended."""


@dataclass(frozen=True)
class Judged:
    run: Run
    verdict: Verdict
    blamed: tuple[Defect, ...]
    reason: str

    @property
    def positive(self) -> bool:
        """Neither PASS nor WARN: an unmeasured run is never healthy."""
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

    def description(self) -> str:
        said = Counter(" or ".join(one.blamed) or "nothing" for one in self.found)
        return ", ".join(f"{name} {count}" for name, count in said.most_common())


def suite(results: Sequence[BenchmarkResult]) -> SuiteResult:
    """As a suite's result."""
    return SuiteResult(
        suite="bench", started_at=0.0, finished_at=0.0, host="here", device="one core", cohort=COHORT, software="",
        benchmarks=tuple(results),
    )  # fmt: skip


def learned(runs: Sequence[Run], *, pooled: bool = False) -> Criteria:
    """As ``mainstay criteria fit`` learns them; ``pooled``: as if all runs were of one kind, ``--sessions none``."""
    samples = (
        sample
        for run in runs
        if run.label == LEARN
        for sample in samples_of(run.first, cohort=COHORT, machine="here", session="" if pooled else run.session)
    )
    return learn_criteria(samples, estimator=BestLimits)


def final(run: Run, criteria: Criteria) -> tuple[BenchmarkResult, ...]:
    """With failures confirmed by what was measured again.

    Limits under which more fails than did that day find nothing of it in the log: then it failed.
    """
    left = iter(run.again)
    return confirm_failures(suite(run.first), criteria, lambda _: suite(next(left, ())), AGAIN).benchmarks


def judged(run: Run, criteria: Criteria, *, once: bool = False) -> Judged:
    """The verdict on a run by the metrics that are gates here; ``once``: without what was measured again.

    A metric that was measured and has no criterion, because it does not repeat on this machine, is left out: with it no
    run would ever pass.
    """
    results = run.first if once else final(run, criteria)
    said = judge(results, criteria.criteria, cohort=COHORT, refused=criteria.refused)
    kept = [v for v in said.verdicts if v.criterion is not None or v.value is None]
    verdict = worst(v.verdict for v in kept)
    reason = next((f"{v.benchmark} {v.metric}: {v.reason}" for v in kept if v.verdict is verdict), "")
    return Judged(run, verdict, attribute_defects(kept, results), reason)


def rows(runs: Sequence[Run], note: str) -> list[Row]:
    """The claims, from any number of runs."""
    criteria, pooled = learned(runs), learned(runs, pooled=True)
    made = [judged(run, criteria) for run in runs if run.label != LEARN]
    clean = [one for one in made if one.run.label == CLEAN]
    faults = {name: Score([one for one in made if one.run.label == name]) for name in FAULTS}
    strong = Score([one for name, score in faults.items() if not FAULTS[name].weak for one in score.runs])
    false = [one for one in clean if one.positive]
    hasty, tight = (sum(judged(one.run, by, once=True).positive for one in clean) for by in (criteria, pooled))
    loads = sorted(run.load for run in runs)
    about = (
        f"{note}; {sum(bool(s.runs) for n, s in faults.items() if not FAULTS[n].weak)} classes;"
        f" load {loads[0]:.1f} to {loads[-1]:.1f}, median {loads[len(loads) // 2]:.1f};"
        f" learned from {_sessions(runs)}; {len(criteria.criteria)} metrics are gates here,"
        f" {len(criteria.refused)} are not"
    )
    found = len(strong.found)
    why = "; ".join(one.reason for one in false)
    rights = [one for one in strong.found if one.right]
    alone = sum(len(one.blamed) == 1 for one in rights)
    missed = Counter(one.run.label for one in strong.runs if not one.positive)
    lost = ", ".join(f"{name} {count}" for name, count in missed.items()) or "none"
    once = found / max(1, found + hasty)
    baseline = (
        f"measured once: {once:.3f}, {hasty} of {len(clean)} clean runs did not pass; by limits that know no sessions"
        f" {tight}"
    )
    return [
        _row("precision", found, found + len(false), 0.98,
             f"{about}. Clean runs not passed: {len(false)} of {len(clean)}{': ' + why if why else ''}", baseline),
        _row("recall", found, len(strong.runs), 0.95, f"missed: {lost}"),
        _row("right class, of what was found", len(rights), found, 0.85,
             f"two classes at most, one of them right; {alone} with one class alone"),
        *_hangs(runs),
        _confusion(strong),
        *(_per_fault(FAULTS[name], score) for name, score in faults.items() if score.runs),
    ]  # fmt: skip


def _sessions(runs: Sequence[Run]) -> str:
    each = Counter(run.session for run in runs if run.label == LEARN)
    return f"{len(each)} sessions of {min(each.values(), default=0)} to {max(each.values(), default=0)} runs"


def _confusion(strong: Score) -> Row:
    """Reported classes of faults other than the true class."""
    wrong = [one for one in strong.found if not one.right]
    said = Counter((one.run.label, " or ".join(one.blamed) or "nothing") for one in wrong)
    told = "; ".join(
        f"{label} ({' or '.join(sorted(FAULTS[label].truth))}) as {words}: {count}"
        for (label, words), count in said.most_common()
    )
    return Row(claim="injected faults: taken for another class", figure=len(wrong), unit="runs", target="",
               holds=None, kind="live", n=len(strong.found), note=told)  # fmt: skip


def _row(claim: str, good: int, n: int, least: float, note: str, baseline: str = "") -> Row:  # noqa: PLR0917 - a table's columns
    figure = good / n if n else None  # of nothing nothing is claimed
    return Row(
        claim=f"injected faults: {claim}", figure=None if figure is None else round(figure, 4), unit="",
        target=f">= {least}", kind="live", n=n, holds=None if figure is None else figure >= least, note=note,
        baseline=baseline,
    )  # fmt: skip


def _hangs(runs: Sequence[Run]) -> Iterator[Row]:
    ends = [r.seconds for run in runs if run.label == "hang" for r in run.first if r.state is BenchmarkState.TIMEOUT]
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
        f" points to: {score.description()}",
    )  # fmt: skip
