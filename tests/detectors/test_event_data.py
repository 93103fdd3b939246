"""What an event's data hold: values of any type, of which only the right ones count."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.event_data import boot_time, number, text, whole_number
from mainstay.probes.core_types import Event, EventKind


@pytest.mark.parametrize(
    ("value", "told", "whole", "words"),
    [
        (3, 3.0, 3, None),
        (-2.5, -2.5, None, None),
        (True, None, None, None),
        ("3", None, None, "3"),
        ("", None, None, None),
        (None, None, None, None),
        ([1], None, None, None),
    ],
)
def test_only_values_of_the_right_type_count(
    value: Any, told: float | None, whole: int | None, words: str | None
) -> None:
    assert (number(value), whole_number(value), text(value)) == (told, whole, words)


@pytest.mark.parametrize(
    ("known", "boot_id", "uptime", "boot"),
    [
        (None, None, None, None),
        (None, "x", None, None),  # the first that is heard of it
        ("x", "x", 5.0, None),
        ("x", "y", None, 100.0),
        ("x", "y", 5.0, 95.0),
        (None, None, 5.0, 95.0),
        (None, None, 0, 100.0),
        ("x", None, -1.0, None),
        ("x", "y", True, 100.0),
        (None, "", 5, 95.0),
    ],
)
def test_which_start_of_the_daemon_is_a_boot(
    known: str | None, boot_id: str | None, uptime: Any, boot: float | None
) -> None:
    data = {"boot_id": boot_id, "uptime": uptime}
    event = Event(id="e", time=100.0, kind=EventKind.NODE_STARTED, node="n", data=data)
    assert boot_time(event, known) == boot
