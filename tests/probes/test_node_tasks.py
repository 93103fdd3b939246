"""Node tasks: the outcome of each is posted, and a run that fails is an error result, never silence."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.lib_receiver import Receiver, problem
from mainstay.probes.identity import NodeReport, describe_node
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.samplers.host import HostConfig
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import (
    GIVE_BACK_S,
    ValidationProcess,
    ValidationProgress,
    ValidationReport,
    ValidationRunner,
    ValidationTask,
)

pytestmark = pytest.mark.processes

GOOD = {"suite": "quick", "benchmarks": [{"benchmark": "gemm", "state": "ok"}]}


def says(code: str) -> ValidationProcess:
    """A validator whose command is this Python code."""
    return ValidationProcess((sys.executable, "-c", f"import json, os, sys, time\n{code}"))


def order(**changes: Any) -> ValidationTask:
    fields: dict[str, Any] = {
        "id": "o1",
        "kind": "validate",
        "suite": "quick",
        "validation_id": "v1",
        "deadline_at": time.time() + 60,
    }
    return ValidationTask(**(fields | changes))


def report() -> NodeReport:
    devices = HostConfig().build().devices()
    return describe_node(devices, catalog(SignalSource.HOST), cohort=None, started_at=1.0)


def test_a_run_gives_its_benchmarks() -> None:
    result = says(f"print(json.dumps({GOOD!r}))").run(order())
    assert result.error is None
    assert result.benchmarks == GOOD["benchmarks"]
    assert result.suite == "quick"
    assert result.started_at <= result.finished_at


def test_it_is_called_with_the_suite_niced_and_in_its_own_session() -> None:
    code = "print(json.dumps({'benchmarks': [{'argv': sys.argv[1:], 'nice': os.nice(0), 'sid': os.getsid(0)}]}))"
    (seen,) = says(f"time.sleep(0.1)\n{code}").run(order(suite="deep")).benchmarks
    assert seen["argv"][:4] == ["--suite", "deep", "--json", "--log"]
    assert seen["nice"] >= 10
    assert seen["sid"] != os.getsid(0)


def test_a_part_of_a_suite_is_named() -> None:
    code = "print(json.dumps({'benchmarks': [{'argv': sys.argv[1:]}]}))"
    (seen,) = says(code).run(order(benchmarks=("gemm", "copy"))).benchmarks
    assert seen["argv"][:4] == ["--suite", "quick", "--benchmarks", "gemm,copy"]


CRITERIA = {"criteria": [], "judge_as": "8x-H100; driver 1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"remeasure": 2, "criteria": CRITERIA}, CRITERIA), ({"remeasure": 2}, None), ({"criteria": CRITERIA}, None)],
)
def test_what_is_to_be_measured_again_is_told_with_its_criteria(changes: dict[str, Any], said: Any) -> None:
    code = """
argv = sys.argv[1:]
named = dict(zip(argv, argv[1:]))
known = json.load(open(named["--criteria"])) if "--criteria" in argv else None
print(json.dumps({"benchmarks": [{"remeasure": named.get("--remeasure"), "known": known}]}))
"""
    (seen,) = says(code).run(order(**changes)).benchmarks
    assert seen == {"remeasure": None if said is None else "2", "known": said}


STEPS = """
step = {"index": 0, "total": 2, "benchmark": "gemm", "device": "cpu", "result": None}
done = step | {"result": {"benchmark": "gemm", "state": "ok", "error": None, "seconds": 1.0, "device": "cpu",
                          "metrics": []}}
next = step | {"index": 1, "benchmark": "copy"}
log = open(sys.argv[sys.argv.index("--log") + 1], "w")
for line in (step, done, next):
    print(json.dumps(line), file=log, flush=True)
"""
LOGGED = STEPS + """print('{"half": ', end="", file=log, flush=True)\n"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "time.sleep(600)"], ids=["dies", "hangs"])
def test_what_was_measured_survives_the_end_of_the_run(end: str) -> None:
    result = says(LOGGED + end).run(order(deadline_at=time.time() + 3))
    assert [benchmark["benchmark"] for benchmark in result.benchmarks] == ["gemm"]
    assert result.error


AGAIN = (
    STEPS
    + """
failed = next | {"result": done["result"] | {"benchmark": "copy"}}
once_more = {"index": 0, "total": 1, "benchmark": "copy", "device": "cpu", "result": None}
for line in (failed, once_more, once_more | {"result": failed["result"] | {"seconds": 9.0}}):
    print(json.dumps(line), file=log, flush=True)
time.sleep(600)
"""
)


def test_what_dies_while_it_measures_again_keeps_what_it_had_measured_first() -> None:
    """A failure without a second measurement stays, and nothing stands twice; progress counts on."""
    told: list[ValidationProgress] = []
    validator = says(AGAIN)
    validator.tell = lambda _id, progress: told.append(progress)
    result = validator.run(order(deadline_at=time.time() + 4))
    assert [(one["benchmark"], one["seconds"]) for one in result.benchmarks] == [("gemm", 1.0), ("copy", 1.0)]
    assert (told[-1].index, told[-1].total, told[-1].state) == (3, 3, "done")


def test_a_run_that_is_canceled_keeps_what_it_has(tmp_path: Path) -> None:
    """One that is deaf to SIGTERM is made to end in time."""
    told: list[ValidationProgress] = []
    results: list[ValidationReport] = []
    validator = says("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LOGGED + "time.sleep(600)")
    validator.tell = lambda _id, progress: told.append(progress)
    bench = ValidationRunner(validator, lambda _id, result: results.append(result))
    bench.start()
    bench.submit(order())
    bench.submit(order())  # delivered twice: run once
    bench.submit(order(validation_id="v2"))
    bench.cancel(order(kind="cancel", validation_id="v2", reason="no longer needed"))
    until(lambda: bool(told))
    assert told[0].done == ("gemm on cpu: ok",)
    assert (told[0].index, told[0].total, told[0].benchmark, told[0].state) == (1, 2, "copy", "running")
    begun = time.monotonic()
    bench.cancel(order(kind="cancel", reason="a job wants the GPUs"))
    until(lambda: len(results) == 2)
    assert time.monotonic() - begun < GIVE_BACK_S + 2.0
    bench.stop()
    assert [benchmark["benchmark"] for benchmark in results[0].benchmarks] == ["gemm"]
    assert "canceled: a job wants the GPUs" in (results[0].error or "")
    assert results[1].benchmarks == []
    assert results[1].error == "canceled before it started: no longer needed"


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_went_wrong_half_way_comes_with_the_benchmarks() -> None:
    result = says(f"print(json.dumps({GOOD | {'error': 'the second one hung'}!r}))").run(order())
    assert (result.benchmarks, result.error) == (GOOD["benchmarks"], "the second one hung")


def test_a_failing_verdict_is_a_result_and_no_error() -> None:
    result = says(f"print(json.dumps({GOOD!r})); sys.exit(1)").run(order())
    assert result.error is None
    assert result.benchmarks


@pytest.mark.parametrize(("code", "fault"), [
    ("sys.exit('no such suite: quick')", "status 1 and no result: no such suite: quick"),
    ("pass", "it said nothing"),
    ("print('not json')", "no result"),
    ("os.write(1, b'\"\\xff\"')", "no result"),
    ("print('[' * 100_000)", "no result"),
    ("print('[]')", "without benchmarks"),
    ("print('{\"benchmarks\": []}')", "without benchmarks"),
    ("print('{\"benchmarks\": [], \"error\": \"no device\"}')", "no device"),
    ("os.kill(os.getpid(), 9)", "status -9"),
])  # fmt: skip
def test_a_failure_to_run_is_an_error_that_says_why(code: str, fault: str) -> None:
    result = says(code).run(order())
    assert result.benchmarks == []
    assert result.error is not None
    assert fault in result.error


def test_a_command_that_is_not_there_is_an_error() -> None:
    result = ValidationProcess(("/nonexistent/mainstay",)).run(order())
    assert "No such file" in (result.error or "")


def test_a_run_past_its_deadline_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pid)!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    result = says(code).run(order(deadline_at=time.time() + 3))
    assert "did not end within" in (result.error or "")
    assert pid.exists()
    deadline = time.monotonic() + 60
    while _alive(int(pid.read_text())):
        assert time.monotonic() < deadline


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_an_order_that_came_too_late_is_not_begun() -> None:
    result = ValidationProcess(("/nonexistent/mainstay",)).run(order(deadline_at=time.time() - 1))
    assert "had passed" in (result.error or "")


def test_stopping_ends_the_run_and_says_so() -> None:
    validator = says("time.sleep(600)")
    results: list[ValidationReport] = []
    thread = threading.Thread(target=lambda: results.append(validator.run(order())))
    thread.start()
    deadline = time.monotonic() + 60
    while validator._process is None and time.monotonic() < deadline:
        time.sleep(0.01)
    validator.stop()
    thread.join(60)
    assert "was stopped" in (results[0].error or "")
    assert "is stopping" in (validator.run(order()).error or "")


@contextmanager
def loop(receiver: Receiver, directory: Path, validator: ValidationProcess, **options: Any) -> Iterator[TaskLoop]:
    transport = Transport(receiver.url, "t")
    with Spool(directory) as spool:
        results = ResultOutbox(spool, transport)
        control = TaskLoop("node-1", transport, validator, results, **options)
        with results:
            control.start()
            try:
                yield control
            finally:
                control.stop()


def test_the_node_reports_then_obeys_then_posts(receiver: Receiver, tmp_path: Path) -> None:
    with loop(receiver, tmp_path, says(f"print(json.dumps({GOOD!r}))")) as control:
        control.report(report())
        receiver.wait(lambda r: "node-1" in r.reports)
        assert control.reported.wait(60)
        receiver.orders = [
            {"id": "o0", "kind": "dance", "deadline_at": 0},
            {"id": "o1", "kind": "validate", "suite": "quick", "validation_id": "v1", "deadline_at": time.time() + 60},
        ]
        receiver.wait(lambda r: "v1" in r.results)
    assert receiver.results["v1"]["benchmarks"] == GOOD["benchmarks"]
    assert receiver.results["v1"]["error"] is None
    seen = receiver.reports["node-1"]
    assert {"hostname", "os", "kernel", "version", "boot_id", "cohort", "cpu_count", "memory_bytes", "devices",
            "catalog", "started_at", "rack", "switches", "power_domain", "booted_at"} == set(seen)  # fmt: skip
    assert seen["devices"][0]["id"] == "host"


def test_a_result_waits_for_a_service_that_is_away(tmp_path: Path) -> None:
    receiver = Receiver().start()
    receiver.away()
    with Spool(tmp_path) as spool:
        outbox = ResultOutbox(spool, Transport(receiver.url))
        outbox.put("v1", says("pass").run(order()))
    receiver.start()
    with Spool(tmp_path) as spool, ResultOutbox(spool, Transport(receiver.url)):
        receiver.wait(lambda r: "v1" in r.results)
    assert "no result" in receiver.results["v1"]["error"]
    receiver.away()


def test_a_result_that_nobody_waits_for_is_set_aside(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = lambda *_: problem(404, "unknown-validation", "no such validation")
    with Spool(tmp_path) as spool:
        outbox = ResultOutbox(spool, Transport(receiver.url))
        with outbox:
            outbox.put("gone", says("pass").run(order()))
            assert spool.wait_empty(10)
        assert spool.rejected == 1


def test_a_node_that_the_service_forgot_reports_again(receiver: Receiver, tmp_path: Path) -> None:
    with loop(receiver, tmp_path, says("pass")) as control:
        control.report(report())
        receiver.wait(lambda r: "node-1" in r.reports)
        with receiver.changed:
            receiver.reports.clear()
        receiver.wait(lambda r: "node-1" in r.reports)


def test_enrollment_is_tried_until_the_service_is_there(receiver: Receiver, tmp_path: Path) -> None:
    receiver.token = "own"
    with loop(receiver, tmp_path, says("pass"), enroll=lambda: "own") as control:
        control._transport.token = ""
        control.report(report())
        assert control.reported.wait(60)
        assert control._transport.token == "own"


def test_the_real_command_is_what_it_should_be() -> None:
    """The daemon relies on ``mainstay validate --suite S --json --log F``; this asks for a suite that is not there."""
    result = ValidationProcess().run(order(suite="no-such-suite"))
    assert result.benchmarks == []
    assert "no-such-suite" in (result.error or ""), json.dumps(result.error)


def test_the_real_command_gives_the_machine_back() -> None:
    """A real suite, canceled while it measures: what had ended is there, the rest is preempted."""
    told = threading.Event()
    validator = ValidationProcess(tell=lambda _id, progress: told.set() if progress.index else None)
    results: list[ValidationReport] = []
    thread = threading.Thread(target=lambda: results.append(validator.run(order(suite="standard"))))
    thread.start()
    assert told.wait(60)
    begun = time.monotonic()
    validator.cancel("v1", "a job wants the GPUs")
    thread.join(60)
    assert time.monotonic() - begun < GIVE_BACK_S + 2.0
    states = [benchmark["state"] for benchmark in results[0].benchmarks]
    assert states[0] == "ok"
    assert states[-1] == "preempted"
    assert results[0].error == "canceled: a job wants the GPUs"


def test_the_real_command_measures_again_what_fails_by_the_criteria_of_its_order() -> None:
    """No machine is that fast: it is measured twice more, and has failed every time."""
    criterion = {"benchmark": "launch", "metric": "dispatch", "cohort": "theirs"}
    limits = {"better": "lower", "low": None, "high": 1e-30, "n": 5, "source": "test", "unit": "s"}
    known = {"criteria": [criterion | limits], "judge_as": "theirs"}
    result = ValidationProcess().run(
        order(benchmarks=("launch",), remeasure=2, criteria=known, deadline_at=time.time() + 200)
    )
    assert result.error is None
    assert [(one["benchmark"], one["state"], one["remeasured"]) for one in result.benchmarks] == [("launch", "ok", 2)]
