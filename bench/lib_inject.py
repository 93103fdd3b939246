"""Real faults around real benchmarks. As a program, this is a fork server whose children have the current fault.

A fault is what a sick machine does, done on purpose: in the benchmark's own process (a hook around its operation, taken
down with that process), in a network namespace of its own, or as another process that takes what the benchmark needs.
Which fault is on stands in the file that ``FILE`` names, so that clean and faulty runs share one fork server and one
order. The benchmarks are the product's; only their sizes are small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainstay.probes.benchmarks import burn, deterministic, disk, fork_server, gemm, memory
from mainstay.probes.benchmarks.base import Benchmark, BenchmarkReadings, Clock, Device
from mainstay.probes.benchmarks.defects import Defect

FILE = "MAINSTAY_BENCH_FAULT"
"""Environment variable: the file in which the name of the fault stands."""
PRIORITY = 1
"""Real-time priority of benchmarks, where allowed; whoever takes the processor from them has one more."""
_CLONE_NEWNET = 0x40000000
_LONGEST = 60.0
"""Seconds after which the process that takes the processor ends, as it does when its parent is gone."""

Measure = Callable[[], BenchmarkReadings]
Act = Callable[[Benchmark, Measure], BenchmarkReadings]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One class of fault at one strength."""

    name: str
    about: str
    truth: frozenset[Defect]
    """Right answers; two where a part is both on this machine (its processor computes and dispatches)."""
    on: tuple[str, ...] = ()
    """Benchmarks in whose process it acts."""
    act: Act | None = None
    busy: float = 0.0
    """Share of the benchmark's core that another process takes."""
    hogs: int = 0
    """Processes that stream memory on the other cores."""
    weak: bool = False


def stretched(work: Callable[[], Any], factor: float, *, spin: bool = False) -> Callable[[], Any]:
    """``work`` that takes ``factor`` times as long, asleep (in steps of about 60 µs) or busy (exactly)."""

    def longer() -> Any:
        begun = time.perf_counter()
        result = work()
        end = begun + factor * (time.perf_counter() - begun)
        if not spin:
            time.sleep(max(0.0, end - time.perf_counter()))
        while time.perf_counter() < end:
            pass
        return result

    return longer


def _slow_product(factor: float, *, spin: bool) -> Act:
    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        original = gemm.multiply

        def multiply(kind: str, shape: int | tuple[int, int, int], device: Device) -> Callable[[], Any]:
            return stretched(original(kind, shape, device), factor, spin=spin)

        gemm.multiply = burn.multiply = multiply  # type: ignore[attr-defined]
        return measure()

    return act


def _slow_memory(factor: float) -> Act:
    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        original = memory._kernels  # noqa: SLF001 - the operation that is timed

        def kernels(*arrays: Any) -> dict[str, Any]:
            made = original(*arrays)
            return {name: (stretched(work, factor, spin=True), *rest) for name, (work, *rest) in made.items()}

        memory._kernels = kernels  # type: ignore[assignment]  # noqa: SLF001
        return measure()

    return act


def _slow_dispatch(seconds: float) -> Act:
    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        import torch

        original = torch.Tensor.add_

        def add_with_fault(*arguments: Any) -> Any:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
            return original(*arguments)

        torch.Tensor.add_ = add_with_fault  # type: ignore[assignment,method-assign]
        return measure()

    return act


def _on_rank_1(do: Callable[[], None]) -> Act:
    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        import torch.distributed as dist

        original = dist.all_reduce

        def all_reduce(*arguments: Any, **words: Any) -> Any:
            if dist.get_rank() == 1:
                do()
            return original(*arguments, **words)

        dist.all_reduce = all_reduce
        return measure()

    return act


def _narrow_link(rate: str) -> Act:
    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        narrow_network(rate)
        return measure()

    return act


def narrow_network(rate: str) -> None:
    """Move this process into a network namespace of its own, whose loopback carries ``rate`` (``400mbit``).

    Raises:
        OSError, RuntimeError: not allowed here, or ``ip`` and ``tc`` cannot.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace")
    for command in ("ip link set lo up", f"tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms"):
        done = subprocess.run(command.split(), check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.strip()}")


def _wrong_bit_once(_: Benchmark, measure: Measure) -> BenchmarkReadings:
    """One bit of one of the fp32 products that are compared."""
    import torch

    from bench.lib_flip import MANTISSA_BITS, flip

    original = gemm.same_bits

    def same_bits(work: Callable[[], torch.Tensor], repeats: int) -> list[float]:
        calls, at = 0, random.randint(1, repeats)

        def once_wrong() -> torch.Tensor:
            nonlocal calls
            product = work()
            if calls == at and product.dtype is torch.float32:
                flip(product, random.getrandbits(30), random.randrange(MANTISSA_BITS))
            calls += 1
            return product

        return original(once_wrong, repeats)

    gemm.same_bits = same_bits
    return measure()


def _wrong_bits_always(benchmark: Benchmark, measure: Measure) -> BenchmarkReadings:
    """The same multiplier wrong in the same place, so that the machine agrees with itself."""
    from bench.lib_flip import FlipBit

    assert isinstance(benchmark, deterministic.Deterministic)
    original, where = benchmark._digest, (random.randrange(6), random.getrandbits(30))  # noqa: SLF001

    def digest(device: Device) -> str:
        with FlipBit(where[0], where[1], 20):
            return original(device)

    benchmark._digest = digest  # type: ignore[method-assign]  # noqa: SLF001
    return measure()


def _hang(_: Benchmark, measure: Measure) -> BenchmarkReadings:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() > 0:
        time.sleep(60)
    return measure()


def _crash(_: Benchmark, measure: Measure) -> BenchmarkReadings:
    readings = measure()
    os.kill(os.getpid(), signal.SIGKILL)
    return readings


def _missing(_: Benchmark, measure: Measure) -> BenchmarkReadings:
    readings = measure()
    del readings.values[next(iter(readings.values))]
    return readings


def _nan(_: Benchmark, measure: Measure) -> BenchmarkReadings:
    readings = measure()
    name = next(iter(readings.values))
    readings.values[name] = [float("nan")] * len(readings.values[name])
    return readings


def _slow_disk(seconds: float) -> Act:
    """Every block of a MiB takes ``seconds`` longer to write or to read, and so does every fsync."""

    def act(_: Benchmark, measure: Measure) -> BenchmarkReadings:
        for name in ("write", "readv", "fsync"):
            setattr(disk.os, name, _later(getattr(os, name), seconds))  # type: ignore[attr-defined]
        return measure()

    return act


def _later(call: Callable[..., int], seconds: float) -> Callable[..., int]:
    def late(file: int, *blocks: Any) -> int:
        if not blocks or len(blocks[0]) >= 1 << 20 or isinstance(blocks[0], list):
            time.sleep(seconds)
        return call(file, *blocks)

    return late


def _throttled_when_warm(benchmark: Benchmark, measure: Measure) -> BenchmarkReadings:
    """Half way through the burn something takes most of the core, as a governor that gives in would."""
    assert isinstance(benchmark, burn.Burn)
    with taking(0.7, after=benchmark.config.seconds / 2):
        return measure()


@contextlib.contextmanager
def taking(share: float, *, after: float = 0.0) -> Iterator[None]:
    """Another process takes a share of this process's core, in turns of 5 ms; without the right to, three compete."""
    children = []
    for _ in range(1 if can_real_time() else 3):
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY + 1))
            _take(share if can_real_time() else 1.0, after)
        children.append(pid)
    try:
        yield
    finally:
        _end(children)


def _take(share: float, after: float) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(after)
    begun, parent = time.monotonic(), os.getppid()
    while time.monotonic() - begun < _LONGEST and os.getppid() == parent:
        end = time.monotonic() + 0.005 * share
        while time.monotonic() < end:
            pass
        if share < 1:
            time.sleep(0.005 * (1 - share))
    os._exit(0)


@contextlib.contextmanager
def streaming(count: int) -> Iterator[None]:
    """Processes on the other cores that copy memory as fast as it goes."""
    others = (os.sched_getaffinity(1) - os.sched_getaffinity(0)) or os.sched_getaffinity(0)
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.sched_setaffinity(0, others)
            left, right = bytearray(64 << 20), bytearray(64 << 20)
            begun, parent = time.monotonic(), os.getppid()
            while time.monotonic() - begun < _LONGEST and os.getppid() == parent:
                left[:] = right
            os._exit(0)
        children.append(pid)
    try:
        yield
    finally:
        _end(children)


def _end(children: list[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def can_real_time() -> bool:
    """Whether this process has a real-time priority."""
    return os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)


_ALL = ("deterministic", "gemm", "memory", "launch", "allreduce", "disk", "burn")
_COMPUTE, _CPU, _SOFTWARE = Defect.COMPUTE, Defect.HOST_CPU, frozenset((Defect.SOFTWARE,))
_NETWORK = frozenset((Defect.NETWORK,))
_BITS, _MEMORY = frozenset((Defect.NUMERICS,)), frozenset((Defect.HOST_MEMORY,))

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="clock_cap", about="a busy loop takes 60 % of the core", busy=0.6,
              truth=frozenset((_COMPUTE, _CPU))),
        Fault(name="slow_product", about="a sleep in every matrix product, twice its time",
              truth=frozenset((_COMPUTE,)), on=("gemm", "burn"), act=_slow_product(2.0, spin=False)),
        Fault(name="throttle_warm", about="70 % of the core gone from the middle of the burn",
              truth=frozenset((Defect.THERMAL,)), on=("burn",), act=_throttled_when_warm),
        Fault(name="slow_memory", about="memory kernels take twice their time", truth=_MEMORY, on=("memory",),
              act=_slow_memory(2.0)),
        Fault(name="slow_dispatch", about="5 µs more per dispatched operation", truth=frozenset((_CPU,)),
              on=("launch",), act=_slow_dispatch(5e-6)),
        Fault(name="late_rank", about="rank 1 comes 5 ms late to every all-reduce", on=("allreduce",),
              truth=frozenset((Defect.NETWORK, _CPU)), act=_on_rank_1(lambda: time.sleep(0.005))),
        Fault(name="narrow_link", about="tbf 500 Mbit/s on loopback in a network namespace", truth=_NETWORK,
              on=("allreduce",), act=_narrow_link("500mbit")),
        Fault(name="slow_disk", about="20 ms more per MiB read or written, and per fsync", on=("disk",),
              truth=frozenset((Defect.STORAGE,)), act=_slow_disk(0.02)),
        Fault(name="wrong_bit_once", about="one mantissa bit of one fp32 product", truth=_BITS, on=("gemm",),
              act=_wrong_bit_once),
        Fault(name="wrong_bits_always", about="the same mantissa bit of the same product, every time", truth=_BITS,
              on=("deterministic",), act=_wrong_bits_always),
        Fault(name="hang", about="deaf to SIGTERM", truth=_SOFTWARE, on=("launch",), act=_hang),
        Fault(name="crash", about="SIGKILL before the answer", truth=_SOFTWARE, on=("memory",), act=_crash),
        Fault(name="lost_rank", about="SIGKILL of rank 1 in an all-reduce", truth=_SOFTWARE, on=("allreduce",),
              act=_on_rank_1(lambda: os.kill(os.getpid(), signal.SIGKILL))),
        Fault(name="missing", about="a metric that is not reported", truth=_SOFTWARE, on=("gemm",), act=_missing),
        Fault(name="nan", about="a metric that is not a number", truth=_SOFTWARE, on=("gemm",), act=_nan),
        Fault(name="clock_cap_weak", about="a busy loop takes 25 % of the core", weak=True, busy=0.25,
              truth=frozenset((_COMPUTE, _CPU))),
        Fault(name="slow_product_weak", about="matrix products take 30 % longer", weak=True, on=("gemm", "burn"),
              truth=frozenset((_COMPUTE,)), act=_slow_product(1.3, spin=True)),
        Fault(name="slow_memory_weak", about="memory kernels take 30 % longer", weak=True, truth=_MEMORY,
              on=("memory",), act=_slow_memory(1.3)),
        Fault(name="slow_disk_weak", about="0.5 ms more per MiB read or written, and per fsync", weak=True,
              on=("disk",), truth=frozenset((Defect.STORAGE,)), act=_slow_disk(0.0005)),
        Fault(name="memory_hog", about="a process streams memory on the other cores", weak=True, truth=_MEMORY, hogs=1),
    )
}  # fmt: skip
"""Every fault. Weak ones are near what this machine's own noise is; they are counted apart."""


def current() -> Fault | None:
    """The fault that is on."""
    return FAULTS.get(Path(os.environ[FILE]).read_text())


def sick(made: type[Benchmark]) -> type[Benchmark]:
    """The benchmark, with the fault of the moment in its process."""

    def measure(self: Benchmark, device: Device, clock: Clock) -> BenchmarkReadings:
        fault = current()
        if fault is None or fault.act is None or made.name not in fault.on:
            return made.measure(self, device, clock)
        random.seed(os.getpid())
        return fault.act(self, lambda: made.measure(self, device, clock))

    return type(made.__name__, (made,), {"measure": measure})


COMMAND = (sys.executable, "-m", "bench.lib_inject")

if __name__ == "__main__":
    fork_server.BENCHMARKS = {name: sick(made) for name, made in fork_server.BENCHMARKS.items()}  # type: ignore[attr-defined]
    fork_server.main()
