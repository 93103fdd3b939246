"""What waits for a limited time ends at once when none of it is left, and does not spin."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstay.probes.benchmarks import isolation
from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.pair import Side
from mainstay.probes.benchmarks.pair_protocol import PairTask, Role
from mainstay.probes.benchmarks.result import BenchmarkState
from mainstay.probes.benchmarks.tcp_echo import close_session, latencies, rates, serve
from mainstay.probes.benchmarks.timing import LEAST, Stopwatch
from mainstay.probes.kernel_log.reader import BootClock, KernelLog
from mainstay.probes.pair_tasks import PairTaskRunner
from mainstay.probes.read_channels import ChannelSupervisor
from mainstay.probes.sampler_process import ticks
from mainstay.probes.sampler_supervisor import SamplerProcessConfig, SamplerSupervisor
from mainstay.probes.shipper import Shipper
from mainstay.probes.spool import Entry, Spool
from mainstay.probes.validation_tasks import ValidationProcess

pytestmark = pytest.mark.timeout(60)
SPENT = [0.0, -1.0, -60.0]
WAITS = (sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(3600)")
"""A process that greets and then answers nothing."""


def order(role: Role, left: float) -> PairTask:
    return PairTask(
        id="o", kind="pair", validation_id="o", benchmark="pair", role=role, peer="n1", address="127.0.0.1", port=0,
        sizes=(512,), seconds=20.0, deadline_at=5.0 + left,
    )  # fmt: skip


@pytest.mark.parametrize("seconds", SPENT)
def test_a_spool_and_who_empties_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    delivered: list[int] = []
    with Spool(tmp_path) as spool:
        spool.append(b"a")
        assert not spool.wait_empty(seconds)
        assert spool.wait(seconds)

        class _Shipper(Shipper):
            def deliver(self, entries: Sequence[Entry]) -> None:
                delivered.extend(entry.sequence for entry in entries)

        shipper = _Shipper(spool)
        assert not shipper.stop(seconds)
        synced: list[int] = []
        monkeypatch.setattr(shipper, "_resync", lambda: synced.append(1))
        monkeypatch.setattr(shipper, "_backoff", SimpleNamespace(next=lambda: seconds))
        shipper._pause("not now", seconds)
        assert not synced
    assert not delivered


def test_ticks_that_were_missed_are_not_waited_for() -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds + 5.5  # the machine was suspended meanwhile

    given = ticks(1.0, lambda: now[0], sleep)
    assert [next(given), next(given)] == [1.0, 7.0]
    assert slept == [1.0, 0.5]


@pytest.mark.processes
def test_a_benchmark_process_that_never_answers() -> None:
    with isolation.BenchmarkForkServer(WAITS) as processes:
        assert processes.call({"benchmark": None}, -1.0).timed_out
        assert processes._process is None


@pytest.mark.parametrize("seconds", SPENT)
@pytest.mark.parametrize("deadline", [0.0, 3600.0])
def test_a_round_whose_channel_hangs(seconds: float, deadline: float) -> None:
    """The time of the call is over or has only begun; what is over is reported even by a round without time."""
    outages: list[Any] = []
    answer = threading.Event()
    channels = ChannelSupervisor(outages.append, interval=1.0, clock=lambda: 0.0)
    channel = channels.watch("cards/0", "cards", ("card-0",), deadline, punctual=True)
    try:
        channels.start_round()
        channels.start_call(channel, answer.wait)
        channels.collect([channel], seconds)
        channels.close(seconds)
        assert [outage.device for outage in outages] == (["card-0"] if deadline == 0.0 else [])
    finally:
        answer.set()
        channels.forget(channel)


@pytest.mark.parametrize("seconds", SPENT)
@pytest.mark.parametrize("role", list(Role))
def test_a_pair_whose_deadline_passes_as_they_meet(role: Role, seconds: float) -> None:
    side = Side(order(role, seconds), "n0", now=lambda: 0.0)
    assert (side._listen(), side._connect()) == (None, None)
    here, there = socket.socketpair()
    with here, there, pytest.raises(TimeoutError, match="not done within 20 s"):
        side._measure(here, {})
    assert (
        PairTaskRunner("n0", lambda _id, _report: None, clock=lambda: 0.0)._measured(order(role, seconds)).state
        is BenchmarkState.ERROR
    )


@pytest.mark.parametrize("seconds", SPENT)
def test_measuring_takes_the_least_that_it_needs(seconds: float) -> None:
    assert len(Stopwatch(Device(kind="cpu", model=""), time.perf_counter).repeat(lambda: None, seconds)) == LEAST
    here, there = socket.socketpair()
    with here, there:
        server = threading.Thread(target=serve, args=(there,))
        server.start()
        assert latencies(here, 512, seconds, time.perf_counter)
        assert rates(here, 512, seconds, time.perf_counter)
        close_session(here)
        server.join(30.0)
        assert not server.is_alive()


@pytest.mark.processes
def test_a_child_whose_deadline_has_passed_is_given_up() -> None:
    outages: list[Any] = []
    config = SamplerProcessConfig(interval=1.0, deadline=1.0, boot_grace=60.0, command=WAITS)
    supervisor = SamplerSupervisor(config, outages.append)
    try:
        supervisor.poll(0.0)
        assert supervisor.child is not None
        supervisor.child.deadline = supervisor.clock() - 60.0
        supervisor.poll(30.0)
        assert outages
    finally:
        supervisor.close()


@pytest.mark.processes
@pytest.mark.parametrize("seconds", SPENT)
def test_a_validation_without_time_is_killed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("mainstay.probes.validation_tasks._LOOK_S", seconds)
    running: Any = SimpleNamespace(report=lambda: None, order=SimpleNamespace(validation_id="v"))
    with subprocess.Popen(WAITS, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        with pytest.raises(ValueError, match="did not end within"):
            ValidationProcess()._wait(process, running, seconds)
        assert process.poll() is not None


def test_a_kernel_log_that_never_falls_quiet_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []

    def lines(timeout: float) -> list[None]:
        read.append(timeout)
        return [None]

    log = KernelLog("auto", lambda _happened: None, tmp_path / "mark", BootClock("boot"))
    monkeypatch.setattr(log, "_take", lambda _record: None)
    log._stopping.set()
    log._follow(cast("Any", SimpleNamespace(read=lines)))
    assert read == [0.0]
