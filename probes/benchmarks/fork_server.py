"""The process that benchmarks are born in: ``python -m mainstay.probes.benchmarks.fork_server``.

It imports torch once (seconds), never touches a device, and forks one child per order (milliseconds). Orders come in as
lines of JSON on standard input; ``ready``, and per order ``pid``, ``result`` and ``exit``, go out as lines on standard
output. Invariant: when whoever gave the orders is gone, so are the child and everything that it started.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from mainstay.probes.benchmarks.base import Benchmark, Device
from mainstay.probes.benchmarks.cpu_contention import CpuUsage
from mainstay.probes.benchmarks.numa import processors_by_node
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState, with_contention_note
from mainstay.probes.benchmarks.suites import BENCHMARKS

_LOOK_SECONDS = 0.02


Answer = Callable[[dict[str, Any]], Any]
"""Carries out an order, in a forked child, and returns its result as plain data."""


def main() -> None:
    """Serve orders for benchmarks until standard input ends."""
    serve_orders(_answer)


def serve_orders(answer: Answer) -> None:
    """Serve orders until standard input ends; each is carried out by ``answer``."""
    # What a library prints must not land between our lines: standard output becomes standard error for everyone else.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    _send(out, ready=torch.__version__)
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line), out, answer)
        _send(out, exit=_outlive(pid))


def _send(out: TextIO, **message: Any) -> None:
    out.write("\n" + json.dumps(message) + "\n")  # first a line end: a killed child may have left half a line
    out.flush()


def _child(order: dict[str, Any], out: TextIO, answer: Answer) -> None:
    """The forked child: a session of its own, so that one signal ends it and all of its ranks."""
    os.setsid()
    _send(out, pid=os.getpid())
    gc.disable()  # a collection in the middle of a repetition would be measured
    _send(out, result=answer(order))
    os._exit(0)


def _outlive(pid: int) -> int:
    """Wait for the child; end it if the other side of standard input goes away. Returns its exit status."""
    gone = select.poll()
    gone.register(0, 0)  # no events: only "hung up" is reported
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        hung_up = bool(gone.poll(_LOOK_SECONDS * 1000)) if not ended else False
        if ended or hung_up:
            _end_session(pid)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _end_session(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left of it
        return


def _answer(order: dict[str, Any]) -> Any:
    if order["benchmark"] is None:
        return msgspec.to_builtins(describe_device(order["device"]))
    device = msgspec.convert(order["device"], Device)
    benchmark = BENCHMARKS[order["benchmark"]].build(order["config"])
    return msgspec.to_builtins(run_benchmark(benchmark, device))


def run_benchmark(benchmark: Benchmark, device: Device) -> BenchmarkResult:
    """Run a benchmark in this process; an error becomes a result with the reason."""
    begun = time.perf_counter()
    try:
        _prepare(benchmark, device)
        before = CpuUsage.now(time.perf_counter)
        result = benchmark.run(device, time.perf_counter)
        return with_contention_note(result, CpuUsage.now(time.perf_counter).since(before))
    except Exception as error:  # noqa: BLE001 - boundary: a benchmark may fail in any way that torch can
        words = f"{type(error).__name__}: {error}".splitlines()[0]
        return benchmark.failed(device, BenchmarkState.ERROR, words, time.perf_counter() - begun)


def _prepare(benchmark: Benchmark, device: Device) -> None:
    import torch

    if benchmark.each_device:  # ranks are forked: only they may touch threads and devices
        torch.set_num_threads(benchmark.config.threads or len(os.sched_getaffinity(0)))
        if device.kind == "cuda":
            torch.cuda.set_device(device.label)


def describe_device(wanted: str) -> Device:
    """The devices of this machine: GPUs where torch sees any, else the processor.

    Args:
        wanted: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ValueError: ``cuda`` is wanted and torch sees no GPU.
    """
    import torch

    software = f"torch {torch.__version__}"
    if wanted != "cpu" and torch.cuda.is_available():
        version = f"{software}, CUDA {torch.version.cuda}"
        model = torch.cuda.get_device_name(0)
        count = torch.cuda.device_count()
        return Device(kind="cuda", model=model, count=count, numa_nodes=len(processors_by_node()), software=version)
    if wanted == "cuda":
        raise ValueError("torch sees no GPU on this machine")
    cores = len(os.sched_getaffinity(0))
    nodes = len(processors_by_node())
    return Device(kind="cpu", model=_processor(), count=cores, numa_nodes=nodes, software=software)


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


if __name__ == "__main__":
    main()
