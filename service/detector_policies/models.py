"""The table of detector policies. A detector without a row follows the settings of the site."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import CheckConstraint, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class DetectorMode(StrEnum):
    """What findings of a detector may do."""

    DEFAULT = "default"  # as the settings of the site say
    PROPOSE = "propose"  # open incidents and propose remediations, each of which waits for a person
    RECORD = "record"  # are stored and shown, and nothing else


_MODES = ", ".join(f"'{mode}'" for mode in DetectorMode)


class DetectorPolicyRow(Base):
    """The policy of one detector."""

    __tablename__ = "detector_policies"

    detector: Mapped[str] = mapped_column(String(64), primary_key=True)
    mode: Mapped[str] = mapped_column(String(16), default=DetectorMode.DEFAULT.value)
    min_confidence: Mapped[float | None]
    """Least confidence of a finding that proposes a remediation, from 0 to 1; empty: the site's."""
    reason: Mapped[str] = mapped_column(Text, default="")
    changed_by: Mapped[str] = mapped_column(String(200), default="")
    changed_at: Mapped[float] = mapped_column(UnixTime)
    version: Mapped[int] = mapped_column(default=0)
    """Grows with each change; the other half of compare-and-set."""

    __table_args__ = (CheckConstraint(f"mode IN ({_MODES})", name="mode"),)
