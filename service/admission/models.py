"""The table of pauses of admission."""

from __future__ import annotations

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class AdmissionPauseRow(Base):
    """Admission of new work to a rack, or to the whole fleet, is paused as long as the row is here."""

    __tablename__ = "admission_pauses"

    rack: Mapped[str] = mapped_column(String(128), primary_key=True)
    """Empty: the whole fleet."""
    reason: Mapped[str] = mapped_column(Text)
    actor: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float] = mapped_column(UnixTime)
