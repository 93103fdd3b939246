"""Recorded traces in three forms; each bad line is named with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.lib_traces import read_intervals, read_polls
from mainstay.recovery.simulate.traces import TraceChange, TraceError, read_changes


def write(folder: Path, text: str) -> Path:
    file = folder / "trace.txt"
    file.write_text(text)
    return file


def test_changes_are_read_in_seconds(tmp_path) -> None:
    file = write(tmp_path, "0,add,a\n0,add,b\n\n1500,remove,a\n")
    assert read_changes(file) == (
        TraceChange(0.0, "add", "a"),
        TraceChange(0.0, "add", "b"),
        TraceChange(1.5, "remove", "a"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,add\n", "line 1: fields: expected milliseconds,add|remove,node, not 2 fields"),
        ("0,add,a\nx,add,b\n", "line 2: milliseconds: expected a number from 0 to 1e+15, not 'x'"),
        ("nan,add,a\n", "line 1: milliseconds: expected a number from 0 to 1e+15, not 'nan'"),
        ("-1,add,a\n", "line 1: milliseconds: expected a number from 0 to 1e+15, not '-1'"),
        ("0,join,a\n", "line 1: event: expected add or remove, not 'join'"),
        ("0,add,\n", "line 1: node: is empty"),
        ("0,add,a\n0,add,a\n", "line 2: node: 'a' is already there"),
        ("0,remove,a\n", "line 1: node: 'a' is not there"),
        ("5,add,a\n4,add,b\n", "line 2: milliseconds: 4 is before the line above"),
        ("1e18,add,a\n", "line 1: milliseconds: expected a number from 0 to 1e+15, not '1e18'"),
        (f"0,{'j' * 999},a\n", f"line 1: event: expected add or remove, not '{'j' * 171}..."),
        ("0,remove,\x1b[31m\n", "line 1: node: '\\x1b[31m' is not there"),
        ("\n", "no events"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, said) -> None:
    file = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        read_changes(file)
    assert str(error.value) == f"{file}: {said}"


def test_polls_become_changes(tmp_path) -> None:
    dated = write(tmp_path, "2021-12-11, 11:11:30, 2\n2021-12-11, 11:13:10, 2\n2021-12-11, 11:14:50, 1\n")
    assert [(c.at_s, c.kind, c.node) for c in read_polls(dated)] == [
        (0.0, "add", "node0"), (0.0, "add", "node1"), (200.0, "remove", "node1"),
    ]  # fmt: skip
    hours = write(tmp_path, "0.000,1\n1.5,3\n")
    assert [c.at_s for c in read_polls(hours, 3600.0)] == [0.0, 5400.0, 5400.0]


def test_recordings_that_were_strung_together_keep_their_order(tmp_path) -> None:
    file = write(tmp_path, "10,1\n4,2\n12,0\n")
    assert [c.at_s for c in read_polls(file)] == [10.0, 10.0, 12.0, 12.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1\n", "line 1: fields: expected date, time, count or time,count, not 1 fields"),
        ("2021-13-11, 11:11:30, 2\n", "line 1: date: expected YYYY-MM-DD, HH:MM:SS, not '2021-13-11', '11:11:30'"),
        ("0,1.5\n", "line 1: count: expected a whole number of at most 1,000,000, not '1.5'"),
        ("0,1e12\n", "line 1: count: expected a whole number of at most 1,000,000, not '1e12'"),
        ("0,many\n", "line 1: count: expected a number from 0 to 1e+15, not 'many'"),
    ],
)
def test_a_bad_poll_is_named(tmp_path, text, said) -> None:
    file = write(tmp_path, text)
    with pytest.raises(TraceError) as error:
        read_polls(file)
    assert str(error.value) == f"{file}: {said}"


CHOSEN = {"throughput_opt_strategy": [2, 1], "liveput_truth_strategy": [1, 2], "liveput_predict_strategy": [1, 1]}


def interval(at: int, event: str, *nodes: str, **more: object) -> str:
    return json.dumps([at, event, {"nodes": list(nodes), "duration": 60000, **CHOSEN, **more}])


def test_slices_are_counted(tmp_path) -> None:
    lines = [interval(0, "add", "a", "b"), interval(60000, "no-op"), interval(120000, "remove", "a")]
    read = read_intervals(write(tmp_path, "\n".join(lines)))
    assert [(i.at_s, i.nodes, i.added, i.removed) for i in read] == [(0, 2, 2, 0), (60, 2, 0, 0), (120, 1, 0, 1)]
    assert read[0].chosen == ((2, 1), (1, 2), (1, 1))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line: is not JSON"),
        ("[" + "9" * 5000 + "]", "line: is not JSON"),
        ("[1, 2]", "line: expected [milliseconds, event, {...}]"),
        (interval(60000, "remove", "z"), "nodes: 'z' is not there"),
        (interval(60000, "add", "a"), "nodes: 'a' is already there"),
        (interval(60000, "leave", "a"), "event: expected add or remove with nodes, not 'leave'"),
        (interval(0, "add", "b"), "time: 0 is not after the line above"),
        (
            interval(60000, "no-op", liveput_truth_strategy=[0, 4]),
            "liveput_truth_strategy: expected [dp, pp], not [0, 4]",
        ),
        (interval(60000, "no-op", nodes=7), "nodes: expected a list of names"),
    ],
)
def test_a_bad_interval_is_named(tmp_path, line, said) -> None:
    file = write(tmp_path, interval(0, "add", "a") + "\n" + line + "\n")
    with pytest.raises(TraceError) as error:
        read_intervals(file)
    assert str(error.value) == f"{file}: line 2: {said}"


def test_what_cannot_be_read_is_said(tmp_path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_changes(tmp_path / "none")
    file = tmp_path / "bytes"
    file.write_bytes(b"0,add,a\xff\n")
    with pytest.raises(TraceError, match=r"not UTF-8 text \(byte 7\)"):
        read_changes(file)
