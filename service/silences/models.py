"""The table of silences."""

from __future__ import annotations

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime
from mainstay.service.silences.matching import Silence


class SilenceRow(Base):
    __tablename__ = "silences"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    actor: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float] = mapped_column(UnixTime)
    starts_at: Mapped[float] = mapped_column(UnixTime)
    ends_at: Mapped[float] = mapped_column(UnixTime)
    """Brought forward when a person ends it early."""
    ended_by: Mapped[str | None] = mapped_column(String(200))
    """Who ended it early."""
    hours: Mapped[str | None] = mapped_column(String(32))
    timezone: Mapped[str] = mapped_column(String(64))
    detectors: Mapped[list[str]]
    kinds: Mapped[list[str]]
    nodes: Mapped[list[str]]
    racks: Mapped[list[str]]
    switches: Mapped[list[str]]
    cohorts: Mapped[list[str]]
    jobs: Mapped[list[str]]

    __table_args__ = (Index(None, "ends_at", "id"), Index(None, "created_at", "id"))

    @property
    def silence(self) -> Silence:
        lists = ("detectors", "kinds", "nodes", "racks", "switches", "cohorts", "jobs")
        return Silence(
            id=self.id, starts_at=self.starts_at, ends_at=self.ends_at, hours=self.hours, timezone=self.timezone,
            **{name: tuple(getattr(self, name)) for name in lists},
        )  # fmt: skip
