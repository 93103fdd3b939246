"""Pairs: two real processes measure over loopback; and a peer that is absent, hangs, breaks off or is a stranger is a
result with a reason."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.lib_receiver import Receiver
from mainstay.probes.benchmarks.pair import MARGIN_SECONDS, Side
from mainstay.probes.benchmarks.pair_protocol import SIZES, PairReport, PairTask, Role, bandwidths, metrics
from mainstay.probes.benchmarks.result import BenchmarkResult, BenchmarkState
from mainstay.probes.identity import describe_node
from mainstay.probes.node_tasks import ResultOutbox, TaskLoop
from mainstay.probes.pair_tasks import MOST, PairTaskRunner
from mainstay.probes.samplers.host import HostConfig
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport
from mainstay.probes.validation_tasks import ValidationProcess, ValidationTask

pytestmark = pytest.mark.processes


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def order(role: Role = Role.LISTEN, **changes: Any) -> PairTask:
    fields: dict[str, Any] = {
        "id": f"o-{role}", "kind": "pair", "validation_id": f"o-{role}", "benchmark": "pair", "role": role,
        "peer": "n1" if role is Role.LISTEN else "n0", "address": "127.0.0.1", "port": 0, "sizes": (512, 4096),
        "seconds": 20.0, "deadline_at": 0.0,
    }  # fmt: skip
    return PairTask(**(fields | changes))


def sides(seconds: float = 30.0, **changes: Any) -> tuple[PairTask, PairTask]:
    """The listening and the connecting side; they have ``seconds`` for everything."""
    same = {"port": free_port(), "deadline_at": time.time() + MARGIN_SECONDS + seconds, **changes}
    return order(Role.LISTEN, **same), order(Role.CONNECT, **same)


def both(listen: Callable[[], BenchmarkResult], connect: Callable[[], BenchmarkResult]) -> list[BenchmarkResult]:
    found: list[BenchmarkResult | None] = [None, None]

    def run(place: int, work: Callable[[], BenchmarkResult]) -> None:
        found[place] = work()

    threads = [threading.Thread(target=run, args=item) for item in enumerate((listen, connect))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(found)
    return [one for one in found if one is not None]


class Collected:
    """What nodes report."""

    def __init__(self) -> None:
        self.reports: dict[str, PairReport] = {}
        self._changed = threading.Condition()

    def __call__(self, key: str, report: PairReport) -> None:
        with self._changed:
            self.reports[key] = report
            self._changed.notify_all()

    def wait(self, count: int) -> dict[str, PairReport]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.reports) >= count, 60), self.reports
            return dict(self.reports)


def test_two_processes_measure_every_size_from_both_sides() -> None:
    listen, connect = sides(60.0, sizes=SIZES)
    done = Collected()
    for name, one in {"n0": listen, "n1": connect}.items():
        pairs = PairTaskRunner(name, done)
        pairs.submit(one)
        pairs.submit(one)  # delivered twice: measured once
    for report in done.wait(2).values():
        assert report.result.state is BenchmarkState.OK, report.result.error
        assert report.started_at < report.finished_at
        assert [m.name for m in report.result.metrics] == [m.name for m in metrics(SIZES)]
        assert all(len(m.values) >= 3 for m in report.result.metrics)
        speeds = bandwidths(report.result)
        assert set(speeds) == set(SIZES)
        assert speeds[4 << 20] > speeds[512]


def test_who_never_comes_and_who_is_never_there() -> None:
    listen, connect = sides(1.0)
    connect = msgspec.structs.replace(connect, port=free_port())
    absent, nobody = both(Side(listen, "n0").run, Side(connect, "n1").run)
    assert (absent.state, nobody.state) == (BenchmarkState.TIMEOUT, BenchmarkState.TIMEOUT)
    assert absent.error == f"n1 never came to 127.0.0.1 port {listen.port}"
    assert nobody.error == f"n0 never answered at 127.0.0.1 port {connect.port}"
    assert not any(metric.values for metric in (*absent.metrics, *nobody.metrics))


class Broken:
    """A path that loses every message above 1 KiB, as the switch of Aegis did: the connection waits for ever."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def sendall(self, data: bytes | bytearray, /) -> None:
        if len(data) <= 1024:
            self._connection.sendall(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._connection.recv_into(buffer)


def test_a_transfer_that_hangs_at_one_size_ends_in_time_on_both_sides() -> None:
    listen, connect = sides(seconds=20.0)
    listen, connect = (msgspec.structs.replace(one, seconds=2.0) for one in (listen, connect))
    results = both(Side(listen, "n0", Broken).run, Side(connect, "n1").run)
    assert [result.state for result in results] == [BenchmarkState.TIMEOUT] * 2
    assert "broke off (latency_512, bandwidth_512 measured)" in (results[1].error or "")


def test_a_stranger_is_sent_away_and_the_peer_still_served() -> None:
    listen, connect = sides()

    def intrude() -> BenchmarkResult:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", listen.port), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                stranger.settimeout(10)
                with suppress(ConnectionResetError):
                    assert stranger.recv(100) == b""
                break
            time.sleep(0.02)
        return Side(connect, "n1").run()

    assert [result.state for result in both(Side(listen, "n0").run, intrude)] == [BenchmarkState.OK, BenchmarkState.OK]


def test_the_round_before_is_a_stranger_too() -> None:
    listen, connect = sides(2.0)
    late = msgspec.structs.replace(connect, deadline_at=connect.deadline_at - 0.25)
    results = both(Side(listen, "n0").run, Side(late, "n1").run)
    assert [result.state for result in results] == [BenchmarkState.TIMEOUT] * 2
    assert ["never" in (result.error or "") for result in results] == [True, True]


@pytest.mark.parametrize(("changes", "state", "fault"), [
    ({"gpu": "GPU-1"}, BenchmarkState.UNSUPPORTED, "not from GPU GPU-1"),
    ({"nic": "no-such-nic"}, BenchmarkState.UNSUPPORTED, "cannot use the network interface 'no-such-nic'"),
    ({"sizes": (1 << 40,)}, BenchmarkState.ERROR, "sizes must be"),
    ({"sizes": ()}, BenchmarkState.ERROR, "sizes must be"),
    ({"deadline_at": 1.0}, BenchmarkState.ERROR, "deadline had passed"),
    ({"role": Role.CONNECT, "address": "no-host.invalid"}, BenchmarkState.ERROR, "'no-host.invalid' is not known"),
])  # fmt: skip
def test_a_side_that_cannot_do_its_part_is_no_evidence(
    changes: dict[str, Any], state: BenchmarkState, fault: str
) -> None:
    listen, _ = sides(1.0)
    result = Side(msgspec.structs.replace(listen, **changes), "n0").run()
    assert result.state is state
    assert fault in (result.error or "")


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    listen, _ = sides(1.0)
    with socket.create_server(("127.0.0.1", listen.port)):
        result = Side(listen, "n0").run()
    assert result.state is BenchmarkState.ERROR
    assert f"cannot listen on port {listen.port}" in (result.error or "")


# the daemon's side


def says(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, sys, time\n{code}")


@pytest.mark.parametrize(("command", "state", "fault"), [
    (("/nonexistent/pair",), BenchmarkState.ERROR, "No such file"),
    (says("sys.exit('no torch, no luck')"), BenchmarkState.ERROR, "status 1 and no result: no torch, no luck"),
    (says("print('[' * 100_000)"), BenchmarkState.ERROR, "it said nothing"),
    (says("os.kill(os.getpid(), 9)"), BenchmarkState.ERROR, "status -9"),
    (says("time.sleep(600)"), BenchmarkState.TIMEOUT, "with n1 did not end within"),
])  # fmt: skip
def test_whatever_becomes_of_the_process_is_reported(
    command: tuple[str, ...], state: BenchmarkState, fault: str
) -> None:
    done = Collected()
    listen, _ = sides(-1.0)
    PairTaskRunner("n0", done, command=command).submit(listen)
    result = done.wait(1)[listen.id].result
    assert result.state is state
    assert fault in (result.error or "")


def test_what_is_refused_is_reported() -> None:
    done = Collected()
    PairTaskRunner("n0", done, busy=lambda: "validation v1 has this node").submit(order(id="busy"))
    PairTaskRunner("n0", done).submit(order(id="late"))
    full = PairTaskRunner("n0", done, command=says("time.sleep(600)"))
    for number in range(MOST + 1):
        full.submit(order(id=f"o{number}", deadline_at=time.time() + 300))
    reports = done.wait(3)
    assert {key: report.result.error for key, report in reports.items()} == {
        "busy": "validation v1 has this node",
        "late": "the deadline had passed before it began",
        f"o{MOST}": f"{MOST} pairs are being measured here already",
    }
    full.stop()
    assert {r.result.state for r in done.wait(3 + MOST).values()} == {BenchmarkState.ERROR}


def test_the_control_loop_hears_on_while_a_pair_hangs(tmp_path: Path) -> None:
    """An order for a pair whose peer never comes, then a validation: the second does not wait for the first."""
    receiver = Receiver().start()
    transport = Transport(receiver.url, "t")
    result = "{'benchmarks': [{'benchmark': 'gemm', 'state': 'ok'}]}"
    validator = ValidationProcess((sys.executable, "-c", f"import json; print(json.dumps({result}))"))
    deadline = time.time() + 300
    who = describe_node(HostConfig().build().devices(), catalog(SignalSource.HOST), cohort=None, started_at=1.0)
    validate = ValidationTask(id="o1", kind="validate", suite="quick", validation_id="v1", deadline_at=deadline)
    with Spool(tmp_path) as spool:
        outbox = ResultOutbox(spool, transport)
        control = TaskLoop("n0", transport, validator, outbox, pair_command=says("time.sleep(600)"))
        with outbox:
            control.start()
            control.report(who)
            receiver.orders = [msgspec.to_builtins(one) for one in (order(id="p1", deadline_at=deadline), validate)]
            receiver.wait(lambda r: "v1" in r.results)
            control.stop()
    receiver.away()
