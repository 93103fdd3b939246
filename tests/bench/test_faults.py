"""The injector injects what it says, and the bench counts what it was given."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from bench import lib_inject, sdc, validation_faults
from bench.lib_fault_score import CLEAN, LEARN, TIMEOUT_SECONDS, Run, judged, learned, rows
from bench.lib_flip import FlipBit, flip
from bench.lib_inject import FAULTS
from bench.validation_faults import SUITE, order, planned, read
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.defects import Defect
from mainstay.probes.benchmarks.launch import Launch
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, Better, MetricValues
from mainstay.probes.benchmarks.runner import ForkServerPool, run_benchmarks
from mainstay.probes.core_types import Verdict

CPU = Device(kind="cpu", model="test", count=1)


def test_a_flip_changes_one_bit_of_one_element() -> None:
    matrix = torch.ones(3, 4)
    flip(matrix, 17, 3)
    wrong = matrix.flatten().tolist()
    assert [i for i, value in enumerate(wrong) if value != 1.0] == [17 % 12]
    bits = struct.unpack("<I", struct.pack("<f", wrong[5]))[0] ^ struct.unpack("<I", struct.pack("<f", 1.0))[0]
    assert bits == 1 << 3


@pytest.mark.parametrize(
    ("matrix", "bit"), [(torch.ones(2, 2, dtype=torch.float64), 0), (torch.ones(2, 2), 23), (torch.ones(2, 3).T, 0)]
)
def test_what_cannot_be_flipped_is_refused(matrix: torch.Tensor, bit: int) -> None:
    with pytest.raises(ValueError, match="bit"):
        flip(matrix, 0, bit)


def test_the_product_that_is_flipped_may_be_one_of_backward() -> None:
    def gradient(mode: FlipBit) -> torch.Tensor:
        weight = torch.eye(3, requires_grad=True)
        with mode:
            return torch.autograd.grad((torch.ones(2, 3) @ weight).square().sum(), weight)[0]

    counting = FlipBit()
    clean = gradient(counting)
    assert counting.seen == 2
    assert int((gradient(FlipBit(1, 4, 22)) != clean).sum()) == 1  # the product is the gradient itself


def test_clean_steps_repeat_and_a_flip_is_seen_at_the_next_check() -> None:
    training = sdc.Training()
    steps = 3 * sdc.INTERVAL
    chain = sdc.record(training, steps)
    assert chain.prints == sdc.record(sdc.Training(), steps).prints
    assert len(set(chain.prints)) == 3
    random = np.random.default_rng(0)
    flips = [sdc.inject(training, chain, random, training.products()) for _ in range(6)]
    assert any(one.changed for one in flips)
    for one in flips:
        assert (one.delay is not None) == one.changed
        assert one.delay is None or 1 <= one.delay <= sdc.INTERVAL


def test_a_flip_that_changes_nothing_is_not_called_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    training = sdc.Training()
    chain = sdc.record(training, sdc.INTERVAL)
    monkeypatch.setattr("bench.lib_flip.flip", lambda *_: None)
    flip_ = sdc.inject(training, chain, np.random.default_rng(0), 1)
    assert (flip_.changed, flip_.delay) == (False, None)


def test_every_fault_affects_benchmarks_of_the_suite() -> None:
    names = {benchmark.name for benchmark in SUITE}
    for fault in FAULTS.values():
        assert fault.truth
        assert set(fault.on) <= names
        assert bool(fault.on) == (fault.act is not None)
        assert fault.on or fault.busy or fault.hogs
    assert sum(not fault.weak for fault in FAULTS.values()) >= 10


@pytest.mark.slow
def test_faults_around_a_real_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fork server, with the fault of the moment; ``crash`` affects another benchmark: this one is well."""
    told = tmp_path / "fault"
    told.write_text(CLEAN)
    monkeypatch.setenv(lib_inject.FILE, str(told))
    launch = Launch(Launch.Config(budget_seconds=0.01))
    made: dict[str, BenchmarkResult] = {}
    with ForkServerPool(lib_inject.COMMAND) as home:
        for name in (CLEAN, "slow_dispatch", "crash", "hang"):
            told.write_text(name)
            made[name] = next(run_benchmarks([(launch, (CPU,))], 2.0 if name == "hang" else 60.0, home))
    states = {name: one.state for name, one in made.items()}
    assert states == dict.fromkeys((CLEAN, "slow_dispatch", "crash"), BenchmarkState.OK) | {
        "hang": BenchmarkState.TIMEOUT
    }
    assert min(made["slow_dispatch"].metrics[0].values) > 5e-6
    assert made["hang"].metrics[0].values == ()


def test_the_process_that_takes_the_core_is_gone_afterwards() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with lib_inject.taking(0.5, after=60.0):
        made = {child.pid for child in psutil.Process().children()} - before
        assert made
    assert not made & {child.pid for child in psutil.Process().children()}


def result(benchmark: str, value: float, state: BenchmarkState = BenchmarkState.OK) -> BenchmarkResult:
    device = "host" if benchmark == "disk" else "cpu"
    values = (value,) * 3 if state is BenchmarkState.OK else ()
    metric = MetricValues(name="m", unit="s", better=Better.LOWER, values=values)
    return BenchmarkResult(
        benchmark=benchmark, state=state, error=None, seconds=9.0 if state is BenchmarkState.TIMEOUT else 1.0,
        device=device,
        metrics=(metric,),
    )  # fmt: skip


def run(
    label: str,
    disk: float = 1.0,
    *,
    launch: float = 1.0,
    state: BenchmarkState = BenchmarkState.OK,
    again: tuple[float, ...] = (),
    session: str = "judged-0",
) -> Run:
    """``again``: what the disk's later measurements were."""
    more = tuple((result("disk", value),) for value in again)
    return Run(label, (result("disk", disk), result("launch", launch, state)), more, session, 1.0)


LEARNED = [run(LEARN, 1.0 + i % 8 / 1000, session=f"learned-{i // 8}") for i in range(40)]
RUNS = [
    *LEARNED,
    run(CLEAN),
    run(CLEAN, disk=3.0, again=(3.0, 1.0)),
    run(CLEAN, disk=3.0, again=(3.0, 3.0, 3.0)),
    run("slow_disk", disk=3.0, again=(3.0, 3.0, 3.0)),
    run("slow_disk", launch=3.0),
    run("slow_disk"),
    run("hang", state=BenchmarkState.TIMEOUT),
]


def test_precision_recall_and_class_are_counted() -> None:
    made = {row.claim.removeprefix("injected faults: "): row for row in rows(RUNS, "test")}
    assert made["precision"].figure == 0.75  # three of four positives were faulty
    assert made["precision"].baseline.startswith("measured once: 0.600, 2 of 3 clean runs")
    assert "learned from 5 sessions of 8 to 8 runs" in made["precision"].note
    assert made["recall"].figure == 0.75
    assert made["right class, of what was found"].figure == pytest.approx(2 / 3, abs=1e-4)
    confusion = made["taken for another class"]
    assert (confusion.figure, confusion.note) == (1, "slow_disk (storage) as host_cpu: 1")
    assert made["a hang ends after its time-out, most"].figure == 9.0 - TIMEOUT_SECONDS
    assert made["fault slow_disk: found"].figure == pytest.approx(2 / 3)


def test_of_nothing_nothing_is_claimed() -> None:
    """Ended while it learned: no figure is better than a zero."""
    assert {row.figure for row in rows(LEARNED[:3], "test") if row.target} == {None}


def test_a_hang_is_unknown_and_points_to_software() -> None:
    hung = judged(RUNS[-1], learned(RUNS))
    assert (hung.verdict, hung.blamed, hung.positive) == (Verdict.UNKNOWN, (Defect.SOFTWARE,), True)


def test_sessions_that_differ_are_learned_from() -> None:
    """Five sessions, each 1 % slower than the one before; the next brings another 5: pooled limits fail it."""
    drifted = [run(LEARN, 1.0 + i // 8 / 100 + i % 8 / 1000, session=f"learned-{i // 8}") for i in range(40)]
    later = run(CLEAN, 1.10)
    assert judged(later, learned(drifted, pooled=True)).positive
    assert not judged(later, learned(drifted)).positive


def test_an_interrupted_bench_goes_on_from_its_log(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    whole = b"".join(msgspec.json.encode(one) + b"\n" for one in RUNS)
    log.write_bytes(whole)
    plan = planned(5, 8, [one.label for one in RUNS[40:]])
    assert list(validation_faults.measure(plan, log)) == RUNS
    log.write_bytes(whole[:-9])
    assert read(log) == RUNS[:-1], "what was cut off is not a run"


def test_a_log_is_judged_again_without_a_run(tmp_path: Path) -> None:
    log, target = tmp_path / "runs.jsonl", tmp_path / "rows.json"
    log.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in RUNS))
    validation_faults.main(["--rejudge", str(log), "--json", str(target)])
    made = {row["claim"]: row["figure"] for row in msgspec.json.decode(target.read_bytes())}
    assert made["injected faults: precision"] == 0.75


def test_what_is_judged_is_of_sessions_that_were_not_learned_from() -> None:
    plan = planned(2, 3, [CLEAN] * 30)
    learning = {session for label, session in plan if label == LEARN}
    assert sorted(learning) == ["learned-0", "learned-1"]
    assert {session for label, session in plan if label == CLEAN} == {"judged-0", "judged-1"}


def test_the_order_is_mixed_and_repeats_with_its_seed() -> None:
    labels = order(3, 5, 2, 1, list(FAULTS.values()))
    assert labels == order(3, 5, 2, 1, list(FAULTS.values()))
    assert labels != order(4, 5, 2, 1, list(FAULTS.values()))
    assert labels.count(CLEAN) == 5
    assert labels.count("hang") == 2
    assert labels.count("memory_hog") == 1
