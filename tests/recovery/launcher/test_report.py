"""What is told of a rank that ended."""

from __future__ import annotations

import pytest

from recovery.launcher.membership import Rank
from recovery.launcher.messages import Exited
from recovery.launcher.report import exit_data


@pytest.mark.parametrize(
    ("ended_by_us", "code", "signal", "expected"),
    [
        (False, 1, None, False),
        (False, None, 9, False),
        (True, None, 9, True),
        (True, 0, None, True),
        (True, 1, None, False),  # it failed by itself while the news of another rank's end was on its way
    ],
)
def test_only_what_we_ended_was_expected(
    ended_by_us: bool, code: int | None, signal: int | None, expected: bool
) -> None:
    message = Exited(rank=1, pid=7, exit_code=code, signal=signal, expected=ended_by_us, time=5.0)
    assert exit_data(Rank(1, "n0"), message)["expected"] is expected
