"""What the coordinator tells the world, and that a world which does not listen costs it nothing."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib_receiver import Answer, Receiver, problem, reply
from mainstay.probes.core_types import EventKind
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol.worker_messages import StepRecord, Transfers
from mainstay.recovery.telemetry.progress import CATALOG, ProgressSample
from mainstay.recovery.telemetry.reporter import Reporter


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


def test_what_only_some_job_reports_have_is_not_lost_to_later_ones(options: RunOptions) -> None:
    receiver, jobs = Receiver().start(), list[dict[str, Any]]()

    def keep(method: str, path: str, body: bytes) -> Answer | None:
        if method != "PUT" or not path.startswith("/v1/jobs/"):
            return None
        jobs.append(json.loads(body))
        return reply({})

    receiver.away()
    reporter = Reporter(dataclasses.replace(options, service=receiver.url, service_token="t"))
    reporter.job({"name": "job", "number": 1, "checkpoints": {"steps": []}})
    for number in range(2, 20):
        reporter.job({"name": "job", "number": number})
    receiver.answer = keep
    receiver.start()
    receiver.wait(lambda _: bool(jobs))
    reporter.close()
    assert any("checkpoints" in job for job in jobs)
    assert jobs[-1]["number"] == 19
    receiver.away()


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
    assert time.perf_counter() - begun < 0.5  # no caller waited
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
    reporter.event(EventKind.JOB_STARTED, {})
    reporter.close()
    assert len((options.state_dir / "events.jsonl").read_text().splitlines()) == 1


def test_the_last_report_of_a_job_is_tried_again(options: RunOptions) -> None:
    """The service restarts just then, or a load balancer chose one that is gone."""
    with Receiver() as receiver:
        seen: list[dict[str, Any]] = []

        def busy(method: str, path: str, body: bytes) -> Answer | None:
            if (method, path) != ("PUT", "/v1/jobs/job"):
                return None
            seen.append(json.loads(body))
            return problem(503, "unavailable", "later") if len(seen) < 4 else (200, {}, b"")

        receiver.answer = busy
        reporter = Reporter(dataclasses.replace(options, service=receiver.url, service_token="t"))
        reporter.job({"state": "running"})
        receiver.wait(lambda _: len(seen) == 1)
        reporter.job({"state": "finished"})
        reporter.close()
        assert [report["state"] for report in seen] == ["running", *["finished"] * 3]


def sample(at: float) -> ProgressSample:
    narrow = np.zeros((len(CATALOG.narrow), 4), np.float32)
    return ProgressSample(at, narrow, np.zeros((len(CATALOG.wide), 4), np.int64))


def test_progress_and_transfers_arrive_with_the_steps(options: RunOptions) -> None:
    with Receiver() as receiver:
        reporter = Reporter(dataclasses.replace(options, service=receiver.url, service_token="t"))
        for number in range(4):
            reporter.progress(sample(100.0 + number / 2))
        reporter.step(0, record(1))
        reporter.transfers(1, Transfers(generation=1, epoch=1, end_ns=7, seconds={0: 0.1}, nbytes={0: 8.0}))
        receiver.wait(lambda r: sum(f.samples for f in r.all_frames if f.dt == 0.5) == 4)
        receiver.wait(lambda r: len({frame.catalog for frame in r.all_frames}) == 3)
        reporter.close()
        assert len(receiver.frames) == 3  # a stream for each kind
        (pairs,) = [frame for frame in receiver.all_frames if frame.entities == ("0>1",)]
        assert (pairs.axis, pairs.t0) == ("step", 1.0)
        assert {catalog.digest for catalog in receiver.catalogs.values()} >= {CATALOG.digest}
        assert receiver.duplicates == 0


def test_a_service_that_is_too_old_for_progress_gets_the_rest(
    options: RunOptions, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as receiver:

        def old(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes] | None:
            unknown = b"progress_phase" in body and method == "PUT"
            return problem(422, "unknown-signal", "no such signal: progress_phase") if unknown else None

        receiver.answer = old
        reporter = Reporter(dataclasses.replace(options, service=receiver.url, service_token="t"))
        deadline = time.monotonic() + 60.0
        number = 0
        while "no frames of progress" not in caplog.text:
            assert time.monotonic() < deadline
            reporter.progress(sample(100.0 + number))
            number += 1
            time.sleep(0.02)
        reporter.step(0, record(1))
        receiver.wait(lambda r: len(r.all_frames) == 1)
        reporter.close()
        rejected = list((options.state_dir / "spool" / "progress" / "rejected").glob("*.entry"))
        assert 3 <= len(rejected) < number
