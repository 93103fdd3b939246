"""When the reliability report is sent, and to whom. Pure: no database, no clock."""

from __future__ import annotations

import hashlib
from datetime import datetime, time, timedelta
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field

from mainstay.service.common.schemas import Name
from mainstay.service.common.selectors import TimeZone

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


class ReportSchedule(BaseModel):
    """The table ``[report]``: one report a week."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    receivers: Annotated[tuple[Name, ...], Field(min_length=1, max_length=20)]
    """E-mail receivers."""
    day: Day = "monday"
    hour: Annotated[int, Field(ge=0, le=23, strict=True)] = 8
    """In local time."""
    timezone: TimeZone = "UTC"
    days: Annotated[int, Field(ge=1, le=100, strict=True)] = 7
    """Time that the report covers, up to the moment when it is due."""

    def last_due(self, now: float) -> datetime:
        """The newest moment of the schedule, in local time, that is not after ``now`` (Unix seconds)."""
        zone = ZoneInfo(self.timezone)
        today = datetime.fromtimestamp(now, zone).date()
        date = today - timedelta(days=(today.weekday() - get_args(Day).index(self.day)) % 7)
        due = datetime.combine(date, time(self.hour), zone)
        return due if due.timestamp() <= now else datetime.combine(date - timedelta(days=7), time(self.hour), zone)

    def describe(self) -> str:
        """Such as ``Monday 08:00 Europe/Berlin, 7 days, to ops-mail``."""
        return f"{self.day.title()} {self.hour:02}:00 {self.timezone}, {self.days} days, to {', '.join(self.receivers)}"


def message_id(receiver: str, due: datetime) -> str:
    """The same for one receiver and one ISO week, however the schedule changes: no week has two reports."""
    year, week, _ = due.isocalendar()
    return f"report-{year}-W{week:02}-{hashlib.sha256(receiver.encode()).hexdigest()[:16]}"
