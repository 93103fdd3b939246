"""Lines of the ranks, with their names; the last ones kept; a reader that stalls stalls only the ranks."""

from __future__ import annotations

import os
import time

import pytest

from mainstay.recovery.node.worker_output import TAIL_LINES, OutputPump, OutputTail


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_lines_get_their_ranks_name(capfd: pytest.CaptureFixture[str]) -> None:
    pump, tail = OutputPump(), OutputTail("standby")
    with pump.open(tail) as (out, err):
        os.write(out, b"before\n")
        wait_for(lambda: tuple(tail.lines) == ("before",))
        tail.label = "rank 3"
        os.write(out, b"half ")
        os.write(out, b"a line\n\nnext\n")
        os.write(err, b"no newline at the end")
    wait_for(lambda: "no newline at the end" in tuple(tail.lines))
    pump.close()
    said = capfd.readouterr()
    assert said.out == "[standby] before\n[rank 3] half a line\n[rank 3] next\n"
    assert said.err == "[rank 3] no newline at the end\n"


def test_stderr_is_not_pushed_out_by_what_a_loop_prints(capfd: pytest.CaptureFixture[str]) -> None:
    pump, tail = OutputPump(), OutputTail("rank 0")
    with pump.open(tail) as (out, err):
        os.write(err, b"Traceback\nValueError: no\n")
        wait_for(lambda: tuple(tail.errors))
        os.write(out, b"".join(b"loss %d\n" % n for n in range(100)))
    wait_for(lambda: tail.pipes == 0)
    pump.close()
    assert tuple(tail.errors) == ("Traceback", "ValueError: no")
    assert "ValueError: no" not in tuple(tail.lines)
    capfd.readouterr()


def test_the_tail_is_bounded_and_survives_bytes_that_are_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    pump, tail = OutputPump(), OutputTail("rank 0")
    with pump.open(tail) as (out, _):
        os.write(out, b"\xff\xfe\n" + b"".join(b"%d\n" % n for n in range(100)) + b"x" * 9000 + b"\n")
    wait_for(lambda: any(line.startswith("x") for line in tuple(tail.lines)))
    pump.close()
    assert len(tuple(tail.lines)) <= TAIL_LINES
    assert "99" in tuple(tail.lines)
    capfd.readouterr()
