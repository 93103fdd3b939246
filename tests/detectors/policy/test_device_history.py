"""What a device's history keeps of events, and which of them are one burst: boundaries and bounds."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.policy.device_history import (
    KEPT_BURSTS,
    Burst,
    DeviceHistory,
    base_evicts,
    keep_mark,
    plain,
)
from mainstay.detectors.policy.load import load
from mainstay.detectors.policy.model import Family
from mainstay.probes.core_types import Event, EventKind

NEW = 'title = "t"\ngroup = "firmware"\nseverity = "{}"\nrecommended_action = "{}"\n'
POLICY = load(
    "[xid.900]\n" + NEW.format("info", "none")
    + "[xid.901]\necho = true\n" + NEW.format("info", "none")
    + "[xid.902]\nleads = true\n" + NEW.format("critical", "reset_gpu")
)  # fmt: skip


def event(time: float, job: str | None = None, **data: Any) -> Event:
    return Event(id=f"e{time:g}", time=time, kind=EventKind.XID, node="n", device="g", job=job, data=data)


def burst(*events: Event) -> Burst:
    made = Burst(family=Family.XID, code=900, first=events[0].time, last=events[0].time, event=events[0].id)
    for one in events:
        made.add_event(one)
    return made


def bursts(code: int, *events: Event, boots: tuple[float, ...] = (), resets: tuple[float, ...] = ()) -> int:
    history = DeviceHistory(resets=list(resets))
    new = [history.record_event(one, Family.XID, code, POLICY, boots)[1] for one in events]
    assert sum(new) == len(history.bursts)
    return sum(new)


@pytest.mark.parametrize(
    ("data", "count"),
    [({}, 1), ({"count": 7}, 7), ({"repeats": 5}, 5), ({"count": 3, "repeats": 5}, 3), ({"count": 0}, 1),
     ({"count": -4}, 1), ({"count": 10**9}, 10**9), ({"count": 10**9 + 1}, 10**9), ({"count": True}, 1),
     ({"count": "9"}, 1)],
)  # fmt: skip
def test_lines_of_an_event(data: dict[str, Any], count: int) -> None:
    assert burst(event(1.0, **data)).count == count


def test_two_sources_report_the_same_lines() -> None:
    told = burst(event(1.0, source="nvml", count=2), event(2.0, source="kernel", count=3), event(3.0, source="nvml"))
    assert (told.counts, told.count) == ({"nvml": 3, "kernel": 3}, 3)
    assert (told.first, told.last) == (1.0, 3.0)
    assert burst(event(5.0), event(3.0)).first == 3.0
    assert list(burst(event(1.0, source="x" * 17)).counts) == ["x" * 16]
    assert Burst(family=Family.XID, code=1, first=0.0, last=0.0, event="").count == 0


def test_the_longest_line_tells_most() -> None:
    told = burst(event(1.0, text="ab"), event(2.0, text="abcd"), event(3.0, text="efgh"), event(4.0, text=5))
    assert (told.text, told.event) == ("abcd", "e2")
    long = burst(event(1.0, text="x" * 401), event(2.0, text="y" * 500))
    assert (long.text, long.event) == ("x" * 400, "e1")
    almost = burst(event(1.0, text="x" * 399), event(2.0, text="y" * 500))
    assert (almost.text, almost.event) == ("y" * 400, "e2")


@pytest.mark.parametrize(
    ("flags", "said"), [((), "a"), ((True,), "a fatal"), ((False,), "a nonfatal"), ((False, True, False), "a fatal")]
)
def test_a_line_is_compared_with_the_word_that_data_gives(flags: tuple[bool, ...], said: str) -> None:
    assert burst(event(1.0, text="A"), *(event(2.0, fatal=flag) for flag in flags)).message_text == said
    assert plain("Non-Fatal ÄSS") == "nonfatal äss"


@pytest.mark.parametrize(
    ("text", "registers"),
    [
        ("XID (0x1) at (0x10, 0xFF,0x0)", (16, 255, 0)),
        ("no (numbers) here", ()),
        ("(0x1, x)", ()),
        ("(" + ", ".join(["0xa"] * 17) + ")", (10,) * 16),
    ],
)
def test_registers_stand_in_the_last_parentheses(text: str, registers: tuple[int, ...]) -> None:
    assert burst(event(1.0, text=text)).registers == registers


def test_places_links_jobs_and_processes_are_collected() -> None:
    told = burst(
        event(1.0, "j1", text="Graphics Exception on (GPC 1, TPC 22): link 3", pid=7),
        event(2.0, "j2", gpc=0, tpc=0, link=0, pid=0, text="GPC 9 TPC 9 link 9"),
        event(3.0, gpc=5, text="gpc2/tpc3 LINK17"),
        event(4.0, pid=True, text="nothing"),
    )
    assert told.places == {(1, 22), (0, 0), (2, 3)}
    assert told.links == {3, 0, 17}
    assert (told.jobs, told.processes) == ({"j1", "j2"}, {7, 0})
    many = burst(*(event(float(n), f"j{n}", pid=n, link=n, gpc=n, tpc=n) for n in range(12)))
    assert [len(each) for each in (many.jobs, many.processes, many.links, many.places)] == [8] * 4


def test_the_least_uptime_counts() -> None:
    assert burst(event(1.0, uptime=500), event(2.0, uptime=30.5), event(3.0, uptime=True)).uptime == 30.5
    assert burst(event(1.0)).uptime is None


@pytest.mark.parametrize(
    ("times", "count"),
    [((0.0, 60.0), 1), ((0.0, 60.1), 2), ((0.0, 60.0, 120.0), 1), ((100.0, 40.0), 1), ((100.0, 39.9), 2)],
)
def test_what_comes_within_a_minute_is_one_burst(times: tuple[float, ...], count: int) -> None:
    assert bursts(900, *map(event, times)) == count
    assert bursts(901, *(event(10 * time) for time in times)) == count, "an echo has ten minutes"


@pytest.mark.parametrize(("mark", "count"), [(0.0, 1), (0.1, 2), (10.0, 2), (10.1, 1)])
def test_a_boot_or_a_reset_begins_another_burst(mark: float, count: int) -> None:
    assert bursts(900, event(0.0), event(10.0), boots=(mark,)) == count
    assert bursts(900, event(0.0), event(10.0), resets=(mark,)) == count


def test_two_conclusions_of_the_driver_that_differ_are_two() -> None:
    assert bursts(902, event(0.0, text="a"), event(1.0, text="b")) == 2
    assert bursts(902, event(0.0, text="a"), event(1.0, text="a"), event(2.0)) == 1
    assert bursts(902, event(0.0), event(1.0, text="a")) == 1
    assert bursts(902, event(0.0, text="x" * 401), event(1.0, text="x" * 402)) == 1
    assert bursts(900, event(0.0, text="a"), event(1.0, text="b")) == 1, "only of a code that leads"


def test_the_oldest_of_the_mildest_is_forgotten_first() -> None:
    history = DeviceHistory()
    for n in range(KEPT_BURSTS):
        history.record_event(event(1000.0 * n), Family.XID, 902 if n % 2 == 0 else 900, POLICY)
    assert len(history.bursts) == 24
    for n in range(24, 37):
        history.record_event(event(1000.0 * n), Family.XID, 902, POLICY)
    kept = [one.last / 1000 for one in history.bursts]
    assert kept == [*range(2, 24, 2), *range(24, 37)], "first the twelve mild ones, then the oldest"
    assert [base_evicts(POLICY, burst(event(1.0))), base_evicts(POLICY, history.bursts[0])] == [False, True]


def test_times_of_repair_are_kept_apart_and_the_last_eight() -> None:
    marks: list[float] = []
    assert [keep_mark(marks, time) for time in (100.0, 129.9, 130.0, 70.1, 70.0)] == [True, False, True, False, True]
    assert marks == [70.0, 100.0, 130.0]
    for time in range(1000, 1700, 100):
        keep_mark(marks, float(time))
    assert marks == [130.0, *(float(time) for time in range(1000, 1700, 100))]
    assert not keep_mark(marks, 1605.0)
    assert keep_mark(marks, 1605.0, apart=5.0)
