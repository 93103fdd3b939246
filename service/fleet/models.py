"""Tables of the fleet: what a node said about itself, and when it last said anything."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from probes.words import HealthState
from service.kit.db import Base, UnixTime

_STATES = tuple(state.value for state in HealthState)


class NodeRow(Base):
    __tablename__ = "nodes"
    __table_args__ = (CheckConstraint(f"state IN {_STATES}", name="state"),)

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    state: Mapped[str] = mapped_column(String(16), default=HealthState.UNKNOWN.value, index=True)
    """Set by ``fleet.service.set_state`` only; silence turns healthy into unknown and back, nothing else."""
    state_reason: Mapped[str] = mapped_column(String(500), default="enrolled, nothing measured yet")
    hostname: Mapped[str] = mapped_column(String(255), default="")
    os: Mapped[str] = mapped_column(String(255), default="")
    kernel: Mapped[str] = mapped_column(String(255), default="")
    version: Mapped[str] = mapped_column(String(64), default="")
    boot_id: Mapped[str] = mapped_column(String(64), default="")
    cohort: Mapped[str] = mapped_column(String(200), default="", index=True)
    cpu_count: Mapped[int] = mapped_column(default=0)
    memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    started_at: Mapped[float | None] = mapped_column(UnixTime)
    first_seen_at: Mapped[float] = mapped_column(UnixTime)
    last_seen_at: Mapped[float | None] = mapped_column(UnixTime, index=True)


class DeviceRow(Base):
    __tablename__ = "devices"

    node: Mapped[str] = mapped_column(ForeignKey("nodes.name", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    """The node's name for it: ``host``, ``gpu0``…"""
    hardware: Mapped[str | None] = mapped_column(String(300), index=True)
    """``uuid:…`` or ``serial:…``: follows the thing itself when it is moved to another node."""
    moved_from: Mapped[str | None] = mapped_column(String(128))
    """The node where the same hardware was seen before."""
    index: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(String(200))
    serial: Mapped[str | None] = mapped_column(String(128))
    uuid: Mapped[str | None] = mapped_column(String(128))
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    present: Mapped[bool]
    """In the node's latest report."""
    first_seen_at: Mapped[float] = mapped_column(UnixTime)
    last_seen_at: Mapped[float] = mapped_column(UnixTime)
