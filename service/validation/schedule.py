"""When a sweep runs next. Two forms: five-field cron text in a time zone, or ``every <seconds>s``."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_EVERY = re.compile(r"^every (\d{1,8})s$")


class ScheduleError(ValueError):
    """The text is neither cron nor ``every <seconds>s``; the message names what is wrong."""


def next_run(schedule: str, after: float, timezone: str = "UTC") -> float:
    """The first time strictly after ``after`` (Unix seconds) at which the schedule fires.

    Cron text is in ``timezone``. At the start of daylight saving time, a time of day that does not exist is the end of
    the gap; at its end, one that comes twice counts once (``CronSim`` does as Debian's cron).

    Raises:
        ScheduleError: the text is malformed, or describes a moment that never comes.
    """
    if match := _EVERY.match(schedule):
        seconds = int(match.group(1))
        if seconds < 1:
            raise ScheduleError("a sweep cannot run more often than 'every 1s'")
        return after + seconds
    try:
        return next(CronSim(schedule, datetime.fromtimestamp(after, ZoneInfo(timezone)))).timestamp()
    except (CronSimError, StopIteration) as error:
        what = str(error) or "it never fires"
        raise ScheduleError(
            f"schedule {schedule!r} is neither five cron fields nor 'every <seconds>s': {what}"
        ) from None
