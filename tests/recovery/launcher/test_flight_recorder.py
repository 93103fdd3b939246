"""At a hang all ranks are asked for their flight recorders, and one event says what they show and who is missing."""

from __future__ import annotations

import asyncio
import json
import zlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstay.probes import torch_private
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.launcher_connection import LauncherConnection
from mainstay.recovery.controller.monitors import flight_recorder as monitor
from mainstay.recovery.controller.monitors.flight_recorder import FlightRecorderCollector
from mainstay.recovery.membership.members import NodeMember, RankMember
from mainstay.recovery.protocol.messages import DumpFlightRecorders
from mainstay.recovery.protocol.worker_messages import FlightRecorderDump
from mainstay.recovery.sdk import flight_recorder


def recorded(*, entered: int, completed: int, calls: int = 1) -> bytes:
    """As torch writes it: a group of three ranks, of which this one has entered a call that it has not left, or not."""
    entries = [
        {
            "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "op_id": number,
            "profiling_name": "gloo:all_reduce", "is_p2p": False, "time_created_ns": number,
            "state": "completed" if number <= completed else "scheduled", "retired": number <= completed,
        }
        for number in range(entered - calls + 1, entered + 1)
    ]  # fmt: skip
    status = {"last_enqueued_collective": str(entered), "last_started_collective": "-1"}
    return json.dumps({
        "version": "2.10", "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {**status, "last_completed_collective": str(completed)}},
    }).encode()  # fmt: skip


class Hang:
    """A job of three ranks on one node that answers as ``answers`` says."""

    def __init__(self, answers: dict[int, FlightRecorderDump]) -> None:
        self.answers = answers
        self.events: list[dict[str, Any]] = []
        options = SimpleNamespace(
            nnodes=1, nproc=3, spare_nodes=0, disk_every=0, parity_every=0, on_loss="wait", dp=0, pp=0, tp=0
        )
        reporter = SimpleNamespace(
            event=lambda kind, data, **about: self.events.append({"kind": kind, "data": data, **about})
        )
        self.job = Job(cast("Any", options), cast("Any", reporter), cast("Any", None))
        stream = SimpleNamespace(send=self._hear)
        hello = SimpleNamespace(node="a")
        self.job.members.nodes["a"] = NodeMember(cast("Any", hello), "", 0)
        self.job.connections["a"] = LauncherConnection(cast("Any", stream), 0.0)
        self.job.members.ranks = [RankMember(number, "a", pid=100 + number) for number in range(3)]
        self.collector = FlightRecorderCollector(self.job)

    def _hear(self, message: DumpFlightRecorders) -> None:
        assert message.ranks == (0, 1, 2)
        for rank, answer in self.answers.items():
            self.collector.add_answer(rank, answer)

    def diagnose(self) -> dict[str, Any]:
        asyncio.run(self.collector.diagnose("rank 1 hangs", [1]))
        found: dict[str, Any] = self.events[0]["data"] if self.events else {}
        return found


def answer(content: bytes, request: int = 1, problem: str = "") -> FlightRecorderDump:
    return FlightRecorderDump(request=request, content=content, problem=problem)


def test_the_rank_that_did_not_come_is_named() -> None:
    waiting = answer(zlib.compress(recorded(entered=5, completed=4)))
    behind = answer(zlib.compress(recorded(entered=4, completed=4)))
    found = Hang({0: waiting, 1: behind, 2: waiting}).diagnose()
    assert [culprit["rank"] for culprit in found["culprits"]] == [1]
    assert (found["kind"], found["certain"], found["ranks_missing"]) == ("noncomm_hang", True, [])
    assert found["reason"] == "rank 1 hangs"
    assert "1" in found["summary"]


def test_without_every_dump_nothing_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "ANSWER_SECONDS", 0.05)
    waiting = answer(zlib.compress(recorded(entered=5, completed=4)))
    late = answer(zlib.compress(recorded(entered=4, completed=4)), request=0)
    found = Hang({0: waiting, 1: late, 2: waiting}).diagnose()
    assert (found["certain"], found["ranks_missing"], found["ranks_read"]) == (False, [1], 2)


@pytest.mark.parametrize(
    ("spoiled", "problem"),
    [
        (answer(b"", problem="this torch has none"), "this torch has none"),
        (answer(b"no zlib"), "header"),
        (answer(zlib.compress(b"<html>")), "not a flight-recorder dump"),
        (answer(zlib.compress(recorded(entered=5, completed=4))[:-9]), "cut short"),
        (answer(zlib.compress(b" " * (17 << 20))), "more than"),
    ],
)
def test_a_dump_that_cannot_be_used_is_missing_with_its_reason(spoiled: FlightRecorderDump, problem: str) -> None:
    waiting = answer(zlib.compress(recorded(entered=5, completed=4)))
    found = Hang({0: waiting, 1: spoiled, 2: waiting}).diagnose()
    assert found["ranks_missing"] == [1]
    assert problem in found["problem"]
    assert not found["certain"]


def test_no_dump_is_no_event() -> None:
    assert Hang(dict.fromkeys(range(3), answer(b"", problem="none"))).diagnose() == {}


def test_a_rank_keeps_open_calls_and_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "NEWEST", 3)
    told = json.loads(recorded(entered=9, completed=8, calls=9))
    told["entries"][0]["state"], told["entries"][0]["retired"] = "scheduled", False
    monkeypatch.setattr(torch_private, "flight_recorder", lambda: json.dumps(told).encode())
    sent = flight_recorder.dump(7)
    assert (sent.request, sent.problem) == (7, "")
    kept = json.loads(zlib.decompress(sent.content))
    assert [entry["op_id"] for entry in kept["entries"]] == [1, 7, 8, 9]
    assert kept["pg_status"] == told["pg_status"]


def test_a_rank_says_why_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MAX_BYTES", 10)
    monkeypatch.setattr(torch_private, "flight_recorder", lambda: recorded(entered=5, completed=4))
    assert "more than the 10 of one message" in flight_recorder.dump(1).problem
    monkeypatch.undo()
    monkeypatch.setattr(torch_private, "FLIGHT_RECORDER", ("torch._not_there", "torch._nor_this"))
    assert "torch._nor_this" in flight_recorder.dump(1).problem
