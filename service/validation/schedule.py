"""When a sweep runs next. Two forms: five-field cron text in UTC, or ``every <seconds>s``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

_EVERY = re.compile(r"^every (\d{1,8})s$")


class ScheduleError(ValueError):
    """The text is neither cron nor ``every <seconds>s``; the message names what is wrong."""


def next_run(schedule: str, after: float) -> float:
    """The first time strictly after ``after`` (Unix seconds, UTC) at which the schedule fires.

    Raises:
        ScheduleError: the text is malformed, or describes a moment that never comes.
    """
    if match := _EVERY.match(schedule):
        seconds = int(match.group(1))
        if seconds < 1:
            raise ScheduleError("a sweep cannot run more often than 'every 1s'")
        return after + seconds
    try:
        return next(CronSim(schedule, datetime.fromtimestamp(after, UTC))).timestamp()
    except (CronSimError, StopIteration) as error:
        what = str(error) or "it never fires"
        raise ScheduleError(
            f"schedule {schedule!r} is neither five cron fields nor 'every <seconds>s': {what}"
        ) from None
