"""Versions of the policy, and differences of the shadow."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import CheckConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime, partial


class VersionMode(StrEnum):
    """The mode of a version. At most one version is active, and at most one is the shadow."""

    DRAFT = "draft"  # stored, evaluates nothing
    SHADOW = "shadow"  # runs beside the active one on the same events; opens no incident
    ACTIVE = "active"
    RETIRED = "retired"


_MODES = ", ".join(f"'{mode}'" for mode in VersionMode)


def _only_one(mode: VersionMode) -> Index:
    return Index(f"ix_policy_versions_{mode}", "mode", unique=True, **partial(f"mode = '{mode}'"))


class PolicyVersionRow(Base):
    """Overrides of a site, as uploaded; the text of a version never changes."""

    __tablename__ = "policy_versions"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    mode: Mapped[str] = mapped_column(String(16))
    overrides: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(UnixTime)
    actor: Mapped[str] = mapped_column(String(200))
    reason: Mapped[str] = mapped_column(Text)
    changed_at: Mapped[float] = mapped_column(UnixTime)
    """When it came into its mode, by whom and why."""
    changed_by: Mapped[str] = mapped_column(String(200))
    changed_reason: Mapped[str] = mapped_column(Text)

    __table_args__ = (
        CheckConstraint(f"mode IN ({_MODES})", name="mode"),
        _only_one(VersionMode.ACTIVE),
        _only_one(VersionMode.SHADOW),
        {"sqlite_autoincrement": True},
    )


class PolicyShadowRow(Base):
    """One event for which the findings of the shadow and of the active policy differ."""

    __tablename__ = "policy_shadow"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    time: Mapped[float] = mapped_column(UnixTime)
    version: Mapped[int]
    event_id: Mapped[str] = mapped_column(String(36))
    node: Mapped[str] = mapped_column(String(128))
    device: Mapped[str | None] = mapped_column(String(128))
    code: Mapped[int]
    live: Mapped[str] = mapped_column(Text)
    shadow: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index(None, "time", "id"),)
