"""Wire types of the processes of a service."""

from __future__ import annotations

from typing import Literal

from mainstay.service.common.schemas import Output


class ProcessRead(Output):
    """One ``mainstay serve``."""

    id: str
    """Sixteen hexadecimal digits, others at each start."""
    host: str
    pid: int
    url: str
    """Where it is reached from its own host."""
    version: str
    role: str
    """``all``, or ``gateway``: it only accepts what nodes and jobs send."""
    started_at: float
    seen_seconds: float
    """Seconds since its last report."""
    state: Literal["running", "silent", "stopped"]
    """``running``, ``stopped`` (it ended in an orderly way), or ``silent``."""
    pending_frames: int
    """Frames that waited for a commit at its last report."""
    lag_seconds: float
    """How late commits of other processes reached its memory at its last report."""


class LeaseRead(Output):
    """One kind of work that one process does at a time."""

    name: str
    holder: str | None
    """``id`` of the process that does the work; null while no process does."""
    epoch: int
    """Grows with each holder."""
    expires_seconds: float
    """Seconds until another process may take it over; negative where it has expired."""


class ClusterRead(Output):
    """The processes of the service, and which of them does what."""

    shared: bool
    """Whether several processes can share the work: on PostgreSQL."""
    processes: list[ProcessRead]
    leases: list[LeaseRead]
