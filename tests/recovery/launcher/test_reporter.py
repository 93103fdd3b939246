"""What the coordinator tells the world, and that a world which does not listen costs it nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench.lib_receiver import Receiver
from probes.words import EventKind
from recovery.launcher.messages import StepRecord
from recovery.launcher.options import RunOptions
from recovery.launcher.reporter import Reporter


def record(epoch: int) -> StepRecord:
    return StepRecord(generation=1, epoch=epoch, step_time=0.1, compute_time=0.1, snapshot_blocked=0.0, end_ns=epoch)


def test_events_and_job_in_files(options: RunOptions) -> None:
    reporter = Reporter(options)
    reporter.event(EventKind.PROCESS_EXIT, rank=3, generation=1, data={"pid": 7, "signal": 9})
    reporter.job({"name": "job", "state": "running"})
    reporter.step(0, record(1))
    reporter.close()
    (line,) = (options.state_dir / "events.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert (event["kind"], event["job"], event["rank"], event["data"]["signal"]) == ("process_exit", "job", 3, 9)
    assert abs(event["time"] - time.time()) < 60.0
    assert json.loads((options.state_dir / "job.json").read_text()) == {"id": "job", "name": "job", "state": "running"}


@pytest.mark.slow
def test_a_service_that_comes_late_gets_everything_once(options: RunOptions) -> None:
    receiver = Receiver().start()
    receiver.away()
    reporter = Reporter(dataclasses.replace(options, service=receiver.url, service_token="t"))
    begun = time.perf_counter()
    for number in range(50):
        reporter.event(EventKind.ACTION_STARTED, data={"number": number})
        reporter.step(0, record(number + 1))
        reporter.job({"name": "job", "number": number})
    assert time.perf_counter() - begun < 0.5  # nobody waited for anybody
    receiver.start()
    receiver.wait(lambda r: len(r.events) == 50 and bool(r.frames))
    reporter.close()
    assert sorted(event["data"]["number"] for event in receiver.events.values()) == list(range(50))
    frames = [frame for stream in receiver.frames.values() for frame in stream.values()]
    assert sum(frame.samples for frame in frames) == 50
    assert receiver.duplicates == 0
    receiver.away()


def test_a_full_disk_is_survived(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter(options)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    reporter.job({"state": "running"})
    monkeypatch.undo()
    reporter.event(EventKind.JOB_STARTED)
    reporter.close()
    assert len((options.state_dir / "events.jsonl").read_text().splitlines()) == 1
