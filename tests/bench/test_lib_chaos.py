"""The oracle of ``bench.chaos`` finds what is lost, doubled, or wrong."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from bench.lib_chaos import Oracle
from bench.lib_chaos_disk import frames_of
from bench.lib_chaos_job import compare_recoveries
from bench.soak import growth
from mainstay.probes.bundle import encode_bundle, pack
from mainstay.probes.frame import encode
from tests.probes.relay_frames import frame

Finding = tuple[str, str, bool, str | None]
XID: Finding = ("n1", "xid", True, "e1")
LOST: Finding = ("n2", "node_lost", True, None)


@pytest.fixture
def oracle() -> Oracle:
    made = Oracle(events={"e1": "n1"}, holds={"n2": "node_lost", "n3": "power_brake"})
    for sequence in (1, 2):
        made.send(("r", "s", sequence), b"body %d" % sequence)
        made.acknowledge(("r", "s", sequence))
    made.send(("r", "s", 3), b"body 3")
    return made


def row(sequence: int, count: int = 1, body: bytes = b"") -> tuple[str, str, int, int, str]:
    body = body or b"body %d" % sequence
    return "r", "s", sequence, count, hashlib.md5(body, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("stored", "wrong"),
    [
        ([row(1), row(2)], {}),
        ([row(1), row(2), row(3)], {}),  # stored, and the acknowledgement was lost
        ([row(1)], {"lost": 1}),
        ([row(1), row(2, 2)], {"doubled": 1}),
        ([row(1), row(2, body=b"other")], {"changed": 1}),
        ([row(1), row(2), row(3, 2, b"other")], {"doubled": 1, "changed": 1}),
    ],
)
def test_blocks(oracle: Oracle, stored: list[Any], wrong: dict[str, int]) -> None:
    assert +oracle.compare_blocks(stored) == wrong


@pytest.mark.parametrize(
    ("evaluated", "findings", "cleared", "wrong"),
    [
        (["e1"], [XID, LOST], [], {}),
        ([], [LOST], [], {"lost": 1, "wrong": 1}),
        (["e1"], [LOST], [], {"wrong": 1}),
        (["e1"], [XID, XID, LOST], [], {"wrong": 1}),
        (["e1"], [("n1", "xid", True, "another"), LOST], [], {"wrong": 1}),
        (["e1"], [("n1", "xid", False, "e1"), LOST], [], {"wrong": 1}),
        (["e1"], [XID, LOST], [("n2", "node_lost"), ("n9", "node_lost")], {"cleared": 1}),
        (["e1"], [XID, LOST, ("n9", "node_lost", False, None)], [], {"invented": 1}),
    ],
)
def test_events(
    oracle: Oracle, evaluated: list[str], findings: list[Any], cleared: list[Any], wrong: dict[str, int]
) -> None:
    del oracle.holds["n3"]
    assert +oracle.compare_events(evaluated, findings, cleared) == wrong


def test_states(oracle: Oracle) -> None:
    names = ["n1", "n2", "n3", "n4"]
    right = {"n1": "suspect", "n2": "unknown", "n3": "suspect", "n4": "healthy"}
    assert oracle.wrong_states(right, names) == []
    assert oracle.wrong_states(right | {"n2": "healthy"}, names) == ["n2"]
    assert oracle.wrong_states(right | {"n4": "suspect"}, names) == ["n4"]
    assert oracle.wrong_states({}, names) == names, "a node that is not there is wrong"


def test_the_first_acknowledgement_after_a_moment(oracle: Oracle) -> None:
    oracle.acks = [1.0, 2.0, 4.0]
    assert [oracle.first_ack(at) for at in (0.0, 2.0, 2.5, 4.5)] == [1.0, 2.0, 4.0, None]


def test_growth_is_that_of_the_line() -> None:
    assert growth([100.0] * 5) == pytest.approx(0.0)
    assert growth([90.0, 100.0, 110.0]) == pytest.approx(20.0)


TOLD = [
    {"id": "e1", "kind": "process_exit", "data": {}},
    {"id": "e2", "kind": "recovery_planned", "data": {"recovery": "r1", "plan": {"id": "p1"}}},
    {"id": "e3", "kind": "recovery_completed", "data": {"recovery": "r1"}},
    {"id": "e4", "kind": "recovery_verified", "data": {"recovery": "r1"}},
    {"id": "e5", "kind": "recovery_planned", "data": {"recovery": "r2", "plan": {"id": "p2"}}},
    {"id": "e6", "kind": "recovery_completed", "data": {"recovery": "r2"}},
]
"""The second recovery was cut short by the end of the job."""


@pytest.mark.parametrize(
    ("events", "recoveries", "wrong"),
    [
        (["e1", "e2", "e3", "e4", "e5", "e6"], {"r1": "verified", "r2": "recovered"}, {}),
        (["e1", "e2", "e3", "e4", "e6"], {"r1": "verified", "r2": "recovered"}, {"unheard": 1}),
        (["e1", "e2", "e3", "e4", "e5", "e6"], {"r1": "verified"}, {"lost": 1}),
        (["e1", "e2", "e3", "e4", "e5", "e6"], {"r1": "recovered", "r2": "recovered"}, {"wrong": 1}),
        (["e1", "e2", "e3", "e4", "e5", "e6"], {"r1": "verified", "r2": "recovered", "p2": "recovering"},
         {"invented": 1}),
        ([], {}, {"unheard": 6, "lost": 2}),
    ],
)  # fmt: skip
def test_recoveries(events: list[str], recoveries: dict[str, str | None], wrong: dict[str, int]) -> None:
    assert +compare_recoveries(TOLD, events, recoveries) == wrong


def test_frames_are_found_in_bundles_and_alone() -> None:
    bundle = encode_bundle(pack([frame("a", 1), frame("b", 7)], relay="r", stream="s", sequence=1))
    stored = frames_of([("bundle", bundle), ("time", encode(frame("a", 1))), ("time", encode(frame("a", 2)))])
    assert stored == {("a", 1): 2, ("a", 2): 1, ("b", 7): 1}
