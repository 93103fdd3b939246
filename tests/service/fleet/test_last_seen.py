"""The report times of nodes in memory: what is kept, what is known of a node, and what is written when."""

from __future__ import annotations

import numpy as np

from mainstay.service.fleet.last_seen import LastSeenCache


def test_nothing_is_known_of_a_node_that_did_not_report() -> None:
    seen = LastSeenCache()
    assert seen.latest() is None
    assert seen.get("n1") is None
    assert np.isnan(seen.times(("n1", "n2"))).all()
    assert seen.get("n1") is None, "asking is not a report"
    assert seen.take_dirty() == {}


def test_one_node_and_many_are_noted_alike_and_times_come_in_the_order_that_was_asked_for() -> None:
    seen = LastSeenCache()
    seen.note("b", 5.0)
    seen.note_all(("a", "b", "c"), 7.0)
    seen.note("c", 9.0)
    assert [seen.get(name) for name in "abc"] == [7.0, 7.0, 9.0]
    assert seen.times(("c", "a")).tolist() == [9.0, 7.0]
    assert seen.latest() == 9.0


def test_a_large_fleet_has_room_and_keeps_what_came_before() -> None:
    seen = LastSeenCache()
    seen.note("first", 1.0)
    nodes = tuple(f"n{number:05d}" for number in range(5000))
    seen.note_all(nodes, 2.0)
    seen.note_all(nodes[:10], 3.0)
    assert seen.get("first") == 1.0
    assert seen.times(nodes).tolist() == [3.0] * 10 + [2.0] * 4990


def test_a_node_that_reports_all_the_time_is_written_once_in_a_while() -> None:
    seen = LastSeenCache(write_seconds=2.5)
    seen.note_all(("a", "b"), 100.0)
    assert seen.take_dirty() == {"a": 100.0, "b": 100.0}
    assert seen.take_dirty() == {}
    seen.note("a", 102.0)
    assert seen.take_dirty() == {}, "the last time was written 2 s before"
    seen.note("a", 102.5)
    seen.note("b", 101.0)
    assert seen.take_dirty() == {"a": 102.5}
