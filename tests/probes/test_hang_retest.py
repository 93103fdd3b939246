"""A fresh process tries what hangs before the working child is given up for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mainstay.probes.hang_retest import HangRetester
from mainstay.probes.sampler_supervisor import SamplerProcessConfig, SamplerSupervisor, SamplerTimeout
from mainstay.probes.samplers.protocol import SampleRow

pytestmark = pytest.mark.processes

LATER = 10_000.0
CHILD = """
import sys, time, os
from pathlib import Path
if "--try" in sys.argv:
    assert sys.argv[-1] == "toy/1"
    sys.exit(0)
from mainstay.probes.samplers.base import SourceEvent
from mainstay.probes.samplers.protocol import *
from mainstay.probes.core_types import EventKind
for n in range(100000):
    if n == 2:
        data = {"sampler": "toy", "channel": "toy/1", "hung": True}
        os.write(1, pack(SourceEvent(kind=EventKind.PROBE_UNRESPONSIVE, t=1.0, device="d", data=data)))
    os.write(1, pack(SampleRow(float(n), b"", b"")))
    time.sleep(0.02)
"""


@contextmanager
def trials(code: str) -> Iterator[HangRetester]:
    made = HangRetester((sys.executable, "-c", code))
    try:
        yield made
    finally:
        made.close()


def until(made: HangRetester, stuck: dict[str, float], now: float) -> str | None:
    """Poll until the trial that is under way has ended."""
    deadline = time.monotonic() + 60
    while made._trial is not None and time.monotonic() < deadline:
        if (found := made.poll(stuck, now)) is not None:
            return found
        time.sleep(0.01)
    assert made._trial is None
    return None


def test_nothing_is_tried_before_its_time() -> None:
    with trials("raise SystemExit(0)") as made:
        assert made.poll({"a": 0.0}, 0.0) is None
        assert made.poll({"a": 0.0}, 29.0) is None
        assert made._trial is None
        made.poll({"a": 0.0}, 61.0)
        assert until(made, {"a": 0.0}, 62.0) == "a"


def test_a_trial_that_fails_is_made_again_ever_more_rarely() -> None:
    with trials("raise SystemExit(1)") as made:
        made.poll({"a": 0.0}, 0.0)
        made.poll({"a": 0.0}, 61.0)
        assert until(made, {"a": 0.0}, 61.0) is None
        made.poll({"a": 0.0}, 61.0 + 59.0)
        assert made._trial is None, "twice as long now"
        made.poll({"a": 0.0}, 61.0 + 121.0)
        assert made._trial is not None
        assert until(made, {"a": 0.0}, 61.0 + 121.0) is None


def test_trials_that_hang_do_not_pile_up() -> None:
    with trials("import time; time.sleep(3600)") as made:
        made.poll({"a": 0.0}, 0.0)
        for k in range(1, 3):
            made.poll({"a": 0.0}, k * LATER)
            assert made._trial is not None
            pid = made._trial.process.pid
            made.poll({"a": 0.0}, k * LATER + 30)
            assert made._trial is None
            assert pid in {process.pid for process in made._hung}
        real, made._hung = made._hung, [Immortal(), Immortal()]
        made.poll({"a": 0.0}, 9 * LATER)
        assert made._trial is None
        made._hung = real


class Immortal:
    """A process that cannot be killed."""

    def poll(self) -> None:
        return None


def test_the_child_is_replaced_when_a_fresh_process_succeeds_and_not_before() -> None:
    outages: list[SamplerTimeout] = []
    config = SamplerProcessConfig(interval=0.02, deadline=20.0, command=(sys.executable, "-c", CHILD))
    supervisor = SamplerSupervisor(config, outages.append)
    jump = [0.0]
    supervisor.clock = lambda: time.monotonic() + jump[0]
    try:
        deadline = time.monotonic() + 60
        while supervisor.child is None or not supervisor.child.stuck:
            assert time.monotonic() < deadline
            supervisor.poll(0.2)
        first = supervisor.child.process
        rows = [message for message in supervisor.poll(0.2) if isinstance(message, SampleRow)]
        assert rows or supervisor.poll(1.0), "it works on meanwhile"
        for channel in supervisor._trials._due:
            supervisor._trials._due[channel] = 0.0
        while supervisor.child is None or supervisor.child.process is first:
            assert time.monotonic() < deadline
            supervisor.poll(0.2)
        assert first.returncode == -signal.SIGKILL
        assert not outages, "a replacement is no silence"
        os.kill(supervisor.child.process.pid, 0)
    finally:
        supervisor.close()
