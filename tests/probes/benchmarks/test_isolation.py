"""A benchmark may hang, crash or lie: what is around it stays whole, and the result says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mainstay.probes.benchmarks.base import Benchmark, Device
from mainstay.probes.benchmarks.cancellation import CancelSignal
from mainstay.probes.benchmarks.isolation import GRACE_SECONDS, BenchmarkForkServerError
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.probes.benchmarks.runner import ForkServerPool, run_benchmarks

pytestmark = pytest.mark.processes
Run = Callable[..., BenchmarkResult]
HERE = Path(__file__).parent


def load() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("misbehaving", HERE / "misbehaving.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make(how: str, path: Path | str = "") -> Benchmark:
    module = load()
    benchmark: Benchmark = module.Misbehaving(module.Misbehaving.Config(how=how, path=str(path)))
    return benchmark


def alive(pid: int) -> bool:
    """Running; a zombie that its parent has not waited for yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def run(misbehaving: tuple[str, ...], cpu: Device) -> Iterator[Run]:
    with ForkServerPool(misbehaving) as home:

        def _run(benchmark: Benchmark, timeout: float = 60.0) -> BenchmarkResult:
            return next(run_benchmarks([(benchmark, (cpu,))], timeout, home))

        yield _run


def test_a_hang_ends_at_its_time_out_with_all_its_children(run: Run, tmp_path: Path) -> None:
    run(make("well"))  # the fork server is up: only the benchmark is timed
    begun = time.monotonic()
    result = run(make("hang", tmp_path / "pids"), timeout=1.0)
    assert time.monotonic() - begun < 1.0 + GRACE_SECONDS + 1.0
    assert result.state is BenchmarkState.TIMEOUT
    assert result.error == "still running after 1 s: killed"
    assert [(metric.name, metric.values) for metric in result.metrics] == [("speed", ())]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    assert run(make("well")).state is BenchmarkState.OK, "the next benchmark is not disturbed"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("throw", "RuntimeError: the link is down"),
        ("be_killed", "its process was killed by SIGKILL"),
        ("leave", "its process ended with exit code 7"),
        ("lose_a_rank", "rank 1 of 2 gave no answer: killed"),
    ],
)
def test_a_failure_is_an_error_that_says_why(run: Run, how: str, words: str) -> None:
    result = run(make(how))
    assert result.state is BenchmarkState.ERROR
    assert result.error is not None
    assert words in result.error
    assert result.metrics[0].values == ()
    assert run(make("well")).state is BenchmarkState.OK


def test_what_a_library_prints_is_not_taken_for_a_result(run: Run) -> None:
    result = run(make("chatter"))
    assert result.state is BenchmarkState.OK
    assert result.metrics[0].values == (1.0,)


def test_a_value_that_is_no_number_is_not_reported_as_one(run: Run) -> None:
    result = run(make("nan"))
    assert result.metrics[0].values == ()
    assert result.error is not None
    assert "speed: measured [nan]" in result.error


def test_an_interrupt_gives_the_machine_back(misbehaving: tuple[str, ...], cpu: Device, tmp_path: Path) -> None:
    """In the middle of a benchmark that is deaf: it and all that come after it are preempted, and nothing lives on."""
    interrupt, pids = CancelSignal(), tmp_path / "pids"
    plan = [(make("well"), (cpu,)), (make("hang", pids), (cpu,)), (make("well"), (cpu,))]

    def set_interrupt() -> None:
        assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60.0)
        asked.append(time.monotonic())
        interrupt.set("a job wants the GPUs")

    asked: list[float] = []
    asker = threading.Thread(target=set_interrupt)
    with ForkServerPool(misbehaving, interrupt) as home:
        asker.start()
        results = list(run_benchmarks(plan, 600.0, home))
        asker.join()
        assert time.monotonic() - asked[0] < GRACE_SECONDS + 1.0
    interrupt.close()
    assert [r.state for r in results] == [BenchmarkState.OK, BenchmarkState.PREEMPTED, BenchmarkState.PREEMPTED]
    assert results[1].error == results[2].error == "a job wants the GPUs"
    assert wait_until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_a_fork_server_without_torch_says_so(cpu: Device) -> None:
    with (
        ForkServerPool((sys.executable, "-c", "raise ModuleNotFoundError('No module named torch')")) as home,
        pytest.raises(BenchmarkForkServerError, match="No module named torch"),
    ):
        next(run_benchmarks([(make("well"), (cpu,))], 5.0, home))


def test_what_shares_nothing_runs_on_all_devices_at_once(misbehaving: tuple[str, ...], tmp_path: Path) -> None:
    """Each run waits until it has seen all the others: one after the other they would never end."""
    gpus = tuple(Device(kind="cpu", model="t", count=3, index=i) for i in range(3))
    meeting = make("meet", tmp_path)
    assert meeting.together
    with ForkServerPool(misbehaving) as home:
        results = list(run_benchmarks([(meeting, gpus)], 60.0, home))
    assert [(r.state, r.device) for r in results] == [(BenchmarkState.OK, f"cpu:{i}") for i in range(3)]


def test_nothing_outlives_whoever_asked_for_it(misbehaving: tuple[str, ...], tmp_path: Path) -> None:
    """SIGKILL the process that runs a suite: fork server, benchmark and grandchild go with it."""
    pids = tmp_path / "pids"
    order = {
        "benchmark": "misbehaving",
        "config": {"how": "hang", "path": str(pids)},
        "device": {"kind": "cpu", "model": "t"},
    }
    code = "from mainstay.probes.benchmarks.isolation import BenchmarkForkServer as B"
    code += f"; B({misbehaving!r}).call({order!r}, 600.0)"
    asker = subprocess.Popen([sys.executable, "-c", code], cwd=HERE.parents[2])
    assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60.0)
    everyone = [int(pid) for pid in pids.read_text().split()]
    assert all(alive(pid) for pid in everyone)
    os.kill(asker.pid, signal.SIGKILL)
    asker.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in everyone))
