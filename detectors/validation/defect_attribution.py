"""Which class of defect a run points to: what explains the failures best and the passing metrics contradict least.

Pure: verdicts in, classes out. What each benchmark can find, best first, is what it declares (``Benchmark.defects``,
``Benchmark.points_to``): nothing is learned here, so it works from the first run. Once enough repairs are on record,
what benchmarks found there is worth more (``selector.coverage``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mainstay.detectors.validation.verdict import MetricVerdict
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better
from mainstay.probes.benchmarks.suites import BENCHMARKS
from mainstay.probes.core_types import Verdict

CONTRADICTS = 0.25
"""What a passing metric counts against a class, where a failing one counts 1 for it: a benchmark may miss a defect that
another finds, it does not often fail without one."""
_EVEN = 1e-9
_TWINS = {Defect.GPU_MEMORY: Defect.HOST_MEMORY, Defect.GPU_LINK: Defect.NETWORK, Defect.HOST_LINK: Defect.HOST_MEMORY}
"""What a benchmark's twin loads on a processor: host memory, and the network stack that gloo goes through."""
_PROCESSOR = ("cpu", "host")
_BROKEN = (BenchmarkState.ERROR, BenchmarkState.TIMEOUT)


def declared(benchmark: str, metric: str) -> Sequence[Defect]:
    """What Mainstay's own benchmarks declare; nothing for one that it does not know."""
    known = BENCHMARKS.get(benchmark)
    return known.points_to(metric) if known is not None else ()


def attribute_defects(verdicts: Iterable[MetricVerdict], results: Iterable[BenchmarkResult] = ()) -> tuple[Defect, ...]:
    """The classes that fit a judged run best: one, several if they fit equally well, none if nothing speaks.

    Metrics of one benchmark on one device that point to the same classes are one witness, however many they are. A
    failing witness counts 1 / place for each class in its list, a passing one a quarter of that against it. Wrong bits
    count twice, as no noise flips one, and nothing contradicts them: a rare one is seen once. What could not
    be measured although it should have been (hung, crashed, left out a metric that healthy machines report) speaks for
    software; a metric without a criterion, or preempted, does not speak.

    Args:
        verdicts: of one run.
        results: the same run's results; without them, a benchmark that hung is known by its known metrics only.
    """
    states = {(result.benchmark, result.device): result.state for result in results}
    score: dict[Defect, float] = defaultdict(float)
    named: set[Defect] = set()
    for points, failed in _witnesses(verdicts, states):
        for place, defect in enumerate(points, 1):
            if defect is Defect.NUMERICS:
                score[defect] += 2.0 if failed else 0.0
            else:
                score[defect] += 1.0 / place if failed else -CONTRADICTS / place
        named |= set(points) if failed else set()
    best = max((score[defect] for defect in named), default=0.0)
    return tuple(defect for defect in Defect if defect in named and score[defect] >= best - _EVEN)


def describe_defects(defects: Sequence[Defect]) -> str:
    """``points to: thermal``, ``points to: compute or thermal``; empty if nothing is blamed."""
    return f"points to: {' or '.join(defects)}" if defects else ""


def _witnesses(
    verdicts: Iterable[MetricVerdict], states: dict[tuple[str, str], BenchmarkState]
) -> Iterable[tuple[tuple[Defect, ...], bool]]:
    """What each witness points to, and whether it failed."""
    said: dict[tuple[str, str, tuple[Defect, ...]], bool] = {}
    for verdict in verdicts:
        device = verdict.device
        if verdict.verdict is Verdict.UNKNOWN:
            if not _broken(verdict, states.get((verdict.benchmark, device))):
                continue
            points: tuple[Defect, ...] = (Defect.SOFTWARE,)
        else:
            points = _points(verdict)
        key = (verdict.benchmark, device, points)
        said[key] = said.get(key, False) or verdict.verdict in (Verdict.FAIL, Verdict.UNKNOWN)
    for (_, _, points), failed in said.items():
        yield points, failed


def _broken(verdict: MetricVerdict, state: BenchmarkState | None) -> bool:
    """Whether a metric is unknown because it could not be measured where it can be."""
    if state is BenchmarkState.PREEMPTED:
        return False
    return state in _BROKEN or (verdict.value is None and verdict.criterion is not None)


def _points(verdict: MetricVerdict) -> tuple[Defect, ...]:
    """A fingerprint speaks of wrong bits only, a rate or a time of anything but those."""
    criterion = verdict.criterion
    fingerprint = criterion.better is Better.EQUAL if criterion is not None else not verdict.unit
    listed = declared(verdict.benchmark, verdict.metric)
    fitting = [defect for defect in listed if (defect is Defect.NUMERICS) == fingerprint] or listed
    if verdict.device in _PROCESSOR:
        fitting = [_TWINS.get(defect, defect) for defect in fitting]
    return tuple(dict.fromkeys(fitting))
