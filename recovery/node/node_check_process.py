"""The process that checks a node: forked for one order, it answers in ``CheckAnswer`` messages and ends.

It may hang in a driver: the launcher ends it in time, and what it answered before counts.
"""

from __future__ import annotations

import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.deterministic import Deterministic
from mainstay.probes.benchmarks.fork_server import describe_device, run_benchmark
from mainstay.probes.benchmarks.gemm import multiply
from mainstay.probes.benchmarks.pair import MARGIN_SECONDS, Side
from mainstay.probes.benchmarks.pair_protocol import PairTask, Role
from mainstay.probes.benchmarks.result import BenchmarkState
from mainstay.probes.benchmarks.timing import Stopwatch
from mainstay.recovery.protocol.node_check_messages import MAX_BYTES, CheckAnswer, CheckOrder, decode_order, encode

_GEMM_SIZE = 4096
_GEMM_SECONDS = 0.2


def serve(descriptor: int) -> int:
    """Carry out the order on the socket ``descriptor``."""
    with socket.socket(fileno=descriptor) as control:
        order = decode_order(control.recv(MAX_BYTES))
        if order.pair is None:
            _check_devices(control, order)
        else:
            _measure_pair(control, order, order.pair)
    return 0


def _check_devices(control: socket.socket, order: CheckOrder) -> None:
    found = describe_device("auto")
    devices = [found]
    if found.kind == "cuda":
        devices = [msgspec.structs.replace(found, index=index) for index in range(min(found.count, order.devices))]
    late = tuple(DeviceCheck(device=one.label, problem="it gave no result") for one in devices)
    control.send(encode(CheckAnswer(devices=late)))
    with ThreadPoolExecutor(len(devices)) as threads:  # GPUs share nothing that this loads
        for check in threads.map(_check_device, devices):
            control.send(encode(CheckAnswer(devices=(check,))))


def _check_device(device: Device) -> DeviceCheck:
    result = run_benchmark(Deterministic.sized(device.kind), device)
    if result.state is not BenchmarkState.OK or result.digest is None:
        return DeviceCheck(device=device.label, problem=result.error or result.state)
    try:
        rate = _rate(device) if device.kind == "cuda" else 0.0  # of a processor, other programs take a share
    except RuntimeError as error:
        return DeviceCheck(device=device.label, problem=str(error).splitlines()[0])
    return DeviceCheck(
        device=device.label,
        cohort=f"{device.model}, {device.software}",
        digest=result.digest,
        repeats=len(set(result.metrics[0].values)) == 1,
        rate=rate,
    )


def _rate(device: Device) -> float:
    seconds = Stopwatch(device, time.perf_counter).repeat(multiply("fp16", _GEMM_SIZE, device), _GEMM_SECONDS)
    return 2.0 * _GEMM_SIZE**3 / statistics.median(seconds)


def _measure_pair(control: socket.socket, order: CheckOrder, task: PairTask) -> None:
    """The deadline counts from now: clocks of two nodes differ, so that of the task is only a word that both know."""
    end = time.monotonic() + order.seconds

    def now() -> float:
        return task.deadline_at - MARGIN_SECONDS - (end - time.monotonic())

    side = Side(task, order.node, now=now)
    if task.role is Role.LISTEN:
        side = side.listening()
        control.send(encode(CheckAnswer(port=side.order.port)))
    control.send(encode(CheckAnswer(pair=side.run())))
