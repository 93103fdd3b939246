"""Tables of the fleet: what a node said about itself, who moved it and why, and where its hardware has been."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.probes.core_types import HealthState
from mainstay.service.common.db import Base, UnixTime
from mainstay.service.fleet.lifecycle import Owner

_STATES = tuple(state.value for state in HealthState)
_OWNERS = tuple(owner.value for owner in Owner)
MACHINE = "mainstay"
"""The machine's own name as an actor."""


class NodeRow(Base):
    __tablename__ = "nodes"
    __table_args__ = (
        CheckConstraint(f"state IN {_STATES}", name="state"),
        CheckConstraint(f"owner IN {_OWNERS}", name="owner"),
        # With the name: a search for spares walks the healthy nodes in order and ends when it has enough.
        Index(None, "state", "name"),
    )

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    state: Mapped[str] = mapped_column(String(16), default=HealthState.UNKNOWN.value)
    """Written by ``fleet.moves`` only, by compare-and-set on (state, state_version)."""
    state_reason: Mapped[str] = mapped_column(String(500), default="enrolled, nothing measured yet")
    state_version: Mapped[int] = mapped_column(default=0)
    """Grows with every move; the other half of compare-and-set."""
    state_since: Mapped[float | None] = mapped_column(UnixTime)
    """Empty until the first move."""
    owner: Mapped[str] = mapped_column(String(16), default=Owner.SYSTEM.value)
    """Who decided the state."""
    actor: Mapped[str] = mapped_column(String(200), default=MACHINE)
    """Name of the token that asked for it, or our own."""
    drain_deadline_at: Mapped[float | None] = mapped_column(UnixTime)
    """Draining only: quarantined by then even if work is left on it."""
    validation_id: Mapped[str | None] = mapped_column(String(36))
    """Validating only: the validation whose end it waits for."""
    hostname: Mapped[str] = mapped_column(String(255), default="")
    os: Mapped[str] = mapped_column(String(255), default="")
    kernel: Mapped[str] = mapped_column(String(255), default="")
    version: Mapped[str] = mapped_column(String(64), default="")
    boot_id: Mapped[str] = mapped_column(String(64), default="")
    cohort: Mapped[str] = mapped_column(String(200), default="", index=True)
    cpu_count: Mapped[int] = mapped_column(default=0)
    gpus: Mapped[int] = mapped_column(default=0, server_default="0")
    """GPUs in its latest report, as ``devices`` has them present: the gate asks it of a thousand nodes at once."""
    memory_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    rack: Mapped[str] = mapped_column(String(200), default="", index=True)
    """Failure domain that shares power and a switch; empty when not reported."""
    switches: Mapped[list[str]] = mapped_column(JSON(none_as_null=True), default=list, server_default="[]")
    """The network switches above it, nearest first; empty when not reported."""
    power_domain: Mapped[str] = mapped_column(String(200), default="", server_default="", index=True)
    """The PDU, busway, or UPS that feeds it; empty when not reported."""
    booted_at: Mapped[float | None] = mapped_column(UnixTime)
    stopped_at: Mapped[float | None] = mapped_column(UnixTime)
    """When its daemon sent a shutdown notice; until the node reports again, its silence is expected."""
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
    previous_node: Mapped[str | None] = mapped_column(String(128))
    """The node where the same hardware was seen before."""
    index: Mapped[int]
    kind: Mapped[str] = mapped_column(String(16))
    model: Mapped[str] = mapped_column(String(200))
    serial: Mapped[str | None] = mapped_column(String(128))
    uuid: Mapped[str | None] = mapped_column(String(128))
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    facts: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    present: Mapped[bool]
    """In the node's latest report."""
    first_seen_at: Mapped[float] = mapped_column(UnixTime)
    last_seen_at: Mapped[float] = mapped_column(UnixTime)


class TransitionRow(Base):
    """One transition of a node. Never changed."""

    __tablename__ = "node_transitions"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name", ondelete="CASCADE"))
    version: Mapped[int]
    """The node's ``state_version`` after it."""
    time: Mapped[float] = mapped_column(UnixTime)
    trigger: Mapped[str] = mapped_column(String(16))
    from_state: Mapped[str] = mapped_column(String(16))
    to_state: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str] = mapped_column(String(16))
    actor: Mapped[str] = mapped_column(String(200))
    reason: Mapped[str] = mapped_column(String(500))
    incident: Mapped[str | None] = mapped_column(String(36))

    __table_args__ = (
        UniqueConstraint("node", "version"),
        Index(None, "node", "time", "id"),
        Index(None, "time"),
    )


class DeviceLocationRow(Base):
    """Where a piece of hardware sat, and for how long: an unbroken stay under one name on one node."""

    __tablename__ = "device_locations"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    hardware: Mapped[str] = mapped_column(String(300))
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name", ondelete="CASCADE"))
    device: Mapped[str] = mapped_column(String(128))
    first_seen_at: Mapped[float] = mapped_column(UnixTime)
    last_seen_at: Mapped[float] = mapped_column(UnixTime)
    """In a report of its node."""
    left_at: Mapped[float | None] = mapped_column(UnixTime)
    """When a report came without it; empty while it is there."""

    __table_args__ = (Index(None, "hardware", "first_seen_at"), Index(None, "node", "left_at"))
