"""A background loop outlives its faults."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mainstay.service.common.loops import Loop


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_the_same_fault_is_logged_with_its_trace_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop("scan", 1.0, failing(OSError("away")))
    for action in (*[loop.turn] * 3, failing(ValueError("bad")), lambda: None, failing(ValueError("bad"))):
        loop.turn = action
        loop.run_once()
    traced = [(record.message.split(", ")[-1].split(";")[0], bool(record.exc_info)) for record in caplog.records]
    assert traced == [
        ("OSError", True),
        ("OSError", False),
        ("OSError", False),
        ("ValueError", True),
        ("ValueError", True),
    ]
    assert (loop.failures, loop.turns) == (5, 1)
