"""What routes and silences select by: patterns of names, and hours of a week."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from mainstay.service.common.schemas import Text

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS: Final = re.compile(
    r"(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))? (?P<h1>\d{2}):(?P<m1>\d{2})-(?P<h2>\d{2}):(?P<m2>\d{2})"
)


def any_matches(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of the names matches one of the patterns (``*`` and ``?`` as in a shell)."""
    found = list(names)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in found)


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours of a week in local time; ``Mon-Fri 22:00-06:00`` ends on the next day."""

    days: frozenset[int]
    start: int
    """Minutes after midnight."""
    stop: int

    @classmethod
    def parse(cls, text: str) -> Hours:
        """Read ``Mon-Fri 09:00-18:00`` or ``Sat 10:00-12:00``.

        Raises:
            ValueError: it is not of this form.
        """
        found = _HOURS.fullmatch(text.strip().lower())
        days = [] if found is None else [found["first"], found["last"] or found["first"]]
        if found is None or not set(days) <= set(_DAYS):
            raise ValueError(f"{text!r} is not of the form 'Mon-Fri 09:00-18:00'")
        start, stop = (int(found[f"h{n}"]) * 60 + int(found[f"m{n}"]) for n in (1, 2))
        if max(start, stop) > 24 * 60 or start == stop or int(found["m1"]) > 59 or int(found["m2"]) > 59:
            raise ValueError(f"{text!r} names no time of day")
        first, last = map(_DAYS.index, days)
        return cls(frozenset((first + n) % 7 for n in range((last - first) % 7 + 1)), start, stop)

    def contains(self, moment: datetime) -> bool:
        minute, day = moment.hour * 60 + moment.minute, moment.weekday()
        if self.start < self.stop:
            return day in self.days and self.start <= minute < self.stop
        return (day in self.days and minute >= self.start) or ((day - 1) % 7 in self.days and minute < self.stop)


def _check_hours(text: str) -> str:
    Hours.parse(text)
    return text


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone such as Europe/Berlin") from error
    return name


Patterns = Annotated[tuple[Annotated[Text, Field(min_length=1, max_length=200)], ...], Field(max_length=200)]
WeeklyHours = Annotated[str, AfterValidator(_check_hours)]
"""``Mon-Fri 09:00-18:00``."""
TimeZone = Annotated[str, AfterValidator(_check_zone)]
"""``Europe/Berlin``."""
