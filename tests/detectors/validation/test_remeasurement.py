"""What failed is measured again: only what passes then is taken, and only in place of a failure by a rate or a time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from mainstay.detectors.validation.cli import validate
from mainstay.detectors.validation.criteria import judge_suite
from mainstay.detectors.validation.remeasurement import REMARK, confirm_failures, needs_remeasurement
from mainstay.detectors.validation.verdict import Criteria, Criterion
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues, SuiteResult
from mainstay.probes.core_types import Verdict


def criterion(benchmark: str, better: Better = Better.LOWER) -> Criterion:
    equal = better is Better.EQUAL
    return Criterion(
        benchmark=benchmark, metric="m", cohort="c", better=better, low=None, high=None if equal else 2.0, n=9,
        source="test", allowed=(1.0,) if equal else (), unit="" if equal else "s",
    )  # fmt: skip


CRITERIA = Criteria(criteria=(criterion("disk"), criterion("launch"), criterion("bits", Better.EQUAL)))


def result(
    benchmark: str, value: float, state: BenchmarkState = BenchmarkState.OK, device: str = "cpu"
) -> BenchmarkResult:
    equal = benchmark == "bits"
    metric = MetricValues(
        name="m", unit="" if equal else "s", better=Better.EQUAL if equal else Better.LOWER,
        values=(value,) if state is BenchmarkState.OK else (),
    )  # fmt: skip
    error = None if state is BenchmarkState.OK else "why"
    return BenchmarkResult(benchmark=benchmark, state=state, error=error, seconds=1.0, device=device, metrics=(metric,))


def suite(*results: BenchmarkResult, at: float = 1.0) -> SuiteResult:
    return SuiteResult(
        suite="quick", started_at=0.0, finished_at=at, host="h", device="d", cohort="c", software="", benchmarks=results
    )


class Machine:
    """Answers with the given results, one list a repetition."""

    def __init__(self, *runs: Sequence[BenchmarkResult]) -> None:
        self.runs, self.asked = list(runs), list[tuple[str, ...]]()

    def __call__(self, names: Sequence[str]) -> SuiteResult:
        self.asked.append(tuple(names))
        return suite(*self.runs.pop(0), at=1.0 + len(self.asked))


def verdict(made: SuiteResult) -> Verdict:
    return judge_suite(made, CRITERIA).verdict


def test_a_disturbance_passes_when_measured_again_and_the_result_says_so() -> None:
    machine = Machine([result("disk", 1.0)])
    made = confirm_failures(suite(result("disk", 3.0), result("launch", 1.0)), CRITERIA, machine, 3)
    assert machine.asked == [("disk",)]
    assert verdict(made) is Verdict.PASS
    assert (made.benchmarks[0].error, made.benchmarks[0].remeasured) == (REMARK, 1)
    assert made.benchmarks[1] == result("launch", 1.0)
    assert made.finished_at == 2.0


def test_a_defect_stays_however_often_it_is_asked() -> None:
    machine = Machine(*([result("disk", 4.0)] for _ in range(3)))
    first = suite(result("disk", 3.0))
    made = confirm_failures(first, CRITERIA, machine, 3)
    assert len(machine.asked) == 3
    assert made.benchmarks == (msgspec.structs.replace(first.benchmarks[0], remeasured=3),)


def test_a_control_plane_names_the_cohort_whose_criteria_judge() -> None:
    theirs = Criteria(criteria=tuple(msgspec.structs.replace(c, cohort="theirs") for c in CRITERIA.criteria))
    first, passes = suite(result("disk", 3.0)), [result("disk", 1.0)]
    assert confirm_failures(first, theirs, Machine(), 1) == first, "of this machine's own cohort nothing is known"
    made = confirm_failures(first, msgspec.structs.replace(theirs, judge_as="theirs"), Machine(passes), 1)
    assert [one.remeasured for one in made.benchmarks] == [1]


@pytest.mark.parametrize(
    "state", [BenchmarkState.TIMEOUT, BenchmarkState.ERROR, BenchmarkState.PREEMPTED, BenchmarkState.UNSUPPORTED]
)
def test_what_cannot_be_measured_again_does_not_replace_a_failure(state: BenchmarkState) -> None:
    made = confirm_failures(suite(result("disk", 3.0)), CRITERIA, Machine([result("disk", 1.0, state)]), 1)
    assert verdict(made) is Verdict.FAIL
    assert [one.remeasured for one in made.benchmarks] == [0]


@pytest.mark.parametrize(
    "sick",
    [result("bits", 7.0), result("disk", 1.0, BenchmarkState.TIMEOUT), result("unheard of", 3.0), result("disk", 1.0)],
)
def test_wrong_bits_and_what_could_not_run_are_not_asked_twice(sick: BenchmarkResult) -> None:
    first = suite(sick)
    assert confirm_failures(first, CRITERIA, Machine(), 3) == first
    assert needs_remeasurement(judge_suite(first, CRITERIA).verdicts) == ()


def test_another_device_that_failed_only_now_keeps_what_it_said_at_first() -> None:
    first = suite(result("disk", 3.0, device="cuda:0"), result("disk", 1.0, device="cuda:1"))
    machine = Machine([result("disk", 1.0, device="cuda:0"), result("disk", 3.0, device="cuda:1")])
    made = confirm_failures(first, CRITERIA, machine, 1)
    assert verdict(made) is Verdict.PASS
    assert made.benchmarks[1] == first.benchmarks[1]


def test_none_is_asked_for() -> None:
    first = suite(result("disk", 3.0))
    assert confirm_failures(first, CRITERIA, Machine(), 0) is first
    assert msgspec.json.decode(msgspec.json.encode(first), type=SuiteResult) == first


def test_a_negative_number_of_times_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate(remeasure=-1) == 2
    assert "--remeasure must be at least 0" in capsys.readouterr().err
