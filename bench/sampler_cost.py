"""What reading eight GPUs at 1 Hz costs beside the driver: processor, NVML calls, time under the driver's lock, delay.

No GPU takes part. The driver is the simulated one of ``tests/fakes``, through the real pynvml, so its own time is next
to nothing and the figures are those of our code; time under the lock is *calls times assumed cost* (``fleet.COST_NS``).
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from bench.report import Row, publish, target_file
from mainstay.probes.nvml.batch import FieldBatch
from mainstay.probes.nvml.fields import FAST, SLOW
from mainstay.probes.sample_collector import SampleCollector
from mainstay.probes.samplers.base import SourceEvent
from mainstay.probes.samplers.nvml import NvmlConfig, NvmlSampler
from mainstay.probes.signals import SIGNALS, SignalSource
from tests.fakes.fleet import FakeFleet, compile_fake

_CARDS: Final = 8
_SECONDS: Final = 600
"""Ten minutes of samples, as fast as they go: every tier in its true share."""
_LIVE_S: Final = 30
_XIDS: Final = 200
_FIELDS: Final = [(field, 0) for field in (*FAST.fields, *SLOW.fields)] + [(161, link) for link in range(18)]
"""Forty fields, for the comparison with pynvml's own wrapper."""


def busy() -> float:
    """Processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def sweep_rows(fleet: FakeFleet, sampler: NvmlSampler) -> list[Row]:
    """Ten minutes of samples one after another, without threads."""
    first = sampler.sample(0.0)
    signals = len(next(iter(first.values())))
    fleet.clear_calls()
    took = []
    started = busy()
    for t in range(1, _SECONDS + 1):
        before = time.perf_counter()
        sampler.sample(float(t))
        took.append(1e6 * (time.perf_counter() - before))
    mean, median = 1e6 * (busy() - started) / _SECONDS, statistics.median(took)
    calls = {name: count / _SECONDS for name, count in fleet.calls().items() if count}
    locked = sum(fleet.lock_milliseconds().values()) / _SECONDS
    table = ", ".join(f"{name} {count:.2f}" for name, count in sorted(calls.items(), key=lambda item: -item[1]))
    declared = sum(1 for signal in SIGNALS.values() if signal.source is SignalSource.GPU)
    return [
        Row(
            claim=f"processor for one sweep of {_CARDS} GPUs, all tiers in their shares, mean",
            figure=round(mean, 1),
            unit="us",
            target="<= 10000 (1 % of a core at 1 Hz)",
            holds=mean <= 10_000,
            kind="simulated",
            n=_SECONDS,
            note=f"elapsed, median: {median:.0f} us; {signals} of {declared} signals a card",
        ),
        Row(
            claim=f"NVML calls a second, {_CARDS} GPUs",
            figure=round(sum(calls.values()), 1),
            unit="calls/s",
            target="no promise",
            holds=None,
            kind="simulated",
            n=_SECONDS,
            note=table,
        ),
        Row(
            claim=f"time under the driver's lock, {_CARDS} GPUs, at assumed costs a call",
            figure=round(locked, 2),
            unit="ms/s",
            target="no promise",
            holds=None,
            kind="simulated",
            n=_SECONDS,
            note="calls times assumed cost (no GPU measured); the process list, once a minute, "
            f"is {fleet.lock_milliseconds()['nvmlDeviceGetComputeRunningProcesses_v3'] / _SECONDS:.2f} ms/s of it",
        ),
    ]


def live_row() -> Row:
    """The child's own loop at 1 Hz: a thread a card, the event thread, and the row that goes to the parent."""
    said: list[Any] = []
    sampler = NvmlConfig().build()
    board = SampleCollector([sampler], said.append)
    board.sample(float(int(time.time())))
    before, started = busy(), time.monotonic()
    for tick in range(1, _LIVE_S + 1):
        time.sleep(max(0.0, started + tick - time.monotonic()))
        board.sample(float(int(time.time())))
    share = 100 * (busy() - before) / (time.monotonic() - started)
    sampler.close()
    return Row(
        claim=f"processor of the sampler at 1 Hz with {_CARDS} GPUs, in threads",
        figure=round(share, 2),
        unit="% of a core",
        target="<= 1",
        holds=share <= 1,
        kind="simulated",
        n=_LIVE_S,
        note=f"the child's loop without its pipe, over {_LIVE_S} s, events awaited beside it",
    )


def batch_row(nvml: Any) -> Row:
    """Forty fields of eight cards by our batch and by pynvml's wrapper, in turns."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(_CARDS)]
    batches = [FieldBatch(nvml, _FIELDS) for _ in handles]
    ours, theirs = [], []
    for _ in range(300):
        start = time.perf_counter()
        for batch, handle in zip(batches, handles, strict=True):
            batch.read(handle)
        middle = time.perf_counter()
        for handle in handles:
            nvml.nvmlDeviceGetFieldValues(handle, _FIELDS)
        ours.append(1e6 * (middle - start))
        theirs.append(1e6 * (time.perf_counter() - middle))
    fields = len(batches[0].keys)
    assert fields == len(_FIELDS), "a field that the card lacks would be dropped from ours"
    return Row(
        claim=f"{fields} fields of {_CARDS} cards by one prepared call a card, median",
        figure=round(statistics.median(ours), 1),
        unit="us",
        target="no promise",
        holds=None,
        kind="simulated",
        baseline=f"nvidia-ml-py's wrapper, not unpacked: {statistics.median(theirs):.0f} us",
        n=len(ours),
        note="ours is unpacked to numbers as well",
    )


def event_row(fleet: FakeFleet, sampler: NvmlSampler) -> Row:
    """From the driver's event to ``record_event``."""
    heard = threading.Event()
    times: list[float] = []

    def record_event(happened: SourceEvent) -> None:
        if happened.data.get("code") == 79:
            times.append(time.perf_counter())
            heard.set()

    sampler.listen(record_event)
    while not fleet.calls()["nvmlEventSetWait_v2"]:
        time.sleep(0.01)
    delays = []
    for _ in range(_XIDS):
        heard.clear()
        pushed = time.perf_counter()
        fleet[3].xid(79)
        heard.wait(5)
        delays.append(1e3 * (times[-1] - pushed))
        time.sleep(0.01)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    return Row(
        claim="XID in the driver to XID told, p99",
        figure=round(p99, 2),
        unit="ms",
        target="<= 50",
        holds=p99 <= 50,
        kind="simulated",
        n=len(delays),
        note=f"p50 {p50:.2f} ms, within the sampler's process",
    )


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        fleet = FakeFleet.create(Path(directory) / "gpus", _CARDS)
        library = compile_fake(Path(directory) / "driver")
        os.environ["MAINSTAY_FAKE_NVML"] = str(fleet.path)
        ctypes.CDLL(str(library / "libnvidia-ml.so.1"))  # pynvml's loader finds it by its SONAME
        import pynvml  # noqa: PLC0415 - after the library it is to find

        sampler = NvmlConfig().build()
        if not sampler.supported().ok:
            raise RuntimeError(sampler.supported().reason)
        rows = sweep_rows(fleet, sampler)
        rows.append(event_row(fleet, sampler))
        sampler.close()
        pynvml.nvmlInit()
        rows.append(batch_row(pynvml))
        pynvml.nvmlShutdown()
        rows.insert(1, live_row())
        return rows


if __name__ == "__main__":
    file = target_file("sampler_cost")
    publish("sampler_cost", measure(), file)
