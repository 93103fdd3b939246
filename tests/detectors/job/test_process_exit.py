"""An exit is a finding unless it was asked for, and its words say how the process ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.detectors.job.process_exit import ProcessExitDetector, how_it_ended
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity


def event(number: int, kind: EventKind = EventKind.PROCESS_EXIT, **over: Any) -> Event:
    given = {"node": "node-b", "job": "demo", "rank": 3, "data": {"pid": 7, "signal": 9, "expected": False}} | over
    return Event(**({"id": f"e{number}", "time": 100.0 + number, "kind": kind} | given))


def example(seed: int) -> list[Event]:
    return [
        event(seed),
        event(1000 + seed, rank=1, data={"exit_code": 1, "expected": False}),
        event(2000 + seed, EventKind.NODE_LOST, rank=None, data={}),
        event(3000 + seed, EventKind.RECOVERY_COMPLETED, rank=None, node=None, data={}),
    ] * 3


def later(events: list[Event], repetition: int) -> list[Event]:
    return [replace(e, id=f"{e.id}-{repetition}") for e in events]


def test_a_killed_rank_is_a_critical_finding_with_its_event() -> None:
    (finding,) = ProcessExitDetector().update([event(1)])
    assert (finding.kind, finding.severity, finding.confidence) == (FindingKind.PROCESS_EXIT, Severity.CRITICAL, 1.0)
    assert (finding.entity.job, finding.entity.rank, finding.entity.node) == ("demo", 3, "node-b")
    assert (finding.event, finding.time) == ("e1", 101.0)
    assert finding.evidence.summary == "Rank 3 of job demo was killed by SIGKILL (signal 9) on node node-b."
    assert finding.evidence.numbers == {"pid": 7.0, "signal": 9.0, "unicron_severity": 2.0}


def test_an_exit_that_was_asked_for_is_no_finding() -> None:
    assert ProcessExitDetector().update([event(1, data={"exit_code": -15, "expected": True})]) == []


@pytest.mark.parametrize("data", [{}, {"exit_code": 0}, {"exit_code": 0, "expected": None}])
def test_what_is_not_said_to_be_expected_is_not(data: dict[str, Any]) -> None:
    (finding,) = ProcessExitDetector().update([event(1, data=data)])
    assert finding.active
    assert finding.severity is Severity.CRITICAL


def test_a_retry_changes_nothing() -> None:
    detector = ProcessExitDetector()
    assert len(detector.update([event(1), event(1)])) == 1
    assert detector.update([event(1)]) == []


def test_recovery_clears_what_was_said_about_that_job_only() -> None:
    detector = ProcessExitDetector()
    detector.update([event(1), event(2, job="other")])
    cleared = detector.update([event(3, EventKind.RECOVERY_COMPLETED, rank=None)])
    assert [(f.entity.job, f.active, f.time) for f in cleared] == [("demo", False, 103.0)]
    assert detector.update([event(4, EventKind.RECOVERY_COMPLETED, rank=None)]) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"signal": 11}, "was killed by SIGSEGV (signal 11)"),
        ({"signal": "SIGKILL"}, "was killed by SIGKILL"),
        ({"signal": 99}, "was killed by signal 99"),
        ({"exit_code": -9}, "was killed by SIGKILL (signal 9)"),
        ({"signal": 0}, "was killed by signal 0"),
        ({"exit_code": 137}, "exited with code 137, which a shell gives for SIGKILL (signal 9)"),
        ({"exit_code": 128}, "exited with code 128"),
        ({"exit_code": 129}, "exited with code 129, which a shell gives for SIGHUP (signal 1)"),
        ({"exit_code": 192}, "exited with code 192, which a shell gives for SIGRTMAX (signal 64)"),
        ({"exit_code": 193}, "exited with code 193"),
        ({"exit_code": -1}, "was killed by SIGHUP (signal 1)"),
        ({"exit_code": 1, "signal": None}, "exited with code 1"),
        ({"exit_code": 0}, "exited with code 0"),
        ({}, "ended in an unknown way"),
        ({"exit_code": "odd"}, "ended in an unknown way"),
        ({"exit_code": True}, "ended in an unknown way"),
    ],
)
def test_the_words_say_how_it_ended(data: dict[str, Any], words: str) -> None:
    assert how_it_ended(data) == words


def test_an_exception_is_part_of_the_sentence() -> None:
    (finding,) = ProcessExitDetector().update(
        [event(1, data={"exit_code": 1, "error": "Traceback...\nValueError: bad shape."})]
    )
    assert finding.evidence.summary.endswith("exited with code 1 on node node-b: ValueError: bad shape.")


def test_a_lost_node_is_named_with_its_reason() -> None:
    lost = event(1, EventKind.NODE_LOST, rank=None, data={"reason": "connection reset"})
    (finding,) = ProcessExitDetector().update([lost])
    assert finding.kind is FindingKind.NODE_LOST
    assert finding.evidence.summary == "Node node-b is lost: connection reset."


LOST_PEER = ["RuntimeError: [pair.cc:534] Connection closed by peer [10.1.0.7]:41213"]


def test_the_first_failure_stays_first_whatever_comes_first() -> None:
    first = event(3, rank=2, data={"exit_code": 1, "expected": False, "error": "ValueError: bad shape."})
    follower = event(1, rank=0, data={"exit_code": 1, "expected": False, "tail": LOST_PEER})
    late = event(5, rank=1, data={"exit_code": 1, "expected": False, "tail": LOST_PEER})
    found = ProcessExitDetector().update([follower, first, late])
    told = [(f.entity.rank, f.severity, f.cause) for f in found]
    assert told == [
        (0, Severity.CRITICAL, Cause.COLLECTIVE_TIMEOUT),
        (2, Severity.CRITICAL, Cause.SOFTWARE),
        (0, Severity.WARNING, Cause.COLLECTIVE_TIMEOUT),
        (1, Severity.WARNING, Cause.COLLECTIVE_TIMEOUT),
    ]
    assert found[2].evidence.summary.endswith("It only lost its peer: rank 2 failed first.")


def test_an_end_long_before_is_no_first_failure() -> None:
    first = event(1, rank=2, data={"exit_code": 1, "expected": False})
    (_, late) = ProcessExitDetector().update([first, event(60, rank=1, data={"exit_code": 1, "tail": LOST_PEER})])
    assert late.severity is Severity.CRITICAL


@pytest.mark.parametrize("late", [False, True])
def test_a_drivers_code_of_the_same_node_says_why(late: bool) -> None:
    xid = Event(
        id="x", time=110.0 if late else 95.0, kind=EventKind.XID, node="node-b", device="gpu0", data={"code": 79}
    )
    found = ProcessExitDetector().update([event(1), xid] if late else [xid, event(1)])
    last = found[-1]
    assert len(found) == 1 + late
    assert (last.cause, last.recommended_action) == (Cause.FAULTY_GPU, RecommendedAction.REBOOT_NODE)
    assert last.evidence.summary.endswith("XID 79: the GPU fell off the bus (SEV1).")


@pytest.mark.parametrize("over", [{"node": "node-c"}, {"time": 150.0}, {"data": {"code": 79, "pid": 8}}])
def test_a_code_of_another_place_time_or_process_says_nothing(over: dict[str, Any]) -> None:
    given = {"id": "x", "time": 95.0, "kind": EventKind.XID, "node": "node-b", "data": {"code": 79}} | over
    (finding,) = ProcessExitDetector().update([Event(**given), event(1)])
    assert finding.cause is None


K = EventKind


@pytest.mark.parametrize(
    ("kind", "fact", "end", "words"),
    [
        (K.GPU_LOST, {"device": "gpu0"}, {"device": "gpu0"}, "A GPU of its node is lost"),
        (K.GPU_LOST, {"device": "gpu0"}, {}, "A GPU of its node is lost"),
        (K.GPU_LOST, {}, {"device": "gpu0"}, "A GPU of its node is lost"),
        (K.GPU_LOST, {"device": "gpu1"}, {"device": "gpu0"}, ""),
        (K.GPU_LOST, {"data": {"cleared": True}}, {}, ""),
        (K.GPU_LOST, {"data": {"cleared": False}}, {}, "A GPU of its node is lost"),
        (K.GPU_LOST, {"time": 71.0}, {}, "A GPU of its node is lost"),
        (K.GPU_LOST, {"time": 70.9}, {}, ""),
        (K.GPU_LOST, {"time": 131.0}, {}, "A GPU of its node is lost"),
        (K.GPU_LOST, {"time": 131.1}, {}, ""),
        (K.KERNEL_FAULT, {"data": {"fault": "oom", "pid": 7}}, {}, "The kernel killed it for want of memory"),
        (K.KERNEL_FAULT, {"data": {"fault": "oom", "pid": 8}}, {}, ""),
        (K.KERNEL_FAULT, {"data": {"fault": "oom"}}, {}, ""),
        (K.KERNEL_FAULT, {"data": {"fault": "nvme", "pid": 7}}, {}, ""),
        (K.XID, {"data": {"code": "79"}}, {}, ""),
        (K.XID, {"data": {"code": True}}, {}, ""),
    ],
)
def test_which_facts_of_a_node_explain_an_end(
    kind: EventKind, fact: dict[str, Any], end: dict[str, Any], words: str
) -> None:
    given = {"id": "f", "time": 100.0, "kind": kind, "node": "node-b", "data": {}} | fact
    (found,) = ProcessExitDetector().update([Event(**given), event(1, **end)])
    assert found.evidence.summary.count(words or " (SEV") == bool(words)


def test_a_retry_hides_nothing_that_follows_and_an_end_of_no_one_is_none() -> None:
    nowhere = event(3, node=None, job=None, rank=None)
    found = ProcessExitDetector().update([event(1), event(1), nowhere, event(2, rank=4)])
    assert [f.entity.rank for f in found] == [3, 4]
    (found_alone,) = ProcessExitDetector().update([event(3, job=None, rank=None)])
    assert found_alone.evidence.summary == "A process was killed by SIGKILL (signal 9) on node node-b."


def test_a_first_failure_is_of_the_same_job() -> None:
    other = event(1, job="another", rank=2, data={"exit_code": 1, "expected": False})
    late = event(2, job="demo", rank=1, data={"exit_code": 1, "tail": LOST_PEER})
    for first, second in ((other, late), (replace(other, job="zebra"), late)):
        assert ProcessExitDetector().update([first, second])[1].severity is Severity.CRITICAL


def test_a_thousand_ranks_at_once_are_judged_in_time() -> None:
    data = {"exit_code": 1, "expected": False, "tail": LOST_PEER * 20}
    burst = [event(n, rank=n, time=100.0 + n / 1e4, data=data) for n in range(1000)]
    first = event(5000, rank=1001, time=100.5, data={"signal": 11, "expected": False})
    found = ProcessExitDetector().update([*burst, first])
    assert len(found) == 2001
    assert {f.severity for f in found[1001:]} == {Severity.WARNING}
