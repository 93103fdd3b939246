"""The supervisor: silence is reported, the silent are replaced, and a hanging source costs only itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mainstay.probes.sampler_supervisor import SamplerProcessConfig, SamplerSupervisor, SamplerTimeout
from mainstay.probes.samplers.protocol import Message, SampleRow
from mainstay.probes.transport import Backoff

pytestmark = pytest.mark.processes

CHILD = """
import sys, time, os
from mainstay.probes.samplers.protocol import *
from mainstay.probes.signals import Catalog
without = [b for a, b in zip(sys.argv, sys.argv[1:]) if a == "--without"]
def send_message(message): os.write(1, pack(message))
send_message(SamplerHello((), Catalog(()), {name: "left out" for name in without}))
n = 0
while True:
    for source in ("good", "bad"):
        if source in without:
            continue
        send_message(SourceEntered(source))
        BEHAVE
    send_message(SampleRow(float(n), b"", b""))
    n += 1
    time.sleep(0.02)
"""
FINE = "pass"
HANGS = "time.sleep(3600) if source == 'bad' and n == 2 else None"


def config(behavior: str, *, deadline: float = 1.0, interval: float = 0.02) -> SamplerProcessConfig:
    command = (sys.executable, "-c", CHILD.replace("BEHAVE", behavior))
    return SamplerProcessConfig(interval=interval, deadline=deadline, boot_grace=10.0, command=command)


@contextmanager
def supervised(config: SamplerProcessConfig) -> Iterator[tuple[SamplerSupervisor, list[SamplerTimeout]]]:
    outages: list[SamplerTimeout] = []
    supervisor = SamplerSupervisor(config, outages.append)
    supervisor._backoff = Backoff(0.05, 0.1)
    try:
        yield supervisor, outages
    finally:
        supervisor.close()


def until_rows(supervisor: SamplerSupervisor, count: int) -> list[Message]:
    got: list[Message] = []
    deadline = time.monotonic() + 60
    while sum(isinstance(message, SampleRow) for message in got) < count:
        assert time.monotonic() < deadline
        got += supervisor.poll(1.0)
    return got


def until_silence(supervisor: SamplerSupervisor, outages: list[SamplerTimeout]) -> SamplerTimeout:
    deadline = time.monotonic() + 60
    while not outages:
        assert time.monotonic() < deadline
        supervisor.poll(1.0)
    return outages.pop(0)


def test_rows_come_through() -> None:
    with supervised(config(FINE, deadline=20)) as (supervisor, outages):
        got = until_rows(supervisor, 5)
        assert [m.t for m in got if isinstance(m, SampleRow)][:5] == [0, 1, 2, 3, 4]
        assert not outages


def test_a_stopped_child_is_reported_killed_and_replaced_with_nothing_left_out() -> None:
    with supervised(config(FINE)) as (supervisor, outages):
        until_rows(supervisor, 3)
        assert supervisor.child is not None
        first = supervisor.child.process
        os.kill(first.pid, signal.SIGSTOP)
        silence = until_silence(supervisor, outages)
        assert silence.pid == first.pid
        assert silence.reason.startswith("no sample for ")
        assert silence.killed
        assert first.returncode == -signal.SIGKILL
        until_rows(supervisor, 1)
        assert supervisor.child.process.pid != first.pid
        assert supervisor.child.without in ((), ("good",), ("bad",)), "stopped while it slept or in a source"


def test_a_source_that_hangs_is_named_and_left_out_of_the_replacement() -> None:
    with supervised(config(HANGS)) as (supervisor, outages):
        silence = until_silence(supervisor, outages)
        assert silence.sampler == "bad"
        until_rows(supervisor, 10)
        assert supervisor.child is not None
        assert supervisor.child.without == ("bad",)
        assert not outages, "the rest continues"


def test_a_source_that_hung_is_tried_again_after_a_while() -> None:
    with supervised(config(HANGS)) as (supervisor, outages):
        until_silence(supervisor, outages)
        until_rows(supervisor, 2)
        supervisor._benched["bad"].until = 0.0
        assert until_silence(supervisor, outages).sampler == "bad", "it was tried, and hung again"


def test_while_the_hung_process_lives_its_source_stays_out() -> None:
    with supervised(config(HANGS)) as (supervisor, outages):
        until_silence(supervisor, outages)
        until_rows(supervisor, 2)
        benched = supervisor._benched["bad"]
        benched.until = 0.0
        assert supervisor.child is not None
        benched.culprit = supervisor.child.process  # stands for one that cannot be killed
        until_rows(supervisor, 5)
        assert supervisor.child.without == ("bad",)


@pytest.mark.parametrize(("behavior", "epitaph"), [
    ("sys.exit(7) if n == 1 else None", "exited with status 7"),
    ("os.kill(os.getpid(), 11) if n == 1 else None", "killed by SIGSEGV"),
    ("os.write(1, b'junk' * 100) if n == 1 else None", "unreadable"),
])  # fmt: skip
def test_a_child_that_ends_or_raves_is_reported_and_replaced(behavior: str, epitaph: str) -> None:
    with supervised(config(behavior)) as (supervisor, outages):
        assert epitaph in until_silence(supervisor, outages).reason
        until_rows(supervisor, 1)


def test_one_that_never_starts_is_tried_ever_more_rarely() -> None:
    outages: list[SamplerTimeout] = []
    supervisor = SamplerSupervisor(
        SamplerProcessConfig(command=(sys.executable, "-c", "raise SystemExit(1)")), outages.append
    )
    supervisor._backoff = Backoff(0.02, 10.0, rng=lambda: 1.0)
    deadline = time.monotonic() + 60
    while len(outages) < 4 and time.monotonic() < deadline:
        supervisor.poll(1.0)
    supervisor.close()
    assert [silence.retry_seconds for silence in outages] == [0.02, 0.04, 0.08, 0.16]


def test_when_we_ourselves_did_not_run_nobody_is_blamed() -> None:
    with supervised(config(FINE, deadline=20)) as (supervisor, outages):
        until_rows(supervisor, 2)
        assert supervisor.child is not None
        real, jump = time.monotonic, [0.0]
        supervisor.clock = lambda: real() + jump[0]
        os.kill(supervisor.child.process.pid, signal.SIGSTOP)  # a suspended machine stops both
        select, supervisor._select = supervisor._select, lambda *_: jump.__setitem__(0, 3600.0) or False
        supervisor.poll(1.0)
        supervisor._select = select
        os.kill(supervisor.child.process.pid, signal.SIGCONT)
        until_rows(supervisor, 3)
        assert not outages


def test_processes_that_cannot_be_killed_do_not_pile_up() -> None:
    with supervised(config(FINE, deadline=20)) as (supervisor, outages):
        until_rows(supervisor, 1)
        assert supervisor.child is not None
        immortal = supervisor.child.process
        supervisor._abandoned = [immortal] * 4
        supervisor.child = None
        assert supervisor.poll(0.05) == []
        assert supervisor.child is None, "four hang already: no fifth"
        immortal.kill()
        immortal.wait()
        immortal.stdout.close()
        until_rows(supervisor, 1)
        assert not outages


def test_wake_ends_a_wait_at_once() -> None:
    with supervised(config(FINE, deadline=60.0, interval=20)) as (supervisor, _):
        for _ in range(70_000):
            supervisor.wake()  # more often than a pipe holds: it must not block
        started = time.monotonic()
        supervisor.poll(30.0)
        assert time.monotonic() - started < 10
    supervisor.wake()
