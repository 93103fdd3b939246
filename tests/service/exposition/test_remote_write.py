"""Remote write sends what ``/metrics`` shows, each time once, and continues where it stopped."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mainstay.service.cluster.leases import Leases, Process
from mainstay.service.exposition import remote_write
from mainstay.service.exposition.remote_write import NAME, RemoteWriter, requests
from mainstay.service.services import Services
from mainstay.service.settings import RemoteWriteSettings
from tests.service.certificates import Authority
from tests.service.exposition.fleet import Fleet
from tests.service.exposition.receiver import Labels, Receiver, receiving

STEP = 15
DEVICES = ("mainstay_gpu_", "mainstay_host_", "mainstay_nic_", "mainstay_job_gpu", "mainstay_node_state")
POWER: Labels = (("__name__", "mainstay_gpu_power_watts"), ("gpu_uuid", "GPU-n1-0"))
ENERGY: Labels = (("__name__", "mainstay_gpu_energy_joules_total"), ("gpu_uuid", "GPU-n1-0"))


@dataclass
class HandClock:
    time: float

    def now(self) -> float:
        return self.time


@pytest.fixture
def clock() -> HandClock:
    return HandClock(time.time() // STEP * STEP + 1)


def writing(services: Services, **settings: Any) -> Services:
    """The same with settings of remote write, which the service's own loops do not have."""
    told = RemoteWriteSettings(interval_seconds=STEP, **settings)
    return replace(services, settings=services.settings.model_copy(update={"remote_write": told}))


class Sending:
    """A service whose clock and remote write a test moves by hand."""

    def __init__(self, start: Callable[..., Any], clock: HandClock, report: dict[str, Any], **settings: Any) -> None:
        self.clock, self.service = clock, start(clock)
        self.fleet = Fleet(self.service, report)
        self.writer = RemoteWriter(writing(self.service.services, **settings))
        self.second = int(clock.time) // STEP * STEP
        """The time that was sent last."""

    def step(self, **devices: dict[str, float]) -> None:
        """Pass to the next interval, in which a node sends, and let the writer work."""
        self.clock.time += STEP
        self.second += STEP
        self.fleet.send("n1", at=self.second - 1, **devices)
        self.writer.run_once()

    def retry(self) -> None:
        """Let the writer work, as if the time of a back-off had passed."""
        self.writer._retry_at = 0.0
        self.writer.run_once()

    def count(self, name: str) -> float:
        return float(self.service.services.remote_write[name])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def sending(start: Callable[..., Any], clock: HandClock, report: dict[str, Any], receiver: Receiver) -> Sending:
    made = Sending(start, clock, report, url=receiver.url)
    made.fleet.node("n1")
    return made


def test_the_samples_are_those_of_the_page(sending: Sending, receiver: Receiver) -> None:
    sending.fleet.add_one_of_everything()
    sending.service.hold_still()  # the state of a node is the same for both
    sending.clock.time = time.time()  # which its frames have
    sending.writer.run_once()
    page = sending.service.client("").get("/metrics").text
    shown = {
        tuple(sorted({"__name__": sample.name, **{k: v for k, v in sample.labels.items() if v}}.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith(DEVICES)
    }  # fmt: skip
    assert len(shown) > 80
    assert receiver.at(int(sending.clock.time) // STEP * STEP) == pytest.approx(shown)
    assert sending.count("sent") == len(shown)
    names = {"content-encoding": "snappy", "x-prometheus-remote-write-version": "0.1.0"}
    assert names.items() <= receiver.headers[0].items()
    assert "authorization" not in receiver.headers[0]


def test_each_interval_is_sent_once(sending: Sending, receiver: Receiver) -> None:
    for watts in (1.0, 2.0):
        sending.step(gpu0={"gpu_power_watts": watts})
        sending.writer.run_once()
    sent = receiver.samples[POWER]
    assert sent == {(sending.second - STEP) * 1000: 1.0, sending.second * 1000: 2.0}
    assert "mainstay_remote_write_delay_seconds 1.0" in sending.service.client("").get("/metrics").text


def test_what_a_receiver_did_not_accept_is_sent_again_and_the_ring_has_the_rest(
    sending: Sending, receiver: Receiver
) -> None:
    receiver.statuses = [503, 429]
    for number in range(1, 5):
        sending.step(gpu0={"gpu_power_watts": number, "gpu_energy_millijoules_total": number * 1000})
    assert len(receiver.bodies) == 1, "it waits before it tries again"
    assert not receiver.samples
    for _ in range(5):
        sending.retry()
    assert receiver.bodies[0] == receiver.bodies[1] == receiver.bodies[2]
    times = [(sending.second - STEP * number) * 1000 for number in (3, 2, 1, 0)]
    assert receiver.samples[POWER] == dict(zip(times, (1.0, 2.0, 3.0, 4.0), strict=True))
    assert receiver.samples[ENERGY] == {times[0]: 1.0, times[3]: 4.0}
    assert (sending.count("failures"), sending.count("refused"), sending.count("skipped")) == (2, 0, 0)


def test_a_service_sends_while_it_runs(start: Callable[..., Any], report: dict[str, Any], receiver: Receiver) -> None:
    service = start(remote_write=RemoteWriteSettings(url=receiver.url, interval_seconds=5))
    Fleet(service, report).node("n1")
    deadline = time.monotonic() + 60
    while len({at for told in receiver.samples.values() for at in told}) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_receiver_refuses_is_counted_and_dropped(sending: Sending, receiver: Receiver) -> None:
    receiver.statuses = [400]
    sending.step(gpu0={"gpu_power_watts": 1.0})
    sending.step(gpu0={"gpu_power_watts": 2.0})
    assert list(receiver.samples[POWER].values()) == [2.0]
    assert sending.count("refused") > 0
    assert sending.count("failures") == 0


def test_intervals_that_left_memory_are_counted(sending: Sending, receiver: Receiver) -> None:
    receiver.statuses = [503]
    sending.step(gpu0={"gpu_power_watts": 1.0})
    sending.clock.time += 134 * STEP  # the ring holds 60 intervals
    sending.second += 134 * STEP
    sending.step(gpu0={"gpu_power_watts": 2.0, "gpu_energy_millijoules_total": 2000})
    for _ in range(3):
        sending.retry()
    assert sending.count("skipped") == 134 - 60 + 59
    assert receiver.at(sending.second)[POWER] == receiver.at(sending.second)[ENERGY] == 2.0


def test_a_slow_receiver_misses_intervals_and_has_the_present(sending: Sending, receiver: Receiver) -> None:
    for _ in range(2):
        sending.step(gpu0={"gpu_power_watts": 1.0})
    for seconds in (2, 3):
        sending.clock.time += seconds * STEP
        sending.second += seconds * STEP
        sending.step(gpu0={"gpu_power_watts": 2.0, "gpu_energy_millijoules_total": 2000})
        assert receiver.at(sending.second)[ENERGY] == 2.0
    assert sending.count("skipped") == 5


def test_a_receiver_that_does_not_answer_is_asked_again(sending: Sending, receiver: Receiver) -> None:
    sending.writer._settings = sending.writer._settings.model_copy(update={"url": "http://127.0.0.1:9/"})
    sending.step(gpu0={"gpu_power_watts": 1.0})
    assert sending.count("failures") == 1
    sending.writer._settings = sending.writer._settings.model_copy(update={"url": receiver.url})
    sending.retry()
    assert list(receiver.samples[POWER].values()) == [1.0]


@pytest.mark.postgres
def test_another_process_continues_where_the_holder_stopped(
    start: Callable[..., Any], clock: HandClock, receiver: Receiver, databases: Any, migrated_template: str
) -> None:
    url = databases.make(template=migrated_template)
    own = writing(start(clock, database_url=url).services, url=receiver.url)
    holder = Leases(own.database, Process(url="http://a", started_at=0.0), 30.0)
    holder.elect(NAME, lambda: print)
    for _ in range(2):
        holder.renew()
    services, second = replace(own, leases=holder), int(clock.time) // STEP * STEP
    RemoteWriter(services).run_once()
    clock.time += 3 * STEP
    after = RemoteWriter(services)
    after.run_once()
    assert after._at == second + STEP


def test_credentials_and_authorities_are_read_from_files(
    start: Callable[..., Any], clock: HandClock, report: dict[str, Any], tmp_path: Path
) -> None:
    authority, context = Authority(tmp_path / "ca"), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("receiver"))
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    with receiving(tls=context) as receiver:
        sending = Sending(start, clock, report, url=receiver.url, token_file=secret, ca_file=authority.file)
        sending.fleet.node("n1")
        sending.writer.run_once()
        secret.write_text("us:er\n")
        sending.writer._settings = RemoteWriteSettings(url=receiver.url, interval_seconds=STEP, basic_auth_file=secret)
        sending.step(gpu0={"gpu_power_watts": 1.0})
        assert [sent["authorization"] for sent in receiver.headers] == ["Bearer first", "Basic dXM6ZXI="]
        secret.unlink()
        sending.step(gpu0={"gpu_power_watts": 2.0})
        assert sending.count("failures") == 1
        strange = Sending(start, clock, report, url=receiver.url)
        strange.fleet.node("n1")
        strange.writer.run_once()
        assert strange.count("failures") == 1, "its authority is unknown"


def test_requests_are_split_between_series() -> None:
    end = b"\x10end"
    series = [bytes([65 + number % 26]) * 1000 + end for number in range(5000)]
    parts = [b"".join(series[at : at + 1700]) for at in range(0, 5000, 1700)]
    pieces = list(requests([b"", *parts], end))
    assert b"".join(pieces) == b"".join(series)
    assert all(piece.endswith(end) for piece in pieces)
    assert all(len(piece) <= remote_write.REQUEST_BYTES + 1004 for piece in pieces)
    assert len(pieces) == 3


@contextmanager
def prometheus(directory: Path, port: int) -> Iterator[str]:
    """The URL of a real Prometheus that takes remote write."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (python tests/machine.py installs it)")
    directory.mkdir()
    (directory / "none.yml").touch()
    place = [f"--config.file={directory}/none.yml", f"--storage.tsdb.path={directory}/data"]
    options = [*place, f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"]
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen([binary, *options], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        child.terminate()
        child.wait(30)


def test_a_prometheus_finds_the_samples(
    start: Callable[..., Any], clock: HandClock, report: dict[str, Any], free_port: Callable[[], int], tmp_path: Path
) -> None:
    with prometheus(tmp_path / "prometheus", free_port()) as url:
        sending = Sending(start, clock, report, url=f"{url}/write")
        sending.fleet.node("n1")
        clock.time -= 4 * STEP  # a Prometheus refuses samples of the future
        sending.second -= 4 * STEP
        deadline = time.monotonic() + 60
        sending.step(gpu0={"gpu_power_watts": 500.5, "gpu_energy_millijoules_total": 3500})
        while sending.count("failures") and not sending.count("sent"):  # until it is ready
            assert time.monotonic() < deadline, (tmp_path / "prometheus" / "log").read_text()[-2000:]
            sending.retry()
        sending.step(gpu0={"gpu_power_watts": 501.5, "gpu_energy_millijoules_total": 5500})
        assert sending.count("refused") == 0
        query = "mainstay_gpu_power_watts * on (gpu_uuid) group_left (node, device) mainstay_gpu_info"
        found = query_series(url, query, sending.second - STEP, sending.second)
        assert [float(value) for _, value in found["values"]] == [500.5, 501.5]
        assert found["metric"] == {"gpu_uuid": "GPU-n1-0", "node": "n1", "device": "gpu0"}
        found = query_series(url, "mainstay_gpu_energy_joules_total", sending.second, sending.second)
        assert [float(value) for _, value in found["values"]] == [5.5]


def query_series(url: str, query: str, start: int, end: int) -> dict[str, Any]:
    """The one series that a Prometheus finds."""
    parameters = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": STEP})
    with urllib.request.urlopen(f"{url}/query_range?{parameters}", timeout=30) as answer:
        (series,) = json.load(answer)["data"]["result"]
    return dict(series)
