"""Bursts are counted and never dropped; two reports of one XID are one event."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.event_rate_limit import DuplicateXidFilter, EventRateLimiter
from mainstay.probes.samplers.base import SourceEvent

ids = count()


def event(t: float, kind: EventKind = EventKind.XID, device: str | None = "gpu-0", **data: object) -> Event:
    return Event(id=f"e{next(ids)}", time=t, kind=kind, node="n", device=device, data=data)


def run(events: list[tuple[float, Event]], until: float = 1e6) -> list[tuple[float, Event]]:
    """Feed events at monotonic times and let the clock run on: what went out, and when."""
    bursts, out = EventRateLimiter(lambda: f"s{next(ids)}"), list[tuple[float, Event]]()

    def settle(now: float) -> None:
        while (due := bursts.next_due()) is not None and due <= now:
            out.extend((due, said) for said in bursts.due(due))

    for now, happened in events:
        settle(now)
        out.extend((now, said) for said in bursts.admit(happened, now))
    settle(until)
    return out


def count_events(said: list[tuple[float, Event]]) -> int:
    return sum(e.data.get("count", 1) for _, e in said)


def test_a_flood_of_xid_45_is_a_handful_of_events_that_count_all_of_it() -> None:
    flood = [(100 + k / 1000, event(5000 + k / 1000, code=45)) for k in range(11_760)]
    said = run(flood)
    assert [at for at, _ in said[:3]] == [100.0, 100.001, 100.002], "the first few at once"
    assert len(said) <= 5
    assert count_events(said) == 11_760
    last = said[-1][1]
    assert last.data["last"] == last.time == pytest.approx(5000 + 11.759)
    assert last.data["first"] < last.data["last"]
    assert len({e.id for _, e in said}) == len(said)


def test_what_is_rare_is_never_held_back() -> None:
    said = run([(t, event(t, code=31)) for t in range(0, 1000, 11)])
    assert [at for at, _ in said] == list(range(0, 1000, 11))
    assert all("count" not in e.data for _, e in said)


def test_a_flapping_link_ends_in_the_state_that_it_is_in() -> None:
    flap = [
        (k / 10, event(k / 10, EventKind.LINK_DOWN if k % 2 else EventKind.LINK_UP, "nic:a:1", link="a"))
        for k in range(302)
    ]
    said = run(flap)
    assert len(said) <= 6 + 2 * 4, "one of each kind every ten seconds"
    assert count_events(said) == 302
    assert said[-1][1].kind is EventKind.LINK_DOWN
    assert [e.time for _, e in said] == sorted(e.time for _, e in said)


def test_falls_of_a_link_are_added_up() -> None:
    said = run([(k / 10, event(k / 10, EventKind.LINK_DOWN, "nic:a:1", link="a", flaps=4)) for k in range(53)])
    assert sum(e.data["flaps"] for _, e in said) == 53 * 4


def test_different_things_have_their_own_first_few() -> None:
    said = run([(k / 100, event(k, code=13, gpc=k % 5, tpc=1)) for k in range(15)])
    assert len(said) == 15
    said = run([(0.0, event(0, device=f"gpu-{k % 8}", code=45)) for k in range(24)])
    assert len(said) == 24


def test_a_fault_and_its_end_are_told_apart() -> None:
    bursts = EventRateLimiter()
    for k in range(3):
        assert bursts.admit(event(k, EventKind.PROBE_UNRESPONSIVE, channel="a"), k)
    assert not bursts.admit(event(3, EventKind.PROBE_UNRESPONSIVE, channel="a"), 3)
    assert bursts.admit(event(4, EventKind.PROBE_UNRESPONSIVE, channel="a", cleared=True), 4)


def test_more_kinds_of_events_than_are_remembered_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.probes.event_rate_limit._FLOWS", 10)
    said = run([(k / 1000, event(k, code=k % 50)) for k in range(1000)])
    assert count_events(said) == 1000


def held_back(bursts: EventRateLimiter) -> None:
    """Of five of one kind three go out, two wait."""
    assert [len(bursts.admit(event(k, code=45), k)) for k in range(5)] == [1, 1, 1, 0, 0]


def test_what_waits_longer_than_a_flow_is_remembered_is_said_all_the_same() -> None:
    """The thread that says it was late: the calm that restarts a flow must not forget what it held."""
    bursts = EventRateLimiter()
    held_back(bursts)
    assert bursts.admit(event(500, code=45), 500.0) == []
    (said,) = bursts.due(500.0)
    assert (said.data["count"], said.data["first"], said.data["last"]) == (3, 3, 500)


def test_what_is_pushed_out_is_said_with_all_that_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.probes.event_rate_limit._FLOWS", 1)
    bursts = EventRateLimiter()
    held_back(bursts)
    said = [one for k in range(4) for one in bursts.admit(event(5 + k, code=31), 5.0 + k)]
    assert [(e.data["code"], e.data.get("count")) for e in said] == [(31, None)] * 3 + [(45, 2)]


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 3)), max_size=200))
def test_nothing_is_ever_lost_and_nothing_waits_longer_than_ten_seconds(steps: list[tuple[float, int]]) -> None:
    now, fed = 0.0, []
    for delay, code in steps:
        now += delay * 0.1
        fed.append((now, event(now, code=code)))
    said = run(fed)
    assert count_events(said) == len(fed)
    assert all(at - e.data.get("first", at) <= 10.0 + 1e-6 for at, e in said)


def xid(source: str, code: int = 79, device: str = "gpu-0", **data: object) -> SourceEvent:
    return SourceEvent(kind=EventKind.XID, t=1.0, device=device, data={"code": code, "source": source} | data)


def test_an_xid_seen_by_both_is_said_once_with_the_details() -> None:
    duplicates = DuplicateXidFilter(0.3)
    assert duplicates.admit(xid("nvml"), 0.0) == []
    (said,) = duplicates.admit(xid("kernel", text="it fell"), 0.05)
    assert said.data["text"] == "it fell"
    assert duplicates.due(10.0) == []
    assert duplicates.admit(xid("kernel", code=31), 20.0)
    assert duplicates.admit(xid("nvml", code=31), 20.1) == [], "the kernel was first"
    assert duplicates.next_due() is None


def test_what_only_one_source_saw_is_said() -> None:
    duplicates = DuplicateXidFilter(0.3)
    duplicates.admit(xid("nvml"), 0.0)
    assert duplicates.next_due() == 0.3
    assert len(duplicates.due(0.3)) == 1
    assert len(duplicates.admit(xid("kernel", code=13), 0.4)) == 1
    (late,) = duplicates.admit(xid("kernel"), 0.5)
    assert late.data["duplicate"] is True, "the same again, with the details"
    assert len(duplicates.admit(xid("nvml"), 30.0)) == 0
    assert "duplicate" not in duplicates.admit(xid("kernel"), 30.1)[0].data
    assert len(duplicates.admit(xid("nvml", device="gpu-1"), 31.0) + duplicates.due(32.0)) == 1


def test_without_a_kernel_log_nothing_waits() -> None:
    duplicates = DuplicateXidFilter(0.0)
    assert duplicates.admit(xid("nvml"), 0.0) == [xid("nvml")]


def test_two_times_the_same_from_both_are_two() -> None:
    duplicates = DuplicateXidFilter(0.3)
    said = [*duplicates.admit(xid("nvml"), 0.0), *duplicates.admit(xid("nvml"), 0.01)]
    said += [*duplicates.admit(xid("kernel"), 0.02), *duplicates.admit(xid("kernel"), 0.03)]
    assert len(said + duplicates.due(9.0)) == 2


def test_the_two_lines_of_one_kill_are_one_event() -> None:
    duplicates = DuplicateXidFilter(0.3)

    def kill(pid: int) -> SourceEvent:
        return SourceEvent(kind=EventKind.KERNEL_FAULT, t=1.0, data={"fault": "oom", "fields": {"pid": pid}})

    assert [len(duplicates.admit(kill(pid), k / 100)) for k, pid in enumerate((7, 7, 8, 8, 7))] == [1, 0, 1, 0, 1]
