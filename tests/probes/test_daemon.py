"""The node daemon as it is run: real processes, a real kill, a service that goes away, a driver that hangs."""

from __future__ import annotations

import math
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.lib_receiver import Receiver, problem
from mainstay.probes.frame import Frame
from mainstay.probes.spool import Spool
from tests.fakes.fleet import FakeFleet, compile_fake

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@contextmanager
def daemon(receiver: Receiver, directory: Path, *options: str, **environment: str) -> Iterator[psutil.Popen]:
    """``mainstay node`` at ten samples a second; ended in order at the end if it still runs."""
    command = [sys.executable, "-m", "mainstay", "node", "--service", receiver.url, "--name", "node-1"]
    command += ["--data-dir", str(directory), *options]
    for option, usual in (("--interval", "0.1"), ("--kernel-log", "off")):
        command += [] if option in options else [option, usual]
    if "--join-token" not in options and "MAINSTAY_TOKEN" not in environment:
        command += ["--token", "t"]
    with (directory.parent / "log").open("ab") as log:
        process = psutil.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except psutil.TimeoutExpired:
                process.kill()
        process.wait(60)


def finish(process: psutil.Popen) -> int:
    process.terminate()
    return int(process.wait(60))


def log(directory: Path) -> str:
    return (directory.parent / "log").read_text()


def events(receiver: Receiver, kind: str) -> list[dict[str, Any]]:
    """Events of one kind, in order of their ids, which is that of their making."""
    return [event for _, event in sorted(receiver.events.items()) if event["kind"] == kind]


def child_of(process: psutil.Popen) -> psutil.Process:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in process.children():
            if "mainstay.probes.sampler_process" in child.cmdline():
                return child
    raise TimeoutError


def column(frame: Frame, receiver: Receiver, entity: str, signal_: str) -> list[float]:
    """The samples of one device's signal in a frame."""
    catalog = receiver.catalogs[frame.catalog]
    names = catalog.narrow
    numbers = struct.unpack(f"<{len(frame.values) // 4}f", frame.values)
    start = (frame.entities.index(entity) * len(names) + names.index(signal_)) * frame.samples
    return list(numbers[start : start + frame.samples])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.processes
def test_it_reports_measures_and_ends_in_order(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 5 and "node-1" in r.reports)
        assert finish(process) == 0
    frames = receiver.all_frames
    assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))
    assert {frame.subject for frame in frames} == {"node-1"}
    assert {frame.samples for frame in frames[:-1]} <= {1, 2}
    assert 2 in {frame.samples for frame in frames}
    assert abs(frames[-1].t0 - time.time()) < 30
    full = frames[-2]
    assert all(0 <= ratio <= 1 for ratio in column(full, receiver, "host", "memory_used_ratio"))
    assert receiver.duplicates == 0
    with Spool(directory / "frames") as spool:
        assert len(spool) == 0, "an orderly end delivers what there is"


@pytest.mark.processes
@pytest.mark.slow
def test_a_service_that_is_away_gets_every_sample_once_it_is_back(directory: Path) -> None:
    receiver = Receiver().start()
    with daemon(receiver, directory) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 2)
        receiver.away()
        away = time.time()
        before = max(frame.t0 for frame in receiver.all_frames)
        _until(lambda: time.time() > away + 3)
        receiver.start()
        receiver.wait(lambda r: max(frame.t0 for frame in r.all_frames) > time.time() - 1, 30)
        assert finish(process) == 0
    receiver.away()
    frames = receiver.all_frames
    assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1)), "every frame, once, in order"
    during = [f.t0 + k * f.dt for f in frames for k in range(f.samples) if before < f.t0 < away + 3]
    assert len(during) > 20, "it continued to measure meanwhile"


def _until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.processes
@pytest.mark.slow
def test_killed_hard_it_goes_on_where_it_stood(directory: Path) -> None:
    receiver = Receiver().start()
    for _ in range(3):
        with daemon(receiver, directory) as process:
            have = len(receiver.all_frames)
            receiver.wait(lambda r, have=have: len(r.all_frames) >= have + 3)
            receiver.away()
            size = _written(directory)
            _until(lambda size=size: _written(directory) > size + 1500)
            process.kill()
            process.wait(60)
            receiver.start()
    with daemon(receiver, directory) as process:
        have = len(receiver.all_frames)
        receiver.wait(lambda r: len(r.all_frames) >= have + 3)
        assert finish(process) == 0
    receiver.away()
    assert len(receiver.frames) == 1, "one stream for the life of the directory"
    sequences = [frame.sequence for frame in receiver.all_frames]
    assert sequences == list(range(1, len(sequences) + 1))


def _written(directory: Path) -> int:
    """Bytes of frames in the spool's files, seen from outside."""
    return sum(path.stat().st_size for path in (directory / "frames").glob("*.seg"))


@pytest.mark.processes
@pytest.mark.slow
def test_a_stopped_probe_is_an_event_and_measuring_goes_on(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 3)
        child = child_of(process)
        child.suspend()
        stopped = time.time()
        receiver.wait(lambda r: bool(events(r, "probe_unresponsive")))
        assert time.time() - stopped < 8
        (event,) = events(receiver, "probe_unresponsive")
        assert event["kind"] == "probe_unresponsive"
        assert event["node"] == "node-1"
        assert event["data"]["pid"] == child.pid
        assert event["data"]["killed"] is True
        receiver.wait(lambda r: r.all_frames[-1].t0 > stopped + 2)
        if not event["data"]["sampler"]:  # nothing was under way when it was stopped, so nothing is left out
            receiver.wait(lambda r: any(e["data"].get("cleared") for e in events(r, "probe_unresponsive")))
        assert finish(process) == 0
    assert "no sample for 3" in log(directory)


@pytest.fixture
def gpus(directory: Path) -> tuple[FakeFleet, dict[str, str]]:
    """Four cards behind the real pynvml and a simulated driver, and the environment that leads there."""
    directory.mkdir(mode=0o700)
    fleet = FakeFleet.create(directory.parent / "gpus", cards=4)
    return fleet, fleet.environment(compile_fake(directory.parent / "driver"))


def with_cards(receiver: Receiver, count: int = 4) -> None:
    receiver.wait(lambda r: any(len(frame.entities) == count + 1 for frame in r.all_frames), 12)


@pytest.mark.processes
@pytest.mark.slow
def test_a_card_that_hangs_is_named_and_blinds_nobody(
    receiver: Receiver, directory: Path, gpus: tuple[FakeFleet, dict[str, str]]
) -> None:
    fleet, world = gpus
    with daemon(receiver, directory, "--interval", "1", "--batch", "1", **world) as process:
        with_cards(receiver)
        fleet[2].hang()
        hung = time.time()
        receiver.wait(lambda r: bool(events(r, "probe_unresponsive")))
        assert time.time() - hung < 3.5, "the next tick, one and a half seconds, and the way here"
        (event,) = events(receiver, "probe_unresponsive")
        assert (event["node"], event["device"]) == ("node-1", fleet[2].uuid)
        assert event["data"]["hung"] is True
        assert event["data"]["uptime"] > 0
        first = len(receiver.all_frames)
        receiver.wait(lambda r: len(r.all_frames) >= first + 4)
        after = receiver.all_frames[first:]
        assert [round(b.t0 - a.t0) for a, b in pairwise(after)] == [1] * (len(after) - 1), "one row a second continues"
        for frame in after:
            powers = [column(frame, receiver, fleet[k].uuid, "gpu_power_watts")[0] for k in range(4)]
            assert [math.isnan(power) for power in powers] == [False, False, True, False]
            assert not math.isnan(column(frame, receiver, "host", "memory_used_ratio")[0])
        fleet[2].release()
        receiver.wait(lambda r: any(e["data"].get("cleared") for e in events(r, "probe_unresponsive")))
        assert len(events(receiver, "probe_unresponsive")) == 2
        assert finish(process) == 0


@pytest.mark.processes
@pytest.mark.slow
def test_a_silence_that_outlives_the_daemon_is_ended_by_the_next(
    receiver: Receiver, directory: Path, gpus: tuple[FakeFleet, dict[str, str]]
) -> None:
    fleet, world = gpus
    with daemon(receiver, directory, **world) as process:
        with_cards(receiver)
        fleet[1].hang()
        receiver.wait(lambda r: bool(events(r, "probe_unresponsive")))
        process.kill()
    fleet[1].release()
    with daemon(receiver, directory, **world) as process:
        receiver.wait(lambda r: len(events(r, "probe_unresponsive")) == 2)
        assert finish(process) == 0
    first, last = events(receiver, "probe_unresponsive")
    assert (last["device"], last["data"]["channel"]) == (first["device"], first["data"]["channel"])
    assert last["data"]["cleared"] is True


@pytest.mark.processes
@pytest.mark.slow
def test_an_xid_of_both_sources_is_one_event_within_a_moment(
    receiver: Receiver, directory: Path, gpus: tuple[FakeFleet, dict[str, str]]
) -> None:
    fleet, world = gpus
    pipe = directory.parent / "kmsg"
    os.mkfifo(pipe)
    with daemon(receiver, directory, "--kernel-log", str(pipe), **world) as process:
        with_cards(receiver)
        bus = receiver.reports["node-1"]["devices"][2]["facts"]["pci"]
        time.sleep(0.5)  # NVML's event thread registers its cards
        waits = []
        for code in (31, 43, 79):
            begun = time.time()
            fleet[1].xid(code)
            with pipe.open("ab") as log_:
                log_.write(f"NVRM: Xid (PCI:{bus.rpartition('.')[0]}): {code}, pid=7, name=a, words\n".encode())
            receiver.wait(lambda r, code=code: any(e["data"]["code"] == code for e in events(r, "xid")))
            waits.append(time.time() - begun)
        assert max(waits) < 1.0
        fleet[3].xid(62)  # only NVML saw this one
        receiver.wait(lambda r: any(e["data"]["code"] == 62 for e in events(r, "xid")))
        assert [(e["device"], e["data"]["code"]) for e in events(receiver, "xid")] == [
            (fleet[1].uuid, 31), (fleet[1].uuid, 43), (fleet[1].uuid, 79), (fleet[3].uuid, 62),
        ]  # fmt: skip
        assert {e["data"]["text"] for e in events(receiver, "xid")[:3]} == {"words"}, "the one with the details"
        assert finish(process) == 0


def counts(receiver: Receiver) -> list[int]:
    """How many lines each event stands for."""
    return [event["data"].get("count", 1) for event in events(receiver, "xid")]


@pytest.mark.processes
@pytest.mark.slow
def test_a_flood_of_lines_is_counted_and_not_sent(
    receiver: Receiver, directory: Path, gpus: tuple[FakeFleet, dict[str, str]]
) -> None:
    _, world = gpus
    pipe = directory.parent / "kmsg"
    os.mkfifo(pipe)
    with daemon(receiver, directory, "--kernel-log", str(pipe), **world) as process:
        with_cards(receiver)
        line = b"NVRM: Xid (PCI:0000:17:00): 45, pid=%d, name=python3, Ch 00000008\n"
        with pipe.open("ab") as log_:
            log_.write(b"".join(line % (k % 8) for k in range(11_760)))
        receiver.wait(lambda r: sum(counts(r)) >= 11_760, 90)
        assert finish(process) == 0
    assert sum(counts(receiver)) == 11_760
    assert len(counts(receiver)) <= 5


@pytest.mark.processes
@pytest.mark.slow
def test_its_life_is_told_from_start_to_stop(receiver: Receiver, directory: Path) -> None:
    place = ["--rack", "row-3:rack-7", "--switches", "leaf-3,spine-1", "--power-domain", "pdu-7"]
    with daemon(receiver, directory, *place) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 1 and "node-1" in r.reports)
        (started,) = events(receiver, "node_started")
        assert started["data"]["boot_id"] == receiver.reports["node-1"]["boot_id"]
        assert started["data"]["uptime"] > 0
        assert receiver.reports["node-1"]["rack"] == "row-3:rack-7"
        assert receiver.reports["node-1"]["switches"] == ["leaf-3", "spine-1"]
        assert receiver.reports["node-1"]["power_domain"] == "pdu-7"
        assert finish(process) == 0
    (stopping,) = events(receiver, "node_stopping")
    assert stopping["data"]["reason"] in ("stopped", "shutdown")
    assert len(receiver.events) == 2


@pytest.mark.processes
def test_once_sends_one_frame_and_the_report(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory, "--once", "--join-token", "join") as process:
        assert process.wait(60) == 0
    assert receiver.all_frames
    assert "node-1" in receiver.reports
    assert stat.S_IMODE((directory / "credential.json").stat().st_mode) == 0o600


@pytest.mark.processes
def test_a_bad_credential_is_one_clear_line_at_enrollment(receiver: Receiver, directory: Path) -> None:
    receiver.answer = lambda *_: problem(401, "unauthorized", "the join token was used already")
    with daemon(receiver, directory, "--join-token", "join") as process:
        assert process.wait(60) == 2
    said = log(directory).strip()
    assert said.startswith("mainstay node: POST /nodes:enroll: 401 the join token was used already; 'mainstay token'")
    assert "\n" not in said


@pytest.mark.processes
def test_enrollment_waits_for_a_service_that_is_not_there_yet(directory: Path) -> None:
    receiver = Receiver().start()
    receiver.away()
    with daemon(receiver, directory, "--join-token", "join") as process:
        _until(lambda: _written(directory) > 1000)
        receiver.token = "own"
        receiver.start()
        receiver.wait(lambda r: len(r.all_frames) >= 3 and "node-1" in r.reports, 40)
        assert finish(process) == 0
    receiver.away()
    assert receiver.all_frames[0].sequence == 1, "what was measured before is there"


@pytest.mark.processes
def test_one_data_directory_has_one_daemon(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory):
        receiver.wait(lambda r: len(r.all_frames) >= 1)
        with daemon(receiver, directory) as second:
            assert second.wait(60) == 2
    assert "is in use by another process" in log(directory)


@pytest.mark.processes
@pytest.mark.slow
def test_it_stays_small_and_loads_nothing_big(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 20)
        family = [process, child_of(process)]
        assert sum(member.memory_info().rss for member in family) <= 60 * 2**20
        loaded = "".join(mapping.path for member in family for mapping in member.memory_maps())
        assert not [big for big in ("numpy", "libtorch", "nvidia-ml", "pyarrow") if big in loaded]
        parent = " ".join(file.path for file in process.memory_maps())
        assert "_ctypes" not in parent, "the parent has no way to call a driver"
        assert finish(process) == 0


@pytest.mark.processes
def test_the_second_signal_does_no_harm(receiver: Receiver, directory: Path) -> None:
    with daemon(receiver, directory) as process:
        receiver.wait(lambda r: len(r.all_frames) >= 1)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
