"""What a node pays for being watched, and what an outage costs: the real ``mainstay node`` and a recording receiver.

Two daemons run side by side at 1 Hz: one measures this host, one also a simulated driver with eight GPUs (compiled from
``tests/fakes``, so driver time is not in the figure). Then the receiver goes away for a minute.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from bench.lib_receiver import Receiver
from bench.report import Row, publish, target_file
from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.frame import Frame
from mainstay.probes.ids import uuid7
from mainstay.probes.outbox import EventOutbox
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from tests.fakes.fleet import FakeFleet, compile_fake

_ROOT: Final = Path(__file__).resolve().parents[1]
_WATCH_S: Final = 30.0
_AWAY_S: Final = 60.0
_EVENTS: Final = 200
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Cost:
    """What a daemon's processes took over a window."""

    rss_mib: float
    parts: str
    pss_mib: float
    core_percent: float


@contextmanager
def daemon(receiver: Receiver, name: str, directory: Path, **environment: str) -> Iterator[psutil.Process]:
    """``mainstay node`` with its defaults, until the context ends."""
    command = [sys.executable, "-m", "mainstay", "node", "--service", receiver.url, "--name", name, "--token", "t"]
    process = subprocess.Popen(
        [*command, "--data-dir", directory / name],
        cwd=_ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(15)


def gpus(directory: Path) -> dict[str, str]:
    """The environment in which pynvml finds a driver with eight GPUs; empty where there is no compiler."""
    try:
        library = compile_fake(directory / "driver")
    except RuntimeError:
        return {}
    return FakeFleet.create(directory / "gpus.state", cards=8).environment(library)


def busy(family: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (member.cpu_times() for member in family))


def watch(processes: list[psutil.Process], seconds: float) -> list[Cost]:
    """Cost of each daemon (parent and child together) over the same window."""
    families = [[process, *process.children(recursive=True)] for process in processes]
    before, started = [busy(family) for family in families], time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    costs = []
    for family, spent in zip(families, before, strict=True):
        memory = [member.memory_full_info() for member in family]
        rss = [info.rss / _MIB for info in memory]
        parts = " + ".join(f"{part:.1f}" for part in rss)
        pss = sum(info.pss for info in memory) / _MIB
        costs.append(Cost(sum(rss), parts, pss, 100 * (busy(family) - spent) / elapsed))
    return costs


def cost_rows(what: str, kind: Literal["live", "simulated"], cost: Cost) -> list[Row]:
    return [
        Row(
            claim=f"memory of the node daemon, {what}",
            figure=round(cost.rss_mib, 1),
            unit="MiB RSS",
            target="<= 60",
            holds=cost.rss_mib <= 60,
            kind=kind,
            note=f"parent + child: {cost.parts} MiB; {cost.pss_mib:.1f} MiB counting shared pages once",
        ),
        Row(
            claim=f"processor of the node daemon at 1 Hz, {what}",
            figure=round(cost.core_percent, 2),
            unit="% of a core",
            target="<= 2",
            holds=cost.core_percent <= 2,
            kind=kind,
            note=f"over {_WATCH_S:.0f} s",
        ),
    ]


def sample_times(frames: list[Frame]) -> list[float]:
    return [frame.t0 + k * frame.dt for frame in frames for k in range(frame.samples)]


def outage_row(receiver: Receiver, name: str) -> Row:
    """Go away for a minute and see whether anything is missing afterwards."""
    receiver.away()
    away = time.time()
    time.sleep(_AWAY_S)
    receiver.start()
    back = time.time()
    receiver.wait(lambda r: sample_times(_of(r, name))[-1] >= back, 60)
    caught_up = time.time() - back
    frames = _of(receiver, name)
    sequences = [frame.sequence for frame in frames]
    times = [t for t in sample_times(frames) if away - 10 <= t <= back]
    missing = round(times[-1] - times[0]) + 1 - len(times)
    whole = sequences == list(range(1, len(sequences) + 1))
    note = f"caught up {caught_up:.1f} s after it came back; {receiver.duplicates} frames came twice, kept once"
    return Row(
        claim=f"samples missing after the service was away for {_AWAY_S:.0f} s",
        figure=missing,
        unit="samples",
        target="0",
        holds=missing == 0 and whole,
        kind="live",
        n=len(times),
        note=note,
    )


def _of(receiver: Receiver, name: str) -> list[Frame]:
    return [frame for frame in receiver.all_frames if frame.subject == name]


def event_row(receiver: Receiver, directory: Path) -> Row:
    """From ``put`` (durable on disk on the way) to the service, one event at a time."""
    delays = []
    with Spool(directory / "latency") as spool, EventOutbox(spool, Transport(receiver.url, "t")) as outbox:
        for _ in range(_EVENTS):
            event = Event(id=uuid7(), time=time.time(), kind=EventKind.PROCESS_EXIT)
            outbox.put(event)
            receiver.wait(lambda r, wanted=event: wanted.id in r.events)  # type: ignore[misc]  # mypy and default arguments
            delays.append(1000 * (receiver.arrived[-1] - event.time))
            time.sleep(0.01)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
    return Row(
        claim="event put to event received, p99",
        figure=round(p99, 1),
        unit="ms",
        target="<= 50",
        holds=p99 <= 50,
        kind="live",
        n=len(delays),
        note=f"p50 {p50:.1f} ms, an fsync on the way",
    )


def measure() -> list[Row]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        receiver = stack.enter_context(Receiver())
        processes = [stack.enter_context(daemon(receiver, "host", directory))]
        if world := gpus(directory):
            processes.append(stack.enter_context(daemon(receiver, "gpus", directory, **world)))
        receiver.wait(lambda r: len({frame.subject for frame in r.all_frames}) == len(processes), 60)
        costs = watch(processes, _WATCH_S)
        rows = cost_rows("this host", "live", costs[0])
        if world:
            devices = len(_of(receiver, "gpus")[-1].entities)
            rows += cost_rows(f"with {devices - 1} GPUs", "simulated", costs[1])
        rows.append(event_row(receiver, directory))
        rows.append(outage_row(receiver, "host"))
    return rows


if __name__ == "__main__":
    file = target_file("node_daemon")
    publish("node_daemon", measure(), file)
