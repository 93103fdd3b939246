"""Plans of the Selector as they were made: what was to run, and why each benchmark was in or out."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class SelectionTrigger(StrEnum):
    """Reason for the request."""

    JOB = "job"  # a job is about to be placed on these nodes
    ADDED = "added"  # the nodes are new
    REPAIR = "repair"  # they come back from a repair
    INCIDENT = "incident"  # something happened to them
    PERIODIC = "periodic"
    MANUAL = "manual"


_TRIGGERS = ", ".join(f"'{trigger}'" for trigger in SelectionTrigger)


class SelectionRow(Base):
    """One decision. Never changed."""

    __tablename__ = "selections"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    created_at: Mapped[float] = mapped_column(UnixTime)
    trigger: Mapped[str] = mapped_column(String(16))
    suite: Mapped[str] = mapped_column(String(200))
    nodes: Mapped[list[str]]
    run_on: Mapped[list[str]]
    """The nodes to run something on; the others may start as they are."""
    job_hours: Mapped[float]
    target_risk: Mapped[float]
    worth_node_hours: Mapped[float | None]
    remeasure: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often what fails is to be measured again."""
    record: Mapped[dict[str, Any]]
    """``detectors.selector.audit.PlanRecord`` as JSON, with each node's set and the ordered validations."""

    __table_args__ = (CheckConstraint(f"trigger IN ({_TRIGGERS})", name="trigger"), Index(None, "created_at", "id"))
