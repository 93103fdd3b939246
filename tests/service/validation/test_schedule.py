"""When sweeps run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainstay.service.validation.schedule import ScheduleError, next_run

NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC).timestamp()


def test_every() -> None:
    assert next_run("every 3600s", NOON) == NOON + 3600


def test_cron_is_utc_and_strictly_later() -> None:
    assert next_run("0 12 * * *", NOON) == NOON + 86_400
    assert next_run("*/5 * * * *", NOON) == NOON + 300


@pytest.mark.parametrize(
    "text", ["", "every 0s", "every -1s", "every 5 s", "* * *", "0 0 31 2 *", "61 * * * *", "x" * 200]
)
def test_nonsense_is_refused_in_words(text: str) -> None:
    with pytest.raises(ScheduleError, match=r"schedule|often"):
        next_run(text, NOON)
